"""The journal between real processes: compare-and-append, migrations, a writer that dies, a disk that is full."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.errors import JournalError, Stale
from gpuops.journal import MIGRATIONS, SqliteJournal
from gpuops.values import Event

RUN = "run-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "journal.db"


def wish(number: int = 0, size: int = 0) -> Event:
    return Event("wanted", {"number": number, "fill": "x" * size})


def append(journal: SqliteJournal, event: Event, expected: int) -> int:
    return journal.append(RUN, event, expected=expected, at=1.0, wall=2.0).seq


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_records_come_back_in_order_and_after_a_version(path: Path) -> None:
    journal = SqliteJournal(path)
    append(journal, wish(1), 0)
    journal.append_facts(RUN, (wish(2), wish(3)), at=3.0, wall=4.0)
    assert [(r.seq, r.decision, r.event.data["number"]) for r in journal.records(RUN)] == [
        (1, True, 1),
        (2, False, 2),
        (3, False, 3),
    ]
    assert [r.seq for r in journal.records(RUN, after=2)] == [3]


def test_a_decision_on_an_old_version_is_refused_and_a_fact_is_not(path: Path) -> None:
    journal = SqliteJournal(path)
    append(journal, wish(), 0)
    with pytest.raises(Stale):
        append(journal, wish(), 0)
    journal.append_facts(RUN, (wish(),), at=1.0, wall=1.0)
    assert len(journal.records(RUN)) == 2


WRITER = """
import sys
from gpuops.errors import Stale
from gpuops.journal import SqliteJournal
from gpuops.values import Event
journal, stale, last = SqliteJournal(sys.argv[1]), 0, 0
for number in range(60):
    if number % 3 == 0:
        journal.append_facts("run-1", (Event("fact", {"by": sys.argv[2]}),), at=1.0, wall=1.0)
        continue
    while True:
        records = journal.records("run-1", after=last)
        last = records[-1].seq if records else last
        try:
            journal.append("run-1", Event("decision", {"by": sys.argv[2], "on": last}), expected=last, at=1.0, wall=1.0)
            break
        except Stale:
            stale += 1
print(stale)
"""


def test_two_processes_append_without_a_gap_and_never_on_a_stale_version(path: Path) -> None:
    writers = [python(WRITER, str(path), name) for name in ("one", "two")]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    records = SqliteJournal(path).records(RUN)
    assert [r.seq for r in records] == list(range(1, 121))
    assert all(r.event.data["on"] == r.seq - 1 for r in records if r.decision)
    assert {r.event.data["by"] for r in records} == {"one", "two"}


def test_many_processes_may_make_the_journal_at_once(path: Path) -> None:
    code = "import sys; from gpuops.journal import SqliteJournal; SqliteJournal(sys.argv[1]).runs()"
    for process in [python(code, str(path)) for _ in range(6)]:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def test_an_empty_file_is_migrated_from_version_0(path: Path) -> None:
    path.parent.mkdir(parents=True)
    sqlite3.connect(path).close()
    append(SqliteJournal(path), wish(), 0)
    version = sqlite3.connect(path).execute("pragma user_version").fetchone()[0]
    assert version == len(MIGRATIONS)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_newer_schema_is_refused_and_not_guessed(path: Path) -> None:
    SqliteJournal(path).close()
    database = sqlite3.connect(path)
    database.execute(f"pragma user_version = {len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(JournalError, match="newer gpuops"):
        SqliteJournal(path)


KILLED = """
import os, signal, sys
from gpuops.journal import SqliteJournal
from gpuops.values import Event
journal = SqliteJournal(sys.argv[1])
journal.append("run-1", Event("wanted"), expected=0, at=1.0, wall=1.0)
with journal._transaction():
    journal._insert("run-1", 2, Event("half"), True, 1.0, 1.0)
    if sys.argv[2] == "stop":
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_killed_inside_a_transaction_leaves_nothing_half_done(path: Path) -> None:
    writer = python(KILLED, str(path), "kill")
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL
    journal = SqliteJournal(path)
    assert [r.event.kind for r in journal.records(RUN)] == ["wanted"]
    assert append(journal, wish(), 1) == 2


