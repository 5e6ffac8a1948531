"""AWS passes the suite that every provider passes: boto3 over HTTP against an account that behaves as EC2 does."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from awswire import ROLE, alone
from clouds import awscase
from clouds.aws import AwsCloud
from clouds.aws_faults import (
    FOR_EVER,
    Fault,
    broken_after,
    cut_after,
    expired,
    html,
    late,
    no_capacity,
    throttled,
    unauthorized,
)
from gpuops_providers.aws import provider

from gpuops.marks import new_nonce
from gpuops.testing.conformance import ANSWER_S, ConformanceWorld, ProviderConformance
from gpuops.values import HostKey, Mark, Need, Order, Ref, VolumeUse

REGION, OTHER = "us-east-1", "eu-central-1"


class AwsWorld(ConformanceWorld):
    """The clock of the account is moved; the machines are records, their states take a few seconds."""

    need = Need("A10G", region=REGION)
    settle_s = 12.0
    other_regions = (OTHER,)
    speaks_http = True
    refuses_late = True
    """An instance may end by itself while it is pending (EC2 User Guide, "Instance terminates immediately")."""
    page_status = 502

    def __init__(self, cloud: AwsCloud) -> None:
        self.cloud = cloud
        self._ahead_s = 0.0
        cloud.switch(pending_s=2.0, shutting_down_s=3.0, regions=(REGION, OTHER))
        settings = {"region": REGION, "scheduler_role": ROLE, "address_url": cloud.check_ip_url}
        self.provider = provider(settings, lambda name: None, self.now)

    def now(self) -> float:
        return time.time() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self.cloud.advance(seconds)
        self._ahead_s += seconds

    def order(self, ends_in_s: float = 3600.0) -> Order:
        offer = self.provider.quote(self.need, self.now() + ANSWER_S)[0]
        ends_at = float(int(self.now() + ends_in_s))
        mark = Mark("run-1", new_nonce(secrets.token_bytes(8)), "ada@example.org", ends_at, "SHA256:key")
        return Order(
            mark, 0, offer, "", 0, (), ("ssh-ed25519 AAAA ada",), HostKey("PRIVATE", "ssh-ed25519 BBBB", "SHA256:key"), "",
            ends_at, ("198.51.100.7/32",),
        )  # fmt: skip

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
        (name,) = [tag["Value"] for tag in self._instance(ref)["Tags"] if tag["Key"] == "Name"]
        parts = name.split("-")
        self._name(ref, "-".join([*parts[:2], "zzzzzz", *parts[3:]]))

    def refuse_late(self) -> None:
        self.cloud.switch(refuse_late=1)

    def ending(self, ref: Ref) -> None:
        self.cloud.switch(shutting_down_s=1e6)
        self.cloud.client("ec2", ref.region).terminate_instances(InstanceIds=[ref.id])

    def rename(self, ref: Ref) -> None:
        self._name(ref, "my favourite machine")

    def clone(self, ref: Ref) -> Ref:
        labels = [{"ResourceType": "instance", "Tags": self._instance(ref)["Tags"]}]
        made = awscase.run(self.cloud.client("ec2", ref.region), TagSpecifications=labels)
        return dataclasses.replace(ref, id=made)

    def foreign(self, kind: str = "rental") -> Ref:
        return Ref("aws", self.provider.account(), OTHER, kind, somebody_elses(self.cloud, kind))

    def volume(self) -> VolumeUse:
        made = self.cloud.client("ec2", REGION).create_volume(AvailabilityZone=f"{REGION}a", Size=10)
        return VolumeUse(made["VolumeId"], "/data")

    def cut_connection(self) -> None:
        self.cloud.fault(cut_after("RunInstances"))

    def answer_late(self) -> None:
        self.cloud.fault(late("RunInstances", 15.0))

    def throttle(self, retry_after_s: float | None) -> None:
        self.cloud.fault(throttled(retry_after_s=None if retry_after_s is None else int(retry_after_s)))

    def answer_html(self) -> None:
        self.cloud.fault(html("*", status=self.page_status, times=FOR_EVER))

    def forbid(self) -> None:
        self.cloud.fault(unauthorized())

    def mask_credentials(self) -> None:
        masked = Fault("InvalidInstanceID.NotFound", times=FOR_EVER)
        actions = ("DescribeInstances", "TerminateInstances")
        self.cloud.fault(*(dataclasses.replace(masked, action=action) for action in actions), expired())

    def fail_looks(self) -> None:
        self.cloud.fault(Fault("InternalError", 500, action="DescribeInstances", times=FOR_EVER))

    def break_pages(self) -> None:
        self.cloud.switch(page_size=1)
        self.cloud.fault(Fault("InternalError", 500, action="DescribeInstances", region=REGION, skip=1, times=FOR_EVER))

    def _instance(self, ref: Ref) -> dict[str, Any]:
        return awscase.one(self.cloud.client("ec2", ref.region), ref.id)

    def _name(self, ref: Ref, name: str) -> None:
        tags = [{"Key": "Name", "Value": name}]
        self.cloud.client("ec2", ref.region).create_tags(Resources=[ref.id], Tags=tags)

    def break_credentials(self) -> None:
        self.cloud.fault(expired())


def somebody_elses(cloud: AwsCloud, kind: str) -> str:
    """Something of this kind that bills in the other region, made as its owner would make it; its id."""
    ec2 = cloud.client("ec2", OTHER)
    disk = {"AvailabilityZone": f"{OTHER}a", "Size": 10}
    if kind in ("capacity-reservation", "capacity-block"):
        ident = {"capacity-reservation": "cr-0a1b2c3d4e5f60718", "capacity-block": "cb-0a1b2c3d4e5f60718"}[kind]
        cloud.switch(reservations=(f"{OTHER}/{ident}",))
        return ident
    makers: dict[str, Callable[[], str]] = {
        "rental": lambda: awscase.run(ec2),
        "volume": lambda: ec2.create_volume(**disk)["VolumeId"],
        "snapshot": lambda: ec2.create_snapshot(VolumeId=ec2.create_volume(**disk)["VolumeId"])["SnapshotId"],
        "image": lambda: ec2.create_image(InstanceId=awscase.run(ec2), Name="theirs")["ImageId"],
        "address": lambda: ec2.allocate_address(Domain="vpc")["AllocationId"],
        "nat-gateway": lambda: ec2.create_nat_gateway(
            SubnetId=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
            AllocationId=ec2.allocate_address(Domain="vpc")["AllocationId"],
        )["NatGateway"]["NatGatewayId"],
        "spot-request": lambda: ec2.request_spot_instances(
            SpotPrice="1", Type="persistent", LaunchSpecification={"ImageId": awscase.AMI, "InstanceType": "g5.xlarge"},
        )["SpotInstanceRequests"][0]["SpotInstanceRequestId"],
        "fleet": lambda: fleet(ec2),
        "file-system": lambda: f"efs/{cloud.client('efs', OTHER).create_file_system(CreationToken='t')['FileSystemId']}",
    }  # fmt: skip
    return makers[kind]()


def fleet(ec2: Any) -> str:
    """A fleet that keeps one instance running."""
    data = {"ImageId": awscase.AMI, "InstanceType": "g5.xlarge"}
    template = ec2.create_launch_template(LaunchTemplateName="theirs", LaunchTemplateData=data)
    specification = {"LaunchTemplateId": template["LaunchTemplate"]["LaunchTemplateId"], "Version": "1"}
    made = ec2.create_fleet(
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification}],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
    )
    return str(made["FleetId"])


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

    @pytest.mark.parametrize("status", [200, 403, 404, 502])
    def test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(self, wire: AwsWorld, status: int) -> None:
        wire.page_status = status
        super().test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(wire)
