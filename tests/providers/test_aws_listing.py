"""What is on an AWS account: every kind, every region; what cannot be read is a gap by name and never an empty list."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from awswire import (
    ACCOUNT,
    Asked,
    Reply,
    Wire,
    empty_account,
    error,
    identity,
    instance,
    instances,
    made,
    order,
    plain_error,
    regions,
    soon,
    tag_set,
    whole,
    wired,
    xml,
)
from gpuops_providers.aws.kinds import BILLS, ENDS, KINDS, SOURCES

from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.marks import mark_name
from gpuops.values import Billable, Inventory, Ref, Scope

MARK = order().mark
TAGS = {
    "Name": mark_name(MARK), "gpuops:run": MARK.run, "gpuops:nonce": MARK.nonce, "gpuops:owner": MARK.owner,
    "gpuops:host-key": MARK.host_key, "gpuops:rate": "1.0330 USD",
}  # fmt: skip


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with wired(monkeypatch) as found:
        empty_account(found)
        yield found


def listed(*kinds: str, **settings: str) -> Inventory:
    return made(**settings).list_billable(Scope(kinds), soon())


def only(inventory: Inventory) -> Billable:
    (item,) = inventory.items
    return item


def test_an_empty_account_is_complete_and_empty(wire: Wire) -> None:
    inventory = listed()
    assert (inventory.items, inventory.gaps, inventory.account) == ((), (), ACCOUNT)
    assert inventory.provider_time is not None and abs(inventory.provider_time - time.time()) < 30
    assert {asked.action for asked in wire.asked} >= {
        "DescribeInstances", "DescribeVolumes", "DescribeSnapshots", "DescribeImages", "DescribeAddresses",
        "DescribeNetworkInterfaces", "DescribeNatGateways", "DescribeSpotInstanceRequests", "DescribeFleets",
        "DescribeSpotFleetRequests", "DescribeCapacityReservations", "DescribeCapacityBlocks", "EfsDescribeFileSystems",
        "DescribeFileSystems", "ListSchedules", "DescribeSecurityGroups",
    }  # fmt: skip


def test_every_kind_has_words_for_what_it_bills_and_a_way_to_be_listed() -> None:
    assert set(KINDS) == set(BILLS) == {source.kind for source in SOURCES}


def test_a_rental_of_ours_is_listed_with_its_mark_and_its_rate(wire: Wire) -> None:
    wire.on("DescribeInstances", instances(instance(**TAGS)))
    item = only(listed("rental"))
    assert item.mark == MARK and item.nonce == MARK.nonce and not item.damaged
    assert str(item.rate) == "1.033 USD"
    assert item.bills == ("compute", "storage", "address")
    assert item.since == 1796032800.0


def test_a_stopped_instance_bills_its_disks(wire: Wire) -> None:
    wire.on("DescribeInstances", instances(instance(state="stopped", code=80)))
    assert only(listed("rental")).bills == ("storage",)


def test_an_ended_instance_is_shown_and_free(wire: Wire) -> None:
    wire.on("DescribeInstances", instances(instance(state="terminated", code=48, **TAGS)))
    assert only(listed("rental")).bills == ()


def test_a_word_that_nobody_knows_bills(wire: Wire) -> None:
    wire.on("DescribeInstances", instances(instance(state="hibernating")))
    assert only(listed("rental")).bills


@pytest.mark.parametrize(
    ("tags", "damaged", "nonce"),
    [
        ({**TAGS, "Name": f"gpuops-{MARK.nonce}-zzzzzz-00-run"}, True, MARK.nonce),
        ({**TAGS, "Name": mark_name(MARK).replace(MARK.nonce, "bbbbbbbbbbbb")}, True, MARK.nonce),
        ({**TAGS, "Name": "renamed in the console", "gpuops:limit": "2026-11-30T12:00:00Z"}, False, MARK.nonce),
        ({**TAGS, "Name": "renamed in the console", "gpuops:limit": "soon"}, True, MARK.nonce),
        ({"Name": "web-server"}, False, ""),
        ({}, False, ""),
    ],
    ids=["damaged name", "two nonces", "renamed", "renamed and damaged", "foreign", "without tags"],
)  # fmt: skip
def test_the_name_ranks_first_and_the_tags_stand_in(
    wire: Wire, tags: dict[str, str], damaged: bool, nonce: str
) -> None:
    wire.on("DescribeInstances", instances(instance(**tags)))
    item = only(listed("rental"))
    assert (item.damaged, item.nonce) == (damaged, nonce)
    assert (item.mark is None) == (damaged or not nonce)


def test_what_goes_with_its_instance_names_its_parent(wire: Wire) -> None:
    attached = "<attachmentSet><item><instanceId>i-1</instanceId><status>attached</status></item></attachmentSet>"
    volume = f"<item><volumeId>vol-1</volumeId><status>in-use</status>{attached}<tagSet>{tag_set(TAGS)}</tagSet></item>"
    public = "<association><publicIp>198.51.100.9</publicIp><ipOwnerId>amazon</ipOwnerId></association>"
    interface = (
        f"<item><networkInterfaceId>eni-1</networkInterfaceId><status>in-use</status>{public}"
        f"<attachment><instanceId>i-1</instanceId></attachment><tagSet>{tag_set(TAGS)}</tagSet></item>"
    )
    wire.on("DescribeVolumes", xml("DescribeVolumes", f"<volumeSet>{volume}</volumeSet>"))
    wire.on(
        "DescribeNetworkInterfaces",
        xml("DescribeNetworkInterfaces", f"<networkInterfaceSet>{interface}</networkInterfaceSet>"),
    )
    found = {item.ref.kind: item for item in listed("volume", "address").items}
    assert {kind: (i.parent, i.nonce, i.bills) for kind, i in found.items()} == {
        "volume": ("i-1", MARK.nonce, ("storage",)), "address": ("i-1", MARK.nonce, ("address",)),
    }  # fmt: skip
    assert found["volume"].rate.amount == 0, "covered by the rate of the rental"


def test_an_address_that_is_kept_is_listed_once(wire: Wire) -> None:
    kept = "<item><allocationId>eipalloc-1</allocationId><publicIp>198.51.100.9</publicIp></item>"
    public = "<association><publicIp>198.51.100.9</publicIp><allocationId>eipalloc-1</allocationId></association>"
    interface = f"<item><networkInterfaceId>eni-1</networkInterfaceId><status>in-use</status>{public}</item>"
    wire.on("DescribeAddresses", xml("DescribeAddresses", f"<addressesSet>{kept}</addressesSet>"))
    wire.on(
        "DescribeNetworkInterfaces",
        xml("DescribeNetworkInterfaces", f"<networkInterfaceSet>{interface}</networkInterfaceSet>"),
    )
    assert only(listed("address")).ref.id == "eipalloc-1"


def test_a_persistent_request_bills_what_it_will_start(wire: Wire) -> None:
    def request(ident: str, kind: str, state: str) -> str:
        return f"<item><spotInstanceRequestId>{ident}</spotInstanceRequestId><type>{kind}</type><state>{state}</state></item>"

    states = (("sir-1", "persistent", "disabled"), ("sir-2", "one-time", "active"), ("sir-3", "one-time", "closed"))
    items = "".join(request(*state) for state in states)
    wire.on(
        "DescribeSpotInstanceRequests",
        xml("DescribeSpotInstanceRequests", f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>"),
    )
    assert {i.ref.id: bool(i.bills) for i in listed("spot-request").items} == {"sir-1": True, "sir-2": False}


def test_a_security_group_is_listed_only_when_it_is_ours(wire: Wire) -> None:
    items = f"<item><groupId>sg-1</groupId><tagSet>{tag_set(TAGS)}</tagSet></item><item><groupId>sg-2</groupId></item>"
    wire.on("DescribeSecurityGroups", xml("DescribeSecurityGroups", f"<securityGroupInfo>{items}</securityGroupInfo>"))
    item = only(listed("security-group"))
    assert (item.ref.id, item.nonce, item.bills) == ("sg-1", MARK.nonce, ())


def test_a_schedule_of_ours_tells_whose_it_is(wire: Wire) -> None:
    wire.on("ListSchedules", whole({"Schedules": [{"Name": f"gpuops-{MARK.nonce}"}, {"Name": "gpuops-of-somebody"}]}))
    said = f'{{"run": "run-1", "owner": "ada@example.org", "limit": {int(MARK.limit_at)}}}'
    wire.on("GetSchedule", whole({"Name": f"gpuops-{MARK.nonce}", "State": "ENABLED", "Description": said}))
    item = only(listed("schedule"))
    assert (item.nonce, item.bills, item.mark and item.mark.limit_at) == (MARK.nonce, (), MARK.limit_at)


def test_file_systems_of_two_services_are_told_apart(wire: Wire) -> None:
    efs = {"FileSystemId": "fs-1", "LifeCycleState": "available", "CreationTime": 1796032800, "Tags": []}
    wire.on("EfsDescribeFileSystems", whole({"FileSystems": [efs]}))
    wire.on("DescribeFileSystems", whole({"FileSystems": [{"FileSystemId": "fs-1", "Lifecycle": "AVAILABLE"}]}))
    assert [item.ref.id for item in listed("file-system").items] == ["efs/fs-1", "fsx/fs-1"]


# --- gaps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        error("UnauthorizedOperation", status=403), error("RequestLimitExceeded", status=503), error("InternalError", status=500),
        error("NobodyKnowsThis"), Reply("<html>", 502), Reply("<", 200),
        xml("DescribeVolumes", "<volumeSet><item><size>1</size></item></volumeSet>"),
    ],
    ids=["denied", "throttled", "internal", "unseen", "gateway", "torn", "without an id"],
)  # fmt: skip
def test_a_kind_that_cannot_be_read_is_a_gap_and_the_others_are_there(wire: Wire, answer: Reply) -> None:
    wire.on("DescribeVolumes", answer)
    wire.on("DescribeInstances", instances(instance()))
    inventory = listed("rental", "volume")
    assert [(gap.region, gap.kind) for gap in inventory.gaps] == [("us-east-1", "volume")]
    assert only(inventory).ref.kind == "rental"


def test_a_region_that_cannot_be_read_is_a_gap_and_the_others_are_there(wire: Wire) -> None:
    wire.on("DescribeRegions", regions(us_east_1="opt-in-not-required", eu_west_1="opted-in"))

    def answer(asked: Asked) -> Reply:
        return error("InternalError", status=500) if asked.region == "eu-west-1" else instances(instance())

    wire.on("DescribeInstances", answer)
    inventory = listed("rental")
    assert [(gap.region, gap.kind) for gap in inventory.gaps] == [("eu-west-1", "rental")]
    assert only(inventory).ref.region == "us-east-1"


def test_a_region_that_is_not_enabled_is_a_gap_only_where_it_was_asked_for(wire: Wire) -> None:
    wire.on("DescribeRegions", regions(us_east_1="opt-in-not-required", af_south_1="not-opted-in"))
    assert listed("rental").gaps == ()
    asked = made().list_billable(Scope(("rental",), ("af-south-1", "xx-nowhere-1")), soon())
    assert {gap.region: gap.reason for gap in asked.gaps} == {
        "af-south-1": "the region is not enabled on this account", "xx-nowhere-1": "there is no such region",
    }  # fmt: skip


def test_what_does_not_answer_in_time_is_a_gap_in_time(wire: Wire) -> None:
    wire.on("DescribeVolumes", Reply("", hangs_s=9.0))
    adapter = made()
    adapter.list_billable(Scope(("rental",)), soon())
    until = soon(6.0)
    inventory = adapter.list_billable(Scope(("rental", "volume")), until)
    assert time.time() < until + 2.0
    assert [gap.kind for gap in inventory.gaps] == ["volume"]


def test_a_list_of_pages_is_read_to_its_end(wire: Wire) -> None:
    def answer(asked: Asked) -> Reply:
        token = asked.given.get("NextToken", "")
        reply = instances(instance(f"i-{token or '1'}"))
        more = {"": "2", "2": "3"}.get(token)
        return Reply(reply.body.replace("</Desc", f"<nextToken>{more}</nextToken></Desc")) if more else reply

    wire.on("DescribeInstances", answer)
    assert [item.ref.id for item in listed("rental").items] == ["i-1", "i-2", "i-3"]


def test_a_page_that_comes_again_and_again_is_a_gap(wire: Wire) -> None:
    body = instances(instance()).body.replace("</Desc", "<nextToken>x</nextToken></Desc")
    wire.on("DescribeInstances", Reply(body))
    assert "again and again" in listed("rental").gaps[0].reason


def test_regions_that_cannot_be_told_are_an_error_and_no_empty_list(wire: Wire) -> None:
    wire.on("DescribeRegions", error("InternalError", status=500))
    with pytest.raises(ProviderError):
        listed()
    wire.on("DescribeRegions", xml("DescribeRegions", "<regionInfo/>"))
    with pytest.raises(ProviderError):
        listed()


@pytest.mark.parametrize("action", ["DescribeRegions", "DescribeInstances"])
def test_bad_credentials_are_an_error_and_no_gap(wire: Wire, action: str) -> None:
    wire.on(action, error("AuthFailure", status=401))
    with pytest.raises(CredentialsError):
        listed()


def test_a_service_that_may_not_be_asked_is_a_gap(wire: Wire) -> None:
    wire.on("ListSchedules", plain_error("AccessDeniedException", status=403))
    assert [gap.kind for gap in listed("rental", "schedule").gaps] == ["schedule"]


def test_only_the_regions_of_the_settings_are_looked_at(wire: Wire) -> None:
    wire.on("DescribeRegions", regions(us_east_1="opt-in-not-required", eu_west_1="opted-in"))
    listed("rental", regions="eu-west-1")
    assert {asked.region for asked in wire.calls("DescribeInstances")} == {"eu-west-1"}


# --- one by one ----------------------------------------------------------------------------------------------------


def ref(kind: str, ident: str) -> Ref:
    return Ref("aws", ACCOUNT, "us-east-1", kind, ident)


def test_absent_is_only_what_an_answer_says(wire: Wire) -> None:
    wire.on("DescribeInstances", error("InvalidInstanceID.NotFound"))
    adapter = made()
    assert adapter.inspect(ref("rental", "i-1"), soon()).state == "absent"
    wire.on("DescribeInstances", error("InternalError", status=500))
    with pytest.raises(ProviderError):
        adapter.inspect(ref("rental", "i-1"), soon())
    wire.on("DescribeInstances", error("AuthFailure", status=401))
    with pytest.raises(CredentialsError):
        adapter.inspect(ref("rental", "i-1"), soon())


def test_the_account_of_a_ref_is_compared_first(wire: Wire) -> None:
    other = Ref("aws", "999999999999", "us-east-1", "rental", "i-1")
    adapter = made()
    for call in (adapter.inspect, adapter.terminate):
        with pytest.raises(ProviderError, match="not on account"):
            call(other, soon())
    assert not wire.calls("TerminateInstances")


def test_a_late_refusal_is_told_apart_from_an_end(wire: Wire) -> None:
    why = "<stateReason><code>Server.InsufficientInstanceCapacity</code><message>no room</message></stateReason>"
    wire.on("DescribeInstances", instances(instance(state="terminated", code=48, more=why)))
    seen = made().inspect(ref("rental", "i-0123456789abcdef0"), soon())
    assert (seen.state, seen.bills, seen.reason) == ("refused", (), "no room")


def test_a_spot_instance_that_was_taken_back_says_so(wire: Wire) -> None:
    why = "<stateReason><code>Server.SpotInstanceTermination</code><message>x</message></stateReason>"
    wire.on("DescribeInstances", instances(instance(state="terminated", code=48, more=why)))
    seen = made().inspect(ref("rental", "i-0123456789abcdef0"), soon())
    assert seen.state == "terminal" and "took the spot instance back" in seen.reason


def test_the_login_is_where_the_instance_runs(wire: Wire) -> None:
    wire.on("DescribeInstances", instances(instance(more="<ipAddress>198.51.100.9</ipAddress>")))
    seen = made(user="ubuntu").inspect(ref("rental", "i-0123456789abcdef0"), soon())
    assert seen.endpoint is not None
    assert (seen.endpoint.host, seen.endpoint.port, seen.endpoint.user) == ("198.51.100.9", 22, "ubuntu")


ENDED = {
    "i-1": ("rental", "TerminateInstances"), "vol-1": ("volume", "DeleteVolume"), "snap-1": ("snapshot", "DeleteSnapshot"),
    "ami-1": ("image", "DeregisterImage"), "eipalloc-1": ("address", "ReleaseAddress"),
    "eni-1": ("address", "DeleteNetworkInterface"), "nat-1": ("nat-gateway", "DeleteNatGateway"),
    "sir-1": ("spot-request", "CancelSpotInstanceRequests"), "fleet-1": ("fleet", "DeleteFleets"),
    "sfr-1": ("fleet", "CancelSpotFleetRequests"), "cr-1": ("capacity-reservation", "CancelCapacityReservation"),
    "efs/fs-01234567": ("file-system", "DELETE /2015-02-01/file-systems/fs-01234567"),
    "fsx/fs-01234567": ("file-system", "DeleteFileSystem"),
    "gpuops-abcdefghijkl": ("schedule", "DELETE /schedules/gpuops-abcdefghijkl"),
    "sg-1": ("security-group", "DeleteSecurityGroup"),
}  # fmt: skip


def test_every_kind_has_a_call_that_asks_for_its_end(wire: Wire) -> None:
    assert set(ENDS) == {ident.rpartition("-")[0] for ident in ENDED}
    adapter = made()
    for ident, (kind, action) in ENDED.items():
        wire.on(
            action,
            whole({}) if "fs-" in ident or "gpuops" in ident else xml(action.split()[0], "<return>true</return>"),
        )
        adapter.terminate(ref(kind, ident), soon())
        assert len(wire.calls(action)) == 1, ident


def test_what_has_no_call_that_ends_it_says_so(wire: Wire) -> None:
    with pytest.raises(ProviderError, match="cannot be ended by a call"):
        made().terminate(ref("capacity-block", "cb-1"), soon())


def test_what_is_not_there_any_more_needs_no_end(wire: Wire) -> None:
    adapter = made()
    codes = {"i-1": "InvalidInstanceID.NotFound", "vol-1": "InvalidVolume.NotFound", "sg-1": "InvalidGroup.NotFound"}
    for ident, code in codes.items():
        kind, action = ENDED[ident]
        wire.on(action, error(code))
        adapter.terminate(ref(kind, ident), soon())
        assert len(wire.calls(action)) == 1


def test_a_group_that_is_still_in_use_is_an_error_to_be_repeated(wire: Wire) -> None:
    wire.on("DeleteSecurityGroup", error("DependencyViolation"))
    with pytest.raises(GpuopsError, match="DependencyViolation"):
        made().terminate(ref("security-group", "sg-1"), soon())


def test_protection_from_termination_names_the_command_that_lifts_it(wire: Wire) -> None:
    wire.on("TerminateInstances", error("OperationNotPermitted"))
    with pytest.raises(ProviderError) as caught:
        made().terminate(ref("rental", "i-1"), soon())
    assert "--no-disable-api-termination" in caught.value.next_command
    assert caught.value.may_bill


def test_the_spot_request_behind_an_instance_is_cancelled_before_it_ends(wire: Wire) -> None:
    behind = "<spotInstanceRequestId>sir-1</spotInstanceRequestId>"
    wire.on("DescribeInstances", instances(instance("i-1", more=behind)))
    wire.on("CancelSpotInstanceRequests", xml("CancelSpotInstanceRequests", "<spotInstanceRequestSet/>"))
    wire.on("TerminateInstances", xml("TerminateInstances", "<instancesSet/>"))
    made().terminate(ref("rental", "i-1"), soon())
    actions = [asked.action for asked in wire.asked]
    assert actions.index("CancelSpotInstanceRequests") < actions.index("TerminateInstances")


def test_the_end_is_asked_for_even_when_nothing_can_be_looked_up(wire: Wire) -> None:
    wire.on("DescribeInstances", error("RequestLimitExceeded", status=503))
    wire.on("TerminateInstances", xml("TerminateInstances", "<instancesSet/>"))
    with pytest.raises(ProviderError):
        made().terminate(ref("rental", "i-1"), soon())
    assert wire.calls("TerminateInstances")


def test_identity_is_asked_anew_each_time(wire: Wire) -> None:
    adapter = made()
    assert adapter.account() == ACCOUNT
    wire.on("GetCallerIdentity", Reply(identity().body.replace(ACCOUNT, "999999999999")))
    assert adapter.account() == "999999999999"
