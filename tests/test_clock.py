"""Money time: it follows the provider, counts suspend, and starts where the journal left the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from computer import Computer
from runstory import START

from gpuops.clock import MoneyClock
from gpuops.journal import SqliteJournal
from gpuops.values import Event


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    made = Computer()
    monkeypatch.setattr("gpuops.clock.time", made)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "journal.db")


def tell(journal: SqliteJournal, run: str, kind: str, at: float, wall: float) -> None:
    journal.append_facts(run, (Event(kind),), at=at, wall=wall)


# --- the clock ---------------------------------------------------------------------------------------------------------


def test_it_starts_at_this_computers_time_plus_what_is_known_of_the_difference(computer: Computer) -> None:
    computer.ahead_s = 3600
    assert MoneyClock().now() == START + 3600
    clock = MoneyClock(-3600)
    assert clock.now() == START and clock.wall() == START + 3600


@pytest.mark.parametrize("ahead_s", [3600, 7200, -3600, -7200])
def test_the_provider_is_followed_in_both_directions(computer: Computer, ahead_s: float) -> None:
    computer.ahead_s = ahead_s
    clock = MoneyClock()
    clock.learn(START)
    assert clock.now() == START
    computer.true += 100
    assert clock.now() == START + 100 and clock.wall() == START + 100 + ahead_s


def test_a_time_that_stands_still_does_not_hold_the_clock_back(computer: Computer) -> None:
    """As behind a cache: the same old answer again and again."""
    clock = MoneyClock()
    clock.learn(START)
    for _ in range(100):
        computer.true += 60
        clock.learn(START)
    assert clock.now() == START + 6000


def test_one_answer_that_contradicts_counts_when_the_next_one_agrees_with_it(computer: Computer) -> None:
    clock = MoneyClock()
    clock.learn(START + 7200)
    computer.true += 10
    clock.learn(START + 10)
    assert clock.now() == START + 7210
    computer.true += 10
    clock.learn(START + 20)
    assert clock.now() == START + 20


def test_rounding_to_seconds_is_no_news(computer: Computer) -> None:
    clock = MoneyClock()
    clock.learn(START - 1)
    assert clock.now() == START
    clock.learn(START - 2)
    assert clock.now() == START - 2


def test_a_wall_clock_that_is_set_does_not_move_money_time(computer: Computer) -> None:
    clock = MoneyClock()
    computer.true, computer.ahead_s = START + 10, 7200
    assert clock.now() == START + 10


def test_a_sleep_ends_late_after_a_suspend_and_never_early(computer: Computer) -> None:
    clock = MoneyClock()
    clock.sleep_until(START + 5.5)
    assert clock.now() == START + 5.5
    assert max(computer.slept) <= 1, "the time of a suspended computer would not count"
    computer.suspended_s = 600
    clock.sleep_until(START + 100)
    assert len(computer.slept) == 7, "one more piece, and the suspend was seen"
    clock.sleep_until(START)
    assert len(computer.slept) == 7


# --- where the journal left it -----------------------------------------------------------------------------------------


def test_without_open_runs_nothing_is_known_of_the_difference(journal: SqliteJournal) -> None:
    assert journal.clock_offset() == 0
    tell(journal, "run-1", "planned", START, START + 3600)
    tell(journal, "run-1", "closed", START + 1, START + 3601)
    assert journal.clock_offset() == 0


def test_the_newest_record_of_an_open_run_tells_the_difference(journal: SqliteJournal) -> None:
    tell(journal, "run-1", "planned", START + 3600, START + 3600)
    assert journal.clock_offset() == 0, "nobody had asked the provider yet"
    tell(journal, "run-1", "observed", START + 10, START + 3610)
    assert journal.clock_offset() == -3600
    tell(journal, "run-2", "planned", START + 20, START + 7220)
    assert journal.clock_offset() == -7200
    tell(journal, "run-2", "closed", START + 30, START + 7230)
    assert journal.clock_offset() == -3600, "a closed run says nothing of today"


def test_the_newest_record_counts_after_this_computers_clock_was_put_right(journal: SqliteJournal) -> None:
    """It was an hour ahead; the records of that time carry later wall times than the newest one."""
    tell(journal, "run-1", "planned", START, START + 3600)
    tell(journal, "run-1", "observed", START + 10, START + 3610)
    tell(journal, "run-1", "observed", START + 70, START + 70)
    assert journal.clock_offset() == 0


def test_a_process_that_starts_anew_has_the_providers_time_at_once(computer: Computer, journal: SqliteJournal) -> None:
    computer.ahead_s = 3600
    tell(journal, "run-1", "observed", computer.true, computer.time())
    assert MoneyClock(journal.clock_offset()).now() == computer.true
