"""A host that is not what was ordered: stopped before anything is sent, expected shown against seen, torn down."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from e2e import hands
from e2e.world import World

pytestmark = pytest.mark.e2e


def make_volume(world: World, name: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "gpuops_providers.local", "volume", "create", name, "--gb", "1", "--directory", str(world.cloud)],
        env=world.env, check=True, capture_output=True, timeout=30,
    )  # fmt: skip


def refused(world: World, *words: str, **manifest: Any) -> str:
    """`run` must stop at the checks: nothing sent, torn down and proved, exit 4."""
    done = world.run("run", str(world.manifest(**manifest)), "--yes")
    assert done.returncode == 4, done.stdout
    for word in (*words, "Failed before training: checks failed", "Nothing of this run bills: proved"):
        assert word in done.stdout, f"{word!r} is not shown:\n{done.stdout}"
    assert "dry run" not in done.stdout and hands.records(world, "listed") == []
    hands.clean(world)
    return done.stdout


def test_somebody_else_answers(world: World) -> None:
    hands.faults(world, own_host_key=True)
    out = refused(world, "WRONG", "host key", "presented another host key than the pinned one")
    log = (hands.directory(world) / "sshd.log").read_text()
    assert "Accepted" not in log and "Failed publickey" not in log, "refused before the run's key was shown to it"
    assert "Host key pinned" not in out


def test_everything_that_can_be_wrong_at_once(world: World) -> None:
    """One host, wrong in every way: each is named with expected against seen."""
    make_volume(world, "data")
    hands.awkward(
        world, device={"name": "NVIDIA T4 (simulated)", "memory_mib": 15360, "driver": "470.10", "count": 2},
        ports=[22, 8888], workspace_mb=60, mounts={"/data": "/elsewhere"},
    )  # fmt: skip
    out = refused(
        world,
        "expected A100", "seen NVIDIA T4 (simulated)", "expected 1 ", "seen 2", "expected at least 80 GB", "seen 16.1 GB",
        "expected at least 550.54", "seen 470.10", "volume data", "expected mounted at /data", "seen missing",
        "expected at least 5 GB for outputs", "seen 0.1 GB", "expected within 1e-09 s", "expected exactly 22",
        "seen 22, 8888",
        resources={"device": "A100", "count": 1, "memory": "80GB"},
        checks={"driver": "550.54", "free": "5GB", "clock_skew": "0.000000001s"},
        volumes=[{"id": "data", "mount": "/data"}],
    )  # fmt: skip
    assert out.count("WRONG") == 8
    listed = world.json("reconcile")["items"]
    assert [(i["kind"], i["class"]) for i in listed if i["kind"] == "volume"] == [("volume", "foreign")], "it stays"


def test_the_volume_is_missing(world: World) -> None:
    """Known before anything is ordered; where the listing does not tell, the provider itself refuses. Nothing is bought."""
    done = world.run("run", str(world.manifest(volumes=[{"id": "nowhere", "mount": "/data"}])), "--yes")
    assert done.returncode == 3 and "volume nowhere is not on account default" in done.stdout, done.stdout
    assert world.status() == []
    hands.faults(world, listing_gap=["there"])
    done = world.run("run", str(world.manifest(volumes=[{"id": "nowhere", "mount": "/data"}])), "--yes")
    assert done.returncode == 4, done.stdout
    assert "no volume nowhere" in done.stdout and "Nothing was bought" in done.stdout
    hands.faults(world)
    assert world.creates() == 0 and world.rentals() == []


def test_hold_keeps_a_wrong_host_for_a_look_until_the_setup_limit(world: World) -> None:
    hands.awkward(world, ports=[22, 8888])
    path = world.manifest(checks={"on_failure": "hold", "free": "10MB"}, setup="9s")
    process = world.start("run", str(path), "--yes")
    hands.until(world, "the checks failed", lambda s: any(p.work.checked_at for p in s.purchases.values()))
    held = world.status()[-1]
    assert held["may_bill"] and held["wanted"] != "closed", "it is held"
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4, out
    assert "Held for a look until" in out and f"gpuops ssh {held['id']}" in out and "seen 22, 8888" in out
    assert "held 9 s for a look, because checks failed: published ports: expected exactly 22" in out
    assert hands.records(world, "listed") == [], "nothing was sent to it"
    hands.clean(world)
