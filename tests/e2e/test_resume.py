"""A rental that is lost in the middle of training: another one goes on from the newest verified copy, where that was approved."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2e import hands
from e2e.world import POLICY, TRAIN, World
from gpuops_providers import local

from gpuops.values import Ref

pytestmark = pytest.mark.e2e

# Says where it goes on from, and saves often enough that something is mirrored before the rental is lost.
TELLS = TRAIN.replace("beat = open", "print('begins after', first, sys.argv[4:], flush=True)\nbeat = open", 1)
LIFE: dict[str, Any] = {
    "code": TELLS, "train": {"argv": ["python3", "train.py", "40", "0.3", "3"], "resume": 1}, "deadline": "10m",
}  # fmt: skip


@pytest.fixture
def short(world: World) -> World:
    """Lives of a minute are worth a second machine."""
    world.configure(POLICY.replace("[policy]\n", "[policy]\nreplace_least_s = 30\n"))
    return world


def end_at_the_console(world: World) -> None:
    """The provider, or somebody at its console, ends the rental."""
    record = hands.rental(world)
    cloud = local.provider({"directory": str(world.cloud)}, lambda name: None)
    cloud.terminate(Ref("local", record["account"], record["region"], "rental", record["id"]), time.time() + 20)


def copied(world: World) -> bool:
    rental = hands.state(world).rental
    return rental is not None and any(name.startswith("step-") for name in rental.work.copied)


def begun_after(world: World) -> int:
    """The step after which the last training began, by its own log."""
    text = next(iter((world.root / "results").glob("*/telemetry*/train.log"))).read_text()
    line = next(line for line in text.splitlines() if line.startswith("begins after"))
    assert "--resume" in line, line
    return int(line.split()[2])


def finished(world: World) -> None:
    state = hands.state(world)
    assert [p.life for p in state.purchases.values()] == ["gone", "gone"]
    assert world.rentals() == [] and world.creates() == 2
    assert state.restore is not None and begun_after(world) == int(state.restore.generation.removeprefix("step-")) > 0
    assert state.outcome == "completed"
    assert f"step-{begun_after(world) // 3 * 3 + 39:06d}" in [g.name for g in world.generations()]


def test_the_guard_alone_rents_again_and_training_goes_on(short: World) -> None:
    hands.launched(short, **LIFE)
    hands.until(short, "a generation is copied", lambda s: copied(short))
    end_at_the_console(short)
    closed = short.closed(timeout=100)
    assert closed["outcome"] == "completed"
    finished(short)
    told = short.run("watch")
    assert told.returncode == 0, told.stdout
    assert "lost, another one was rented as approved" in told.stdout


def test_a_command_that_drives_the_run_does_the_same_and_says_so(short: World) -> None:
    process = short.start("run", str(hands.manifest(short, **LIFE)), "--yes")
    try:
        hands.until(short, "a generation is copied", lambda s: copied(short))
        end_at_the_console(short)
        out, _ = process.communicate(timeout=110)
    finally:
        process.kill()
    assert process.returncode == 0, out
    for words in ("if the machine is lost", "Checkpoint sent and verified on the host", "training goes on from step-"):
        assert words in out, f"{words!r} is not shown:\n{out}"
    finished(short)


def test_without_approval_what_was_copied_is_what_is_left(short: World) -> None:
    train = {"argv": LIFE["train"]["argv"]}
    hands.launched(short, **{**LIFE, "train": train})
    hands.until(short, "a generation is copied", lambda s: copied(short))
    end_at_the_console(short)
    assert short.closed()["outcome"] == "interrupted"
    assert short.creates() == 1 and short.rentals() == []
    told = short.run("watch")
    assert told.returncode == 6, told.stdout
