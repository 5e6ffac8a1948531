"""Schedules, listings, prices and quotas of the fake AWS. Plain boto3 judges; a sentence is a fact about AWS."""

from __future__ import annotations

import datetime
import json
import time
import urllib.request
from typing import Any

import pytest
from clouds import aws_faults as faults
from clouds import aws_figures as figures
from clouds.aws import ACCOUNT, AwsCloud
from clouds.awscase import AMI, HOME, OTHER, all_ids, code, run, state


def schedule(cloud: AwsCloud, instance: str, in_s: float, after: str = "DELETE", region: str = HOME) -> Any:
    scheduler = cloud.client("scheduler", region)
    at = datetime.datetime.fromtimestamp(cloud.now() + in_s, datetime.UTC)
    scheduler.create_schedule(
        Name="end",
        ScheduleExpression=at.strftime("at(%Y-%m-%dT%H:%M:%S)"),
        ScheduleExpressionTimezone="UTC",
        FlexibleTimeWindow={"Mode": "OFF"},
        ActionAfterCompletion=after,
        Target={
            "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/gpuops",
            "Input": json.dumps({"InstanceIds": [instance]}),
        },
    )
    return scheduler


def names(scheduler: Any) -> list[str]:
    return [entry["Name"] for entry in scheduler.list_schedules()["Schedules"]]


def test_a_schedule_fires_when_it_is_due_and_deletes_itself(cloud: AwsCloud, ec2: Any) -> None:
    ident, other = run(ec2), run(ec2)
    scheduler = schedule(cloud, ident, 100)
    cloud.advance(90)
    assert (state(ec2, ident), names(scheduler)) == ("running", ["end"])
    cloud.advance(11)
    assert (state(ec2, ident), state(ec2, other)) == ("terminated", "running")
    assert names(scheduler) == []