def test_a_writer_stopped_inside_a_transaction_makes_an_error_and_no_hang(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops.journal._BUSY_TIMEOUT_S", 0.2)
    writer = python(KILLED, str(path), "stop")
    assert writer.stdout is not None and writer.stdout.readline() == "stopped\n"
    try:
        journal = SqliteJournal(path)
        with pytest.raises(JournalError, match="locked"):
            append(journal, wish(), 1)
        assert [r.event.kind for r in journal.records(RUN)] == ["wanted"]
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate(timeout=60)
    assert append(journal, wish(), 1) == 2


FULL = """
import json, resource, signal, sys
from gpuops.errors import JournalError
from gpuops.journal import SqliteJournal
from gpuops.values import Event
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal, said, seq = SqliteJournal(sys.argv[1]), [], 0
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for number in range(40):
    try:
        seq = journal.append("run-1", Event("wanted", {"fill": "x" * 20000}), expected=seq, at=1.0, wall=1.0).seq
    except JournalError as error:
        said.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
seq = journal.append("run-1", Event("wanted", {"again": True}), expected=seq, at=1.0, wall=1.0).seq
print(json.dumps({"seq": seq, "said": said[:1], "failed": len(said)}))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="this system has no such limit")
@pytest.mark.parametrize("size", [150_000, 300_000, 333_000])
def test_a_full_disk_is_an_error_and_the_journal_goes_on_when_there_is_room(path: Path, size: int) -> None:
    SqliteJournal(path).close()
    writer = python(FULL, str(path), str(size))
    output, errors = writer.communicate(timeout=60)
    assert writer.returncode == 0, errors
    told = json.loads(output)
    assert told["failed"] > 0 and "cannot be used" in told["said"][0]
    records = SqliteJournal(path).records(RUN)
    assert [r.seq for r in records] == list(range(1, told["seq"] + 1))
    assert records[-1].event.data == {"again": True}


@pytest.mark.parametrize("kind", ["created", "reappeared", "released"])
def test_a_closed_run_is_open_again_when_something_of_it_may_bill(path: Path, kind: str) -> None:
    journal = SqliteJournal(path)
    append(journal, wish(), 0)
    append(journal, Event("closed"), 1)
    assert journal.runs(open_only=True) == ()
    journal.append_facts(RUN, (Event(kind),), at=1.0, wall=1.0)
    assert journal.runs(open_only=True) == (RUN,)
    assert journal.versions() == {RUN: 3}


def test_a_file_that_is_no_journal_is_an_error_and_stays_as_it_is(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalError):
        SqliteJournal(path)
    assert path.read_bytes() == b"not a database" * 1000


FLOCKED = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_another_process_holds_makes_an_error_within_the_time_of_a_busy_database(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was stopped while it made the journal is no reason to hang; the guard would hang with it."""
    SqliteJournal(path).close()
    monkeypatch.setattr("gpuops.journal._BUSY_TIMEOUT_S", 0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", FLOCKED, str(path.with_suffix(".lock"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(JournalError, match="another process holds the journal's lock"):
            SqliteJournal(path)
    finally:
        holder.communicate(timeout=60)
    assert append(SqliteJournal(path), wish(), 0) == 1


def test_a_lock_that_is_let_go_in_time_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def let_go(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            holder.close()

    path.parent.mkdir(parents=True)
    holder = path.with_suffix(".lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr("gpuops.journal.time.sleep", let_go)
    SqliteJournal(path)
    assert len(tries) == 3


@pytest.mark.parametrize("wrong", ["a file in place of the home", "a directory in place of the lock", "no such device"])
def test_what_the_system_refuses_is_an_error_of_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "a file in place of the home":
        path.parent.write_text("")
    elif wrong == "a directory in place of the lock":
        path.with_suffix(".lock").mkdir(parents=True)
    else:

        def refused(*_: object) -> None:
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr("gpuops.journal.fcntl.flock", refused)
    with pytest.raises(JournalError, match="the journal cannot be used: "):
        SqliteJournal(path)


def test_a_newer_schema_stays_as_it_is(path: Path) -> None:
    """Refused before anything is written: the newer gpuops goes on with it."""
    journal = SqliteJournal(path)
    append(journal, wish(), 0)
    journal.close()
    database = sqlite3.connect(path)
    database.execute(f"pragma user_version = {len(MIGRATIONS) + 7}")
    with pytest.raises(JournalError, match=f"schema {len(MIGRATIONS) + 7}, this gpuops knows {len(MIGRATIONS)}"):
        SqliteJournal(path)
    assert database.execute("pragma user_version").fetchone()[0] == len(MIGRATIONS) + 7
    assert database.execute("select count(*) from record").fetchone()[0] == 1
    database.close()
