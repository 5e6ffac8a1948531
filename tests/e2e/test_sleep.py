"""A laptop that is closed for a minute, its network gone, in every phase: it goes on by itself, and buys nothing on waking."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from e2e import hands
from e2e.killing.lives import TRAIN, life, newest_is_safe, nothing_left, side_by_side, strays, struck
from e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

ASLEEP_S = 61.0
"""With the numbers of these lives more than anything waits for: an intent may be sent for 4 s, a call takes 30 s."""
PHASES = {
    "up, before the intent": "before:intended",
    "up, between intent and create call": "after:intended",
    "up, bought and not recorded": "before:created",
    "up, waiting for the host": "after:created",
    "up, while it checks the host": "before:checked",
    "launch, after the dry run": "after:listed",
    "launch, sent and not recorded": "before:transferred",
    "launch, decided on": "after:launching",
    "watch, training runs": "after:status#2",
    "watch, mirroring": "before:copied",
    "down, decided on": "before:sealed",
    "down, sealed": "after:sealed",
    "down, asked to end": "after:terminated",
    "down, in the middle of the proof": "after:proof",
}


def _ours(world: World) -> list[int]:
    """Every process of the user's computer: gpuops, its guard and their ssh; none of the cloud."""
    found = set(world.processes())
    cloud = str(world.cloud).encode()
    for pid in strays(world):
        with contextlib.suppress(OSError):
            if (
                b"ssh" in Path(f"/proc/{pid}/cmdline").read_bytes()
                and cloud not in Path(f"/proc/{pid}/environ").read_bytes()
            ):
                found.add(pid)
    return sorted(found)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stopped(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _sleep(world: World, pid: int) -> None:
    """Close the lid once the command has met its point, and open it again."""
    world.wait("the point is met", lambda: struck(world) and _stopped(pid), 90)
    ours = _ours(world)
    _signal(ours, signal.SIGSTOP)
    # the connections do not survive: whoever is at their other end gives them up
    with contextlib.suppress(ValueError, OSError, KeyError):  # before there is a rental, or while it is written
        hands.kill(*hands.in_rental(world, "sshd: root"))
    time.sleep(ASLEEP_S)
    _signal(ours, signal.SIGCONT)
    _signal([pid], signal.SIGCONT)


@pytest.mark.timeout(900)
def test_a_laptop_that_sleeps_in_any_phase_goes_on_by_itself(tmp_path: Path) -> None:
    def sleeps(phase: str) -> None:
        at = PHASES[phase]
        with life(tmp_path / phase.replace(" ", "-").replace(",", ""), [f"stop:cli:{at}"]) as world:
            command = world.start("run", str(world.manifest(train=TRAIN, deadline="6m")), "--yes")
            _sleep(world, command.pid)
            out, _ = command.communicate(timeout=200)
            assert command.returncode == 0, out
            run = world.status()[-1]
            assert run["outcome"] == "completed" and run["may_bill"] == [], run
            assert world.creates() == 1, out
            newest_is_safe(world)
            nothing_left(world)

    side_by_side(list(PHASES), sleeps, workers=len(PHASES))


@pytest.mark.timeout(600)
def test_an_intent_that_was_slept_over_is_never_sent(tmp_path: Path) -> None:
    with life(tmp_path, ["stop:cli:after:intended"]) as world:
        command = world.start("up", str(world.manifest()), "--yes")
        _sleep(world, command.pid)
        out, _ = command.communicate(timeout=120)
        lives = {p.id: p.life for p in hands.state(world).purchases.values()}
        assert lives["p1"] == "not_sent", out
        assert world.creates() == len([life for life in lives.values() if life == "created"]) <= 1
        done = world.run("down", "small")
        assert done.returncode == 0, done.stdout
        nothing_left(world)
