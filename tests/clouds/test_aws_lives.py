"""Lives of instances in the fake AWS. Plain boto3 judges; a sentence is a fact about AWS."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from clouds.aws import AwsCloud
from clouds.awscase import all_ids, code, one, run, state


def test_a_new_instance_is_not_visible_at_once(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(visible_after_s=60)
    ident = run(ec2)
    assert code(lambda: one(ec2, ident)) == "InvalidInstanceID.NotFound"
    assert all_ids(ec2) == []
    assert ec2.describe_instance_status(IncludeAllInstances=True)["InstanceStatuses"] == []
    assert cloud.instances() == {ident: "running"}
    cloud.advance(61)
    assert all_ids(ec2) == [ident]


def test_starting_and_ending_take_time(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(pending_s=20, shutting_down_s=30)
    ident = run(ec2)
    assert (state(ec2, ident), one(ec2, ident)["State"]["Code"]) == ("pending", 0)
    cloud.advance(21)
    assert state(ec2, ident) == "running"
    ec2.terminate_instances(InstanceIds=[ident])
    assert (state(ec2, ident), one(ec2, ident)["State"]["Code"]) == ("shutting-down", 32)
    assert ec2.describe_volumes()["Volumes"], "disks are there until it is gone"
    cloud.advance(31)
    assert state(ec2, ident) == "terminated"
    assert ec2.describe_volumes()["Volumes"] == []


def test_the_record_of_the_end_says_who_and_when(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    ec2.terminate_instances(InstanceIds=[ident])
    ended = one(ec2, ident)
    assert ended["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert ended["StateTransitionReason"].startswith("User initiated (20")


def test_a_terminated_instance_vanishes_after_a_while(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(forget_terminated_s=600)
    ident = run(ec2, "t-1")
    ec2.terminate_instances(InstanceIds=[ident])
    assert all_ids(ec2) == [ident]
    cloud.advance(601)
    assert all_ids(ec2) == []
    assert code(lambda: one(ec2, ident)) == "InvalidInstanceID.NotFound"
    assert code(lambda: ec2.terminate_instances(InstanceIds=[ident])) == "InvalidInstanceID.NotFound"
    assert run(ec2, "t-1") == ident, "its token is still known"


def test_a_terminate_may_be_accepted_and_ignored(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(ignore_terminates=1)
    ident = run(ec2)
    (said,) = ec2.terminate_instances(InstanceIds=[ident])["TerminatingInstances"]
    assert said["CurrentState"]["Name"] == "shutting-down"
    assert state(ec2, ident) == "running"
    ec2.terminate_instances(InstanceIds=[ident])
    assert state(ec2, ident) == "terminated"


def test_terminating_again_is_no_error(ec2: Any) -> None:
    ident = run(ec2)
    ec2.terminate_instances(InstanceIds=[ident])
    (said,) = ec2.terminate_instances(InstanceIds=[ident])["TerminatingInstances"]
    assert said["CurrentState"]["Name"] == "terminated"


def test_one_bad_id_fails_the_whole_call(ec2: Any) -> None:
    ident = run(ec2)
    unknown = "i-0123456789abcdef0"
    assert code(lambda: ec2.terminate_instances(InstanceIds=[ident, unknown])) == "InvalidInstanceID.NotFound"
    assert code(lambda: ec2.terminate_instances(InstanceIds=["i-nonsense"])) == "InvalidInstanceID.Malformed"
    assert state(ec2, ident) == "running"


def test_a_protected_instance_is_not_terminated(ec2: Any) -> None:
    ident = run(ec2, DisableApiTermination=True)
    ec2.modify_instance_attribute(InstanceId=ident, DisableApiTermination={"Value": True})
    assert code(lambda: ec2.terminate_instances(InstanceIds=[ident])) == "OperationNotPermitted"


def test_a_state_may_have_a_name_that_nobody_knows(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    cloud.word(ident, "hibernating")
    assert state(ec2, ident) == "hibernating"


def test_times_are_those_of_the_clouds_clock(cloud: AwsCloud, ec2: Any) -> None:
    cloud.advance(86400)
    launched = one(ec2, run(ec2))["LaunchTime"].timestamp()
    assert abs(launched - cloud.now()) < 30
    date = ec2.describe_instances()["ResponseMetadata"]["HTTPHeaders"]["date"]
    told = datetime.datetime.strptime(date, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=datetime.UTC).timestamp()
    assert abs(told - (time.time() + 86400)) < 30


def spot(ec2: Any, **options: Any) -> str:
    market = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time", **options}}
    tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "k", "Value": "v"}]}]
    return run(ec2, InstanceMarketOptions=market, TagSpecifications=tags)


def test_a_spot_instance_has_a_request(ec2: Any) -> None:
    ident = spot(ec2, InstanceInterruptionBehavior="terminate")
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert (request["InstanceId"], request["State"], request["Type"]) == (ident, "active", "one-time")
    assert request["Tags"] == [{"Key": "k", "Value": "v"}]
    assert one(ec2, ident)["SpotInstanceRequestId"] == request["SpotInstanceRequestId"]
    assert one(ec2, ident)["InstanceLifecycle"] == "spot"


def test_cancelling_a_request_does_not_end_its_instance(ec2: Any) -> None:
    ident = spot(ec2)
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request["SpotInstanceRequestId"]])
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert (request["State"], state(ec2, ident)) == ("cancelled", "running")


def test_a_request_closes_with_its_instance(ec2: Any) -> None:
    ec2.terminate_instances(InstanceIds=[spot(ec2)])
    ec2.describe_instances()
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert request["State"] == "closed"


def test_a_spot_instance_may_be_taken_back(cloud: AwsCloud, ec2: Any) -> None:
    ident = spot(ec2)
    cloud.reclaim(ident)
    assert one(ec2, ident)["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_persistent_requests_cannot_terminate(cloud: AwsCloud, ec2: Any) -> None:
    options = {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "terminate"}
    assert code(lambda: spot(ec2, **options)) == "InvalidParameterCombination"
    assert cloud.instances() == {}


def test_a_price_below_the_market_is_refused(ec2: Any) -> None:
    assert code(lambda: spot(ec2, MaxPrice="0.01")) == "SpotMaxPriceTooLow"
    history = ec2.describe_spot_price_history(InstanceTypes=["g5.xlarge"], ProductDescriptions=["Linux/UNIX"])
    assert {entry["AvailabilityZone"] for entry in history["SpotPriceHistory"]} == {f"us-east-1{z}" for z in "abc"}
    spot(ec2, MaxPrice=history["SpotPriceHistory"][0]["SpotPrice"])


def volume(ec2: Any, zone: str = "us-east-1a") -> str:
    return str(ec2.create_volume(AvailabilityZone=zone, Size=1)["VolumeId"])


def attachment(ec2: Any, ident: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = ec2.describe_volumes(VolumeIds=[ident])["Volumes"][0]["Attachments"]
    return found[0]


def test_an_attached_volume_is_kept_unless_that_is_changed(ec2: Any) -> None:
    ident, kept, lost = run(ec2), volume(ec2), volume(ec2)
    for disk, device in ((kept, "/dev/sdf"), (lost, "/dev/sdg")):
        ec2.attach_volume(InstanceId=ident, VolumeId=disk, Device=device)
    assert attachment(ec2, kept)["DeleteOnTermination"] is False
    change = [{"DeviceName": "/dev/sdg", "Ebs": {"DeleteOnTermination": True}}]
    ec2.modify_instance_attribute(InstanceId=ident, BlockDeviceMappings=change)
    assert attachment(ec2, lost)["DeleteOnTermination"] is True
    shown = {m["DeviceName"]: m["Ebs"]["DeleteOnTermination"] for m in one(ec2, ident)["BlockDeviceMappings"]}
    assert shown == {"/dev/sda1": True, "/dev/sdf": False, "/dev/sdg": True}
    ec2.terminate_instances(InstanceIds=[ident])
    ec2.describe_instances()
    assert [(v["VolumeId"], v["State"]) for v in ec2.describe_volumes()["Volumes"]] == [(kept, "available")]


def test_a_volume_of_another_zone_cannot_be_attached(ec2: Any) -> None:
    ident, far = run(ec2, Placement={"AvailabilityZone": "us-east-1a"}), volume(ec2, "us-east-1b")
    assert (
        code(lambda: ec2.attach_volume(InstanceId=ident, VolumeId=far, Device="/dev/sdf"))
        == "InvalidVolume.ZoneMismatch"
    )


def test_a_volume_and_a_device_name_are_used_once(ec2: Any) -> None:
    ident, first, second = run(ec2), volume(ec2), volume(ec2)
    ec2.attach_volume(InstanceId=ident, VolumeId=first, Device="/dev/sdf")
    assert code(lambda: ec2.attach_volume(InstanceId=ident, VolumeId=first, Device="/dev/sdg")) == "VolumeInUse"
    assert (
        code(lambda: ec2.attach_volume(InstanceId=ident, VolumeId=second, Device="/dev/sdf")) == "InvalidParameterValue"
    )


def test_a_device_that_is_not_there_cannot_be_changed(ec2: Any) -> None:
    change = [{"DeviceName": "/dev/sdz", "Ebs": {"DeleteOnTermination": True}}]
    ident = run(ec2)
    refusal = code(lambda: ec2.modify_instance_attribute(InstanceId=ident, BlockDeviceMappings=change))
    assert refusal == "InvalidInstanceAttributeValue"


def test_an_instance_that_is_still_starting_takes_no_volume(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(pending_s=60)
    ident, disk = run(ec2), volume(ec2)
    assert code(lambda: ec2.attach_volume(InstanceId=ident, VolumeId=disk, Device="/dev/sdf")) == "IncorrectState"


@pytest.mark.parametrize("explicit", [False, True])
def test_the_interface_carries_its_tags_and_goes_with_the_instance(ec2: Any, explicit: bool) -> None:
    tags = [{"ResourceType": "network-interface", "Tags": [{"Key": "k", "Value": "v"}]}]
    nic = [{"DeviceIndex": 0, "AssociatePublicIpAddress": True, "DeleteOnTermination": True}]
    ident = run(ec2, TagSpecifications=tags, **({"NetworkInterfaces": nic} if explicit else {}))
    (shown,) = ec2.describe_network_interfaces()["NetworkInterfaces"]
    assert shown["TagSet"] == [{"Key": "k", "Value": "v"}]
    assert shown["Attachment"]["DeleteOnTermination"] is True
    assert shown["Association"]["PublicIp"] == one(ec2, ident)["PublicIpAddress"]
    ec2.terminate_instances(InstanceIds=[ident])
    ec2.describe_instances()
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []


def test_a_group_in_use_cannot_be_deleted(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(shutting_down_s=30)
    group = ec2.create_security_group(GroupName="g", Description="d")["GroupId"]
    nic = [{"DeviceIndex": 0, "DeleteOnTermination": True, "Groups": [group]}]
    ident = run(ec2, NetworkInterfaces=nic)
    assert code(lambda: ec2.delete_security_group(GroupId=group)) == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=[ident])
    assert code(lambda: ec2.delete_security_group(GroupId=group)) == "DependencyViolation"
    cloud.advance(31)
    ec2.delete_security_group(GroupId=group)
