"""Leaving with an error: what goes on billing outranks what went wrong, and is named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commandcase import Desk
from runstory import LIMIT, START, Story

from gpuops.cli import ABOUT_A_RUN, COMMANDS, main
from gpuops.cli.leaving import farewell, layers_text, whatever_bills
from gpuops.errors import GateRefused, GpuopsError, HostError, JournalError, MayBill, ProviderError, UsageError
from gpuops.values import Event, Ref

RENTAL = "simulated/region-1/rental/m-1"
# Arguments with which a command gets as far as looking at its home.
ARGUMENTS = {
    "extend": ["--by", "1h"], "retain": ["small", "--reason", "x", "--for", "1h"], "release": ["small"],
    "up": ["m.yaml"], "run": ["m.yaml"],
}  # fmt: skip


def closed(story: Story) -> Story:
    story.going_down().ending().tell("gone", decision=True)
    return story.tell("reconciled", None).tell("closed", None, decision=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def leave(monkeypatch: pytest.MonkeyPatch, error: Exception, command: str, *options: str) -> int:
    """Type a command that meets `error` as soon as it begins, and return its exit code."""

    def broken(**_: object) -> None:
        raise error

    monkeypatch.setattr(f"gpuops.cli.{COMMANDS[command][0]}.make_app", broken)
    monkeypatch.setattr(sys, "argv", ["gpuops", command, *ARGUMENTS.get(command, []), *options])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize("command", sorted(ABOUT_A_RUN))
@pytest.mark.parametrize("error", [ZeroDivisionError, ProviderError, HostError, JournalError])
def test_an_error_of_a_command_about_a_run_is_outranked_by_what_may_bill(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    error: type[Exception],
) -> None:
    Desk(home, START + 100, Story().bought())
    assert leave(monkeypatch, error("it broke"), command) == 5
    said = capsys.readouterr().err
    assert f"may still bill: {RENTAL}" in said and "next: gpuops " in said


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_bug_while_buying_is_outranked_by_a_purchase_that_may_exist(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Desk(home, START + 100, Story().ready_to_buy().intended().tell("unknown", error="no answer"))
    assert leave(monkeypatch, ZeroDivisionError("a bug"), command) == 5
    assert "rental with mark nonce1 (not found yet)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(ZeroDivisionError, 1), (JournalError, 1), (ProviderError, 4), (HostError, 4)]
)
@pytest.mark.parametrize("past", ["nothing was ever bought", "everything is proved gone"])
def test_an_error_with_nothing_open_keeps_its_own_exit_code(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception], code: int,
    past: str,
) -> None:  # fmt: skip
    if past == "everything is proved gone":
        Desk(home, START + 100, closed(Story().bought()))
    for command in ("down", "run"):
        assert leave(monkeypatch, error("it broke"), command) == code
    assert "may still bill" not in capsys.readouterr().err
    assert (home / "journal.db").exists() == (past == "everything is proved gone"), "asking makes no journal"


@pytest.mark.parametrize(("error", "code"), [(UsageError("which run?"), 2), (GateRefused("the cap"), 3)])
def test_what_was_refused_before_anything_was_done_is_not_outranked(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    Desk(home, START + 100, Story().bought())
    assert leave(monkeypatch, error, "extend") == code


def test_a_command_that_is_about_no_run_keeps_its_exit_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Desk(home, START + 100, Story().bought())
    assert leave(monkeypatch, ZeroDivisionError("a bug"), "providers") == 1
    assert leave(monkeypatch, ProviderError("503"), "reconcile") == 4


def test_an_error_that_names_what_bills_is_left_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Desk(home, START + 100, Story().bought())
    assert leave(monkeypatch, MayBill("detached", may_bill=("m-7",), next_command="gpuops down run-7"), "down") == 5
    assert leave(monkeypatch, GpuopsError("a bug", may_bill=("m-7",), next_command="gpuops down run-7"), "down") == 5
    said = capsys.readouterr().err
    assert said.count("may still bill: m-7") == 2 and RENTAL not in said and said.count("next: gpuops down run-7") == 2


def test_the_json_of_an_outranked_error_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Desk(home, START + 100, Story().bought())
    assert leave(monkeypatch, ProviderError("503"), "down", "--json") == 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": "may_bill", "message": "503", "may_bill": [RENTAL], "next": "gpuops status"}


def test_every_command_about_a_run_exists() -> None:
    assert set(COMMANDS) >= ABOUT_A_RUN


# --- what may bill -------------------------------------------------------------------------------------------------------


def test_everything_open_is_named_and_what_is_gone_is_not(home: Path) -> None:
    unknown = Story().ready_to_buy().intended().tell("unknown", error="no answer")
    desk = Desk(home, START + 100, unknown)
    twice = Story().bought().created(name="m-2", via="search").ending("p1.m-2").tell("gone", "p1.m-2", decision=True)
    for story, run in ((twice, "run-2"), (closed(Story().bought()), "run-3")):
        for record in story.records:
            desk.ports.journal.append_facts(run, (record.event,), at=record.at, wall=record.wall)
    assert whatever_bills() == ("simulated/region-1/rental with mark nonce1 (not found yet)", RENTAL)


@pytest.mark.parametrize("damage", ["no database", "a newer schema", "a directory"])
def test_a_journal_that_cannot_be_read_is_no_reason_to_say_nothing(home: Path, damage: str) -> None:
    desk = Desk(home, START + 100)
    desk.ports.journal.close()  # type: ignore[attr-defined]
    desk.home.journal.unlink()
    if damage == "a directory":
        desk.home.journal.mkdir()
    elif damage == "no database":
        desk.home.journal.write_bytes(b"no database" * 1000)
    else:
        import sqlite3

        database = sqlite3.connect(desk.home.journal)
        database.execute("pragma user_version = 99")
        database.close()
    (said,) = whatever_bills()
    assert said.startswith("whatever the journal names; it cannot be read now (")


def test_a_home_whose_configuration_is_wrong_is_no_reason_either(home: Path) -> None:
    Desk(home, START + 100, Story().bought())
    (home / "config.toml").write_text("no toml at all [")
    (said,) = whatever_bills()
    assert "cannot be read now" in said and "config.toml" in said


def test_a_run_whose_records_make_no_sense_may_bill(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`status` says so of it; an exit code that says that nothing bills would be a claim."""
    desk = Desk(home, START + 100, Story().bought())
    desk.ports.journal.append_facts("run-1", (Event("gone", {}, "p9"),), at=START, wall=START)
    assert any("run-1" in what for what in whatever_bills())
    assert capsys.readouterr().out == "", "standard output belongs to the document of --json"


