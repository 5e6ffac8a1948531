"""kill -9 of the command line and of the guard, at every journal append of a small life and at points of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.killing.lives import (
    TRAIN,
    appends,
    arm,
    life,
    newest_is_safe,
    nothing_left,
    side_by_side,
)  # fmt: skip

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLED = -9


@pytest.mark.timeout(600)
def test_the_same_command_after_kill_9_at_every_append_finishes_the_run(tmp_path: Path) -> None:
    with life(tmp_path / "calm", guard=False) as world:
        assert world.run("run", str(world.manifest(train=TRAIN)), "--yes").returncode == 0
        total = len(appends(world, "cli"))
        kinds = {k for line in appends(world, "cli") for k in line.split("+")}
    assert {"intended", "created", "launching", "launched", "sealed", "copied", "ending", "gone", "closed"} <= kinds
    killed: list[str] = []

    def killed_once(case: tuple[str, int, bool]) -> None:
        when, number, guard = case
        with life(tmp_path / f"{when}-{number}", [f"kill:cli:{when}:{number}"], guard=guard) as world:
            manifest = str(world.manifest(train=TRAIN))
            first = world.run("run", manifest, "--yes", timeout=120)
            if first.returncode == 0 and len(appends(world, "cli")) < number:
                return  # this life had fewer looks at its training than the one that was counted
            assert first.returncode == KILLED, first.stdout
            at = appends(world, "cli")[number - 1]
            killed.append(f"{when} {at}")
            arm(world, [])
            again = world.run("run", manifest, "--yes", timeout=120)
            assert again.returncode == 0, again.stdout
            # only a run of which somebody was told how it ended is over: the same command begins another one
            assert world.creates() == (2 if (when, at) == ("after", "told") else 1), again.stdout
            newest_is_safe(world)
            nothing_left(world)

    # the guard is on for every point, and off for every second one after its commit
    cases = [("before", n, True) for n in range(1, total + 1)]
    cases += [("after", n, n % 2 == 0) for n in range(1, total + 1)]
    side_by_side(cases, killed_once)
    missed = {f"{w} {k}" for w in ("before", "after") for k in kinds} - {
        f"{k.split(' ')[0]} {one}" for k in killed for one in k.split(" ")[1].split("+")
    }
    assert not missed
