"""One printer for all commands: one JSON document on stdout, human words on stdout or, beside JSON, on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from gpuops.errors import GpuopsError

WIDEST = 110


class Printer:
    """Prints lines for people and at most one JSON document."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.live = not as_json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._open_line = False

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines; a terminal that is gone is not an error, because a run must not depend on one."""
        text = "".join(plain(line) + "\n" for line in lines)
        if text:
            _write(self._stream, ("\r\x1b[K" if self._open_line else "") + text)
            self._open_line = False

    def line(self, text: str) -> None:
        """Print one line."""
        self.lines((text,))

    def progress(self, text: str) -> None:
        """Show what changes all the time: in place on a terminal, else as a line of its own."""
        if not text:
            return
        if not self.live:
            self.lines((text,))
            return
        _write(self._stream, "\r\x1b[K" + fitting(plain(text), _columns() - 1))
        self._open_line = True

    def document(self, document: Any) -> None:
        """Print the JSON document."""
        _write(sys.stdout, _json(document))

    @property
    def width(self) -> int:
        """Columns that a screen of explanations is wrapped at; wider lines are hard to read."""
        return max(60, min(_columns(), WIDEST)) if self.live else WIDEST

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self.as_json else sys.stdout


def fitting(text: str, room: int) -> str:
    """As many whole parts of a line as there is room for; parts are two blanks apart. Half a number would be a wrong one."""
    while len(text) > room and "  " in text:
        text = text.rpartition("  ")[0].rstrip()
    return text[:room]


def ask(question: str, stream: TextIO | None = None) -> bool:
    """Ask a yes-or-no question on the terminal; anything but y or yes is a no, and so is a terminal that is gone.

    Waits in short pieces: a signal that arrives just before a blocking read would otherwise go unheard until a key is hit.
    """
    _write(stream or sys.stdout, f"{plain(question)} [y/N]: ")
    while True:
        try:
            ready, _, _ = select.select([sys.stdin], [], [], 0.2)
            if ready:
                return sys.stdin.readline().strip().lower() in ("y", "yes")
        except (OSError, ValueError):
            return False


def plain(text: str) -> str:
    """Text without control characters but line breaks: whatever a host, a provider or a mark carries stays text."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def error_document(error: GpuopsError, code: str = "") -> dict[str, Any]:
    """An error as the document that scripts may rely on."""
    body = {
        "code": code or error.code, "message": error.message, "may_bill": list(error.may_bill),
        "next": error.next_command or None,
    }  # fmt: skip
    return {"error": body}


def print_error(error: GpuopsError, code: str, *, as_json: bool) -> None:
    """What happened, what may still bill, what to type next."""
    if as_json:
        _write(sys.stdout, _json(error_document(error, code)))
    text = f"gpuops: {error.message}\n"
    text += "".join(f"  may still bill: {what}\n" for what in error.may_bill)
    text += f"  next: {error.next_command}\n" if error.next_command else ""
    _write(sys.stderr, plain(text))


def write_bug(
    what: str, error: BaseException, folder: Path | None = None, clean: Callable[[str], str] | None = None
) -> str:
    """Write a traceback without local values to a file that only the user can read, and return its path."""
    import tempfile
    import time
    import traceback

    from gpuops.credentials import PROCESS

    text = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {what}\n" + "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )
    try:
        folder = folder or Path(os.environ.get("GPUOPS_HOME") or tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix="gpuops-bug-", suffix=".txt", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write((clean or PROCESS)(text))
    except OSError as failed:
        return f"(could not be written: {failed})"
    return path


def _json(document: Any) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return "".join(f"\\u{ord(c):04x}" if "\x7f" <= c <= "\x9f" else c for c in text)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 100
    except OSError:
        return 100


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        # the terminal was closed: what happens is in the journal, and teardown must go on. What is still in the buffer goes
        # nowhere, else Python's own flush at exit fails and replaces the exit code
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
