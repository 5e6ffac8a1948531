"""Advisory locks: one holder, freed by any end of it, taken over from a stopped one and from no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuops.locks import FileLocks, held

HOLDER = """
import sys, time
from pathlib import Path
from gpuops.locks import held
with held(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_one_holds_it_and_the_other_does_not(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run-1" / "bulk.lock"
    with another(path) as process:
        assert path.read_text() == str(process.pid)
        with held(path) as mine:
            assert not mine
        assert path.read_text() == str(process.pid), "a try in vain says nothing about the holder"
    with held(path) as mine:
        assert mine and path.read_text() == str(os.getpid())


def test_it_is_free_again_however_its_holder_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with another(path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=20)
        with held(path) as mine:
            assert mine


def test_it_is_taken_over_from_a_stopped_process_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with another(path) as process:
        with held(path, from_stopped=True) as mine:
            assert not mine, "it runs"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with held(path) as mine:
            assert not mine
        with held(path, from_stopped=True) as mine:
            assert mine and path.read_text() == str(os.getpid())
            with held(path) as again:
                assert not again, "and then it is held as any other"


def test_whoever_only_looks_leaves_no_name(tmp_path: Path) -> None:
    with held(tmp_path / "a.lock", mark=False) as mine:
        assert mine and (tmp_path / "a.lock").read_text() == ""


def test_a_child_does_not_hold_its_parents_lock_on(tmp_path: Path) -> None:
    with held(tmp_path / "a.lock"):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with held(tmp_path / "a.lock") as mine:
            assert mine
    finally:
        child.kill()
        child.wait(timeout=20)


def test_a_run_is_driven_while_a_command_holds_it_and_not_while_that_is_stopped(tmp_path: Path) -> None:
    locks, path = FileLocks(tmp_path), tmp_path / "run-1" / "drive.lock"
    assert not locks.is_driven("run-1")
    with another(path) as process:
        assert locks.is_driven("run-1") and locks.undriven_s("run-1") == 0
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not locks.is_driven("run-1")
    assert not locks.is_driven("run-1")


@pytest.mark.parametrize("kind", ["bulk", "driving"])
def test_the_locks_of_two_runs_are_apart(tmp_path: Path, kind: str) -> None:
    locks = FileLocks(tmp_path)
    with getattr(locks, kind)("run-1") as first, getattr(locks, kind)("run-2") as second:
        assert first and second
        with getattr(locks, kind)("run-1") as again:
            assert not again
