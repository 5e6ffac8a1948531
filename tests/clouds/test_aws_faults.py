"""Tokens and faults of the fake AWS. Plain boto3 judges; a sentence is a fact about AWS."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from botocore.parsers import ResponseParserError
from clouds import aws_faults as faults
from clouds.aws import AwsCloud
from clouds.awscase import AMI, OTHER, all_ids, code, one, run


def test_the_same_token_and_parameters_give_the_same_instance(ec2: Any) -> None:
    assert run(ec2, "t-1") == run(ec2, "t-1")
    assert len(all_ids(ec2)) == 1


def test_the_same_token_with_other_parameters_is_a_mismatch(ec2: Any) -> None:
    run(ec2, "t-1")
    assert code(lambda: run(ec2, "t-1", InstanceType="g6.xlarge")) == "IdempotentParameterMismatch"
    assert len(all_ids(ec2)) == 1


def test_the_zone_is_exempt_from_that_comparison(ec2: Any) -> None:
    first = run(ec2, "t-1", Placement={"AvailabilityZone": "us-east-1a"})
    assert run(ec2, "t-1", Placement={"AvailabilityZone": "us-east-1b"}) == first


def test_a_token_counts_in_its_region_only(cloud: AwsCloud, ec2: Any) -> None:
    assert run(ec2, "t-1") != run(cloud.client("ec2", OTHER), "t-1")


def test_a_repeated_token_answers_with_the_state_of_now(cloud: AwsCloud, ec2: Any) -> None:
    ident = run(ec2, "t-1")
    ec2.terminate_instances(InstanceIds=[ident])
    asked = {"ImageId": AMI, "InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1, "ClientToken": "t-1"}
    (again,) = ec2.run_instances(**asked)["Instances"]
    assert (again["InstanceId"], again["State"]["Name"]) == (ident, "terminated")


def test_a_dry_run_uses_no_token_and_makes_nothing(ec2: Any) -> None:
    assert code(lambda: run(ec2, "t-1", DryRun=True)) == "DryRunOperation"
    assert all_ids(ec2) == []
    run(ec2, "t-1", InstanceType="g6.xlarge")


def test_instances_are_found_by_their_token(ec2: Any) -> None:
    first, _ = run(ec2, "t-1"), run(ec2, "t-2")
    assert all_ids(ec2, Filters=[{"Name": "client-token", "Values": ["t-1"]}]) == [first]
    assert all_ids(ec2, Filters=[{"Name": "client-token", "Values": ["no-such"]}]) == []
    assert one(ec2, first)["ClientToken"] == "t-1"


def test_a_volume_is_made_once_per_token(ec2: Any) -> None:
    asked = {"AvailabilityZone": "us-east-1a", "Size": 1, "ClientToken": "v-1"}
    assert ec2.create_volume(**asked)["VolumeId"] == ec2.create_volume(**asked)["VolumeId"]
    assert code(lambda: ec2.create_volume(**{**asked, "Size": 2})) == "IdempotentParameterMismatch"


def test_no_capacity_is_an_http_500_and_makes_nothing(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.no_capacity())
    with pytest.raises(ClientError) as caught:
        run(ec2)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert caught.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    assert cloud.instances() == {}
    run(ec2)


def test_no_capacity_is_sent_again_by_a_client_that_retries(cloud: AwsCloud) -> None:
    cloud.fault(faults.no_capacity())
    run(cloud.client("ec2", attempts=2))
    assert [call["status"] for call in cloud.calls("RunInstances")] == [500, 200]


def test_a_quota_is_told_as_such(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.over_quota())
    assert code(lambda: run(ec2)) == "VcpuLimitExceeded"
    assert cloud.instances() == {}


def test_faults_of_creating_leave_a_dry_run_alone(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.no_capacity())
    assert code(lambda: run(ec2, DryRun=True)) == "DryRunOperation"
    assert code(lambda: run(ec2)) == "InsufficientInstanceCapacity"


@pytest.mark.parametrize("retry_after_s", [None, 1])
def test_a_storm_of_throttling_hits_everything(cloud: AwsCloud, ec2: Any, retry_after_s: int | None) -> None:
    cloud.fault(faults.throttled(retry_after_s=retry_after_s))
    with pytest.raises(ClientError) as caught:
        ec2.describe_instances()
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("RequestLimitExceeded", 503)
    assert answer["ResponseMetadata"]["HTTPHeaders"].get("retry-after") == (
        str(retry_after_s) if retry_after_s else None
    )
    assert code(lambda: cloud.client("scheduler").list_schedules()) == "RequestLimitExceeded"
    assert code(lambda: cloud.client("sts").get_caller_identity()) == "RequestLimitExceeded"
    cloud.clear()
    ec2.describe_instances()


def test_an_error_may_come_although_it_was_done(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.broken_after("RunInstances"))
    assert code(lambda: run(ec2, "t-1")) == "InternalError"
    assert list(cloud.instances()) == [run(ec2, "t-1")]


def test_a_connection_that_is_cut_before_has_made_nothing(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.cut_before("RunInstances"))
    with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        run(ec2, "t-1")
    assert cloud.instances() == {}


def test_a_connection_that_is_cut_after_has_made_it(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.cut_after("RunInstances"))
    with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        run(ec2, "t-1")
    assert list(cloud.instances()) == [run(ec2, "t-1")]


def test_an_answer_that_comes_too_late_was_done_all_the_same(cloud: AwsCloud, ec2: Any) -> None:
    impatient = cloud.client("ec2", read_timeout_s=4)
    run(impatient)
    cloud.fault(faults.late("RunInstances", 8.0))
    began = time.monotonic()
    with pytest.raises(ReadTimeoutError):
        run(impatient, "t-1")
    assert len(cloud.instances()) == 2
    assert len(all_ids(ec2)) == 2
    assert time.monotonic() - began < 8, "others are answered meanwhile"


@pytest.mark.parametrize("after", [False, True])
def test_a_page_in_html_is_no_answer(cloud: AwsCloud, ec2: Any, after: bool) -> None:
    cloud.fault(faults.html("RunInstances", after=after))
    with pytest.raises((ResponseParserError, ClientError)):
        run(ec2)
    assert len(cloud.instances()) == int(after)


def test_a_region_may_be_closed_to_the_caller(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.unauthorized(region=OTHER))
    assert code(lambda: cloud.client("ec2", OTHER).describe_instances()) == "UnauthorizedOperation"
    ec2.describe_instances()


def test_an_action_may_be_closed_to_the_caller_and_a_dry_run_tells(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.unauthorized("RunInstances"))
    assert code(lambda: run(ec2, DryRun=True)) == "UnauthorizedOperation"
    ec2.describe_instances()


@pytest.mark.parametrize("word", ["ExpiredToken", "RequestExpired", "AuthFailure", "InvalidClientTokenId"])
def test_credentials_that_are_good_no_more_are_so_everywhere(cloud: AwsCloud, ec2: Any, word: Any) -> None:
    cloud.fault(faults.expired(word))
    assert code(lambda: ec2.describe_instances()) == word
    assert code(lambda: cloud.client("ec2", OTHER).describe_volumes()) == word
    assert code(lambda: cloud.client("sts").get_caller_identity()) == word
    assert code(lambda: cloud.client("scheduler").list_schedules()) == word


def test_a_fault_can_let_the_first_calls_pass(cloud: AwsCloud, ec2: Any) -> None:
    cloud.fault(faults.throttled("DescribeInstances", times=1, skip=1))
    ec2.describe_instances()
    assert code(lambda: ec2.describe_instances()) == "RequestLimitExceeded"
    ec2.describe_instances()
