"""Work on the host that outlives a connection: done once for each key, in its own session, and asked after until it is done."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from gpuops.host import facts as host_facts
from gpuops.host.files import RefusedError, atomic_write, read_json

POLL_S = 0.1
STOP_S = 5.0
LOG_BYTES = 32 << 20


class Job:
    """A named piece of work in the state directory of a run. Another key is another piece of work, and ends the one before."""

    def __init__(self, state: str, name: str, key: str) -> None:
        self.key = key
        self.log = os.path.join(state, f"{name}.log")
        self._begun, self._done = os.path.join(state, f"{name}.begun.json"), os.path.join(state, f"{name}.done.json")
        self._lock, self._busy = os.path.join(state, f"{name}.lock"), os.path.join(state, f"{name}.busy")

    def ask(self, work: Callable[[str], dict[str, Any]], wait_s: float) -> dict[str, Any] | None:
        """What the work led to, after at most `wait_s`; it is started unless it runs or ran. None: it goes on.

        Raises `RefusedError` with what the work raised.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._answer() is None and not self._running():
                self._end_other()
                self._start(work, lock)
        finally:
            os.close(lock)
        end = time.monotonic() + wait_s
        while (answer := self._answer()) is None and self._running() and time.monotonic() < end:
            time.sleep(POLL_S)
        answer = answer or self._answer()
        if answer is None:
            return None
        if "refused" in answer:
            raise RefusedError(str(answer["refused"]))
        found: dict[str, Any] = answer["found"]
        return found

    def _answer(self) -> dict[str, Any] | None:
        """The end of this work; one that cannot be read is none."""
        found = read_json(self._done)
        good = isinstance(found, dict) and found.get("key") == self.key
        return found if good else None

    def _running(self) -> bool:
        found = read_json(self._begun)
        if not isinstance(found, dict) or found.get("key") != self.key or found.get("boot_id") != host_facts.boot_id():
            return False
        return host_facts.alive(int(found["pid"]), str(found["started"]))

    def _end_other(self) -> None:
        """What was begun for another key must not write beside this."""
        found = read_json(self._begun)
        if not isinstance(found, dict) or found.get("boot_id") != host_facts.boot_id():
            return
        pid, started = int(found["pid"]), str(found["started"])
        end = time.monotonic() + STOP_S
        while host_facts.alive(pid, started) and time.monotonic() < end:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                return
            time.sleep(POLL_S)

    def _start(self, work: Callable[[str], dict[str, Any]], lock: int) -> None:
        """Fork into a session of its own, so that no end of a connection ends it."""
        for stale in (self._done, self.log):
            if os.path.lexists(stale):
                os.unlink(stale)
        sys.stdout.flush()
        child = os.fork()
        if child:
            begun = {
                "key": self.key,
                "pid": child,
                "started": host_facts.process_start(child),
                "boot_id": host_facts.boot_id(),
            }
            atomic_write(self._begun, json.dumps(begun).encode())
            return
        try:
            os.setsid()
            os.close(lock)
            nothing = os.open(os.devnull, os.O_RDWR)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            for number, target in ((0, nothing), (1, log), (2, log)):
                os.dup2(target, number)
            for number in (signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            # one that was forked and not recorded, because its parent was killed in between, comes first
            busy = os.open(self._busy, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(busy, fcntl.LOCK_EX)
            if self._answer() is not None:
                return
            answer: dict[str, Any] = {"key": self.key}
            try:
                answer["found"] = work(self.log)
            except (RefusedError, OSError) as error:
                answer["refused"] = str(error)
            except Exception:
                answer["refused"] = "bug: " + traceback.format_exc(limit=6)
            atomic_write(self._done, json.dumps(answer).encode())
        finally:
            os._exit(0)
