"""What tests of the fake AWS do again and again, with plain boto3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from clouds import aws_figures as figures

AMI = figures.IMAGES["x86_64"]
HOME, OTHER = "us-east-1", "eu-central-1"


def run(ec2: Any, token: str = "", **more: Any) -> str:
    asked = {"ImageId": AMI, "InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1, **more}
    asked |= {"ClientToken": token} if token else {}
    return str(ec2.run_instances(**asked)["Instances"][0]["InstanceId"])


def one(ec2: Any, ident: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2.describe_instances(InstanceIds=[ident])["Reservations"][0]["Instances"][0]
    return found


def state(ec2: Any, ident: str) -> str:
    return str(one(ec2, ident)["State"]["Name"])


def all_ids(ec2: Any, **asked: Any) -> list[str]:
    pages = ec2.get_paginator("describe_instances").paginate(**asked)
    return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]


def code(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])
