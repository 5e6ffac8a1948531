"""The homes that one user has on this computer: a run may be tended from another one than this.

Each home that drives runs leaves its path in the runtime folder, which all homes of a user share. It is only a hint: a path that
leads nowhere is passed over, and what another home knows is read from its journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuops.cli.context import SENSELESS
from gpuops.cli.home import Home
from gpuops.cli.leaving import guard_holds
from gpuops.fold import fold
from gpuops.journal import SqliteJournal
from gpuops.values import Billable


@dataclass(frozen=True)
class Tended:
    """A rental that an open run of another home of this user counts as its own."""

    home: Path
    guarded: bool

    def __str__(self) -> str:
        guard = ", whose guard is at work" if self.guarded else ""
        return f"your other home {self.home} on this computer{guard}"


def elsewhere(home: Home, item: Billable) -> Tended | None:
    """The other home of this user that tends this rental; None where none is known to."""
    if item.mark is None:
        return None
    for path in _others(home):
        # a journal that cannot be read now, or makes no sense, tells nothing
        with contextlib.suppress(*SENSELESS, OSError):
            journal = SqliteJournal(path / "journal.db")
            try:
                state = fold(journal.records(item.mark.run))
            finally:
                journal.close()
            if state is not None and not state.closed and any(p.nonce == item.nonce for p in state.purchases.values()):
                return Tended(path, guard_holds(path))
    return None


def _others(home: Home) -> Iterator[Path]:
    for _, path in _hints(home):
        if path != home.path and (path / "journal.db").is_file():
            yield path


def _hints(home: Home) -> list[tuple[Path, Path]]:
    """(hint, the home that it names); other processes of this user add and remove hints meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for hint in sorted(home.homes.iterdir()):
            with contextlib.suppress(OSError, ValueError):
                if hint.stat().st_uid == os.getuid():  # the runtime folder may lie where others can write
                    found.append((hint, Path(hint.read_text())))
    return found


def remember(home: Home) -> None:
    """Leave a hint that this home drives runs; without one, another home of this user only knows less."""
    with contextlib.suppress(OSError):
        home.homes.mkdir(parents=True, exist_ok=True, mode=0o700)
        hint = home.homes / hashlib.sha256(str(home.path).encode()).hexdigest()[:16]
        if not hint.exists():
            hint.write_text(str(home.path))
            for other, path in _hints(home):
                if not path.is_dir() and path != home.path:
                    other.unlink(missing_ok=True)
