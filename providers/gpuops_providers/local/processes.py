"""Which processes belong to a rental, whether they still run, and how to end all of them.

A process is named by pid, start time and boot, so that a pid that was given out again is never taken for it. A zombie
counts as ended. Everything here reads /proc, hence Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = "GPUOPS_LOCAL_RENTAL"
"""Environment variable that every first process of a rental carries; how it is found when its keeper is dead."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot, or of an earlier one."""

    pid: int
    started: int
    boot: str


def boot_id() -> str:
    """Changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Process | None:
    """The running process with this pid, or None."""
    fields = _stat(pid)
    return Process(pid, int(fields[19]), boot_id()) if fields else None


def alive(process: Process | None) -> bool:
    """Whether exactly this process still runs."""
    if process is None or process.boot != boot_id():
        return False
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.started


def marked(rental: str) -> set[int]:
    """Pids whose environment says that they are the rental's first processes."""
    wanted = f"{MARKER}={rental}".encode()
    found = set()
    for pid in _all_pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0") and _stat(pid):
            found.add(pid)
    return found


def with_descendants(roots: Iterable[int]) -> set[int]:
    """The running ones of `roots` and everything below them."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        if fields := _stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if _stat(pid)]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def adopt_orphans() -> None:
    """Make this process the parent of everything that its descendants leave behind (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def of_rental(rental: str, first: Process | None) -> set[int]:
    """Every process of the rental that can be found from outside."""
    roots = marked(rental) | ({first.pid} if first and alive(first) else set())
    return with_descendants(roots) - {os.getpid()}


def end_all(rental: str, first: Process | None, patience_s: float) -> bool:
    """Kill every process of the rental until none is left; False when some survive `patience_s`.

    For keepers only: all descendants of the calling process die too. Without a PID namespace that is how a double fork
    is caught.
    """
    give_up = time.monotonic() + patience_s
    while True:
        own = with_descendants([os.getpid()]) - {os.getpid()}
        targets = of_rental(rental, first) | own
        if not targets:
            return True
        if time.monotonic() > give_up:
            return False
        for pid in targets:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        reap()
        time.sleep(0.02)


def reap() -> None:
    """Take away the zombies of this process."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on, or None for no process or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else fields
