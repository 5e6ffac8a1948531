"""Ctrl-C, SIGHUP and SIGTERM: never in the middle of an effect that must not be torn from its record."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

# These may be cut short: they are repeated by range, by list or by looking again.
CUT_SHORT = frozenset(
    {"transfer", "copy", "mirror", "seal", "status", "observe", "check_host", "resolve", "prove_gone", "close"}
)


class Interrupted(BaseException):
    """The user wants this command to stop. Not an Exception: no effect may swallow it as a failure."""


@dataclass
class Interrupts:
    """Turns signals into `Interrupted` at a moment that tears nothing apart. A second one leaves at once."""

    count: int = 0
    farewell: Callable[[], str] = lambda: "  next: gpuops status\n"
    """What bills, for the moment of leaving at once: computed from memory, because nothing else can be waited for."""
    _held: int = 0
    _installed: dict[int, object] = field(default_factory=dict)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Handle signals inside the block."""
        names = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in names}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def shield(self, name: str) -> Iterator[None]:
        """Hold an interruption back until the named effect is recorded, unless it may be cut short."""
        if name in CUT_SHORT:
            yield
            return
        self._held += 1
        seen = self.count
        try:
            yield
        finally:
            self._held -= 1
        if self.count > seen and not self._held:
            raise Interrupted

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside the block a signal is counted and interrupts nothing; the second one still leaves at once."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1 and number != signal.SIGHUP:
            # the journal is durable at every append, so leaving in the middle loses nothing but the answer on the screen
            # straight to the descriptor: the signal may have come in the middle of a print
            with contextlib.suppress(Exception):
                os.write(2, f"\ngpuops: left at once.\n{self.farewell()}".encode("utf-8", "replace"))
            os._exit(5)
        if not self._held:
            raise Interrupted
