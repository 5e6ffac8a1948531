"""The one create call of AWS: what is inside it, that it is sent once, and what each answer means."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from awswire import (
    Reply,
    Wire,
    error,
    identity,
    image,
    instance,
    instances,
    made,
    order,
    security_groups,
    soon,
    wired,
    xml,
)
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from gpuops_providers.aws import errors
from gpuops_providers.aws.order import Image, parameters, token, unknown_words

from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.marks import mark_name
from gpuops.values import Created, Order, Ref, Refused, VolumeUse

IMAGE = Image("ami-0123456789abcdef0", "/dev/sda1", (("/dev/sda1", 35),))


def ran(*items: str) -> Reply:
    return xml("RunInstances", f"<reservationId>r-1</reservationId><instancesSet>{''.join(items)}</instancesSet>")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with wired(monkeypatch) as found:
        found.on("GetCallerIdentity", identity())
        found.on("DescribeSecurityGroups", security_groups())
        found.on("DescribeImages", image())
        found.on("RunInstances", ran(instance(state="pending", code=0)))
        yield found


@pytest.fixture(scope="module")
def run_instances() -> Any:
    """What the service's own model says of RunInstances."""
    return ServiceModel(Loader().load_service_model("ec2", "service-2")).operation_model("RunInstances").input_shape


def sent(wire: Wire) -> dict[str, Any]:
    (call,) = wire.calls("RunInstances")
    return dict(call.given)


def wanted(changes: dict[str, Any] | None = None, image: Image = IMAGE, **places: str) -> dict[str, Any]:
    given = {"group": "sg-1", "zone": "", "subnet": ""} | places
    return parameters(order(**(changes or {})), image, **given)


def spot_order() -> Order:
    plain = order()
    terms = {**plain.offer.terms, "market": "spot", "spot_price": "0.4021"}
    return dataclasses.replace(
        plain, offer=dataclasses.replace(plain.offer, id="g5.xlarge/us-east-1/spot", terms=terms)
    )


# --- what is inside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_the_parameters_are_what_the_services_own_model_takes(market: str, run_instances: Any) -> None:
    given = parameters(spot_order() if market == "spot" else order(), IMAGE, "sg-1", "us-east-1a", "subnet-1")
    assert ParamValidator().validate(given, run_instances).generate_report() == ""
    assert list(unknown_words(given, run_instances)) == []


def test_a_word_that_the_model_does_not_list_is_found_before_anything_is_sent(run_instances: Any) -> None:
    given = {**wanted(), "InstanceMarketOptions": {"MarketType": "auction"}}
    assert ParamValidator().validate(given, run_instances).generate_report() == "", "botocore itself sends it"
    (complaint,) = unknown_words(given, run_instances)
    assert complaint.startswith("InstanceMarketOptions.MarketType is 'auction', not spot")


def test_an_instance_type_newer_than_the_model_is_sent(run_instances: Any) -> None:
    assert list(unknown_words({**wanted(), "InstanceType": "g99.xlarge"}, run_instances)) == []


def test_one_instance_and_nothing_else_is_asked_for() -> None:
    given = wanted()
    assert (given["MinCount"], given["MaxCount"]) == (1, 1)
    assert "KeyName" not in given
    assert given["CapacityReservationSpecification"] == {"CapacityReservationPreference": "none"}
    assert given["MetadataOptions"]["HttpTokens"] == "required"


def test_power_off_ends_the_bill_and_every_disk_goes_with_the_instance() -> None:
    two = Image("ami-1", "/dev/sda1", (("/dev/sda1", 35), ("/dev/sdb", 20)))
    given = wanted(image=two)
    assert given["InstanceInitiatedShutdownBehavior"] == "terminate"
    disks = {d["DeviceName"]: d["Ebs"] for d in given["BlockDeviceMappings"]}
    assert {name: disk["DeleteOnTermination"] for name, disk in disks.items()} == {"/dev/sda1": True, "/dev/sdb": True}
    assert disks["/dev/sda1"]["VolumeSize"] + disks["/dev/sdb"]["VolumeSize"] == 100, "what was priced, not more"
    (interface,) = given["NetworkInterfaces"]
    assert (interface["DeleteOnTermination"], interface["Groups"]) == (True, ["sg-1"])


