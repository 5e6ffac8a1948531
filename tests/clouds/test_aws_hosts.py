"""Instances of the fake AWS are hosts that OpenSSH reaches at their public addresses, and end as the bill does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import netns
from clouds.aws import ACCOUNT, AwsCloud
from clouds.awscase import one, run, state
from clouds.sshcase import Client, key, processes_in_this_network, refused, wait

pytestmark = [pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"), pytest.mark.e2e]
INTERFACE = [{"DeviceIndex": 0, "AssociatePublicIpAddress": True, "DeleteOnTermination": True}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    with netns.own_network():
        made = AwsCloud(tmp_path_factory.mktemp("aws"), hosts=True)
        yield made
        made.stop()
        assert processes_in_this_network() == set()


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def rent(cloud: AwsCloud, ec2: Any, client: Client, more: str = "", **asked: Any) -> tuple[str, str]:
    """An instance with the client's keys, its host up: id and address."""
    asked = {"InstanceInitiatedShutdownBehavior": "terminate", "NetworkInterfaces": INTERFACE, **asked}
    ident = run(ec2, UserData=client.user_data(more), **asked)
    address = str(one(ec2, ident)["PublicIpAddress"])
    wait(lambda: not refused(address))
    return ident, address


def test_the_life_of_a_rented_machine(cloud: AwsCloud, ec2: Any, client: Client, tmp_path: Path) -> None:
    ident, address = rent(cloud, ec2, client)
    assert (
        client.says("hostname; nvidia-smi -L | cut -d: -f1,2 | cut -d'(' -f1,2", address)
        == (f"{ident}\nGPU 0: NVIDIA A10G (simulated) ").strip()
    )
    wrong = client.ssh("true", address, pinned=key(tmp_path / "wrong"))
    assert "Host key verification failed" in wrong.stderr
    ec2.terminate_instances(InstanceIds=[ident])
    assert refused(address)
    assert state(ec2, ident) == "terminated"
    assert cloud.hosts() == ()


def test_two_rentals_live_at_once_at_addresses_of_their_own(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    (first, here), (second, there) = rent(cloud, ec2, client), rent(cloud, ec2, client)
    assert here != there
    assert (client.says("hostname", here), client.says("hostname", there)) == (first, second)
    ec2.terminate_instances(InstanceIds=[first])
    assert refused(here)
    assert client.says("hostname", there) == second


def test_nobody_answers_at_an_address_that_no_instance_has(cloud: AwsCloud) -> None:
    assert refused("54.214.255.1")


def test_a_host_is_not_there_before_its_instance_runs(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    cloud.switch(pending_s=3600)
    ident = run(ec2, UserData=client.user_data(), NetworkInterfaces=INTERFACE)
    assert refused(str(one(ec2, ident)["PublicIpAddress"]))
    cloud.advance(3601)
    wait(lambda: cloud.hosts() == (ident,))


@pytest.mark.parametrize(("behaviour", "end"), [("terminate", "terminated"), ("stop", "stopped")])
def test_a_guest_that_powers_off_ends_as_the_create_call_said(
    cloud: AwsCloud, ec2: Any, client: Client, behaviour: str, end: str
) -> None:
    ident, address = rent(cloud, ec2, client, InstanceInitiatedShutdownBehavior=behaviour)
    client.ssh("sudo poweroff", address)
    wait(lambda: state(ec2, ident) == end)
    assert refused(address)


def test_a_timer_inside_ends_the_instance(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, address = rent(cloud, ec2, client, "runcmd:\n  - [systemd-run, --on-active=2, poweroff]\n")
    wait(lambda: state(ec2, ident) == "terminated")
    assert one(ec2, ident)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert refused(address)


def test_a_schedule_ends_the_host(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, address = rent(cloud, ec2, client)
    at = datetime.datetime.fromtimestamp(cloud.now() + 600, datetime.UTC)
    cloud.client("scheduler").create_schedule(
        Name="end",
        ScheduleExpression=at.strftime("at(%Y-%m-%dT%H:%M:%S)"),
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={
            "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/x",
            "Input": json.dumps({"InstanceIds": [ident]}),
        },
    )
    assert not refused(address)
    cloud.advance(601)
    wait(lambda: refused(address))


def test_a_terminate_that_is_ignored_leaves_the_host_alone(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, address = rent(cloud, ec2, client)
    cloud.switch(ignore_terminates=1)
    ec2.terminate_instances(InstanceIds=[ident])
    assert client.says("hostname", address) == ident


def test_an_attached_volume_appears_under_its_serial_and_outlives_the_host(
    cloud: AwsCloud, ec2: Any, client: Client
) -> None:
    volume = str(ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"])
    name = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"
    wanted = {"more": f"mounts:\n  - [{name}, /workspace]\n", "Placement": {"AvailabilityZone": "us-east-1a"}}
    for content in ("", "kept"):
        ident, address = rent(cloud, ec2, client, **wanted)
        assert client.ssh(f"ls {name}", address).returncode != 0
        ec2.attach_volume(InstanceId=ident, VolumeId=volume, Device="/dev/sdf")
        assert (
            client.says("sudo mount -a; cat /workspace/file 2>/dev/null; echo kept > /workspace/file", address)
            == content
        )
        ec2.terminate_instances(InstanceIds=[ident])
        wait(lambda: ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"] == "available")


def test_a_stopped_instance_keeps_its_disk_and_starts_again(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, address = rent(cloud, ec2, client, "runcmd:\n  - echo once >> /home/ubuntu/boots\n")
    wait(lambda: "boot: finished" in cloud.console(ident))
    ec2.stop_instances(InstanceIds=[ident])
    assert refused(address)
    ec2.start_instances(InstanceIds=[ident])
    again = str(one(ec2, ident)["PublicIpAddress"])
    wait(lambda: not refused(again))
    assert client.says("cat boots", again) == "once"


def test_a_spot_instance_that_is_taken_back_is_gone_at_once(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, address = rent(cloud, ec2, client, InstanceMarketOptions={"MarketType": "spot"})
    cloud.reclaim(ident)
    assert refused(address)


def test_the_console_prints_the_host_keys(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    ident, _ = rent(cloud, ec2, client)
    public = client.host.with_suffix(".pub").read_text().split()[1]
    assert public in ec2.get_console_output(InstanceId=ident, Latest=True)["Output"]


def test_a_key_pair_of_the_account_lets_the_default_user_in(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    other = Client(client.folder / "other")
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=other.own.with_suffix(".pub").read_bytes())
    _, address = rent(cloud, ec2, client, KeyName="k")
    assert other.ssh("true", address, pinned=client.host).returncode == 0


def test_an_instance_without_a_public_address_has_no_host(cloud: AwsCloud, ec2: Any, client: Client) -> None:
    nic = [{"DeviceIndex": 0, "AssociatePublicIpAddress": False}]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    run(ec2, UserData=client.user_data(), NetworkInterfaces=[{**nic[0], "SubnetId": subnet}])
    assert cloud.hosts() == ()


def test_a_host_whose_server_is_killed_dies_with_it(tmp_path: Path) -> None:
    with netns.own_network():
        cloud = AwsCloud(tmp_path / "aws", hosts=True)
        client = Client(tmp_path / "client")
        _, address = rent(cloud, cloud.client("ec2"), client)
        client.says("setsid sleep 4243 </dev/null >/dev/null 2>&1 &", address)
        cloud.stop()
        assert processes_in_this_network() == set()
        assert refused(address)