# --- what is said on leaving -----------------------------------------------------------------------------------------------


def test_what_ends_it_is_said_with_its_time(home: Path) -> None:
    desk = Desk(home, START + 100, Story().bought())
    app, state = desk.app(), Story().launched().state
    nobody = "No guard runs here and no timer was seen: nothing but you ends it at the limit 1970-01-12T14:56:40Z."
    assert layers_text(app, state) == nobody
    timed = Story().launched().tell("layer", name="provider timer", grade="read back", at=LIMIT - 60).state
    assert "The provider timer ends it at 1970-01-12T14:55:40Z at the latest" in layers_text(app, timed)


def test_a_second_interruption_names_what_bills_and_the_command(home: Path) -> None:
    desk = Desk(home, START + 100)
    said = farewell(desk.app(), Story().launched().state)
    assert f"may still bill: {RENTAL}" in said and said.endswith("next: gpuops down run-1\n")
    assert "may still bill" not in farewell(desk.app(), Story().state)


def test_a_second_interruption_prints_no_control_characters(home: Path) -> None:
    desk = Desk(home, START + 100)
    state = Story().launched().state
    assert state.rental is not None
    hostile = replace(state.rental, ref=Ref("simulated", "account-1", "region-1", "rental", "m\x1b[2J"))
    said = farewell(desk.app(), replace(state, purchases={"p1": hostile}))
    assert "\x1b" not in said
