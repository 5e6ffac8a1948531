"""AWS over the whole of an instance's life: offers, volumes that are kept, the timer, the firewall, what is left behind."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from awswire import ROLE, alone, order
from clouds.aws import AwsCloud
from clouds.aws_faults import FOR_EVER, Fault, throttled
from gpuops_providers.aws import provider
from gpuops_providers.aws.adapter import AwsProvider
from gpuops_providers.aws.schedule import name

from gpuops.errors import GpuopsError, ProviderError, UsageError
from gpuops.marks import new_nonce
from gpuops.provider import AdmitsCaller, AttachesVolumes, MovesEnd, MovesMark, TellsCharges, TellsNeeds
from gpuops.values import Created, Need, Offer, Order, Ref, Refused, Scope, VolumeUse

REGION = "us-east-1"
A10G = Need("A10G", region=REGION)
TABLE = """\
observed = 2026-11-20

[us-east-1]
"g5.xlarge" = "1.1000"
gp3-gb-month = "0.10"
"""


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    cloud = AwsCloud(tmp_path_factory.mktemp("aws"))
    yield cloud
    cloud.stop()


@pytest.fixture
def cloud(account: AwsCloud, monkeypatch: pytest.MonkeyPatch) -> AwsCloud:
    account.reset()
    alone(monkeypatch, account.url)
    return account


def adapter(**settings: str) -> AwsProvider:
    made = provider({"region": REGION, "scheduler_role": ROLE, **settings}, lambda name: None, time.time)
    assert isinstance(made, AwsProvider)
    return made


def soon() -> float:
    return time.time() + 30


def wish(aws: AwsProvider, need: Need = A10G, **changes: Any) -> Order:
    """An order with a nonce of its own, for the cheapest offer."""
    plain = order(offer=aws.quote(need, soon())[0], **changes)
    return dataclasses.replace(plain, mark=dataclasses.replace(plain.mark, nonce=new_nonce(secrets.token_bytes(8))))


def rent(aws: AwsProvider, order: Order) -> Ref:
    aws.prepare(order, soon())
    answer = aws.provision(order, soon())
    assert isinstance(answer, Created), answer
    return answer.ref


def kinds(aws: AwsProvider, nonce: str) -> dict[str, tuple[str, ...]]:
    """Kind → what it bills, of everything that carries the nonce."""
    inventory = aws.list_billable(Scope((), (REGION,)), soon())
    assert inventory.gaps == ()
    return {item.ref.kind: item.bills for item in inventory.items if item.nonce == nonce}


def volume(cloud: AwsCloud, zone: str = f"{REGION}a") -> str:
    return str(cloud.client("ec2").create_volume(AvailabilityZone=zone, Size=10)["VolumeId"])


# --- offers --------------------------------------------------------------------------------------------------------


def test_an_offer_says_what_it_costs_and_where_that_was_read(cloud: AwsCloud) -> None:
    (offer,) = adapter().quote(Need("A10G", offer=f"g5.xlarge/{REGION}/on-demand", disk_gb=200), soon())
    assert offer.source.startswith("AWS Pricing API, in force since 2026-")
    hourly = Decimal("1.0060") + Decimal("0.08") * 200 / 730 + Decimal("0.005")
    assert hourly <= offer.rate.amount < hourly + Decimal("0.0001"), "disk and address are started by the same call"
    assert (offer.device.name, offer.device.count, offer.device.memory_gb) == ("NVIDIA A10G", 1, 22.4)
    assert offer.terms["market"] == "on-demand" and f"{REGION}a" in offer.terms["zones"]
    assert offer.terms["image"] == "ami-0aaaaaaaaaaaaaa01"


def test_spot_is_offered_only_to_those_who_ask(cloud: AwsCloud) -> None:
    assert {o.terms["market"] for o in adapter().quote(A10G, soon())} == {"on-demand"}
    assert {o.terms["market"] for o in adapter(markets="on-demand,spot").quote(A10G, soon())} == {"on-demand", "spot"}
    (offer,) = adapter().quote(Need("A10G", offer=f"g5.xlarge/{REGION}/spot"), soon())
    assert "spot price history" in offer.source
    assert Decimal(offer.terms["spot_price"]) == Decimal("0.442640"), "the dearest zone: the provider chooses the zone"


@pytest.mark.parametrize(
    "need",
    [
        Need("A10G", region="eu-north-1"), Need("A10G", count=3), Need("H9000"), Need("A10G", max_price_per_hour=Decimal("0.5")),
        Need("A10G", offer="local.sim-a100-80"), Need("T4", offer=f"g5.xlarge/{REGION}/on-demand"),
    ],
    ids=["region", "count", "device", "price", "another provider's offer", "another device"],
)  # fmt: skip
def test_what_does_not_fit_is_not_offered(cloud: AwsCloud, need: Need) -> None:
    try:
        assert adapter().quote(need, soon()) == ()
    except GpuopsError:
        assert need.region, "a region that is not enabled is an error"


def test_a_type_that_no_zone_offers_is_not_offered(cloud: AwsCloud) -> None:
    elsewhere = "i-am-no-type/us-east-1/on-demand"
    assert adapter().quote(Need("", offer=elsewhere), soon()) == ()


def test_a_dated_table_stands_in_for_the_pricing_api(cloud: AwsCloud, tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(TABLE)
    cloud.fault(Fault("AccessDeniedException", 403, action="GetProducts", times=FOR_EVER))
    with pytest.raises(GpuopsError):
        adapter().quote(A10G, soon())
    offers = adapter(prices=str(table)).quote(A10G, soon())
    assert [o.product for o in offers] == ["g5.xlarge"], "what the table does not know has no price and is not offered"
    assert offers[0].source.startswith("price table prices.toml of 2026-11-20, ")
    assert "days old" in offers[0].source


@pytest.mark.parametrize("text", ["observed = 1\n", '"g5.xlarge" = 1\n', "=\n", 'observed = "2026-11-20"\n'])
def test_a_table_that_does_not_say_of_which_day_it_is_is_refused(cloud: AwsCloud, tmp_path: Path, text: str) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(text)
    with pytest.raises(UsageError, match=r"prices\.toml"):
        adapter(prices=str(table)).quote(A10G, soon())


def test_an_image_that_cannot_be_looked_up_leaves_the_offer_and_refuses_the_order(cloud: AwsCloud) -> None:
    aws = adapter(image="ssm:/nowhere")
    without = wish(aws)
    assert "image" not in without.offer.terms
    aws.prepare(without, soon())
    answer = aws.provision(without, soon())
    assert isinstance(answer, Refused) and "image: ami-" in answer.reason
    rent(aws, wish(aws, image="ami-0aaaaaaaaaaaaaa01"))


# --- birth and end -------------------------------------------------------------------------------------------------


def test_everything_that_the_call_made_is_listed_with_the_nonce_and_ends_with_the_instance(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    ref = rent(aws, made)
    assert kinds(aws, made.mark.nonce) == {
        "rental": ("compute", "storage", "address"), "volume": ("storage",), "address": ("address",), "security-group": (),
    }  # fmt: skip
    aws.terminate(ref, soon())
    assert kinds(aws, made.mark.nonce) == {"rental": (), "security-group": ()}


def test_the_group_goes_once_the_instance_is_gone(cloud: AwsCloud) -> None:
    cloud.switch(shutting_down_s=5.0)
    aws = adapter()
    made = wish(aws)
    (group,) = aws.prepare(made, soon())
    ref = rent(aws, made)
    for _ in range(2):
        with pytest.raises(ProviderError, match="DependencyViolation"):
            aws.terminate(group, soon())
        aws.terminate(ref, soon())
    cloud.advance(6)
    aws.terminate(group, soon())
    assert aws.inspect(group, soon()).state == "absent"
    aws.terminate(group, soon())


def test_the_same_order_sent_twice_is_one_rental(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    assert rent(aws, made) == rent(aws, made)
    assert len(cloud.instances()) == 1


def test_an_order_that_was_used_up_is_not_filled_by_its_dead_instance(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    aws.terminate(rent(aws, made), soon())
    with pytest.raises(ProviderError, match="nothing new was rented"):
        aws.provision(made, soon())


def test_a_spot_rental_carries_its_request_along(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws, Need("A10G", offer=f"g5.xlarge/{REGION}/spot"))
    ref = rent(aws, made)
    assert kinds(aws, made.mark.nonce)["spot-request"] == ()
    aws.terminate(ref, soon())
    assert "spot-request" not in kinds(aws, made.mark.nonce)
    assert cloud.calls("CancelSpotInstanceRequests")


def test_a_spot_rental_that_is_taken_back_says_so(cloud: AwsCloud) -> None:
    aws = adapter()
    ref = rent(aws, wish(aws, Need("A10G", offer=f"g5.xlarge/{REGION}/spot")))
    cloud.reclaim(ref.id)
    seen = aws.inspect(ref, soon())
    assert (seen.state, seen.bills) == ("terminal", ()) and "took the spot instance back" in seen.reason


# --- volumes -------------------------------------------------------------------------------------------------------


def test_an_attached_volume_is_kept_when_the_instance_ends(cloud: AwsCloud) -> None:
    use = VolumeUse(volume(cloud), "/data")
    aws = adapter()
    ref = rent(aws, wish(aws, volumes=(use,)))
    for _ in range(2):
        aws.attach(ref, use, soon())
    assert len(cloud.calls("AttachVolume")) == 1, "safe to repeat"
    aws.terminate(ref, soon())
    assert aws.inspect(dataclasses.replace(ref, kind="volume", id=use.id), soon()).raw_state == "available"


def test_a_volume_that_would_be_lost_is_made_safe_before_the_timer_is_armed(cloud: AwsCloud) -> None:
    use = VolumeUse(volume(cloud), "/data")
    aws = adapter()
    ref = rent(aws, wish(aws, volumes=(use,)))
    aws.attach(ref, use, soon())
    ec2 = cloud.client("ec2")
    (device,) = [a["Device"] for a in ec2.describe_volumes(VolumeIds=[use.id])["Volumes"][0]["Attachments"]]
    doomed = [{"DeviceName": device, "Ebs": {"DeleteOnTermination": True}}]
    ec2.modify_instance_attribute(InstanceId=ref.id, BlockDeviceMappings=doomed)
    at = float(int(time.time()) + 7200)
    with pytest.raises(ProviderError, match=f"would delete {use.id}"):
        aws.set_end(ref, at, soon())
    assert not cloud.calls("CreateSchedule")
    aws.attach(ref, use, soon())
    assert aws.set_end(ref, at, soon()) == at


def test_a_volume_of_another_instance_is_not_taken_away(cloud: AwsCloud) -> None:
    use = VolumeUse(volume(cloud), "/data")
    aws = adapter()
    first = rent(aws, wish(aws, volumes=(use,)))
    aws.attach(first, use, soon())
    second = rent(aws, wish(aws))
    with pytest.raises(ProviderError, match=f"attached to {first.id}"):
        aws.attach(second, use, soon())


# --- the timer -----------------------------------------------------------------------------------------------------


def test_the_timer_is_made_moved_read_back_and_fires(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    ref = rent(aws, made)
    first, second = float(int(time.time()) + 3600), float(int(time.time()) + 7200)
    assert aws.inspect(ref, soon()).ends_at is None
    assert aws.set_end(ref, first, soon()) == first
    assert aws.set_end(ref, second, soon()) == second
    assert aws.inspect(ref, soon()).ends_at == second
    schedules = aws.list_billable(Scope(("schedule",), (REGION,)), soon()).items
    assert [(i.nonce, i.bills, i.mark and i.mark.limit_at) for i in schedules] == [(made.mark.nonce, (), second)]
    cloud.advance(3601)
    assert aws.inspect(ref, soon()).state == "running"
    cloud.advance(3700)
    assert aws.inspect(ref, soon()).state == "terminal"
    assert kinds(aws, made.mark.nonce) == {"rental": (), "security-group": ()}, "it deletes itself"


def test_a_schedule_that_ends_something_else_is_not_taken_for_the_timer(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    ref = rent(aws, made)
    aws.set_end(ref, float(int(time.time()) + 3600), soon())
    scheduler = cloud.client("scheduler")
    found = scheduler.get_schedule(Name=name(made.mark.nonce))
    target = {**found["Target"], "Input": '{"InstanceIds": ["i-0fffffffffffffff0"]}'}
    kept = ("Name", "ScheduleExpression", "FlexibleTimeWindow", "ScheduleExpressionTimezone")
    scheduler.update_schedule(**{key: found[key] for key in kept}, Target=target)
    assert aws.inspect(ref, soon()).ends_at is None


def test_a_timer_that_cannot_be_read_does_not_hide_the_instance(cloud: AwsCloud) -> None:
    aws = adapter()
    ref = rent(aws, wish(aws))
    cloud.fault(Fault("AccessDeniedException", 403, action="GetSchedule", times=FOR_EVER))
    seen = aws.inspect(ref, soon())
    assert (seen.state, seen.ends_at) == ("running", None)
    assert "its timer cannot be read" in seen.reason


def test_a_timer_left_behind_can_be_removed(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    ref = rent(aws, made)
    aws.set_end(ref, float(int(time.time()) + 3600), soon())
    left = dataclasses.replace(ref, kind="schedule", id=name(made.mark.nonce))
    assert aws.inspect(left, soon()).state == "running"
    aws.terminate(left, soon())
    assert aws.inspect(left, soon()).state == "absent"


def test_without_a_role_no_timer_is_promised() -> None:
    made = provider({}, lambda name: None)
    assert not isinstance(made, MovesEnd)
    assert (made.traits.deadline, made.traits.end_movable) == ("declared", False)
    with_role = adapter()
    assert isinstance(with_role, MovesEnd)
    assert (with_role.traits.deadline, with_role.traits.end_movable) == ("read back", True)


def test_charges_are_read_only_by_those_who_pay_for_the_request() -> None:
    assert not isinstance(adapter(), TellsCharges)
    assert isinstance(adapter(cost_explorer="yes"), TellsCharges)
    for protocol in (AttachesVolumes, AdmitsCaller, MovesMark, TellsNeeds):
        assert isinstance(adapter(), protocol)


# --- the firewall --------------------------------------------------------------------------------------------------


def test_ssh_is_let_in_from_the_named_networks_and_from_nowhere_else(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws, allow_from=("198.51.100.7/32", "203.0.113.0/24"))
    (group,) = aws.prepare(made, soon())
    found = cloud.client("ec2").describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
    opened = {(p["FromPort"], p["ToPort"], r["CidrIp"]) for p in found["IpPermissions"] for r in p["IpRanges"]}
    assert opened == {(22, 22, "198.51.100.7/32"), (22, 22, "203.0.113.0/24")}


def test_without_a_named_network_it_is_this_computer(cloud: AwsCloud) -> None:
    aws = adapter(address_url=cloud.check_ip_url)
    assert aws.caller(soon()) == "198.51.100.7/32"
    (group,) = aws.prepare(wish(aws, allow_from=()), soon())
    found = cloud.client("ec2").describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
    assert [r["CidrIp"] for p in found["IpPermissions"] for r in p["IpRanges"]] == ["198.51.100.7/32"]


def test_the_admitted_networks_move_and_are_read_back(cloud: AwsCloud) -> None:
    aws = adapter()
    ref = rent(aws, wish(aws))
    wanted = ("203.0.113.9/32", "2001:db8::1/128")
    assert set(aws.admit(ref, wanted, soon())) == set(wanted)
    before = len(cloud.calls("AuthorizeSecurityGroupIngress"))
    assert set(aws.admit(ref, wanted, soon())) == set(wanted)
    assert len(cloud.calls("AuthorizeSecurityGroupIngress")) == before, "nothing to change"


def test_somebody_elses_rule_in_our_group_is_taken_out(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    (group,) = aws.prepare(made, soon())
    ref = rent(aws, made)
    anybody = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    cloud.client("ec2").authorize_security_group_ingress(GroupId=group.id, IpPermissions=anybody)
    assert aws.admit(ref, ("198.51.100.7/32",), soon()) == ("198.51.100.7/32",)
    found = cloud.client("ec2").describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
    assert len(found["IpPermissions"]) == 1


def test_an_address_page_that_tells_no_address_is_an_error(cloud: AwsCloud) -> None:
    with pytest.raises(ProviderError, match="does not tell"):
        adapter(address_url=f"{cloud.url}/nothing-here").caller(soon())


# --- marks ---------------------------------------------------------------------------------------------------------


def test_a_moved_limit_moves_on_everything_that_was_made_for_the_rental(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    ref = rent(aws, made)
    wanted = made.mark.limit_at + 3600
    assert aws.set_mark(ref, wanted, soon()) == wanted
    inventory = aws.list_billable(Scope((), (REGION,)), soon())
    limits = {item.ref.kind: item.mark.limit_at for item in inventory.items if item.mark}
    assert limits == dict.fromkeys(("rental", "volume", "address", "security-group"), wanted)


def test_a_throttled_account_is_a_gap_and_no_empty_one(cloud: AwsCloud) -> None:
    aws = adapter()
    aws.account()
    cloud.fault(throttled("DescribeVolumes"))
    assert [gap.kind for gap in aws.list_billable(Scope(("rental", "volume"), (REGION,)), soon()).gaps] == ["volume"]


def test_what_is_needed_is_found_by_looking(cloud: AwsCloud) -> None:
    found = {finding.name: finding for finding in adapter().needs(soon())}
    assert {name: f.state for name, f in found.items()} == {
        "boto3": "ok", "AWS credentials": "ok", "AWS timer": "ok",
    }  # fmt: skip
    made = provider({"region": REGION}, lambda name: None)
    assert isinstance(made, TellsNeeds)
    assert [f.state for f in made.needs(soon())] == ["ok", "ok", "warning"]


def test_an_offer_is_what_the_rental_costs_when_it_is_found_again(cloud: AwsCloud) -> None:
    aws = adapter()
    made = wish(aws)
    rent(aws, made)
    offer: Offer = made.offer
    (item,) = [i for i in aws.list_billable(Scope(("rental",)), soon()).items if i.nonce == made.mark.nonce]
    assert item.rate == offer.rate
