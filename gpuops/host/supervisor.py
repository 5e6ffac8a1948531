"""Runs one training command on the host and ends it: at the deadline, on request, or when it ends by itself.

Standard library only; started as `python3 -I supervisor.py RUN.json` in a tmux session of its own. It is the parent of
every process that training starts, also of those that leave their session (child subreaper), and returns only when none
is left. `status.json` says what happened; `deadline.json`, bound to run and boot, says until when; `stop.json` asks for
the end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

SLOT_BYTES = 8192
LOG_BYTES = 128 << 20
TICK_S = 0.2
REREAD_S = 1.0
STRAGGLER_S = 5.0
KILL_S = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class StatusFile:
    """`status.json`, replaced as a whole. Its slots hold their blocks from the start: a full disk cannot silence it."""

    def __init__(self, state: str) -> None:
        self.path = os.path.join(state, "status.json")
        self.slots = [os.path.join(state, f"status.slot{n}") for n in (0, 1)]
        self.turn = 0
        for slot in self.slots:
            if os.path.exists(slot):
                os.unlink(slot)
            self._fill(slot, b" " * SLOT_BYTES, os.O_CREAT)

    def write(self, value: dict[str, Any]) -> None:
        """Write into the spare slot, sync, and put a link to it in place by one rename."""
        data = json.dumps(value).encode()
        if len(data) > SLOT_BYTES:
            data = json.dumps({**value, "reason": str(value.get("reason"))[:500]}).encode()
        slot, self.turn = self.slots[self.turn], 1 - self.turn
        self._fill(slot, data.ljust(SLOT_BYTES), 0)
        temporary = self.path + ".new"
        try:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            os.link(slot, temporary)
        except OSError:  # a filesystem without hard links: the ordinary way, which needs a free block
            self._fill(temporary, data.ljust(SLOT_BYTES), os.O_CREAT | os.O_TRUNC)
        os.rename(temporary, self.path)

    @staticmethod
    def _fill(path: str, data: bytes, flags: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | flags, 0o600)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)


class Log:
    """stdout and stderr, byte for byte. Bounded: the older half moves to `train.log.1`. A full disk only drops."""

    def __init__(self, state: str) -> None:
        self.path = os.path.join(state, "train.log")
        self.dropped = 0
        self.fd = self._open()
        self.size = os.fstat(self.fd).st_size

    def write(self, data: bytes) -> None:
        """Append; what cannot be written is counted, never an error for training."""
        try:
            if self.size + len(data) > LOG_BYTES:
                os.close(self.fd)
                os.rename(self.path, self.path + ".1")
                self.fd, self.size = self._open(), 0
            written = os.write(self.fd, data)
        except OSError:
            written = 0
        self.size += written
        self.dropped += len(data) - written

    def close(self) -> None:
        """Sync as far as the disk allows."""
        try:
            os.fsync(self.fd)
        except OSError:
            pass

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


class Deadline:
    """The moment at which training is ended: the file's, or the wall clock's, whichever comes first.

    An unreadable or torn file, or one of another run or boot, changes nothing: the last good value stays.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.path = os.path.join(plan["state"], "deadline.json")
        self.shown = os.path.join(plan["state"], "deadline")
        self.value = float("inf")
        self.wall = time.time() + plan["wall_clock_s"] if plan.get("wall_clock_s") else float("inf")
        self.wall_monotonic = time.monotonic() + plan["wall_clock_s"] if plan.get("wall_clock_s") else float("inf")

    def reread(self) -> bool:
        """Take a new good value; True when it changed."""
        try:
            with open(self.path, "rb") as source:
                found = json.loads(source.read(4096))
            value = float(found["deadline"])
            good = found["run"] == self.plan["run"] and found["boot_id"] == self.plan["boot_id"] and value > 0
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not good or value == self.value:
            return False
        self.value = value
        self.show()
        return True

    def show(self) -> None:
        """Tell training (GPUOPS_DEADLINE_FILE, epoch seconds) by rename."""
        try:
            with open(self.shown + ".new", "w") as out:
                out.write(f"{min(self.value, self.wall):.3f}\n")
            os.rename(self.shown + ".new", self.shown)
        except OSError:
            pass

    def passed(self) -> str:
        """Why training must end now, or nothing."""
        if time.time() >= self.value:
            return "deadline reached"
        if time.monotonic() >= self.wall_monotonic:
            return "wall clock of the manifest reached"
        return ""


