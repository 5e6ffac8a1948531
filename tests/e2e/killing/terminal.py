"""A real pseudo-terminal with gpuops as its foreground job."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from types import TracebackType

from e2e.world import World

CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """`with Terminal(world, "watch", "small") as t: t.see("training"); t.type(CTRL_C); t.code()`."""

    def __init__(self, world: World, *arguments: str) -> None:
        self.master, slave = os.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuops", *arguments], env={**world.env, "TERM": "xterm"}, cwd=world.root, stdin=slave,
            stdout=slave, stderr=slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def see(self, words: str, timeout: float = 60) -> None:
        """Wait until the screen has shown these words."""
        end = time.monotonic() + timeout
        while words not in self.shown:
            assert time.monotonic() < end, f"{words!r} is not shown within {timeout} s:\n{self.shown}"
            if not self._read(0.2):
                assert words in self.shown, f"ended without showing {words!r}:\n{self.shown}"

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def close(self) -> None:
        """Close the window: the kernel sends SIGHUP, and every write fails from now on."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def code(self, timeout: float = 60) -> int:
        """Read on until the end; the exit code."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < end, f"gpuops has not ended within {timeout} s:\n{self.shown}"
            if self.master < 0 or not self._read(0.2):
                time.sleep(0.05)
        while self.master >= 0 and self._read(0):
            pass
        return self.process.returncode

    def _read(self, wait: float) -> bool:
        """Take in what is there; False when the other end is closed or nothing came without waiting."""
        if not select.select([self.master], [], [], wait)[0]:
            return wait > 0
        try:
            text = os.read(self.master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        self.shown += text.decode(errors="replace").replace("\r\n", "\n")
        return bool(text)


def signalled_while_stopped(process: subprocess.Popen[str], number: int, timeout: float = 60) -> tuple[int, str]:
    """Wait until a process was stopped at its point, send it a signal, let it go on: (exit code, output)."""
    try:
        wait_stopped(process.pid, timeout)
    except AssertionError as error:
        process.kill()
        raise AssertionError(f"{error}\n{process.communicate()[0]}") from None
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"did not end within {timeout} s:\n{process.communicate()[0]}") from None
    return process.returncode, out


def wait_stopped(pid: int, timeout: float = 60) -> None:
    """Wait until a process is stopped."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        state = ""
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            state = file.read().rsplit(") ", 1)[1][0]
        assert state not in ("", "Z"), f"process {pid} ended before it was stopped"
        if state == "T":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} was not stopped within {timeout} s")
