"""`gpuops run` on AWS: the fake account over HTTP, each instance a real SSH host at its own address, no hook in the product."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import netns
from clouds.aws import AwsCloud
from clouds.aws_faults import FOR_EVER, Fault, expired, no_capacity, over_quota, unauthorized
from clouds.sshcase import processes_in_this_network

from .world import POLICY, World

pytestmark = [
    pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"), pytest.mark.e2e, pytest.mark.timeout(300)
]  # fmt: skip

ROLE = "arn:aws:iam::123456789012:role/gpuops-timer"
REGION = "us-east-1"


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    with netns.own_network():
        made = AwsCloud(tmp_path_factory.mktemp("aws"), hosts=True)
        yield made
        made.stop()
        assert processes_in_this_network() == set()


@pytest.fixture
def world(account: AwsCloud, tmp_path: Path) -> Iterator[World]:
    account.reset()
    account.switch(pending_s=1.0, shutting_down_s=1.0, schedule_delay_s=0.0)
    short = Path(tempfile.mkdtemp(prefix="gpuops-aws-"))
    extra = {**account.environment, "HOME": str(short)}
    made = World(tmp_path, short / "home", short / "none", extra)
    settings = (
        f'[providers.aws]\nregion = "{REGION}"\nscheduler_role = "{ROLE}"\naddress_url = "{account.url}/check-ip"\n'
    )
    made.configure(POLICY + settings)
    yield made
    made.end()
    shutil.rmtree(short, ignore_errors=True)


def manifest(world: World, **changes: Any) -> Path:
    return world.manifest(**{
        "provider": "aws", "resources": {"device": "A10G", "region": REGION}, "budget": {"cap": "2.00"}, **changes
    })  # fmt: skip


def billable(world: World) -> list[dict[str, Any]]:
    """What the account shows to `reconcile`: nobody else uses it."""
    document = world.json("reconcile", "--provider", "aws")
    assert document["gaps"] == [], document["gaps"]
    return [i for i in document["items"] if "still shown, free" not in i["why"]]


def test_a_whole_life_ends_with_an_empty_account(world: World, account: AwsCloud) -> None:
    done = world.run("run", str(manifest(world)), "--yes", timeout=200)
    assert done.returncode == 0, done.stdout
    for said in ("provider timer (read back)", "Host key pinned (injected)", "Done: training completed"):
        assert said in done.stdout, done.stdout
    assert len(world.generations()) == 2
    assert account.hosts() == ()
    assert billable(world) == []


def test_an_attached_volume_is_checked_and_outlives_the_machine(world: World, account: AwsCloud) -> None:
    volume = a_volume(account)
    volumes = [{"id": volume, "mount": "/data"}]
    done = world.run("run", str(manifest(world, volumes=volumes)), "--yes", timeout=200)
    assert done.returncode == 0, done.stdout
    assert f"volume {volume}" in done.stdout
    left = [i for i in billable(world) if i["kind"] == "volume"]
    assert [(i["id"], i["class"]) for i in left] == [(volume, "foreign")], "kept, and the machine's own disk is gone"
    done = world.run("reconcile", "--provider", "aws", "--apply", "--yes")
    assert done.returncode == 0 and state_of(account, volume) == "available", done.stdout


def test_with_the_journal_lost_adopt_finds_everything(world: World, account: AwsCloud) -> None:
    done = world.run("up", str(manifest(world)), "--yes", timeout=120)
    assert done.returncode == 0, done.stdout
    for pid in world.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for part in world.home.glob("journal.db*"):
        part.unlink()
    done = world.run("adopt", "--provider", "aws", "--yes", "--trust-on-first-use", timeout=120)
    assert done.returncode == 0, done.stdout
    done = world.run("down", "small", timeout=120)
    assert done.returncode == 0, done.stdout
    assert billable(world) == [] and account.hosts() == ()
    assert leftovers(account) == []


def test_a_region_that_a_policy_denies_leaves_the_run_closable_and_is_not_proved(
    world: World, account: AwsCloud
) -> None:
    account.fault(unauthorized(region="eu-central-1"))
    done = world.run("run", str(manifest(world)), "--yes", timeout=200)
    assert done.returncode == 0, done.stdout
    done = world.run("reconcile", "--provider", "aws")
    assert done.returncode == 3 and "NOT PROVED: aws eu-central-1" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("changes", "fault", "code", "said"),
    [
        (
            {"resources": {"device": "A10G", "region": "mars-north-1"}},
            None,
            2,
            "AWS has no region 'mars-north-1'; enabled",
        ),
        ({"resources": {"device": "A10G", "offer": "g99.xlarge/us-east-1/on-demand"}}, None, 3, "offers no"),
        ({}, over_quota(), 4, "vCPU"),
        ({}, no_capacity(times=FOR_EVER), 4, "capacity"),
        ({"resources": {"device": "A10G", "region": REGION, "image": "ami-0ffffffffffffffff"}}, None, 4, "ami-0fff"),
        ({}, expired(), 2, "expired"),
    ],
    ids=["region", "type", "quota", "capacity", "image", "token"],
)
def test_bad_input_ends_with_one_clear_message_and_nothing_left(
    world: World, account: AwsCloud, changes: dict[str, Any], fault: Fault | None, code: int, said: str
) -> None:
    if fault is not None:
        account.fault(fault)
    done = world.run("run", str(manifest(world, **changes)), "--yes", timeout=150)
    account.clear()
    assert done.returncode == code, done.stdout
    assert said in done.stdout and "  next: " in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert account.instances() == {} and leftovers(account) == [], done.stdout


def a_volume(account: AwsCloud) -> str:
    ec2 = account.client("ec2", REGION)
    return str(ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=20)["VolumeId"])


def state_of(account: AwsCloud, volume: str) -> str:
    ec2 = account.client("ec2", REGION)
    return str(ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["State"])


def leftovers(account: AwsCloud) -> list[str]:
    """Security groups and schedules of ours, as boto3 sees them."""
    groups = account.client("ec2", REGION).describe_security_groups()["SecurityGroups"]
    schedules = account.client("scheduler", REGION).list_schedules()["Schedules"]
    return [g["GroupName"] for g in groups if g["GroupName"].startswith("gpuops-")] + [s["Name"] for s in schedules]
