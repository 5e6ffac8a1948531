"""A whole run on AWS: the command line, boto3, and machines that real OpenSSH reaches; prices and devices are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("boto3", reason="the extra `aws` is not installed")
pytest.importorskip("moto", reason="moto is not installed")

from clouds import netns
from clouds.aws import AwsCloud
from e2e.world import World

from gpuops.registry import names

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"),
    pytest.mark.skipif("aws" not in names(), reason="gpuops was installed before it had this provider"),
]
CONFIG = """
[policy]
status_every_s = 1
proof_gap_s = 2

[providers.aws]
region = "us-east-1"
scheduler_role = "arn:aws:iam::123456789012:role/gpuops-ends-instances"
address_url = "{address}"
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[AwsCloud]:
    with netns.own_network():
        made = AwsCloud(tmp_path / "aws", hosts=True)
        yield made
        made.stop()


def test_a_run_on_aws_trains_copies_ends_and_leaves_nothing(cloud: AwsCloud, world: World) -> None:
    world.configure(CONFIG.format(address=cloud.check_ip_url))
    world.extra = cloud.environment
    manifest = world.manifest(provider="aws", resources={"device": "A10G"}, budget={"cap": "1.00"}, deadline="15m")
    done = world.run("run", str(manifest), "--yes", timeout=300)
    assert done.returncode == 0, done.stdout
    for words in (
        "AWS Pricing API, in force since", "Rental bought: aws/us-east-1/rental/i-", "Host key pinned (injected)", "A10G",
        "published ports  expected exactly 22", "Gone, proved: aws/us-east-1/security-group/sg-", "nothing of this run bills",
    ):  # fmt: skip
        assert words in done.stdout, f"{words!r} is not shown:\n{done.stdout}"
    assert [g.name for g in world.generations()] == ["step-000003", "step-000006"]
    assert list(cloud.instances().values()) == ["terminated"]
    assert len(cloud.calls("RunInstances")) == 1
    assert cloud.client("ec2").describe_volumes()["Volumes"] == []
    groups = cloud.client("ec2").describe_security_groups()["SecurityGroups"]
    assert {group["GroupName"] for group in groups} == {"default"}
