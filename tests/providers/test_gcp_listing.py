"""What bills in a project, and what could not be read."""

from __future__ import annotations

import pytest
from clouds.gcp import GcpCloud
from gcpcase import FAR_ZONE, OTHER_ZONE, ZONE, adapter, bought, cloud, later, offered, order, server, volume
from gpuops_providers.gcp import kinds

from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.values import Scope

__all__ = ["cloud", "server"]


def test_an_empty_project_is_complete(cloud: GcpCloud) -> None:
    found = adapter(cloud).list_billable(Scope(), later(cloud))
    assert not found.items and not found.gaps, "scopes without results are no gaps"
    assert found.account == cloud.project
    assert found.provider_time is not None


def test_nothing_is_ever_filtered_by_label(cloud: GcpCloud) -> None:
    adapter(cloud).list_billable(Scope(), later(cloud))
    assert not [entry for entry in cloud.log() if "label" in entry["query"]]


def test_every_page_is_read(cloud: GcpCloud) -> None:
    cloud.settings(page=2)
    for number in range(7):
        cloud.put("disks", f"zones/{(ZONE, OTHER_ZONE, FAR_ZONE)[number % 3]}", name=f"disk-{number}", sizeGb="10")
        cloud.put("snapshots", "global", name=f"snapshot-{number}")
    for kind in ("volume", "snapshot"):
        found = adapter(cloud).list_billable(Scope((kind,)), later(cloud))
        assert len(found.items) == 7 and not found.gaps, kind


def test_a_page_that_fails_is_no_shorter_list(cloud: GcpCloud) -> None:
    cloud.settings(page=2)
    for number in range(5):
        cloud.put("disks", f"zones/{ZONE}", name=f"disk-{number}", sizeGb="10")
    gcp = adapter(cloud)
    gcp.account()
    cloud.faults(error=[{"call": "nothing"}, {"call": "disks.aggregatedList", "times": None}])
    with pytest.raises(GpuopsError):
        gcp.list_billable(Scope(("volume",)), later(cloud))


@pytest.mark.parametrize("fault", ["warning", "unreachable"])
def test_a_zone_that_could_not_be_read_is_a_gap_there_alone(cloud: GcpCloud, fault: str) -> None:
    cloud.faults(**{fault: {"where": f"zones/{ZONE}"}})
    gcp = adapter(cloud)
    assert {gap.region for gap in gcp.list_billable(Scope(("rental",)), later(cloud)).gaps} == {ZONE}
    assert gcp.list_billable(Scope(("rental",), ("us-central1",)), later(cloud)).gaps, "its region has the gap, too"
    assert not gcp.list_billable(Scope(("rental",), (OTHER_ZONE,)), later(cloud)).gaps


def test_a_region_that_could_not_be_read_is_a_gap_for_its_zones(cloud: GcpCloud) -> None:
    cloud.faults(unreachable={"where": "regions/us-central1"})
    gcp = adapter(cloud)
    assert gcp.list_billable(Scope(("address",), (ZONE,)), later(cloud)).gaps
    assert not gcp.list_billable(Scope(("address",), (FAR_ZONE,)), later(cloud)).gaps


def test_a_region_as_scope_covers_its_zones(cloud: GcpCloud) -> None:
    volume(cloud, "near", OTHER_ZONE)
    volume(cloud, "far", FAR_ZONE)
    found = adapter(cloud).list_billable(Scope(("volume",), ("us-central1",)), later(cloud))
    assert [item.ref.id for item in found.items] == ["near"]


def test_a_kind_without_the_right_to_list_it_is_a_gap(cloud: GcpCloud) -> None:
    volume(cloud)
    cloud.faults(forbidden={"call": "machineImages.list"})
    found = adapter(cloud).list_billable(Scope(), later(cloud))
    assert [gap.kind for gap in found.gaps] == ["machine-image"]
    assert [item.ref.id for item in found.items] == ["datasets"]


