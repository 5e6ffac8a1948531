"""AWS passes the suite that every provider passes: boto3 over HTTP against an account that behaves as EC2 does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest
from awswire import ROLE, alone
from clouds.aws import AwsCloud
from clouds.aws_faults import FOR_EVER, Fault, broken_after, cut_after, expired, no_capacity
from gpuops_providers.aws import provider

from gpuops.marks import new_nonce
from gpuops.testing.conformance import ANSWER_S, ConformanceWorld, ProviderConformance
from gpuops.values import HostKey, Mark, Need, Order, Ref

REGION, OTHER = "us-east-1", "eu-central-1"


class AwsWorld(ConformanceWorld):
    """The clock of the account is moved; the machines are records, their states take a few seconds."""

    need = Need("A10G", region=REGION)
    settle_s = 12.0
    other_regions = (OTHER,)

    def __init__(self, cloud: AwsCloud) -> None:
        self.cloud = cloud
        self._ahead_s = 0.0
        cloud.switch(pending_s=2.0, shutting_down_s=3.0, regions=(REGION, OTHER))
        self.provider = provider({"region": REGION, "scheduler_role": ROLE}, lambda name: None, self.now)

    def now(self) -> float:
        return time.time() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self.cloud.advance(seconds)
        self._ahead_s += seconds

    def order(self, ends_in_s: float = 3600.0) -> Order:
        """With its security group: the engine prepares an order before it is sent."""
        offer = self.provider.quote(self.need, self.now() + ANSWER_S)[0]
        ends_at = float(int(self.now() + ends_in_s))
        mark = Mark("run-1", new_nonce(secrets.token_bytes(8)), "ada@example.org", ends_at, "SHA256:key")
        order = Order(
            mark, 0, offer, "", 0, (), ("ssh-ed25519 AAAA ada",), HostKey("PRIVATE", "ssh-ed25519 BBBB", "SHA256:key"), "",
            ends_at, ("198.51.100.7/32",),
        )  # fmt: skip
        self.provider.prepare(order, self.now() + ANSWER_S)
        return order

    def lose_answer(self) -> None:
        self.cloud.fault(cut_after("RunInstances"))

    def error_after_create(self) -> None:
        self.cloud.fault(broken_after("RunInstances"))

    def refuse_capacity(self) -> None:
        self.cloud.fault(no_capacity())

    def hide_new(self, seconds: float) -> None:
        self.cloud.switch(visible_after_s=seconds)

    def ignore_terminate(self) -> None:
        self.cloud.switch(ignore_terminates=1)

    def gap(self, region: str) -> None:
        self.cloud.fault(Fault("RequestLimitExceeded", 503, action="DescribeInstances", region=region, times=FOR_EVER))

    def unknown_word(self, ref: Ref) -> None:
        self.cloud.word(ref.id, "hibernating")

    def damage_mark(self, ref: Ref) -> None:
        ec2 = self.cloud.client("ec2", ref.region)
        (reservation,) = ec2.describe_instances(InstanceIds=[ref.id])["Reservations"]
        (name,) = [tag["Value"] for tag in reservation["Instances"][0]["Tags"] if tag["Key"] == "Name"]
        parts = name.split("-")
        damaged = "-".join([*parts[:2], "zzzzzz", *parts[3:]])
        ec2.create_tags(Resources=[ref.id], Tags=[{"Key": "Name", "Value": damaged}])

    def foreign(self) -> Ref:
        made = self.cloud.client("ec2", REGION).create_volume(AvailabilityZone=f"{REGION}a", Size=10)
        return Ref("aws", self.provider.account(), REGION, "volume", made["VolumeId"])

    def break_credentials(self) -> None:
        self.cloud.fault(expired())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    account = AwsCloud(tmp_path_factory.mktemp("aws"))
    yield account
    account.stop()


class TestAws(ProviderConformance):
    @pytest.fixture
    def world(self, cloud: AwsCloud, monkeypatch: pytest.MonkeyPatch) -> ConformanceWorld:
        cloud.reset()
        alone(monkeypatch, cloud.url)
        return AwsWorld(cloud)
