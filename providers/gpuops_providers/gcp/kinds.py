"""Everything that can bill in a project and that this adapter lists, looks at and ends: one row per kind.

Not covered, and said so in docs/how-to/gcp.md: see `NOT_COVERED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .places import GLOBAL, is_zone

RENTAL, VOLUME, FILESTORE, NAT, COMMITMENT = "rental", "volume", "filestore", "router-nat", "commitment"
NOT_COVERED = (
    "Cloud Storage buckets", "TPU nodes", "load balancers and VPN", "storage pools", "instant and regional snapshots",
    "sole-tenant nodes", "Cloud Logging", "Kubernetes and Vertex AI beyond their machines and disks", "network traffic",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind is listed, read and deleted. `bills` says for what an item bills; empty for one that is free."""

    name: str
    service: str
    """The vendor's client, for what lies where this kind usually lies."""
    items: str
    """The field of an aggregated list's scope that holds the items; empty where the kind has one plain list."""
    resource: str
    """What requests call it."""
    bills: Callable[[Any], tuple[str, ...]]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """zone, region or global → the client for those that lie there instead."""
    deletable: bool = True

    def client(self, location: str) -> str:
        """The vendor's client for an item at `location`."""
        form = GLOBAL if location == GLOBAL else "zone" if is_zone(location) else "region"
        return self.elsewhere.get(form, self.service)


def _always(word: str) -> Callable[[Any], tuple[str, ...]]:
    return lambda item: (word,)


def _address(item: Any) -> tuple[str, ...]:
    """Internal ones are free; external ones bill used or not (cloud.google.com/vpc/network-pricing)."""
    return () if item.address_type == "INTERNAL" else ("address",)


def _schedule(item: Any) -> tuple[str, ...]:
    """A schedule costs nothing itself: what it makes or starts does, long after its disk's machine is gone."""
    if "snapshot_schedule_policy" in item:
        return ("snapshots that it makes",)
    return ("machines that it starts",) if "instance_schedule_policy" in item else ()


def _commitment(item: Any) -> tuple[str, ...]:
    return () if item.status in ("EXPIRED", "CANCELLED") else ("commitment",)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(RENTAL, "Instances", "instances", "instance", _always("compute")),
        Kind(VOLUME, "Disks", "disks", "disk", _always("storage"), {"region": "RegionDisks"}),
        Kind("snapshot", "Snapshots", "", "snapshot", _always("storage")),
        Kind("image", "Images", "", "image", _always("storage")),
        Kind("machine-image", "MachineImages", "", "machine_image", _always("storage")),
        Kind("address", "Addresses", "addresses", "address", _address, {GLOBAL: "GlobalAddresses"}),
        Kind("reservation", "Reservations", "reservations", "reservation", _always("reserved capacity")),
        Kind(
            "future-reservation", "FutureReservations", "future_reservations", "future_reservation",
            _always("reserved capacity"),
        ),
        Kind("resource-policy", "ResourcePolicies", "resource_policies", "resource_policy", _schedule),
        Kind(NAT, "Routers", "routers", "router", _always("address translation")),
        Kind(COMMITMENT, "RegionCommitments", "commitments", "commitment", _commitment, deletable=False),
    )
}  # fmt: skip
"""By name. Filestore is not among them: it has an interface of its own (`filestore.py`)."""

ALL = (*KINDS, FILESTORE)
ZONAL = (RENTAL,)
"""What only exists in zones."""


def asked(kinds: Iterable[str]) -> Iterator[str]:
    """The kinds that a scope asks for; none means all."""
    wanted = tuple(kinds)
    return (name for name in ALL if not wanted or name in wanted)