def test_everything_that_is_born_carries_the_mark() -> None:
    given = parameters(spot_order(), IMAGE, "sg-1", "", "")
    kinds = {
        spec["ResourceType"]: {tag["Key"]: tag["Value"] for tag in spec["Tags"]} for spec in given["TagSpecifications"]
    }
    assert set(kinds) == {"instance", "volume", "network-interface", "spot-instances-request"}
    mark = spot_order().mark
    for tags in kinds.values():
        assert tags["Name"].startswith(f"gpuops-{mark.nonce}-")
        assert set(tags) == {
            "Name", "gpuops:run", "gpuops:nonce", "gpuops:owner", "gpuops:limit", "gpuops:host-key", "gpuops:rate",
        }  # fmt: skip


def test_spot_is_bought_once_at_the_price_that_was_approved() -> None:
    options = parameters(spot_order(), IMAGE, "sg-1", "", "")["InstanceMarketOptions"]
    assert options["SpotOptions"] == {
        "SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate", "MaxPrice": "0.4021",
    }  # fmt: skip


def test_the_token_is_the_same_for_one_order_and_another_for_the_next() -> None:
    first = order()
    assert token(first) == token(dataclasses.replace(first)) == "gpuops-abcdefghijkl-0"
    other = dataclasses.replace(first, mark=dataclasses.replace(first.mark, nonce="bbbbbbbbbbbb"))
    assert token(other) != token(first)
    assert len(token(first)) <= 64


def test_the_host_key_and_the_end_travel_in_the_call_itself() -> None:
    config = yaml.safe_load(wanted()["UserData"])
    assert config["ssh_keys"]["ed25519_private"] == "PRIVATE"
    files = {file["path"]: file["content"] for file in config["write_files"]}
    assert abs(float(files["/etc/gpuops/deadline"]) - order().ends_at) <= 2


def test_an_image_larger_than_what_was_priced_is_refused(wire: Wire) -> None:
    wire.on("DescribeImages", image(sda1=500))
    answer = made().provision(order(), soon())
    assert isinstance(answer, Refused)
    assert "disk: 500GB" in answer.reason
    assert not wire.calls("RunInstances")


def test_a_volume_that_is_not_there_is_refused_for_good(wire: Wire) -> None:
    wire.on("DescribeVolumes", error("InvalidVolume.NotFound"))
    wire.on("DescribeSecurityGroups", security_groups("sg-0123456789abcdef0", "198.51.100.7/32"))
    adapter, wish = made(), order(volumes=(VolumeUse("vol-1", "/a"),))
    adapter.prepare(wish, soon())
    answer = adapter.provision(wish, soon())
    assert isinstance(answer, Refused) and "InvalidVolume.NotFound" in answer.reason


def test_user_data_that_is_too_long_is_refused(wire: Wire) -> None:
    answer = made().provision(order(startup="x" * 20_000), soon())
    assert isinstance(answer, Refused) and "user-data" in answer.reason
    assert not wire.calls("RunInstances")


def volumes(*items: tuple[str, str, str]) -> Reply:
    inside = "".join(
        f"<item><volumeId>{i}</volumeId><availabilityZone>{z}</availabilityZone><status>{s}</status></item>"
        for i, z, s in items
    )
    return xml("DescribeVolumes", f"<volumeSet>{inside}</volumeSet>")


def test_an_instance_is_started_where_its_volume_is(wire: Wire) -> None:
    wire.on("DescribeVolumes", volumes(("vol-1", "us-east-1c", "available")))
    made().provision(order(volumes=(VolumeUse("vol-1", "/data"),)), soon())
    assert sent(wire)["Placement.AvailabilityZone"] == "us-east-1c"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([("vol-1", "us-east-1a", "available"), ("vol-2", "us-east-1b", "available")], "different zones"),
        ([("vol-1", "us-east-1a", "in-use"), ("vol-2", "us-east-1a", "available")], "vol-1 is not available"),
        ([("vol-1", "us-east-1a", "available")], "no volume vol-2"),
    ],
)
def test_volumes_that_no_instance_could_have_are_refused(
    wire: Wire, found: list[tuple[str, str, str]], why: str
) -> None:
    wire.on("DescribeVolumes", volumes(*found))
    answer = made().provision(order(volumes=(VolumeUse("vol-1", "/a"), VolumeUse("vol-2", "/b"))), soon())
    assert isinstance(answer, Refused) and why in answer.reason
    assert not wire.calls("RunInstances")


