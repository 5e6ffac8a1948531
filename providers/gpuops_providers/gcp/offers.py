"""Offers: machine types with accelerators, zone by zone, each as a standard and as a spot offer.

The id of an offer says everything that the create call needs: `g2-standard-4/us-central1-a/standard`, and for accelerators that
are attached `n1-standard-8+nvidia-tesla-t4x1/us-central1-a/spot`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuops.values import Device, Money, Need, Offer, Time

from . import marks, words
from .places import covers, last, region_of
from .prices import Prices, Shape
from .settings import Settings

BILLING_UNIT_S = 60
"""Billed by the second after a first minute (cloud.google.com/compute/vm-instance-pricing); the dearer reading stands here."""

PRODUCT = re.compile(r"([a-z0-9-]+)(?:\+([a-z0-9-]+)x(\d+))?/([a-z0-9-]+)/(standard|spot)")
IMAGE_TERM = "image"


@dataclass(frozen=True, slots=True)
class Product:
    """What an offer's id names."""

    machine_type: str
    accelerator: str
    accelerators: int
    """How many are attached; 0 where they come with the machine type."""
    zone: str
    model: str

    def __str__(self) -> str:
        attached = f"+{self.accelerator}x{self.accelerators}" if self.accelerators else ""
        return f"{self.machine_type}{attached}/{self.zone}/{self.model}"


def product(offer_id: str) -> Product | None:
    """The product of an offer's id; None when it is none of ours."""
    match = PRODUCT.fullmatch(offer_id)
    return Product(match[1], match[2] or "", int(match[3] or 0), match[4], match[5]) if match else None


def shapes(machine_types: Iterable[Any], accelerator_types: Iterable[Any]) -> Iterator[tuple[str, Shape]]:
    """(zone, shape) of everything with accelerators that the vendor lists."""
    n1: dict[tuple[str, str], Any] = {}
    for machine in machine_types:
        zone = last(machine.zone)
        if machine.name.startswith("n1-"):
            n1[zone, machine.name] = machine
        elif machine.accelerators and not machine.deprecated.state:
            comes = machine.accelerators[0]
            yield zone, _shape(machine, comes.guest_accelerator_type, comes.guest_accelerator_count)
    for accelerator in accelerator_types:
        if accelerator.name not in words.ATTACHED or accelerator.deprecated.state:
            continue
        zone = last(accelerator.zone)
        for count, names in words.N1_FOR.items():
            for name in names:
                if count <= accelerator.maximum_cards_per_instance and (zone, name) in n1:
                    yield zone, _shape(n1[zone, name], accelerator.name, count, included=False)


def _shape(machine: Any, accelerator: str, count: int, *, included: bool = True) -> Shape:
    ssds = machine.bundled_local_ssds.partition_count if machine.bundled_local_ssds else 0
    memory_gib = machine.memory_mb / 1024
    return Shape(machine.name, machine.guest_cpus, memory_gib, accelerator, count, included, ssds)


def fits(zone: str, shape: Shape, need: Need, settings: Settings) -> bool:
    """Whether a shape in a zone is what was asked for; a device is matched by letters and digits only."""
    wanted = _letters(need.device)
    name, _ = device(shape.accelerator)
    return (
        covers(settings.zones, zone)
        and (need.region is None or covers((need.region,), zone))
        and need.count == shape.accelerators
        and (wanted in ("", "any") or wanted in _letters(name) or wanted in _letters(shape.accelerator))
    )


def device(accelerator: str) -> tuple[str, float]:
    """Name and memory of an accelerator; one that is new is called as the vendor calls it."""
    return words.DEVICES.get(accelerator, (accelerator, 0))


def identify(zone: str, shape: Shape, model: str) -> Product:
    """The product of a shape."""
    attached = "" if shape.included else shape.accelerator
    return Product(shape.name, attached, 0 if shape.included else shape.accelerators, zone, model)


def wanted(what: Product, need: Need, settings: Settings) -> bool:
    """An offer that is named is found whatever the settings say; otherwise they say which markets are offered."""
    return str(what) == need.offer if need.offer is not None else what.model in settings.provisioning


def disk_gb(disk: float, settings: Settings) -> int:
    """Size of the boot disk: what was asked for, and what images with a driver need at least."""
    return max(math.ceil(disk), settings.boot_disk_gb)


def hourly(prices: Prices, shape: Shape, what: Product, disk: int, settings: Settings) -> Money | None:
    """Everything that the create call starts to bill: machine, boot disk and external address. None: a price is missing."""
    region, model = region_of(what.zone), what.model
    kind = settings.boot_disk_type or words.boot_disk_type(shape.name)
    address = prices.address(region, model) if settings.address == "external" else Decimal(0)
    parts = (prices.machine(shape, region, model), prices.disk(kind, region), address)
    if any(part is None for part in parts):
        return None
    machine, gib, where = (part or Decimal(0) for part in parts)
    return marks.exact(Money(machine + gib * disk + where, prices.currency))


def offer(
    account: str, shape: Shape, what: Product, rate: Money, source: str, now: Time, terms: Mapping[str, str]
) -> Offer:
    """The contract's value."""
    name, memory_gb = device(shape.accelerator)
    return Offer(
        id=str(what), provider="gcp", account=account, region=what.zone, product=shape.name,
        device=Device(name, shape.accelerators, memory_gb), rate=rate, billing_unit_s=BILLING_UNIT_S, observed_at=now,
        source=source, terms={**_terms(what.model), **terms},
    )  # fmt: skip


def _terms(model: str) -> dict[str, str]:
    shared = {
        "billing": "by the second, at least a minute",
        "stopped": "disks bill on",
        "traffic": "what leaves the cloud costs extra",
    }
    if model == "spot":
        return {"market": "spot: may be taken away at any time, with seconds of notice; it is then deleted", **shared}
    return {"market": "standard: stays until it is ended; needs GPU quota", **shared}


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())
