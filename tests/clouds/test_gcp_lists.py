"""What lists show: scopes, pages, filters, warnings, and kinds that are no instances."""

from typing import Any

import pytest
from clouds.gcp import ControlError, GcpCloud
from clouds.gcp_case import FAR_ZONE, OTHER_ZONE, ZONE, aggregated, cloud, done, errors, insert, order, server, types

__all__ = ["cloud", "server"]


def page(cloud: GcpCloud, **request: Any) -> Any:
    """One page of the aggregated list of instances, as it was answered."""
    pager = cloud.client("InstancesClient").aggregated_list(
        request={"project": cloud.project, **request}, retry=None, timeout=10
    )
    return next(iter(pager.pages))


def names(cloud: GcpCloud, kind: str, **request: Any) -> list[str]:
    """Names of a plain list, of all pages."""
    found = cloud.client(f"{kind}Client").list(request={"project": cloud.project, **request}, retry=None, timeout=10)
    return [item.name for item in found]


def four(cloud: GcpCloud) -> None:
    """Four instances in three zones."""
    for name, zone, team in (("a", ZONE, "x"), ("b", ZONE, "y"), ("c", OTHER_ZONE, "x"), ("d", FAR_ZONE, "x")):
        cloud.put("instances", f"zones/{zone}", name=name, status="RUNNING", labels={"team": team})


def test_an_aggregated_list_shows_every_zone_and_warns_where_nothing_is(cloud: GcpCloud) -> None:
    cloud.put("instances", f"zones/{ZONE}", name="a", status="RUNNING")
    items = page(cloud).items
    assert set(items) == {f"zones/{zone}" for zone in (ZONE, OTHER_ZONE, FAR_ZONE)}
    assert [i.name for i in items[f"zones/{ZONE}"].instances] == ["a"]
    assert not items[f"zones/{ZONE}"].warning.code
    assert items[f"zones/{FAR_ZONE}"].warning.code == "NO_RESULTS_ON_PAGE"
    assert not page(cloud).unreachables


def test_pages_hold_as_many_as_are_asked_for_and_lose_nothing(cloud: GcpCloud) -> None:
    four(cloud)
    first = page(cloud, max_results=3)
    assert first.next_page_token
    assert sum(len(listed.instances) for listed in first.items.values()) == 3
    found = aggregated(cloud, max_results=1)
    assert found == {f"zones/{ZONE}": ["a", "b"], f"zones/{OTHER_ZONE}": ["c"], f"zones/{FAR_ZONE}": ["d"]}
    assert len(cloud.log("instances.aggregatedList")) == 1 + 4


def test_a_scope_without_results_on_this_page_may_have_some_on_the_next(cloud: GcpCloud) -> None:
    four(cloud)
    first = page(cloud, max_results=1)
    assert first.items[f"zones/{ZONE}"].warning.code == "NO_RESULTS_ON_PAGE"
    assert [i.name for i in first.items[f"zones/{FAR_ZONE}"].instances] == ["d"]


def test_the_cloud_may_give_smaller_pages_than_are_asked_for(cloud: GcpCloud) -> None:
    four(cloud)
    cloud.settings(page=2)
    assert names(cloud, "Instances", zone=ZONE, max_results=500) == ["a", "b"]
    assert sum(map(len, aggregated(cloud, max_results=500).values())) == 4


def test_pages_of_more_than_500_are_refused(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest):
        page(cloud, max_results=501)


def test_a_page_token_belongs_to_its_filter(cloud: GcpCloud) -> None:
    four(cloud)
    token = page(cloud, max_results=1).next_page_token
    with pytest.raises(errors().BadRequest):
        page(cloud, max_results=1, page_token=token, filter="labels.team=x")
    with pytest.raises(errors().BadRequest):
        page(cloud, page_token="nonsense")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("labels.team=x", "acd"),
        ('labels.team="x" AND name!=c', "ad"),
        ("labels.team:*", "abcd"),
        ("labels.owner:*", ""),
        ("(status = RUNNING) AND (name = b)", "b"),
    ],
)
def test_filters_are_carried_out_by_the_cloud(cloud: GcpCloud, text: str, expected: str) -> None:
    four(cloud)
    found = aggregated(cloud, filter=text)
    assert sorted(name for listed in found.values() for name in listed) == list(expected)


def test_a_filter_that_cannot_be_read_is_400(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest):
        aggregated(cloud, filter="labels.team >= x OR")


def test_an_unknown_zone_is_400_and_another_project_403(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest):
        names(cloud, "Instances", zone="mars-north1-a")
    with pytest.raises(errors().Forbidden):
        cloud.client("InstancesClient").get(project="somebody-elses", zone=ZONE, instance="one", retry=None)