# --- what an answer means ------------------------------------------------------------------------------------------


def test_an_answer_names_the_rental_and_when_it_began(wire: Wire) -> None:
    answer = made().provision(order(), soon())
    assert isinstance(answer, Created)
    assert (answer.ref.id, answer.ref.region, answer.ref.kind) == ("i-0123456789abcdef0", "us-east-1", "rental")
    assert answer.created_at == 1796032800.0
    assert answer.rate == order().offer.rate
    assert sent(wire)["ClientToken"] == "gpuops-abcdefghijkl-0"


def answers_to(wire: Wire, replies: dict[str, Reply]) -> dict[str, Created | Refused]:
    """What the adapter makes of each reply to the create call; each is sent once."""
    adapter, found = made(), {}
    for name, reply in replies.items():
        wire.on("RunInstances", reply)
        before = len(wire.calls("RunInstances"))
        found[name] = adapter.provision(order(), soon())
        assert len(wire.calls("RunInstances")) == before + 1, name
    return found


def test_a_code_that_certainly_did_nothing_is_a_refusal_and_is_not_sent_again(wire: Wire) -> None:
    # no capacity is a 500, which botocore would send again by itself
    replies = {c: error(c, status=500 if kind == "capacity" else 400) for c, kind in errors.REFUSED.items()}
    for code, answer in answers_to(wire, replies).items():
        assert isinstance(answer, Refused)
        assert (answer.kind, code in answer.reason) == (errors.REFUSED[code], True)


def test_an_account_that_may_not_is_a_refusal(wire: Wire) -> None:
    codes = ("UnauthorizedOperation", "ExpiredToken", "AuthFailure", "OptInRequired", "PendingVerification")
    for answer in answers_to(wire, {code: error(code, status=403) for code in codes}).values():
        assert isinstance(answer, Refused) and answer.kind == "account"


def test_every_other_answer_leaves_the_outcome_unknown_and_is_sent_once(wire: Wire) -> None:
    replies = [
        error("InternalError", status=500), error("Unavailable", status=503), error("IdempotentParameterMismatch"),
        error("RequestLimitExceeded", status=503), error("Throttling", status=503),
        error("SomethingNobodyHasSeen"), Reply("<html>bad gateway</html>", 502), Reply("", 200), Reply("<", 200),
        xml("RunInstances", "<instancesSet/>"),
    ]  # fmt: skip
    adapter = made()
    for number, reply in enumerate(replies, 1):
        wire.on("RunInstances", reply)
        with pytest.raises(ProviderError):
            adapter.provision(order(), soon())
        assert len(wire.calls("RunInstances")) == number, reply


def test_an_answer_that_never_comes_is_unknown_by_the_end_of_the_time(wire: Wire) -> None:
    wire.on("DescribeSecurityGroups", security_groups("sg-0123456789abcdef0", "198.51.100.7/32"))
    wire.on("RunInstances", Reply("", hangs_s=8.0))
    adapter, began = made(), time.monotonic()
    adapter.prepare(order(), soon())
    with pytest.raises(ProviderError):
        adapter.provision(order(), soon(4.5))
    assert time.monotonic() - began < 7.0
    assert len(wire.calls("RunInstances")) == 1


def test_a_used_token_whose_instance_has_ended_is_no_new_rental(wire: Wire) -> None:
    wire.on("RunInstances", ran(instance(state="terminated", code=48)))
    with pytest.raises(ProviderError, match="nothing new was rented"):
        made().provision(order(), soon())


def test_too_late_nothing_is_sent(wire: Wire) -> None:
    answer = made().provision(order(), soon(-1))
    assert isinstance(answer, Refused)
    assert not wire.calls("RunInstances")