class Supervision:
    """One training process with everything that it starts."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.status = StatusFile(plan["state"])
        self.deadline = Deadline(plan)
        self.log = Log(plan["state"])
        self.asked = ""
        self.exit: tuple[int, int] | None = None
        self.killed = False
        self.record: dict[str, Any] = {
            "run": plan["run"], "boot_id": plan["boot_id"], "phase": "starting", "outcome": "", "exit_code": None,
            "signal": 0, "reason": "", "started_at": time.time(), "ended_at": None, "deadline": None,
            "supervisor": [os.getpid(), _fields(os.getpid())[19]], "group": 0, "log_dropped_bytes": 0, "left_running": [],
        }  # fmt: skip
        self.pid = 0
        self.pipe = -1

    def run(self) -> None:
        """Start, watch, end, classify. The status says `ended` only when nothing of training is left."""
        self.deadline.reread()
        self.deadline.show()
        self.note(phase="starting")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.pipe = reader
        try:
            self.pid = self._start(writer)
        except OSError as error:
            self.log.write(f"gpuops: cannot start: {error}\n".encode())
            self.finish("failed", 127, 0, f"cannot start: {error}")
            return
        finally:
            os.close(writer)
        self.note(phase="running", group=self.pid)
        self._watch()
        self._clear()
        self._drain()
        self.finish(*self._classify())

    def note(self, **changes: Any) -> None:
        """Write the status; a failure to write must never end training."""
        value = min(self.deadline.value, self.deadline.wall)
        at = None if value == float("inf") else value
        self.record.update(changes, deadline=at, log_dropped_bytes=self.log.dropped)
        try:
            self.status.write(self.record)
        except OSError as error:
            self.log.write(f"gpuops: status.json not written: {error}\n".encode())

    def finish(self, outcome: str, code: int | None, number: int, reason: str) -> None:
        """The last status: written only now, when everything else is on disk."""
        self.log.close()
        left = self.record["left_running"] = descendants()
        if left:
            reason += f"; processes that could not be ended: {left}"
        self.note(phase="ended", outcome=outcome, exit_code=code, signal=number, reason=reason, ended_at=time.time())

    def _start(self, writer: int) -> int:
        plan = self.plan
        environment = dict(plan["env"])
        environment.update(take_secrets(plan.get("secrets_file", "")))
        environment["GPUOPS_RUN_ID"] = plan["run"]
        environment["GPUOPS_OUTPUT_DIR"] = plan["outputs"]
        environment["GPUOPS_DEADLINE_FILE"] = self.deadline.shown
        argv = list(plan["argv"])
        if plan.get("resume"):
            environment["GPUOPS_RESUME"] = plan["resume"]
            if plan.get("resume_argument"):
                argv += [plan["resume_argument"], plan["resume"]]
        for name, key in (("GPUOPS_MAX_UPDATES", "max_updates"), ("GPUOPS_MAX_TOKENS", "max_tokens")):
            if plan.get(key):
                environment[name] = str(plan[key])
        child = subprocess.Popen(
            argv, cwd=plan["workdir"], env=environment, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
            start_new_session=True, preexec_fn=_die_with_parent,
        )  # fmt: skip
        child.returncode = 0  # we reap with waitpid(-1) ourselves; Popen must not warn or wait
        return child.pid

    def _watch(self) -> None:
        reread_at = kill_at = 0.0
        while self.exit is None:
            self._wait(TICK_S)
            now = time.monotonic()
            if now >= reread_at:
                reread_at = now + REREAD_S
                if self.deadline.reread():
                    self.note()
            if not kill_at:
                self.asked = self.asked or stop_request(self.plan) or self.deadline.passed()
                if self.asked:
                    self.note(reason=f"stopping: {self.asked}")
                    _signal_all([-self.pid], signal.SIGTERM)
                    kill_at = now + self.plan["grace_s"]
            elif now >= kill_at:
                self.killed = True
                _signal_all([self.pid, *descendants()], signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        """Take output and reap, for at most `seconds`."""
        try:
            ready = bool(select.select([self.pipe] if self.pipe >= 0 else [], [], [], seconds)[0])
        except InterruptedError:
            ready = False
        if ready:
            self._drain(64)
        self._reap()

    def _drain(self, rounds: int = 100_000) -> None:
        for _ in range(rounds):
            if self.pipe < 0:
                return
            try:
                data = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                os.close(self.pipe)
                self.pipe = -1
                return
            self.log.write(data)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.exit = (os.WEXITSTATUS(status), 0) if os.WIFEXITED(status) else (0, os.WTERMSIG(status))

    def _clear(self) -> None:
        """End what training left behind: first asked, then killed, until nothing is left that could write."""
        _signal_all([-self.pid], signal.SIGTERM)
        begun = time.monotonic()
        patience = 0.0 if self.killed else min(STRAGGLER_S, self.plan["grace_s"])
        while descendants() and time.monotonic() < begun + patience + KILL_S:
            if time.monotonic() >= begun + patience:
                _signal_all(descendants(), signal.SIGKILL)
            self._wait(0.05)
        self._reap()

    def _classify(self) -> tuple[str, int | None, int, str]:
        code, number = self.exit or (0, 0)
        how = f"signal {number}" if number else f"exit {code}"
        if self.killed:
            reason = f"{self.asked}; ignored SIGTERM for {self.plan['grace_s']:g} s"
            return "aborted", None if number else code, number, reason
        if self.asked:
            return "interrupted", None if number else code, number, f"{self.asked}; {how}"
        if number:
            hint = " (out of memory?)" if number == signal.SIGKILL else ""
            return "failed", None, number, f"ended by signal {number}{hint}"
        if code:
            return "failed", code, 0, how
        # whether a complete new generation makes this "completed" is found when the run is sealed
        return "ended", 0, 0, "exit 0"

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.asked = self.asked or f"the supervisor got signal {number}"


def take_secrets(path: str) -> dict[str, str]:
    """Read the secrets and remove their file at once: from here on they live in training's environment only."""
    if not path:
        return {}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as source:
            found = json.loads(source.read())
    finally:
        for step, target in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
            try:
                step(target)
            except OSError:
                pass
    return {str(k): str(v) for k, v in found.items()}


def stop_request(plan: dict[str, Any]) -> str:
    """The reason in `stop.json` of this run and boot, or nothing."""
    try:
        with open(os.path.join(plan["state"], "stop.json"), "rb") as source:
            found = json.loads(source.read(4096))
        if found["run"] == plan["run"] and found["boot_id"] == plan["boot_id"]:
            return str(found.get("why") or "asked to stop")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ""


def descendants() -> list[int]:
    """Every living process below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _fields(int(name))
            if len(fields) > 1 and fields[0] not in ("Z", "X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        for pid in children.get(queue.pop(), []):
            found.append(pid)
            queue.append(pid)
    return found


def _fields(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return source.read().decode("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _signal_all(pids: list[int], number: int) -> None:
    """Send a signal to processes; a negative number stands for a whole group."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    # without its supervisor training has no deadline: ask it to save and end
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Supervise the run of the plan file `argv[1]`; at most one supervisor per state directory."""
    with open(argv[1], "rb") as source:
        plan = json.load(source)
    lock = os.open(os.path.join(plan["state"], "supervisor.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    print(f"gpuops: run {plan['run']}; log in {plan['state']}/train.log", flush=True)
    Supervision(plan).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