def test_a_schedule_fires_by_itself_while_nobody_asks(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    schedule(cloud, ident, 1.5)
    time.sleep(3)
    calls = len(cloud.calls())
    assert cloud.instances()[ident] in ("shutting-down", "terminated")
    assert len(cloud.calls()) == calls


def test_a_schedule_that_was_moved_fires_at_its_new_time(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    scheduler = schedule(cloud, ident, 100)
    whole = {k: v for k, v in scheduler.get_schedule(Name="end").items()
             if k in ("Name", "FlexibleTimeWindow", "Target", "ActionAfterCompletion", "ScheduleExpressionTimezone")}  # fmt: skip
    later = datetime.datetime.fromtimestamp(cloud.now() + 1000, datetime.UTC).strftime("at(%Y-%m-%dT%H:%M:%S)")
    scheduler.update_schedule(**whole, ScheduleExpression=later)
    cloud.advance(500)
    assert state(ec2, ident) == "running"
    cloud.advance(501)
    assert state(ec2, ident) == "terminated"


def test_a_schedule_may_fire_late_or_never(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(schedule_delay_s=59, schedules_fire=False)
    ident = run(ec2)
    schedule(cloud, ident, 10)
    cloud.advance(3600)
    assert state(ec2, ident) == "running"
    cloud.switch(schedules_fire=True)
    assert state(ec2, ident) == "terminated"


def test_a_schedule_that_fired_in_vain_is_gone_as_well(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    ec2.modify_instance_attribute(InstanceId=ident, DisableApiTermination={"Value": True})
    scheduler = schedule(cloud, ident, 10)
    cloud.advance(11)
    assert (state(ec2, ident), names(scheduler)) == ("running", [])


def test_a_schedule_of_another_region_ends_nothing_here(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    schedule(cloud, ident, 10, region=OTHER)
    cloud.advance(11)
    assert state(ec2, ident) == "running"


def test_a_schedule_may_stay_and_does_not_fire_twice(cloud: AwsCloud, ec2: Any) -> None:
    cloud.switch(ignore_terminates=1)
    ident = run(ec2)
    scheduler = schedule(cloud, ident, 10, after="NONE")
    cloud.advance(11)
    cloud.advance(11)
    assert (state(ec2, ident), names(scheduler)) == ("running", ["end"])


def test_a_time_that_is_none_is_refused(cloud: AwsCloud) -> None:
    target = {"Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/x"}
    asked = {"Name": "x", "FlexibleTimeWindow": {"Mode": "OFF"}, "Target": target}
    scheduler = cloud.client("scheduler")
    for text in ("at(2026-13-01T00:00:00)", "at(2026-12-01T00:00:00Z)", "at(tomorrow)"):
        assert (
            code(lambda text=text: scheduler.create_schedule(ScheduleExpression=text, **asked)) == "ValidationException"
        )


def test_a_time_that_has_passed_is_refused(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    assert code(lambda: schedule(cloud, ident, -5)) == "ValidationException"


def test_the_same_name_twice_is_a_conflict(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2)
    schedule(cloud, ident, 100)
    assert code(lambda: schedule(cloud, ident, 100)) == "ConflictException"


def test_another_region_has_none_of_our_things(cloud: AwsCloud, ec2: Any) -> None:
    run(ec2)
    far = cloud.client("ec2", OTHER)
    assert all_ids(far) == []
    assert far.describe_volumes()["Volumes"] == []


def test_a_region_that_is_not_enabled_is_shown_and_closed(cloud: AwsCloud, ec2: Any) -> None:
    shown = {r["RegionName"]: r["OptInStatus"] for r in ec2.describe_regions(AllRegions=True)["Regions"]}
    (closed,) = [name for name, status in shown.items() if status == "not-opted-in"]
    assert set(shown) - {closed} == {HOME, OTHER}
    assert code(lambda: cloud.client("ec2", closed).describe_instances()) == "AuthFailure"


def test_listings_that_moto_has_not_are_empty_and_not_broken(ec2: Any) -> None:
    assert ec2.describe_capacity_reservations()["CapacityReservations"] == []
    assert ec2.describe_capacity_blocks()["CapacityBlocks"] == []
    assert ec2.describe_reserved_instances()["ReservedInstances"] == []
    assert ec2.list_snapshots_in_recycle_bin()["Snapshots"] == []
    assert ec2.list_volumes_in_recycle_bin()["Volumes"] == []
    assert ec2.list_images_in_recycle_bin()["Images"] == []


def test_an_empty_account_has_nothing_that_bills(cloud: AwsCloud, ec2: Any) -> None:
    ec2.describe_instances()
    assert ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"] == []
    assert ec2.describe_images(Owners=["self"])["Images"] == []
    for name in (
        "addresses",
        "nat_gateways",
        "fleets",
        "spot_fleet_requests",
        "network_interfaces",
        "volumes",
        "hosts",
    ):
        answer = getattr(ec2, f"describe_{name}")()
        assert [value for key, value in answer.items() if isinstance(value, list) and value] == []
    assert cloud.client("efs").describe_file_systems()["FileSystems"] == []
    assert cloud.client("fsx").describe_file_systems()["FileSystems"] == []


def test_the_image_of_the_public_parameter_is_not_ours(cloud: AwsCloud, ec2: Any) -> None:
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    value = cloud.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    (image,) = ec2.describe_images(ImageIds=[value])["Images"]
    assert (image["ImageOwnerAlias"], image["RootDeviceName"]) == ("amazon", "/dev/sda1")
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == figures.IMAGE_GB


def test_what_does_not_exist_cannot_be_run(cloud: AwsCloud, ec2: Any) -> None:
    assert code(lambda: run(ec2, InstanceType="g5.nonsense")) == "InvalidParameterValue"
    assert code(lambda: run(ec2, ImageId="ami-0bbbbbbbbbbbbbbbb")) == "InvalidAMIID.NotFound"
    assert cloud.instances() == {}


def test_gpu_types_tell_their_device(ec2: Any) -> None:
    for kind, device in (("g5.xlarge", "A10G"), ("g6.xlarge", "L4")):
        (found,) = ec2.describe_instance_types(InstanceTypes=[kind])["InstanceTypes"]
        assert found["GpuInfo"]["Gpus"][0]["Name"] == device


def test_prices_are_json_texts_and_say_that_they_are_invented(cloud: AwsCloud) -> None:
    wanted = {"instanceType": "g5.xlarge", "regionCode": HOME}
    asked = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    (text,) = cloud.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=asked)["PriceList"]
    (term,) = json.loads(text)["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert (float(dimension["pricePerUnit"]["USD"]), dimension["unit"]) == (float(figures.PER_HOUR["g5.xlarge"]), "Hrs")
    assert "invented" in dimension["description"]


def test_quotas_are_told(cloud: AwsCloud) -> None:
    cloud.switch(vcpu_quota=8)
    quotas = cloud.client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]["Value"] == 8
    assert len(quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]) == len(figures.QUOTAS)
    unknown = {"ServiceCode": "ec2", "QuotaCode": "L-00000000"}
    assert code(lambda: quotas.get_service_quota(**unknown)) == "NoSuchResourceException"


def test_the_callers_address_is_told(cloud: AwsCloud) -> None:
    with urllib.request.urlopen(cloud.check_ip_url, timeout=5) as answer:
        assert answer.read() == b"198.51.100.7\n"


def test_the_account_is_the_same_for_everybody(cloud: AwsCloud) -> None:
    assert cloud.client("sts").get_caller_identity()["Account"] == ACCOUNT


def test_reset_leaves_an_empty_account(cloud: AwsCloud, ec2: Any) -> None:
    run(ec2, "t-1")
    schedule(cloud, "i-0123456789abcdef0", 100)
    cloud.fault(faults.throttled())
    cloud.reset()
    assert cloud.instances() == {}
    assert all_ids(ec2) == []
    assert names(cloud.client("scheduler")) == []
    assert ec2.describe_volumes()["Volumes"] == []
    assert len(ec2.describe_images(ImageIds=[AMI])["Images"]) == 1


@pytest.mark.parametrize("asked", [{}, {"PaginationConfig": {"PageSize": 5}}])
def test_every_listing_may_come_in_small_pages(cloud: AwsCloud, ec2: Any, asked: dict[str, Any]) -> None:
    made = sorted(str(ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]) for _ in range(5))
    cloud.switch(page_size=2)
    pages = list(ec2.get_paginator("describe_volumes").paginate(**asked))
    assert [len(page["Volumes"]) for page in pages] == [2, 2, 1]
    assert sorted(v["VolumeId"] for page in pages for v in page["Volumes"]) == made
    for _ in range(3):
        run(ec2)
    assert len(ec2.describe_instances()["Reservations"]) == 2
    assert len(all_ids(ec2, **asked)) == 3
    assert code(lambda: ec2.describe_volumes(NextToken="nonsense")) == "InvalidNextToken"


def test_a_page_has_as_many_as_were_asked_for(ec2: Any) -> None:
    for _ in range(6):
        ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)
    assert len(ec2.describe_volumes(MaxResults=5)["Volumes"]) == 5
    assert "NextToken" not in ec2.describe_volumes(MaxResults=6)


def test_charges_are_what_the_test_says(cloud: AwsCloud) -> None:
    day = {"Start": "2026-11-29", "End": "2026-11-30"}
    cloud.charge({"ResultsByTime": [{"TimePeriod": day, "Total": {"UnblendedCost": {"Amount": "1.5", "Unit": "USD"}}}]})
    asked = {"TimePeriod": day, "Granularity": "DAILY", "Metrics": ["UnblendedCost"]}
    (seen,) = cloud.client("ce").get_cost_and_usage(**asked)["ResultsByTime"]
    assert seen["Total"]["UnblendedCost"]["Amount"] == "1.5"
