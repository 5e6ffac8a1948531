"""`guard --once`: one bounded visit, and an exit code for whoever reads only that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from computer import Computer, Site, site, write
from runstory import LIMIT, SPEC, START, Story

from gpuops.cli import guard as command
from gpuops.cli.context import App
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.codec import to_json
from gpuops.errors import JournalError, MayBill, ProviderError
from gpuops.values import Event

PATIENT = to_json(replace(SPEC, setup_s=7200))


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    made = Computer()
    monkeypatch.setattr("gpuops.clock.time", made)
    return made


def ready() -> Story:
    return Story(spec=PATIENT).bought().checked()


def desk(computer: Computer, home: Path, *stories: Story, as_json: bool = False, **config: Any) -> tuple[App, Site]:
    """The command's app on a simulated account, with a journal that tells the stories."""
    app = App(Home(home, **config), Printer(as_json=as_json))
    where = site(computer, *stories, journal=app.journal)
    app.ports, app.clock = where.ports, where.clock  # type: ignore[misc]
    return app, where


def visit(app: App, where: Site) -> int:
    """What `guard --once --provider simulated` exits with, when it does not raise."""
    app.ports = where.ports  # type: ignore[misc]
    with pytest.raises(typer.Exit) as done:
        command._once(app, ["simulated"])
    return done.value.exit_code


def silent(*_: Any) -> Any:
    raise ProviderError("503: service unavailable")


def test_without_anything_due_a_visit_says_when_it_is_due_again(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    computer.true = START + 1000
    app, where = desk(computer, tmp_path, ready())
    assert visit(app, where) == 0
    assert "run-1: ready, due again 1970-01-12T14:0" in capsys.readouterr().out
    assert computer.slept == [] and where.deeds() == []


def test_past_the_limit_a_visit_asks_for_the_end_names_what_bills_and_waits_for_nothing(
    computer: Computer, tmp_path: Path
) -> None:
    computer.true = LIMIT + 1
    app, where = desk(computer, tmp_path, ready())
    where.cloud.machines[0].ignore = 10_000
    with pytest.raises(MayBill) as told:
        visit(app, where)
    assert told.value.exit_code == 5 and told.value.may_bill == ("simulated/region-1/rental/m-1",)
    assert where.deeds() == [("terminate", "m-1")] and computer.slept == []


def test_later_visits_prove_that_it_is_gone(computer: Computer, tmp_path: Path) -> None:
    computer.true = LIMIT + 1
    app, where = desk(computer, tmp_path, ready())
    with pytest.raises(MayBill):
        visit(app, where)
    for _ in range(20):
        computer.true += 60
        if app.journal.runs(open_only=True) and app.state("run-1").may_bill:
            with pytest.raises((MayBill, typer.Exit)):
                command._once(app, ["simulated"])
    assert visit(app, where) == 0
    assert app.state("run-1").closed and computer.slept == []


def test_before_its_limit_what_bills_bills_as_meant(computer: Computer, tmp_path: Path) -> None:
    computer.true = LIMIT - 1800
    app, where = desk(computer, tmp_path, ready())
    assert visit(app, where) == 0 and app.state("run-1").may_bill


def test_a_rental_of_nobody_here_that_ignores_its_end_is_named(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, where = desk(computer, tmp_path)
    where.rental(START - 60).ignore = 10_000
    with pytest.raises(MayBill) as told:
        visit(app, where)
    assert told.value.may_bill == ("simulated/region-1/rental/m-0001",)
    assert "other-1: past its limit, NOT proved gone" in capsys.readouterr().out
    assert computer.true - START < 700, "bounded"


def test_an_error_about_one_rental_is_named_as_what_may_bill(computer: Computer, tmp_path: Path) -> None:
    app, where = desk(computer, tmp_path)
    where.rental(START - 60, "other-1")
    where.ports = replace(where.ports, random_bytes=lambda count: (_ for _ in ()).throw(JournalError("no room")))
    with pytest.raises(MayBill) as told:
        visit(app, where)
    assert told.value.may_bill == ("simulated/region-1/rental/m-0001: no room",)


def test_a_rental_of_an_open_run_is_ended_by_that_runs_rules_and_not_blindly(
    computer: Computer, tmp_path: Path
) -> None:
    """The mark says that its time is over, the journal was told of an extension and knows better."""
    computer.true = START + 1000
    app, where = desk(computer, tmp_path, ready())
    mark = where.cloud.machines[0].mark
    assert mark is not None
    where.cloud.machines[0].mark = replace(mark, limit_at=START + 500)
    assert visit(app, where) == 0 and where.deeds() == []


def test_a_run_whose_records_make_no_sense_protects_nothing_from_its_mark(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, where = desk(computer, tmp_path)
    rental = where.rental(START - 60, "broken-1")
    app.journal.append_facts("broken-1", (Event("wanted", {"what": "ready"}),), at=START, wall=START)
    assert visit(app, where) == 0 and not rental.bills(computer.true)
    shown = capsys.readouterr().out
    assert "ALARM: the records of run broken-1" in shown and "ended and proved gone" in shown


def test_an_account_that_cannot_be_listed_is_not_proved(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, where = desk(computer, tmp_path)
    where.provider_is(list_billable=silent)
    assert visit(app, where) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "NOT PROVED: simulated: 503: service unavailable" and "next: gpuops guard --once" in said[1]


def test_one_account_that_cannot_be_listed_does_not_keep_the_runs_here_from_going_down(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 5 outranks exit 3, and both are said."""
    computer.true = LIMIT + 1
    app, where = desk(computer, tmp_path, ready())
    where.provider_is(list_billable=silent)
    with pytest.raises(MayBill):
        visit(app, where)
    assert where.deeds() == [("terminate", "m-1")]
    assert "NOT PROVED: simulated: 503: service unavailable" in capsys.readouterr().out


def test_a_run_that_cannot_be_tended_keeps_no_other_one_waiting(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    computer.true = LIMIT + 1
    app, where = desk(computer, tmp_path, Story())
    write(app.journal, ready(), "run-2")
    append = app.journal.append

    def refuses(run: str, *more: Any, **named: Any) -> Any:
        if run == "run-1":
            raise JournalError("no room")
        return append(run, *more, **named)

    monkeypatch.setattr(app.journal, "append", refuses)
    with pytest.raises(MayBill):
        visit(app, where)
    assert where.deeds() == [("terminate", "m-1")]


def test_a_listing_with_gaps_is_not_proved(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in the part that could not be read may be past its limit."""
    app, where = desk(computer, tmp_path)
    where.rental(START - 60)
    where.cloud.blind_regions = {"region-1"}
    assert visit(app, where) == 3
    assert "NOT PROVED" in capsys.readouterr().out and where.deeds() == []


def test_a_visit_as_json_is_one_document(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, where = desk(computer, tmp_path, as_json=True)
    where.rental(START - 60)
    assert visit(app, where) == 0
    assert json.loads(capsys.readouterr().out) == {"ended": [{"run": "other-1", "closed": True}], "problems": []}


def test_with_an_unreadable_journal_what_is_past_its_limit_ends_all_the_same(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Credentials and marks are enough; that the runs here were not looked at is said."""
    computer.true = START + 1000
    app = App(Home(tmp_path), Printer(as_json=False))
    app.home.journal.write_bytes(b"this is no database" * 1000)
    where = site(computer)
    where.rental(START + 500)
    app.ports, app.clock = where.ports, where.clock  # type: ignore[misc]
    assert visit(app, where) == 3
    assert where.deeds()[0][0] == "terminate"
    assert "NOT PROVED: the runs of this computer: the journal cannot be used" in capsys.readouterr().out