KINDS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("disks", "Disks", f"zones/{ZONE}", {"sizeGb": "10", "status": "READY"}, "disks"),
    ("regionDisks", "Disks", "regions/us-central1", {"sizeGb": "10"}, "disks"),
    ("addresses", "Addresses", "regions/us-central1", {"status": "RESERVED"}, "addresses"),
    ("globalAddresses", "Addresses", "global", {"status": "IN_USE"}, "addresses"),
    ("reservations", "Reservations", f"zones/{ZONE}", {"deleteAtTime": "2026-12-24T00:00:00Z"}, "reservations"),
    ("futureReservations", "FutureReservations", f"zones/{ZONE}", {"planningStatus": "DRAFT"}, "future_reservations"),
    ("resourcePolicies", "ResourcePolicies", "regions/us-central1", {"status": "READY"}, "resource_policies"),
    ("routers", "Routers", "regions/us-central1", {"nats": [{"name": "nat"}]}, "routers"),
    ("instanceGroupManagers", "InstanceGroupManagers", f"zones/{ZONE}", {"targetSize": 1}, "instance_group_managers"),
    ("regionInstanceGroupManagers", "InstanceGroupManagers", "regions/us-central1", {}, "instance_group_managers"),
    ("forwardingRules", "ForwardingRules", "regions/us-central1", {}, "forwarding_rules"),
    ("globalForwardingRules", "ForwardingRules", "global", {}, "forwarding_rules"),
    ("vpnTunnels", "VpnTunnels", "regions/us-central1", {}, "vpn_tunnels"),
    ("vpnGateways", "VpnGateways", "regions/us-central1", {}, "vpn_gateways"),
    ("targetVpnGateways", "TargetVpnGateways", "regions/us-central1", {}, "target_vpn_gateways"),
    ("instantSnapshots", "InstantSnapshots", f"zones/{ZONE}", {}, "instant_snapshots"),
    ("storagePools", "StoragePools", f"zones/{ZONE}", {}, "storage_pools"),
    ("nodeGroups", "NodeGroups", f"zones/{ZONE}", {"size": 1}, "node_groups"),
    ("regionCommitments", "RegionCommitments", "regions/us-central1", {"status": "ACTIVE"}, "commitments"),
]


