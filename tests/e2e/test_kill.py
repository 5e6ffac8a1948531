"""kill -9 of the command line and of the guard, at every journal append of a small life and at points of the demo."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from e2e.killing.lives import TRAIN, appends, arm, life, newest_is_safe, nothing_left, side_by_side, struck
from e2e.world import World

from gpuops.journal import SqliteJournal

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

KILLED = -9
UPDATES = 60
STRIDE = 6
"""Where one life meets several kills: this many lives, whose kills together meet every append."""
LIFE = (
    "planned", "approved", "preflight", "intended", "created", "observed", "checked", "listed", "transferred", "launching",
    "launched", "status", "ended", "wanted", "sealed", "copied", "ending", "terminated", "proof", "gone", "reconciled",
    "closed", "told",
)  # fmt: skip
GUARDED = (
    "observed",
    "status",
    "ended",
    "wanted",
    "sealed",
    "copied",
    "ending",
    "terminated",
    "proof",
    "gone",
    "closed",
)


@pytest.mark.timeout(900)
def test_the_same_command_after_kill_9_before_every_commit_finishes_the_run(tmp_path: Path) -> None:
    """What was done and not recorded: one life for each append of an undisturbed one, with the guard on."""
    with life(tmp_path / "calm", guard=False) as world:
        assert world.run("run", str(world.manifest(train=TRAIN)), "--yes").returncode == 0
        calm = appends(world, "cli")
    points = [_named(calm, place) for place in range(len(calm))]
    killed: list[str] = []

    def killed_once(at: str) -> None:
        with life(tmp_path / at, [f"kill:cli:before:{at}"]) as world:
            manifest = str(world.manifest(train=TRAIN))
            first = world.run("run", manifest, "--yes", timeout=150)
            if first.returncode == 0 and not struck(world):
                return  # fewer looks at the machine or at its training than in the life that was counted
            assert first.returncode == KILLED, first.stdout
            killed.extend(struck(world))
            arm(world, [])
            again = world.run("run", manifest, "--yes", timeout=150)
            assert again.returncode == 0, again.stdout
            assert world.creates() == 1, again.stdout
            newest_is_safe(world)
            nothing_left(world)

    side_by_side(points, killed_once)
    assert set(LIFE) <= _kinds(killed, "before")


@pytest.mark.timeout(900)
def test_kill_9_after_every_commit_again_and_again_finishes_the_run(tmp_path: Path) -> None:
    """What was recorded and not done: without a guard, and every life meets several kills."""
    killed: list[str] = []

    def killed_often(first: int) -> None:
        points = [f"kill:cli:after:{n}" for n in (*range(first, 90, STRIDE), *LIFE[first - 1 :: STRIDE])]
        with life(tmp_path / str(first), points, guard=False) as world:
            manifest = str(world.manifest(train=TRAIN))
            for _ in range(30):
                done = world.run("run", manifest, "--yes", timeout=150)
                if done.returncode != KILLED or appends(world, "cli")[-1] == "told":
                    break  # once its end was told, the same command would begin another run
            killed.extend(struck(world))
            over = struck(world)[-1] == "after told"
            assert done.returncode == (KILLED if over else 0), done.stdout
            assert world.creates() == 1, done.stdout
            # an intent whose create call never left is one more intent, and no rental
            assert len(world.status()) == 1
            newest_is_safe(world)
            nothing_left(world)

    side_by_side(range(1, STRIDE + 1), killed_often)
    assert set(LIFE) <= _kinds(killed, "after")


@pytest.mark.timeout(900)
def test_a_guard_that_is_killed_at_each_of_its_appends_still_brings_the_run_down(tmp_path: Path) -> None:
    """The terminal is gone after launch. Even lives lose the child, which its parent starts again; odd ones the whole guard,
    which the next command starts again.
    """
    killed: list[str] = []

    def killed_often(case: tuple[str, int, bool]) -> None:
        when, first, whole = case
        deed = "kill+parent" if whole else "kill"
        points = [f"{deed}:child:{when}:{n}" for n in (*range(first, 60, STRIDE), *GUARDED[first - 1 :: STRIDE])]
        with life(tmp_path / f"{when}-{first}", points) as world:
            assert world.run("up", str(world.manifest(train=TRAIN)), "--yes").returncode == 0
            assert world.run("launch", "small", "--yes").returncode == 0

            def closed() -> bool:
                if whole and not world.processes("guard"):
                    world.run("logs", "small")
                return world.status()[-1]["phase"] == "closed"

            world.wait("the run is closed", closed, 150)
            killed.extend(struck(world))
            run = world.status()[-1]
            assert run["outcome"] == "completed" and run["may_bill"] == [], run
            assert world.creates() == 1
            newest_is_safe(world)
            # nobody was told how it ended until now
            assert world.run("watch", "small").returncode == 0
            nothing_left(world)

    side_by_side([(w, n, n % 2 == 1) for w in ("before", "after") for n in range(1, STRIDE + 1)], killed_often)
    for when in ("before", "after"):
        assert set(GUARDED) <= _kinds(killed, when)


@pytest.mark.timeout(900)
def test_the_demo_survives_kill_9_at_ten_points(tmp_path: Path) -> None:
    """The real training program and manifest, with fewer updates; the points lie between random records of its journal."""
    seed = 20260
    dice = random.Random(seed)
    points = [3 * n + dice.randrange(3) for n in range(10)]
    collected = tmp_path / "input"
    collect = Path(__file__).parents[2] / "manifests" / "demo" / "collect.py"
    subprocess.run([sys.executable, str(collect), str(collected)], check=True, capture_output=True, timeout=60)

    def killed_once(number: int) -> None:
        with life(tmp_path / str(number)) as world:
            manifest = str(_demo(world, collected))
            at = points[number]
            command = world.start("run", manifest, "--yes")
            while command.poll() is None and _records(world) < at:
                time.sleep(0.02)
            command.kill()
            command.communicate()
            again = world.run("run", manifest, "--yes", timeout=200)
            assert again.returncode == 0, f"seed {seed}, killed at record {at}\n{again.stdout}"
            assert world.creates() == 1, again.stdout
            newest_is_safe(world, updates=UPDATES)
            nothing_left(world)

    side_by_side(range(10), killed_once)


def _demo(world: World, collected: Path) -> Path:
    """The demo in a folder of the test, with fewer updates."""
    here = Path(__file__).parents[2] / "manifests"
    shutil.copytree(here / "demo", world.root / "demo", ignore=shutil.ignore_patterns("input", "__pycache__"))
    document = yaml.safe_load((here / "local-demo.yaml").read_text())
    document["transfers"][1]["source"] = str(collected)
    document["train"]["argv"][-3:] = [str(UPDATES), "--save-every", str(UPDATES // 3)]
    path = world.root / "local-demo.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def _records(world: World) -> int:
    file = world.home / "journal.db"
    if not file.exists():
        return 0
    journal = SqliteJournal(file)
    try:
        return sum(journal.versions().values())
    finally:
        journal.close()


def _named(lines: list[str], place: int) -> str:
    """A name for one append that means the same in another life: its last kind, and which one of these it is."""
    kind = lines[place].split("+")[-1]
    return f"{kind}#{sum(kind in line.split('+') for line in lines[: place + 1])}"


def _kinds(points: Iterable[str], when: str) -> set[str]:
    return {kind for point in points if point.startswith(when) for kind in point.split(" ")[1].split("+")}