def test_an_offer_of_another_account_is_not_bought_on_this_one(wire: Wire) -> None:
    plain = order()
    answer = made().provision(
        dataclasses.replace(plain, offer=dataclasses.replace(plain.offer, account="999999999999")), soon()
    )
    assert isinstance(answer, Refused) and answer.kind == "account"
    assert not wire.calls("RunInstances")


def test_without_prepare_there_is_no_group_and_nothing_is_sent(wire: Wire) -> None:
    wire.on("DescribeSecurityGroups", security_groups(""))
    answer = made().provision(order(), soon())
    assert isinstance(answer, Refused) and "prepare" in answer.reason
    assert not wire.calls("RunInstances")


def test_the_image_of_the_manifest_goes_before_that_of_the_plan(wire: Wire) -> None:
    wire.on("DescribeImages", lambda asked: image(asked.given["ImageId.1"]))
    made().provision(order(image="ami-0000000000000000f"), soon())
    assert sent(wire)["ImageId"] == "ami-0000000000000000f"


def test_after_prepare_the_create_call_is_the_next_thing_that_is_sent(wire: Wire) -> None:
    wire.on("DescribeSecurityGroups", security_groups("sg-0123456789abcdef0", "198.51.100.7/32"))
    adapter, wish = made(), order()
    adapter.prepare(wish, soon())
    before = len(wire.asked)
    assert isinstance(adapter.provision(wish, soon()), Created)
    assert [asked.action for asked in wire.asked[before:]] == ["RunInstances"]


def test_what_cannot_be_looked_up_now_is_said_by_prepare_and_may_be_tried_again(wire: Wire) -> None:
    wire.on("DescribeSecurityGroups", security_groups("sg-0123456789abcdef0", "198.51.100.7/32"))
    wire.on("DescribeImages", error("InternalError", status=500))
    with pytest.raises(GpuopsError):
        made().prepare(order(), soon())


# --- credentials ---------------------------------------------------------------------------------------------------


def test_bad_credentials_say_how_to_log_in_again(wire: Wire) -> None:
    adapter = made()
    for code in errors.BAD_CREDENTIALS:
        inside = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error>"
        wire.on("GetCallerIdentity", Reply(f"<ErrorResponse>{inside}<RequestId>r</RequestId></ErrorResponse>", 403))
        with pytest.raises(CredentialsError) as caught:
            adapter.account()
        assert "aws sso login" in caught.value.next_command


def test_no_credentials_at_all_say_the_same(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialsError, match="Unable to locate credentials"):
        made().account()


def test_a_profile_that_is_not_there_is_named(wire: Wire) -> None:
    with pytest.raises(CredentialsError, match="train") as caught:
        made(profile="train").account()
    assert caught.value.next_command == "aws sso login --profile train"


def test_who_logs_in_again_is_seen_and_so_is_another_account(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = made()
    mine = Ref("aws", adapter.account(), "us-east-1", "rental", "i-0123456789abcdef0")
    wire.on("DescribeInstances", error("ExpiredToken", status=400))
    with pytest.raises(CredentialsError):
        adapter.inspect(mine, soon())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEW")
    wire.on("DescribeInstances", instances(instance()))
    assert adapter.inspect(mine, soon()).state == "running"
    assert wire.calls("DescribeInstances")[-1].key == "AKIANEW"
    wire.on("DescribeInstances", error("ExpiredToken", status=400))
    wire.on("GetCallerIdentity", Reply(identity().body.replace(mine.account, "999999999999")))
    with pytest.raises(CredentialsError):
        adapter.inspect(mine, soon())
    with pytest.raises(ProviderError, match="not on account 999999999999"):
        adapter.inspect(mine, soon())


def test_the_name_of_the_mark_is_the_name_of_the_instance(wire: Wire) -> None:
    wish = order()
    made().provision(wish, soon())
    names = [v for k, v in sent(wire).items() if k.endswith(".Value") and v.startswith("gpuops-")]
    assert set(names) == {mark_name(wish.mark)}
    assert json.dumps(sent(wire)).count("gpuops:nonce") == 3
