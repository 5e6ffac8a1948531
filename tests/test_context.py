"""One run whose records make no sense is said to bill, and hides none of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from computer import write
from runstory import SPEC, START, Story

from gpuops.cli import start
from gpuops.cli.context import App
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.codec import to_json
from gpuops.errors import JournalError, UsageError
from gpuops.values import Event

PLANNED = Story().records[0].event
BROKEN: dict[str, tuple[Event, ...]] = {
    "no beginning": (Event("wanted", {"what": "ready"}),),
    "no purchase": (PLANNED, Event("gone", {}, "p7")),
    "no spec": (Event("planned", {"seed": "s"}),),
    "no object": (Event("planned", {**PLANNED.data, "spec": 3}),),
    "no amount": (Event("planned", {**PLANNED.data, "offer": {**PLANNED.data["offer"], "rate": {"amount": "much"}}}),),
    "no table": (PLANNED, Event("reconciled", {"billed": ["much"]})),
}


def home(path: Path, broken: str = "no beginning") -> App:
    """Runs `good-1` and `good-2`, and between them one that cannot be read."""
    made = App(Home(path), Printer(as_json=False))
    write(made.journal, Story().bought(), "good-1")
    made.journal.append_facts("broken-1", BROKEN[broken], at=START + 100, wall=START + 100)
    made.journal.append_facts("good-2", (PLANNED,), at=START + 200, wall=START + 200)
    return made


@pytest.fixture
def app(tmp_path: Path) -> App:
    return home(tmp_path)


def gpuops(app: App, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GPUOPS_HOME": str(app.home.path)}
    return subprocess.run(
        [sys.executable, "-m", "gpuops", *arguments], env=env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("broken", list(BROKEN))
def test_a_run_that_makes_no_sense_is_reported_and_hides_no_other(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = home(tmp_path, broken)
    assert [s.run for s in app.states()] == [s.run for s in app.states(open_only=True)] == ["good-1", "good-2"]
    told = capsys.readouterr().out.splitlines()
    assert (
        len(told) == 2
        and told[0] == told[1]
        and told[0].startswith("ALARM: the records of run broken-1 make no sense (")
    )
    assert told[0].endswith("); it may bill.  next: gpuops reconcile")


def test_the_other_runs_are_still_found_by_name(app: App) -> None:
    assert app.find("good-1").run == "good-1"
    with pytest.raises(UsageError, match="no run 'broken-1'"):
        app.find("broken-1")


def test_a_journal_that_cannot_be_read_is_no_such_run(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> Any:
        raise JournalError("database is locked")

    monkeypatch.setattr(app.journal, "records", unreadable)
    with pytest.raises(JournalError):
        app.states()


def test_status_shows_the_other_runs_and_the_alarm(app: App) -> None:
    shown = gpuops(app, "status")
    assert shown.returncode == 0, shown.stderr
    assert "good-1" in shown.stdout and "good-2" in shown.stdout
    assert "ALARM: the records of run broken-1 make no sense" in shown.stdout and "it may bill" in shown.stdout


def test_status_as_json_is_one_document_and_the_alarm_stands_beside_it(app: App) -> None:
    shown = gpuops(app, "status", "--json")
    assert [run["id"] for run in json.loads(shown.stdout)["runs"]] == ["good-1", "good-2"]
    assert "ALARM: the records of run broken-1 make no sense" in shown.stderr


def test_a_manifest_can_be_run_beside_a_run_that_makes_no_sense(tmp_path: Path) -> None:
    """`run` looks for the last run of its manifest among all of them."""
    app = App(Home(tmp_path), Printer(as_json=False))
    write(app.journal, Story(spec=to_json(replace(SPEC, manifest_path="/manifests/mine.yaml"))), "good-1")
    app.journal.append_facts("broken-1", BROKEN["no spec"], at=START + 100, wall=START + 100)
    assert start._untold(app, replace(SPEC, manifest_path="/manifests/mine.yaml")) is None


def test_a_process_that_ends_waits_for_what_it_was_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon thread inside a compiled module's import aborts the process: exit code 5 became a signal."""
    imported = threading.Event()
    monkeypatch.setattr("importlib.import_module", lambda name: imported.wait(10))
    before = set(threading.enumerate())
    App(Home(tmp_path), Printer(as_json=False)).warm_up()
    begun = set(threading.enumerate()) - before
    imported.set()
    assert [t.daemon for t in begun] == [False]
