"""Advisory locks of this computer, by flock on files. They spare double work; safety never depends on them.

A lock names the process that holds it. One that is stopped (Ctrl-Z, SIGSTOP) would hold it until the limit and with it the
only checkpoint, so where it matters another process may take the lock over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpuops.values import RunId


class FileLocks:
    """Locks under the run directories."""

    def __init__(self, runs_directory: Path) -> None:
        self._runs = runs_directory

    @contextlib.contextmanager
    def bulk(self, run: RunId) -> Iterator[bool]:
        """True when this process may do bulk work for the run."""
        with held(self._runs / run / "bulk.lock", from_stopped=True) as mine:
            yield mine

    @contextlib.contextmanager
    def driving(self, run: RunId) -> Iterator[bool]:
        """Held by a command at a terminal, so that the guard leaves it a moment."""
        with held(self._runs / run / "drive.lock", from_stopped=True, patience_s=0.3) as mine:
            yield mine

    def is_driven(self, run: RunId) -> bool:
        """A command at a terminal drives this run now; one that is stopped does not."""
        path = self._runs / run / "drive.lock"
        with held(path, mark=False) as free:
            driven = not free and not _holder_stopped(path)
        if driven:
            # when it was last seen, for whoever asks after it is gone
            with contextlib.suppress(OSError):
                os.utime(path)
        return driven

    def undriven_s(self, run: RunId) -> float:
        """For how long no command at a terminal was seen to drive this run; 0 while one does."""
        if self.is_driven(run):
            return 0.0
        try:
            return max(0.0, time.time() - (self._runs / run / "drive.lock").stat().st_mtime)
        except OSError:
            return 0.0


@contextlib.contextmanager
def held(path: Path, *, from_stopped: bool = False, mark: bool = True, patience_s: float = 0.0) -> Iterator[bool]:
    """Try to hold the lock on `path`; yields whether it is held. The kernel frees it when the process ends, however it ends.

    `from_stopped`: take it over from a process that is stopped. `mark`: write down who holds it. `patience_s`: who only
    looks whether it is free holds it for an instant; a few tries see through that.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    give_up = time.monotonic() + patience_s
    while (handle := _take(path, mark)) is None and time.monotonic() < give_up:
        time.sleep(0.02)
    if handle is None and from_stopped and _holder_stopped(path):
        handle = _take_over(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _take(path: Path, mark: bool = True) -> int | None:
    while True:
        # not inheritable: a child such as an ssh master would hold the lock on
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if _is_at(handle, path):
            if mark:
                # who cannot be written (full disk) is not known, and the lock is not taken over
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle
        os.close(handle)  # it was taken over meanwhile: another file lies there


def _take_over(path: Path) -> int | None:
    with held(path.with_name(path.name + ".takeover")) as mine:
        # asked again: another process may just have done it
        if mine and _holder_stopped(path):
            path.unlink(missing_ok=True)
            return _take(path)
    return None


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _holder_stopped(path: Path) -> bool:
    try:
        pid = int(path.read_text())
    except (OSError, ValueError):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][:1]
    except (OSError, IndexError):
        if os.path.isdir("/proc/self"):
            return False
        try:
            done = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.SubprocessError):
            return False
        state = done.stdout.strip()[:1]
    return state in ("T", "t")
