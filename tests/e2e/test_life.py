"""The main job, end to end, on real sshd, rsync and tmux."""

from __future__ import annotations

import pytest
from e2e.world import World

pytestmark = pytest.mark.e2e


def test_run_trains_copies_ends_and_closes(world: World) -> None:
    manifest = world.manifest()
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 0, done.stdout
    for words in (
        "price", "deadline", "limit", "if this computer is off", "Rental bought", "Host key pinned", "expected", "seen",
        "dry run", "train.py", "verified on the host by sha256", "loss", "tokens/s", "left", "Sealed", "sha256 of each",
        "Copied and verified", "round 1 of 2", "round 2 of 2", "Reconcile", "nothing of this run", "checkpoint", "audit trail",
        "simulated",
    ):  # fmt: skip
        assert words in done.stdout, f"{words!r} is not shown:\n{done.stdout}"
    assert [g.name for g in world.generations()] == ["step-000003", "step-000006"]
    assert world.rentals() == []


def test_launch_then_a_closed_terminal_and_a_failing_training_need_no_further_command(world: World) -> None:
    code = world.manifest(code="import sys, time; print('boom', flush=True); time.sleep(1); sys.exit(7)")
    assert world.run("up", str(code), "--yes").returncode == 0
    assert world.run("launch", "small", "--yes").returncode == 0
    run = world.closed()
    assert run["outcome"] == "failed"
    assert run["may_bill"] == [] and world.rentals() == []
    assert world.run("watch", "small").returncode == 6
    assert "boom" in world.run("logs", "small").stdout