@pytest.mark.parametrize(
    ("collection", "kind", "scope", "body", "field"), KINDS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_kind_that_bills_is_in_its_aggregated_list(
    cloud: GcpCloud, collection: str, kind: str, scope: str, body: dict[str, Any], field: str
) -> None:
    cloud.put(collection, scope, name="left-over", **body)
    assert aggregated(cloud, kind, field) == {scope: ["left-over"]}


@pytest.mark.parametrize("collection", ["snapshots", "images", "machineImages", "instanceTemplates"])
def test_what_belongs_to_no_place_has_a_plain_list(cloud: GcpCloud, collection: str) -> None:
    cloud.put(collection, "global", name="left-over")
    kind = collection[0].upper() + collection[1:]
    assert names(cloud, kind) == ["left-over"]


def test_a_snapshot_of_a_region_is_in_that_list_only(cloud: GcpCloud) -> None:
    cloud.put("regionSnapshots", "regions/us-central1", name="left-over")
    assert names(cloud, "Snapshots") == []
    assert names(cloud, "RegionSnapshots", region="us-central1") == ["left-over"]


def test_what_is_put_there_must_be_something_that_the_vendor_could_show(cloud: GcpCloud) -> None:
    with pytest.raises(ControlError, match="is none of"):
        cloud.put("addresses", "regions/us-central1", name="x", status="LOST")


def test_a_disk_a_snapshot_an_address_and_a_rule_can_be_made_and_deleted(cloud: GcpCloud) -> None:
    c = types()
    rule = c.Firewall(
        name="rule", allowed=[c.Allowed(I_p_protocol="tcp", ports=["22"])], source_ranges=["192.0.2.1/32"]
    )
    made: list[tuple[str, str, Any, dict[str, str], str]] = [
        ("Disks", "disk", c.Disk(name="data", size_gb=20, labels={"a": "b"}), {"zone": ZONE}, "ZoneOperations"),
        ("Addresses", "address", c.Address(name="ip"), {"region": "us-central1"}, "RegionOperations"),
        ("Firewalls", "firewall", rule, {}, "GlobalOperations"),
    ]
    for kind, word, resource, place, operations in made:
        client, waiter = cloud.client(f"{kind}Client"), cloud.client(f"{operations}Client")
        common = {"project": cloud.project, **place}
        operation = client.insert_unary(request={**common, f"{word}_resource": resource}, retry=None)
        waiter.wait(request={**common, "operation": operation.name}, retry=None)
        assert client.get(request={**common, word: resource.name}, retry=None).name == resource.name
        with pytest.raises(errors().Conflict):
            client.insert_unary(request={**common, f"{word}_resource": resource}, retry=None)
        operation = client.delete_unary(request={**common, word: resource.name}, retry=None)
        waiter.wait(request={**common, "operation": operation.name}, retry=None)
        with pytest.raises(errors().NotFound):
            client.get(request={**common, word: resource.name}, retry=None)


def test_an_update_replaces_everything_and_a_patch_only_what_it_names(cloud: GcpCloud) -> None:
    c, region = types(), "us-central1"
    cloud.put("routers", f"regions/{region}", name="router", description="x", nats=[{"name": "nat"}])
    client, waiter = cloud.client("RoutersClient"), cloud.client("RegionOperationsClient")
    common = {"project": cloud.project, "region": region}
    seen = []
    for method in (client.patch_unary, client.update_unary):
        request = {**common, "router": "router", "router_resource": c.Router(name="router", description="y")}
        waiter.wait(request={**common, "operation": method(request=request, retry=None).name}, retry=None)
        router = client.get(request={**common, "router": "router"}, retry=None)
        seen.append((router.description, [nat.name for nat in router.nats]))
    assert seen == [("y", ["nat"]), ("y", [])]


def test_a_network_that_rules_use_is_not_deleted(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest) as caught:
        cloud.client("NetworksClient").delete_unary(project=cloud.project, network="default", retry=None)
    assert caught.value.errors[0]["reason"] == "resourceInUseByAnotherResource"


def test_places_and_machine_types_are_listed_and_not_everything_is_everywhere(cloud: GcpCloud) -> None:
    assert names(cloud, "Zones") == ["us-central1-a", "us-central1-b", "europe-west4-a"]
    assert names(cloud, "Regions") == ["us-central1", "europe-west4"]
    assert "a3-highgpu-8g" in names(cloud, "MachineTypes", zone=OTHER_ZONE)
    assert "a3-highgpu-8g" not in names(cloud, "MachineTypes", zone=ZONE)
    machine = cloud.client("MachineTypesClient").get(project=cloud.project, zone=ZONE, machine_type="g2-standard-24")
    (comes,) = machine.accelerators
    assert (comes.guest_accelerator_type, comes.guest_accelerator_count) == ("nvidia-l4", 2)
    assert set(aggregated(cloud, "AcceleratorTypes", "accelerator_types")) == set(page(cloud).items)


def test_a_cloud_can_have_twenty_regions(cloud: GcpCloud) -> None:
    cloud.reset(regions=20)
    assert len(names(cloud, "Regions")) == 20
    assert len(names(cloud, "Zones")) == 60


def test_an_image_family_leads_to_its_newest_image(cloud: GcpCloud) -> None:
    client = cloud.client("ImagesClient")
    project, family = "deeplearning-platform-release", "common-cu128-ubuntu-2204-nvidia-570"
    image = client.get_from_family(project=project, family=family)
    assert image.name.endswith("v20261015")
    assert client.get(project=project, image=image.name).id == image.id
    assert len(list(client.list(project=project))) == 2
    with pytest.raises(errors().NotFound):
        client.get_from_family(project=project, family="no-such-family")


def test_quotas_are_shown_by_project_and_region(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud, order()))
    project = cloud.client("ProjectsClient").get(project=cloud.project)
    assert {q.metric: (q.usage, q.limit) for q in project.quotas}["GPUS_ALL_REGIONS"] == (1.0, 16.0)
    region = cloud.client("RegionsClient").get(project=cloud.project, region="us-central1")
    assert {q.metric: q.usage for q in region.quotas}["NVIDIA_L4_GPUS"] == 1.0


def test_the_newest_come_first_where_that_is_asked_for(cloud: GcpCloud) -> None:
    for name in ("b", "c", "a"):
        cloud.put("instances", f"zones/{ZONE}", name=name, status="RUNNING")
    newest = {"zone": ZONE, "order_by": "creationTimestamp desc"}
    assert names(cloud, "Instances", **newest) == ["a", "c", "b"]
    assert names(cloud, "Instances", **newest, max_results=1) == ["a", "c", "b"]
    with pytest.raises(errors().BadRequest):
        names(cloud, "Instances", zone=ZONE, order_by="status")


@pytest.mark.parametrize("order", ["", "creationTimestamp desc"])
def test_what_is_deleted_between_two_pages_takes_nothing_else_away(cloud: GcpCloud, order: str) -> None:
    four(cloud)
    first = page(cloud, max_results=2, order_by=order)
    seen = [(scope, i.name) for scope, listed in first.items.items() for i in listed.instances]
    for scope, name in seen:
        cloud.remove("instances", scope, name)
    rest = page(cloud, max_results=2, order_by=order, page_token=first.next_page_token)
    assert len(seen) + sum(len(listed.instances) for listed in rest.items.values()) == 4


def test_operations_of_all_scopes_are_listed(cloud: GcpCloud) -> None:
    operation = insert(cloud)
    assert operation.name in aggregated(cloud, "GlobalOperations", "operations")[f"zones/{ZONE}"]
    assert names(cloud, "ZoneOperations", zone=ZONE) == [operation.name]
