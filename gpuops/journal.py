"""The journal: an append-only SQLite table keyed (run, seq). All state is a fold of it.

A decision names the version that it was decided on and is refused as `Stale` when the run moved on; a fact is never refused.
The schema is built by numbered migrations; a newer schema than this program knows is refused, not guessed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from gpuops.errors import JournalError, Stale
from gpuops.records import Event, Record, RunId, Time

MIGRATIONS: tuple[str, ...] = (
    # version 1
    """
    create table record (
        run text not null, seq integer not null, kind text not null, purchase text, decision integer not null,
        at real not null, wall real not null, data text not null, primary key (run, seq)
    ) strict, without rowid;
    create table run (run text primary key, opened_at real not null, closed integer not null default 0) strict;
    create index run_open on run (opened_at) where closed = 0;
    """,
)

_DAMAGED = ("not a database", "malformed")
_LOCK_EVERY_S = 0.02
_BUSY_TIMEOUT_S = 10.0
"""Longer than any transaction of ours; a writer stopped inside one makes a JournalError, not a hang."""


class SqliteJournal:
    """The journal on a file, or in memory with the path `:memory:`. One object serves one thread."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        with _translated():
            if self.path == ":memory:":
                self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
                _migrate(self._db)
            else:
                self._db = _open_file(Path(path))

    def append(self, run: RunId, event: Event, *, expected: int, at: Time, wall: Time) -> Record:
        """Append a decision made on version `expected`. Raises `Stale` or `JournalError`."""
        with _translated(), self._transaction():
            last = self._last(run)
            if last != expected:
                raise Stale(f"run {run} is at version {last}, this was decided on {expected}")
            return self._insert(run, last + 1, event, True, at, wall)

    def append_facts(self, run: RunId, events: tuple[Event, ...], *, at: Time, wall: Time) -> tuple[Record, ...]:
        """Append facts in one transaction."""
        with _translated(), self._transaction():
            last = self._last(run)
            return tuple(self._insert(run, last + n, e, False, at, wall) for n, e in enumerate(events, 1))

    def records(self, run: RunId, after: int = 0) -> tuple[Record, ...]:
        """The records of a run with seq greater than `after`, in order."""
        with _translated():
            rows = self._db.execute(
                "select seq, kind, purchase, decision, at, wall, data from record where run = ? and seq > ? order by seq",
                (run, after),
            ).fetchall()
        return tuple(Record(run, q, Event(k, json.loads(j), p), bool(d), a, w) for q, k, p, d, a, w, j in rows)

    def runs(self, *, open_only: bool = False) -> tuple[RunId, ...]:
        """Run ids, oldest first."""
        where = "where closed = 0" if open_only else ""
        with _translated():
            return tuple(r for (r,) in self._db.execute(f"select run from run {where} order by opened_at, run"))

    def versions(self) -> dict[RunId, int]:
        """The last seq of every open run."""
        with _translated():
            return dict(
                self._db.execute(
                    "select run, (select max(seq) from record where record.run = run.run) from run where closed = 0"
                ).fetchall()
            )

    def clock_offset(self) -> float:
        """Money time minus this computer's time, as the newest record of an open run had it; 0 without open runs."""
        with _translated():
            row = self._db.execute(
                "select at - wall from record where (run, seq) in (select record.run, max(seq) from record join run using (run)"
                " where closed = 0 group by run) order by at desc limit 1"
            ).fetchone()
        return float(row[0]) if row else 0.0

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _last(self, run: RunId) -> int:
        return int(self._db.execute("select coalesce(max(seq), 0) from record where run = ?", (run,)).fetchone()[0])

    def _insert(self, run: RunId, seq: int, event: Event, decision: bool, at: Time, wall: Time) -> Record:
        text = json.dumps(event.data, sort_keys=True, separators=(",", ":"))
        self._db.execute(
            "insert into record values (?, ?, ?, ?, ?, ?, ?, ?)",
            (run, seq, event.kind, event.purchase, int(decision), at, wall, text),
        )
        if seq == 1:
            self._db.execute("insert into run (run, opened_at) values (?, ?)", (run, at))
        # the flag only makes `runs(open_only=True)` flat over thousands of closed runs; the fold decides
        if event.kind == "closed":
            self._db.execute("update run set closed = 1 where run = ?", (run,))
        elif event.kind in REOPENING:
            self._db.execute("update run set closed = 0 where run = ?", (run,))
        return Record(run, seq, event, decision, at, wall)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            # a full disk fails the commit and may or may not have rolled back already
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise


def examine(path: Path, patience_s: float) -> tuple[bool, str]:
    """Read the whole file through, changing nothing: (nothing wrong was seen, what was seen), within `patience_s`."""
    give_up = time.monotonic() + patience_s
    try:
        db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=patience_s)
        try:
            db.set_progress_handler(lambda: int(time.monotonic() > give_up), 10_000)
            version = int(db.execute("pragma user_version").fetchone()[0])
            if version > len(MIGRATIONS):
                return False, f"it was written by a newer gpuops (schema {version}, this one knows {len(MIGRATIONS)})"
            said = str(db.execute("pragma quick_check(1)").fetchone()[0])
            count = int(db.execute("select count(*) from run").fetchone()[0])
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            return True, f"not read through in {patience_s:g} s; nothing wrong so far"
        return False, str(error)
    except sqlite3.Error as error:
        return False, str(error)
    return said == "ok", f"{count} run(s), every page can be read" if said == "ok" else said


REOPENING = frozenset({"created", "part", "reappeared", "released"})
"""Kinds that open a closed run again: a late hit or part of one, something gone that bills, the end of a retention."""


def _open_file(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # `journal_mode=wal` on a new file races between processes: creating and migrating happens under a file lock
    with path.with_suffix(".lock").open("w") as lock:
        _lock(lock.fileno())
        db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        path.chmod(0o600)
        if db.execute("pragma journal_mode").fetchone()[0] != "wal":
            db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = full")
        _migrate(db)
    return db


def _lock(handle: int) -> None:
    """Take the lock within the time of a busy database: a process that was stopped while it held it is no reason to hang."""
    for _ in range(int(_BUSY_TIMEOUT_S / _LOCK_EVERY_S)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOCK_EVERY_S)
    raise JournalError("another process holds the journal's lock and does not let go")


def _migrate(db: sqlite3.Connection) -> None:
    version = int(db.execute("pragma user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise JournalError(f"the journal has schema {version}, this gpuops knows {len(MIGRATIONS)}: use a newer gpuops")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        db.executescript(f"begin immediate; {script} pragma user_version = {number}; commit;")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        damaged = isinstance(error, sqlite3.DatabaseError) and any(word in str(error) for word in _DAMAGED)
        way_out = "move journal.db aside (keep it), then: gpuops adopt" if damaged else ""
        raise JournalError(f"the journal cannot be used: {error}", next_command=way_out) from error
