"""Advisory locks of this computer, by flock on files. They spare double work; safety never depends on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
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
        with held(self._runs / run / "bulk.lock") as mine:
            yield mine

    @contextlib.contextmanager
    def driving(self, run: RunId) -> Iterator[bool]:
        """Held by a command at a terminal, so that the guard leaves it a moment."""
        with held(self._runs / run / "drive.lock") as mine:
            yield mine

    def is_driven(self, run: RunId) -> bool:
        """A command at a terminal drives this run now."""
        with held(self._runs / run / "drive.lock") as free:
            return not free


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Try to hold the lock on `path`; yields whether it is held. The kernel frees it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # not inheritable: a child such as an ssh master would hold the lock on
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)
