"""Prices from a dated table that the user keeps: a TOML file, for those who have no API key for the Cloud Billing Catalog.

    observed = 2026-11-30
    source = "https://cloud.google.com/compute/all-pricing"
    currency = "USD"

    [regions.us-central1.machine]          # per hour, with the accelerators that come with it
    g2-standard-4 = { standard = "0.71", spot = "0.28" }
    [regions.us-central1.accelerator]      # per hour and device, for those that are attached to N1
    nvidia-tesla-t4 = { standard = "0.35", spot = "0.14" }
    [regions.us-central1.disk]             # per GiB and month
    pd-balanced = "0.10"
    [regions.us-central1.address]          # per hour of an external address
    standard = "0.005"

A figure that is missing there is never guessed: what needs it is not offered.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Protocol

from gpuops.errors import UsageError
from gpuops.values import Time

HOURS_PER_MONTH = 730
LOCAL_SSD_GB = 375
"""Size of one local SSD (cloud.google.com/compute/docs/disks/local-ssd)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a machine type has a price."""

    name: str
    cores: int
    memory_gib: float
    accelerator: str = ""
    accelerators: int = 0
    included: bool = True
    """The accelerators come with the machine type; otherwise they are attached to it."""
    local_ssds: int = 0


class Prices(Protocol):
    """Where prices come from; None for what is not known there. `model` is standard or spot."""

    @property
    def currency(self) -> str:
        """The currency of every price."""
        ...

    def source(self, now: Time) -> str:
        """Where from and how old, for `Offer.source`."""
        ...

    def machine(self, shape: Shape, region: str, model: str) -> Decimal | None:
        """Per hour, with its accelerators."""
        ...

    def disk(self, kind: str, region: str) -> Decimal | None:
        """Per GiB and hour."""
        ...

    def address(self, region: str, model: str) -> Decimal | None:
        """Per hour of one external address."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """The user's own table, read."""

    path: str
    observed: date
    origin: str
    currency: str
    regions: Mapping[str, Any]

    def source(self, now: Time) -> str:
        """With its age, since a price that was written down once goes stale without a word."""
        days = (datetime.fromtimestamp(now, UTC).date() - self.observed).days
        return f"price table {self.path} of {self.observed} ({days} days old), from {self.origin}"

    def machine(self, shape: Shape, region: str, model: str) -> Decimal | None:
        """One row for the machine, one more for accelerators that are attached."""
        base = self._find(region, "machine", shape.name, model)
        if base is None or shape.included or not shape.accelerators:
            return base
        each = self._find(region, "accelerator", shape.accelerator, model)
        return None if each is None else base + each * shape.accelerators

    def disk(self, kind: str, region: str) -> Decimal | None:
        """The month's price spread over its hours."""
        month = self._find(region, "disk", kind)
        return None if month is None else month / HOURS_PER_MONTH

    def address(self, region: str, model: str) -> Decimal | None:
        """As written; without a price of its own an address of a spot machine costs the standard price."""
        own = self._find(region, "address", model)
        return self._find(region, "address", "standard") if own is None else own

    def _find(self, region: str, *keys: str) -> Decimal | None:
        value: Any = self.regions.get(region)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None or isinstance(value, Mapping):
            return None
        try:
            price = Decimal(str(value))
        except InvalidOperation:
            price = Decimal("NaN")
        if not price.is_finite() or price < 0:
            raise _wrong(self.path, f"{region}.{'.'.join(keys)} = {value!r} is not a price")
        return price


def read(path: Path) -> Table:
    """Read a table. Raises `UsageError` when it is not there or not understood."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _wrong(str(path), str(error)) from error
    observed, regions = document.get("observed"), document.get("regions")
    if isinstance(observed, datetime):
        observed = observed.date()
    if not isinstance(observed, date):
        raise _wrong(str(path), "observed = DATE is missing: a price without a day is worth nothing")
    if not isinstance(regions, dict):
        raise _wrong(str(path), "there is no table [regions.REGION.machine]")
    origin, currency = str(document.get("source", "the user")), str(document.get("currency", "USD"))
    return Table(str(path), observed, origin, currency, regions)


def _wrong(path: str, text: str) -> UsageError:
    return UsageError(f"price table {path}: {text}", next_command=f"mend {path}; docs/how-to/gcp.md shows its form")
