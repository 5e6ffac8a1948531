"""The end of a rental and of everything else that bills."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from clouds.gcp import GcpCloud
from gcpcase import ZONE, adapter, bought, cloud, later, offered, order, server, volume

from gpuops.errors import ProviderError
from gpuops.values import Ref, Scope

__all__ = ["cloud", "server"]

REGION = "us-central1"
THINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "volume": ("disks", ZONE, {"sizeGb": "10"}),
    "snapshot": ("snapshots", "global", {}),
    "image": ("images", "global", {}),
    "machine-image": ("machineImages", "global", {}),
    "address": ("addresses", REGION, {"addressType": "EXTERNAL"}),
    "reservation": ("reservations", ZONE, {}),
    "future-reservation": ("futureReservations", ZONE, {}),
    "resource-policy": ("resourcePolicies", REGION, {"snapshotSchedulePolicy": {}}),
    "filestore": ("filestores", ZONE, {"selfLink": "filestore"}),
}
"""Kind → what the vendor calls it, where it lies, and what it needs to bill."""


def scope_of(location: str) -> str:
    """As the vendor's paths say it."""
    return location if location == "global" else f"{'zones' if location.count('-') > 1 else 'regions'}/{location}"


def made(cloud: GcpCloud, kind: str) -> Ref:
    """Somebody has made one."""
    collection, location, body = THINGS[kind]
    cloud.put(collection, location if kind == "filestore" else scope_of(location), name="old-one", **body)
    return Ref("gcp", cloud.project, location, kind, "old-one")


@pytest.mark.parametrize("kind", THINGS)
def test_everything_that_bills_is_listed_looked_at_and_ended(cloud: GcpCloud, kind: str) -> None:
    gcp = adapter(cloud)
    ref = made(cloud, kind)
    (item,) = [item for item in gcp.list_billable(Scope((kind,)), later(cloud)).items if item.ref == ref]
    assert item.bills and item.mark is None
    assert gcp.inspect(ref, later(cloud)).bills
    gcp.terminate(ref, later(cloud))
    cloud.advance(5)
    assert gcp.inspect(ref, later(cloud)).state == "absent"
    assert not gcp.list_billable(Scope((kind,)), later(cloud)).items
    gcp.terminate(ref, later(cloud))


def test_a_volume_outlives_the_rental_and_its_boot_disk_does_not(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp, order(cloud, offered(cloud, gcp), volumes=(volume(cloud),)))
    gcp.terminate(ref, later(cloud))
    cloud.advance(5)
    assert gcp.inspect(ref, later(cloud)).state == "absent"
    assert list(cloud.there("disks")) == ["datasets"]


def test_what_somebody_changed_about_the_disks_is_put_right_before_the_end(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp, order(cloud, offered(cloud, gcp), volumes=(volume(cloud),)))
    for device, fate in (("datasets", True), ("boot", False)):
        cloud.client("InstancesClient").set_disk_auto_delete_unary(
            project=cloud.project, zone=ZONE, instance=ref.id, device_name=device, auto_delete=fate
        )
    cloud.advance(1)
    gcp.terminate(ref, later(cloud))
    cloud.advance(5)
    assert not cloud.there()
    assert list(cloud.there("disks")) == ["datasets"]


def test_a_volume_that_cannot_be_saved_stops_the_end(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp, order(cloud, offered(cloud, gcp), volumes=(volume(cloud),)))
    cloud.client("InstancesClient").set_disk_auto_delete_unary(
        project=cloud.project, zone=ZONE, instance=ref.id, device_name="datasets", auto_delete=True
    )
    cloud.advance(1)
    cloud.faults(failed_change={"times": None})
    with pytest.raises(ProviderError):
        gcp.terminate(ref, later(cloud))
    assert not cloud.log("instances.delete")


def test_a_disk_in_use_is_not_deleted(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    bought(cloud, gcp, order(cloud, offered(cloud, gcp), volumes=(volume(cloud),)))
    with pytest.raises(ProviderError, match="already being used"):
        gcp.terminate(Ref("gcp", cloud.project, ZONE, "volume", "datasets"), later(cloud))


def test_protection_against_deletion_is_told_with_the_command_that_takes_it_off(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.change("instances", f"zones/{ZONE}", ref.id, deletionProtection=True)
    with pytest.raises(ProviderError, match="protected against deletion") as told:
        gcp.terminate(ref, later(cloud))
    assert told.value.next_command.endswith("--no-deletion-protection")
    assert "protected" in gcp.inspect(ref, later(cloud)).reason


def test_a_delete_that_fails_or_does_nothing_leaves_it_billing(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    for fault in ("failed_delete", "ignore_delete"):
        cloud.faults(**{fault: 1})
        gcp.terminate(ref, later(cloud))
        cloud.advance(5)
        assert gcp.inspect(ref, later(cloud)).bills, fault


def test_a_commitment_cannot_be_ended(cloud: GcpCloud) -> None:
    cloud.put("regionCommitments", f"regions/{REGION}", name="three-years", status="ACTIVE")
    ref = Ref("gcp", cloud.project, REGION, "commitment", "three-years")
    gcp = adapter(cloud)
    assert [item.ref for item in gcp.list_billable(Scope(("commitment",)), later(cloud)).items] == [ref]
    with pytest.raises(ProviderError, match="before its term"):
        gcp.terminate(ref, later(cloud))


def test_one_address_translation_goes_and_the_others_stay(cloud: GcpCloud) -> None:
    nats = [{"name": "a", "natIpAllocateOption": "AUTO_ONLY"}, {"name": "b", "natIpAllocateOption": "AUTO_ONLY"}]
    cloud.put("routers", f"regions/{REGION}", name="edge", nats=nats, description="somebody's")
    first = Ref("gcp", cloud.project, REGION, "router-nat", "edge/a")
    second = dataclasses.replace(first, id="edge/b")
    gcp = adapter(cloud)
    assert [item.ref for item in gcp.list_billable(Scope(("router-nat",)), later(cloud)).items] == [first, second]
    for ref, left in ((first, [second]), (second, [])):
        gcp.terminate(ref, later(cloud))
        cloud.advance(5)
        gcp.terminate(ref, later(cloud))
        assert gcp.inspect(ref, later(cloud)).state == "absent"
        assert [item.ref for item in gcp.list_billable(Scope(("router-nat",)), later(cloud)).items] == left
    assert len(cloud.log("routers.update")) == 2
    assert cloud.there("routers")["edge"]["description"] == "somebody's", "the rest of the router stays"
