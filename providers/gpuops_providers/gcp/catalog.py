"""Prices from the Cloud Billing Catalog: a machine is the sum of its SKUs for cores, memory, accelerators and local disks.

List prices, without discounts of the account. SKUs are told apart by usage type, region and the words of their description;
the words are not confirmed on a real account for every series. Where two SKUs fit, the dearer one counts; where none fits, the
machine is not offered. Source: cloud.google.com/billing/docs/reference/rest/v1/services.skus/list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gpuops.errors import ProviderError
from gpuops.values import Time

from .prices import HOURS_PER_MONTH, LOCAL_SSD_GB, Shape

SERVICE = "6F81-5844-456A"
"""Compute Engine in the catalog; not confirmed."""

USAGE = {"standard": "OnDemand", "spot": "Preemptible"}
PAGE = "5000"
MOST_PAGES = 50

SERIES = {
    "a2": "A2",
    "a3-highgpu": "A3",
    "a3-megagpu": "A3Plus",
    "a3-ultragpu": "A3Ultra",
    "a4": "A4",
    "g2": "G2",
    "g4": "G4",
    "n1": "N1 Predefined",
}
"""Beginning of a machine type → what its SKUs are called; the longest beginning counts."""

ACCELERATORS = {
    "nvidia-l4": "Nvidia L4",
    "nvidia-tesla-t4": "Nvidia Tesla T4",
    "nvidia-tesla-v100": "Nvidia Tesla V100",
    "nvidia-tesla-p100": "Nvidia Tesla P100",
    "nvidia-tesla-p4": "Nvidia Tesla P4",
    "nvidia-tesla-a100": "Nvidia Tesla A100",
    "nvidia-a100-80gb": "Nvidia Tesla A100 80GB",
    "nvidia-h100-80gb": "Nvidia H100 80GB",
    "nvidia-h100-mega-80gb": "Nvidia H100 80GB Mega",
    "nvidia-h200-141gb": "Nvidia H200 141GB",
    "nvidia-b200": "Nvidia B200",
    "nvidia-rtx-pro-6000": "Nvidia RTX PRO 6000 96GB",
}
DISKS = {
    "pd-standard": "Storage PD Capacity",
    "pd-balanced": "Balanced PD Capacity",
    "pd-ssd": "SSD backed PD Capacity",
    "hyperdisk-balanced": "Hyperdisk Balanced Capacity",
}
_SPOT = r"(Spot Preemptible )?"
_TO_SPOT = r"( attached to (Spot )?Preemptible VMs)?"
_WHERE = r"( (running )?in .+)?"
_ANYWHERE = "global"


@dataclass(frozen=True, slots=True)
class Sku:
    """One row of the catalog, as far as it is used."""

    description: str
    usage: str
    regions: tuple[str, ...]
    per_hour: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog as it was read at `read_at`."""

    skus: tuple[Sku, ...]
    read_at: Time

    @property
    def currency(self) -> str:
        """The catalog is asked for US dollars."""
        return "USD"

    def source(self, now: Time) -> str:
        """List prices: what an account has agreed on may be lower."""
        minutes = max(0, int((now - self.read_at) // 60))
        return f"Cloud Billing Catalog, list prices, read {minutes} minutes ago"

    def machine(self, shape: Shape, region: str, model: str) -> Decimal | None:
        """The sum of its parts, or None when one of them has no price."""
        prefix = max((key for key in SERIES if shape.name.startswith(key)), key=len, default="")
        series = SERIES.get(prefix)
        accelerator = ACCELERATORS.get(shape.accelerator)
        if series is None or (shape.accelerators and accelerator is None):
            return None
        words = re.escape(series)
        parts = [
            (shape.cores, rf"{_SPOT}{words} Instance Core{_WHERE}"),
            (shape.memory_gib, rf"{_SPOT}{words} Instance Ram{_WHERE}"),
            (shape.accelerators, rf"{re.escape(accelerator or '')} GPU{_TO_SPOT}{_WHERE}"),
            (shape.local_ssds * LOCAL_SSD_GB, rf"SSD backed Local Storage{_TO_SPOT}{_WHERE}"),
        ]
        total = Decimal(0)
        for amount, pattern in parts:
            if not amount:
                continue
            each = self._dearest(pattern, region, model)
            if each is None:
                return None
            total += each * Decimal(str(amount))
        return total

    def disk(self, kind: str, region: str) -> Decimal | None:
        """Capacity only: throughput beyond what comes with it is never ordered."""
        words = DISKS.get(kind)
        return self._dearest(rf"{re.escape(words)}{_WHERE}", region, "standard") if words else None

    def address(self, region: str, model: str) -> Decimal | None:
        """Without a SKU of its own an address of a spot machine costs the standard price."""
        own = (
            self._dearest(rf"External IP Charge on a Spot Preemptible VM{_WHERE}", region, model)
            if model == "spot"
            else None
        )
        return (
            own
            if own is not None
            else self._dearest(rf"External IP Charge on a Standard VM{_WHERE}", region, "standard")
        )

    def _dearest(self, pattern: str, region: str, model: str) -> Decimal | None:
        fits = re.compile(pattern, re.IGNORECASE).fullmatch
        found = [
            sku.per_hour
            for sku in self.skus
            if sku.usage == USAGE[model] and {region, _ANYWHERE} & set(sku.regions) and fits(sku.description)
        ]
        return max(found, default=None)


def read(get: Callable[[dict[str, str]], Mapping[str, Any]], now: Callable[[], Time]) -> Catalog:
    """Read the whole catalog of Compute Engine, page by page; `get` sends one call with these parameters."""
    skus: list[Sku] = []
    token = ""
    for _ in range(MOST_PAGES):
        page = get({"pageSize": PAGE, "currencyCode": "USD", **({"pageToken": token} if token else {})})
        skus += _understood(page.get("skus") or ())
        token = str(page.get("nextPageToken") or "")
        if not token:
            return Catalog(tuple(skus), now())
    raise ProviderError(f"the price catalog did not end after {MOST_PAGES} pages")


def _understood(rows: Iterable[Any]) -> list[Sku]:
    """The rows that have a price per hour or month; others, such as commitments, are none of ours."""
    found = []
    for row in rows:
        try:
            usage = str(row["category"]["usageType"])
            expression = row["pricingInfo"][-1]["pricingExpression"]
            price = max(_amount(tier["unitPrice"]) for tier in expression["tieredRates"])
            unit, currency = (
                str(expression["usageUnit"]),
                str(expression["tieredRates"][0]["unitPrice"]["currencyCode"]),
            )
            regions = tuple(map(str, row["serviceRegions"]))
        except (KeyError, IndexError, TypeError, ValueError, InvalidOperation):
            continue
        hours = {"h": 1, "GiBy.h": 1, "GiBy.mo": HOURS_PER_MONTH}.get(unit)
        if usage in USAGE.values() and hours and currency == "USD":
            found.append(Sku(str(row.get("description", "")), usage, regions, price / hours, currency))
    return found


def _amount(price: Mapping[str, Any]) -> Decimal:
    return Decimal(str(price.get("units") or 0)) + Decimal(int(price.get("nanos") or 0)) / Decimal(10**9)
