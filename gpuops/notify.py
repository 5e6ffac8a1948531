"""Ways to tell a person. None of them ever raises: a full disk or a closed terminal must not stop a teardown."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from gpuops.ports import Notify
from gpuops.values import RunId, Time

_WORDS = {"info": "", "warning": "warning: ", "alarm": "ALARM: "}


def nobody(run: RunId, level: str, message: str) -> None:
    """Tells nobody."""


def everybody(*ways: Notify) -> Notify:
    """Tells by each of the ways, in order."""

    def tell(run: RunId, level: str, message: str) -> None:
        for way in ways:
            way(run, level, message)

    return tell


@dataclass(frozen=True)
class Writer:
    """Writes lines to a stream, usually standard error. `clean` removes secrets."""

    stream: TextIO
    clean: Callable[[str], str] = str

    def __call__(self, run: RunId, level: str, message: str) -> None:
        """One line: run, level unless it is info, message."""
        try:
            self.stream.write(f"{run}: {_line(level, self.clean(message))}\n")
            self.stream.flush()
        except (OSError, ValueError):  # ValueError: the stream is closed
            pass


@dataclass(frozen=True)
class FileLog:
    """Appends lines with a time to a file that only the user can read."""

    path: Path
    wall: Callable[[], Time]
    clean: Callable[[str], str] = str

    def __call__(self, run: RunId, level: str, message: str) -> None:
        """One line: time in UTC, run, level unless it is info, message."""
        at = datetime.fromtimestamp(self.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, f"{at} {run}: {_line(level, self.clean(message))}\n".encode())
            finally:
                os.close(handle)
        except OSError:
            pass


def _line(level: str, message: str) -> str:
    """One line that no terminal takes for a command: what a host said may be in it."""
    shown = "".join(c if c.isprintable() else " " if c in "\r\n\t" else repr(c)[1:-1] for c in message)
    return _WORDS.get(level, f"{level}: ") + shown