def test_filestore_that_is_switched_off_is_a_gap_with_the_command(cloud: GcpCloud) -> None:
    cloud.faults(api_disabled={"service": "file"})
    found = adapter(cloud).list_billable(Scope(), later(cloud))
    assert [gap.kind for gap in found.gaps] == ["filestore"]
    with pytest.raises(CredentialsError) as told:
        adapter(cloud).list_billable(Scope(("filestore",)), later(cloud))
    assert told.value.next_command.startswith("gcloud services enable file.googleapis.com")


@pytest.mark.parametrize("fault", ["forbidden", "api_disabled", "credentials", "token_refused"])
def test_a_project_that_shows_nothing_is_an_error(cloud: GcpCloud, fault: str) -> None:
    gcp = adapter(cloud)
    cloud.faults(**{fault: True})
    with pytest.raises(CredentialsError):
        gcp.list_billable(Scope(("rental", "volume")), later(cloud))


def test_a_project_that_is_hidden_is_an_error(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    cloud.faults(hidden_account=True)
    with pytest.raises(ProviderError):
        gcp.list_billable(Scope(("rental",)), later(cloud))
    assert {gap.kind for gap in gcp.list_billable(Scope(), later(cloud)).gaps} == set(kinds.ALL)


def test_a_rental_costs_what_it_was_bought_for_and_its_boot_disk_nothing_more(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    offer = offered(cloud, gcp)
    ref = bought(cloud, gcp, order(cloud, offer))
    items = adapter(cloud, key=False).list_billable(Scope(("rental", "volume")), later(cloud)).items
    rental, disk = sorted(items, key=lambda item: item.ref.kind)
    assert rental.ref == ref and rental.rate == offer.rate
    assert disk.parent == ref.id and disk.rate.amount == 0 and disk.bills and disk.nonce == rental.nonce


def test_a_disk_that_is_left_over_has_its_own_price(cloud: GcpCloud) -> None:
    volume(cloud)
    gcp = adapter(cloud)
    assert gcp.list_billable(Scope(("volume",)), later(cloud)).items[0].rate.amount == 0, "no price was read yet"
    offered(cloud, gcp)
    assert gcp.list_billable(Scope(("volume",)), later(cloud)).items[0].rate.amount > 0


def test_without_labels_the_name_still_says_when_it_has_to_end(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp))
    ref = bought(cloud, gcp, wanted)
    cloud.change("instances", f"zones/{ZONE}", ref.id, labels={})
    (item,) = gcp.list_billable(Scope(("rental",)), later(cloud)).items
    assert item.nonce == wanted.mark.nonce and not item.damaged
    assert item.mark is not None and item.mark.limit_at == wanted.mark.limit_at


def test_free_things_that_are_not_ours_are_not_listed(cloud: GcpCloud) -> None:
    cloud.put("addresses", "regions/us-central1", name="inside", addressType="INTERNAL")
    cloud.put("resourcePolicies", "regions/us-central1", name="spread", groupPlacementPolicy={"vmCount": 2})
    cloud.put("regionCommitments", "regions/us-central1", name="over", status="EXPIRED")
    assert not adapter(cloud).list_billable(Scope(), later(cloud)).items


def test_a_moved_mark_is_on_machine_and_disk(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp))
    ref = bought(cloud, gcp, wanted)
    limit = wanted.mark.limit_at + 3600
    assert gcp.set_mark(ref, limit, later(cloud)) == limit
    assert gcp.set_mark(ref, limit, later(cloud)) == limit, "safe to repeat"
    items = gcp.list_billable(Scope(("rental", "volume")), later(cloud)).items
    assert [item.mark and item.mark.limit_at for item in items] == [limit, limit]
    assert len(cloud.log("instances.setLabels")) == 1


def test_a_mark_that_does_not_move_is_not_said_to_have_moved(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp))
    ref = bought(cloud, gcp, wanted)
    cloud.faults(error={"call": "instances.setLabels"})
    with pytest.raises(ProviderError):
        gcp.set_mark(ref, wanted.mark.limit_at + 7200, later(cloud))
    (shown,) = gcp.list_billable(Scope(("rental",)), later(cloud)).items
    assert shown.mark == wanted.mark
