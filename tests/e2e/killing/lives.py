"""Many small lives side by side: each in an own world, each checked in the end against the same demands."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from e2e.world import POLICY, World

T = TypeVar("T")

HOOK = Path(__file__).parent
SIDE_BY_SIDE = 6
"""Lives at a time: most of a life is waiting."""
UPDATES = 4
TRAIN = ["python3", "train.py", str(UPDATES), "0.5", "2"]
NO_GUARD = POLICY + "\n[guard]\nstart = false\n"
DEMANDS_S = 40.0


@contextlib.contextmanager
def life(root: Path, points: Sequence[str] = (), *, guard: bool = True) -> Iterator[World]:
    """A world whose gpuops processes meet `points` (see sitecustomize.py)."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuops-kill-") as short:
        world = World(root, Path(short) / "home", Path(short) / "cloud")
        # several kills of one life may strike right after an intent, before its create call: each is one more intent
        world.configure((POLICY if guard else NO_GUARD).replace("[policy]\n", "[policy]\nintents_max = 12\n"))
        arm(world, points)
        try:
            yield world
        finally:
            world.end()
            for pid in strays(world):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def arm(world: World, points: Sequence[str]) -> None:
    """Set the points of the processes that are started from now on."""
    # what the tests themselves import stays in reach: the lives must be those of this very checkout
    path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
    world.extra |= {
        "PYTHONPATH": path, "GPUOPS_TEST_APPENDS": str(world.home.parent / "appends"),
        "GPUOPS_TEST_POINTS": ",".join(points), "GPUOPS_TEST_WHILE": "",
    }  # fmt: skip


def appends(world: World, role: str) -> list[str]:
    """The kinds of each append that a role made or was about to make, in order."""
    file = world.home.parent / "appends"
    lines = [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []
    return [kinds for who, kinds, _ in lines if who == role]


def struck(world: World) -> list[str]:
    """The points that were met, in order: "before sealed", "after launched+layer"."""
    file = world.home.parent / "appends.struck"
    return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def strays(world: World) -> list[int]:
    """Processes that belong to the world: of gpuops by their environment, of the cloud by a path in theirs."""
    word = str(world.home.parent).encode() + b"/"
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            text = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if word in text:
            found.append(int(name))
    return found


def nothing_left(world: World) -> None:
    """Nothing bills, and no process is left once the guard, which would stay for a while, was asked to end."""
    assert world.rentals() == [], world.diagnosis()
    for pid in world.processes("guard"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    world.wait("no process is left", lambda: not strays(world), DEMANDS_S)


def newest_is_safe(world: World, updates: int = UPDATES) -> None:
    """The newest generation of the training lies here and is what was published."""
    copies = world.generations()
    assert copies and copies[-1].name == f"step-{updates:06d}", f"{copies}\n{world.diagnosis()}"
    listed = json.loads((copies[-1] / "MANIFEST.json").read_text())["files"]
    assert listed
    for file in listed:
        assert hashlib.sha256((copies[-1] / file["path"]).read_bytes()).hexdigest() == file["sha256"]


def side_by_side(cases: Sequence[T], check: Callable[[T], None], workers: int = SIDE_BY_SIDE) -> None:
    """Check all cases, a few at a time; every failure is named."""
    failures: list[str] = []
    lock = threading.Lock()

    def one(case: T) -> None:
        begun = time.monotonic()
        try:
            check(case)
        except Exception as error:
            with lock:
                failures.append(f"{case} after {time.monotonic() - begun:.0f} s: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, cases))
    assert not failures, f"{len(failures)} of {len(cases)} lives:\n" + "\n\n".join(failures)
