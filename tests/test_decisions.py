"""A decision that does not fit the life tables never stands in the journal, whoever makes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from computer import Computer, site, write
from runstory import LIMIT, POLICY, Story

from gpuops import engine
from gpuops.cli.context import App
from gpuops.cli.driving import decide
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.errors import JournalError, Stale, UsageError
from gpuops.fold import ImpossibleTransition
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.steps import Do, Step, fact
from gpuops.values import Event, Record, Time


def test_an_impossible_decision_of_a_rule_raises_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    computer = Computer()
    monkeypatch.setattr("gpuops.clock.time", computer)
    story, done = Story().bought(), []

    def effect(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
        done.append(do)
        return ()

    def terminate(s: RunState, now: Time, policy: Policy) -> Step:
        """A rule with a bug: what was created cannot be gone at once."""
        return Do("terminate", effect, now + 30, "p1", fact("gone", "p1"))

    monkeypatch.setattr(engine, "RULES", (terminate,))
    where = site(computer, story)
    before = where.journal.records("run-1")
    with pytest.raises(ImpossibleTransition, match="'created' cannot become 'gone'"):
        engine.advance("run-1", where.ports, POLICY, engine.GUARD)
    assert where.journal.records("run-1") == before and done == []
    assert engine.load("run-1", where.ports).version == story.state.version, "the run can still be read"


# --- decisions of a command --------------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(Home(tmp_path), Printer(as_json=False))


def keep(state: RunState) -> Event:
    return fact("retained", "p1", until=LIMIT, reason="look at it")


def test_a_command_that_comes_too_late_is_told_so_and_writes_nothing(app: App) -> None:
    story = Story().bought().going_down().ending()
    write(app.journal, story)
    before = app.journal.records("run-1")
    with pytest.raises(UsageError, match="run-1 has moved on: purchase p1: 'ending' cannot become 'retained'") as told:
        decide(app, "run-1", keep)
    assert told.value.next_command == "gpuops status run-1"
    assert app.journal.records("run-1") == before
    assert app.state("run-1").version == story.state.version


def test_a_command_that_was_overtaken_decides_again_on_what_is_there_now(app: App) -> None:
    write(app.journal, Story().bought())

    def overtaken(state: RunState) -> Event:
        if state.purchases["p1"].life == "created":
            # somebody at another terminal is a moment faster
            faster = Story().bought().going_down().ending().records[state.version :]
            app.journal.append_facts("run-1", tuple(r.event for r in faster), at=state.last_at, wall=state.last_at)
        return keep(state)

    with pytest.raises(UsageError, match="has moved on"):
        decide(app, "run-1", overtaken)
    assert "retained" not in [r.event.kind for r in app.journal.records("run-1")]


def test_a_decision_that_fits_is_written_once_and_folded(app: App) -> None:
    write(app.journal, Story().bought())
    state = decide(app, "run-1", keep)
    assert state.purchases["p1"].life == "retained" and app.state("run-1") == state
    assert [r.decision for r in app.journal.records("run-1") if r.event.kind == "retained"] == [True]


def test_a_run_that_never_stands_still_makes_an_error_and_no_endless_loop(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(app.journal, Story().bought())
    tries = []

    def stale(*_: object, **__: object) -> Record:
        tries.append(1)
        raise Stale("somebody was faster")

    monkeypatch.setattr(app.journal, "append", stale)
    with pytest.raises(JournalError, match="faster than a decision can be written"):
        decide(app, "run-1", keep)
    assert len(tries) == 20
