"""`gpuops run` on AWS: the fake account over HTTP, each instance a real SSH host at its own address, no hook in the product."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="the extra `aws` is not installed")

from clouds import netns
from clouds.aws import AwsCloud
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
