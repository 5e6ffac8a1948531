"""Lives on a fake Google Cloud, typed at the command line: real HTTP, real SSH, and nothing left that bills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1", reason="the extra `gcp` is not installed")

from clouds import netns
from clouds.gcp import GcpCloud
from e2e.gcpworld import account, manifest, ours, running_bills, user
from e2e.hands import kill
from e2e.world import World
from gcpcase import ZONE, volume

LIFE_S = 420
FOR_EVER = None

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(LIFE_S + 100),
    pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpCloud]:
    with account(tmp_path_factory.mktemp("gcp")) as made:
        yield made


@pytest.fixture
def cloud(server: GcpCloud) -> GcpCloud:
    server.reset(hosts=True)
    return server


@pytest.fixture
def world(tmp_path: Path, cloud: GcpCloud) -> Iterator[World]:
    with user(tmp_path, cloud) as made:
        yield made


def test_a_whole_life_ends_with_copies_and_without_a_bill(world: World, cloud: GcpCloud) -> None:
    done = world.run("run", str(manifest(world)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0, done.stdout
    said = " ".join(done.stdout.split())
    for words in ("gcp's own timer cannot be moved", "provider timer (read back)", "Host key pinned (provider)"):
        assert words in said, done.stdout
    assert "Proof of termination, round 2 of 2" in said
    assert [path.name for path in world.generations()] == ["step-000003", "step-000006"]
    assert len(cloud.log("instances.insert")) == 1
    assert not cloud.there() and not cloud.there("disks") and not running_bills(cloud)
    assert world.json("reconcile", "--provider", "gcp") == {"items": [], "gaps": [], "unlisted": []}


def test_an_attached_disk_outlives_the_machine_its_timer_and_reconcile(world: World, cloud: GcpCloud) -> None:
    volumes = [{"id": volume(cloud).id, "mount": "/data"}]
    done = world.run("up", str(manifest(world, volumes=volumes)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0 and "volume datasets" in done.stdout, done.stdout
    kill(*world.processes())
    cloud.advance(3600)
    cloud.wait(lambda: not ours(cloud), "the timer")
    done = world.run("down", "small", timeout=120)
    assert done.returncode == 0, done.stdout
    done = world.run("reconcile", "--provider", "gcp", "--apply", "--yes")
    assert done.returncode == 0, done.stdout
    assert list(cloud.there("disks")) == ["datasets"] and not running_bills(cloud)


def test_with_the_journal_lost_adopt_finds_everything_and_down_ends_it(world: World, cloud: GcpCloud) -> None:
    done = world.run("up", str(manifest(world)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0, done.stdout
    kill(*world.processes())
    for part in world.home.glob("journal.db*"):
        part.unlink()
    done = world.run("adopt", "--provider", "gcp", "--yes", timeout=120)
    assert done.returncode == 0, done.stdout
    done = world.run("down", "small", timeout=120)
    assert done.returncode == 0, done.stdout
    assert not ours(cloud) and not running_bills(cloud)
    assert world.json("reconcile", "--provider", "gcp") == {"items": [], "gaps": [], "unlisted": []}


def test_a_stockout_in_the_operation_moves_the_run_to_the_next_offer(world: World, cloud: GcpCloud) -> None:
    cloud.faults(stockout=1)
    region = {"device": "L4", "region": ZONE.rpartition("-")[0]}
    done = world.run("run", str(manifest(world, resources=region)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0, done.stdout
    assert len(cloud.log("instances.insert")) == 2, done.stdout
    assert len(world.generations()) == 2
    assert not ours(cloud) and not running_bills(cloud)


@pytest.mark.parametrize(
    ("changes", "faults", "code", "said"),
    [
        ({"resources": {"device": "L4", "region": "mars-north1"}}, {}, 2, "'mars-north1'"),
        ({"resources": {"device": "L4", "offer": f"z9-standard-4/{ZONE}/standard"}}, {}, 3, "offers no"),
        ({}, {"quota": {"times": FOR_EVER}}, 4, "GPUS_ALL_REGIONS"),
        ({}, {"stockout": {"times": FOR_EVER}}, 4, "does not have enough resources"),
        ({}, {"credentials": True}, 2, "401"),
        ({}, {"token_refused": True}, 2, "invalid_grant"),
        ({}, {"too_many": {"times": FOR_EVER, "service": "apis"}}, 4, "429"),
    ],
    ids=["region", "type", "quota", "stockout", "credentials", "token", "storm"],
)
def test_bad_input_ends_with_one_clear_message_and_nothing_left(
    world: World, cloud: GcpCloud, changes: dict[str, Any], faults: dict[str, Any], code: int, said: str
) -> None:
    cloud.faults(**faults)
    done = world.run("run", str(manifest(world, **changes)), "--yes", timeout=150)
    cloud.faults()
    assert done.returncode == code, done.stdout
    assert said in done.stdout and "  next: " in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert not ours(cloud) and not running_bills(cloud), done.stdout
