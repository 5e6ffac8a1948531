"""The guard: it asks the provider for the time first, its parent never hangs or spins, and its sentinel ends all it can."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from computer import Computer, Instead, Site, site, write
from runstory import DEADLINE, LIMIT, LIST, POLICY, SPEC, START, Story

from gpuops.cli import guard as command
from gpuops.cli.context import App
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.clock import MoneyClock
from gpuops.codec import to_json
from gpuops.engine import GUARD, drive, load
from gpuops.errors import JournalError, ProviderError, Unreachable
from gpuops.guard import HUNG_S, PATIENCE_S, Parent, abandoned, sentinel, tend
from gpuops.journal import SqliteJournal
from gpuops.policy import Policy
from gpuops.state import RunState
from gpuops.timekeeping import ProviderTime
from gpuops.values import Billable, Inventory, Observation, Ref, Scope, Time

PATIENT = to_json(replace(SPEC, setup_s=7200))


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    made = Computer()
    monkeypatch.setattr("gpuops.clock.time", made)
    return made


def nobody(run: str) -> bool:
    """No command at a terminal drives the run."""
    return False


def ready() -> Story:
    """A machine that was made ready, with plenty of time to launch on it."""
    return Story(spec=PATIENT).bought().checked()


def silent(*_: Any) -> Any:
    raise ProviderError("no answer")


# --- the provider's time first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [3600, 7200, -3600, -7200])
def test_a_limit_half_an_hour_ahead_is_not_reached_however_wrong_this_clock_is(
    computer: Computer, ahead_s: float
) -> None:
    computer.true, computer.ahead_s = LIMIT - 1800, ahead_s
    where = site(computer, ready())
    tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert where.wishes() == ["ready"] and where.deeds() == []
    assert where.clock.now() == computer.true


@pytest.mark.parametrize("ahead_s", [3600, 7200, -3600, -7200])
def test_a_limit_that_has_passed_is_the_first_decision_however_wrong_this_clock_is(
    computer: Computer, ahead_s: float
) -> None:
    computer.true, computer.ahead_s = LIMIT + 10, ahead_s
    where = site(computer, ready())
    before = len(where.journal.records("run-1"))
    tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    first = where.journal.records("run-1")[before]
    assert (first.event.kind, first.event.data["cause"]) == ("wanted", "limit reached")
    assert (first.at, first.wall) == (LIMIT + 10, LIMIT + 10 + ahead_s)
    assert where.deeds() == [("terminate", "m-1")]


def test_without_an_answer_the_guard_says_so_and_goes_on_with_what_the_journal_knows(computer: Computer) -> None:
    computer.true, computer.ahead_s = LIMIT - 1800, 3600
    journal = SqliteJournal(":memory:")
    write(journal, ready(), wall_ahead_s=3600)
    where = site(computer, ready(), offset_s=journal.clock_offset())
    where.provider_is(inspect=silent)
    tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert ("warning", "the provider's time is not known: no answer") in where.said
    assert where.wishes() == ["ready"] and where.deeds() == []
    computer.true = LIMIT + 1
    tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert where.deeds() == [("terminate", "m-1")], "money stops without an answer, too"


def unreachable(*_: Any) -> Any:
    raise Unreachable("no route to host")


class Late:
    """A provider that answers only from its `after`th look on."""

    def __init__(self, where: Any, after: int) -> None:
        self._inspect, self._left = where.ports.providers("simulated").inspect, after

    def __call__(self, ref: Ref, until: Time) -> Observation:
        self._left -= 1
        return silent() if self._left >= 0 else self._inspect(ref, until)


@pytest.mark.parametrize("ahead_s", [-7200, 7200])
def test_a_provider_that_answers_late_corrects_the_clock_within_seconds(computer: Computer, ahead_s: float) -> None:
    """Behind, the driver would sleep through its due times; ahead, it would do everything too early."""
    computer.true, computer.ahead_s = START + 200, ahead_s
    where = site(computer, ready())
    where.provider_is(inspect=Late(where, 3))
    drive("run-1", where.ports, POLICY, GUARD, until=lambda s: where.clock.now() == pytest.approx(computer.true))
    assert computer.true < START + 200 + 6 * POLICY.ask_time_every_s


def test_no_checkpoint_is_given_up_by_a_clock_that_is_ahead_while_the_provider_is_silent(computer: Computer) -> None:
    """Launched, the host cannot be sealed, and this computer believes that the limit has passed."""
    computer.true, computer.ahead_s = LIMIT - 1800, 7200
    where = site(computer, Story().launched())
    where.ports = replace(where.ports, host=Instead(where.ports.host, seal=unreachable))
    where.provider_is(inspect=Late(where, 6))
    drive("run-1", where.ports, POLICY, GUARD, until=lambda s: computer.true > LIMIT - 300)
    assert "forced" not in where.wishes() and where.deeds() == []
    drive("run-1", where.ports, POLICY, GUARD, until=lambda s: bool(where.deeds()))
    assert computer.true >= LIMIT


def test_an_unwritable_journal_ends_nothing_by_a_clock_that_is_ahead(computer: Computer) -> None:
    computer.true, computer.ahead_s = LIMIT - 1800, 7200
    where = site(computer, Story().launched())

    def full(*_: Any, **__: Any) -> Any:
        raise JournalError("disk full")

    where.ports = replace(where.ports, journal=Instead(where.journal, append=full, append_facts=full))
    where.provider_is(inspect=Late(where, 1))
    with pytest.raises(JournalError):
        tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert where.deeds() == []
    computer.true = LIMIT + 1
    with pytest.raises(JournalError):
        tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert where.deeds() == [("terminate", "m-1")]


@pytest.mark.parametrize(("ahead_s", "said"), [(59, ""), (-59, ""), (61, "+61 s"), (-61, "-61 s"), (7200, "+7200 s")])
def test_a_clock_that_is_off_is_told_to_a_person(computer: Computer, ahead_s: float, said: str) -> None:
    computer.ahead_s = ahead_s
    where = site(computer, ready())
    ProviderTime().ask(where.ports, load("run-1", where.ports), POLICY)
    assert [level for level, _ in where.said] == ["warning"] * bool(said)
    assert all(f"clock is {said} off; the provider's time counts" in text for _, text in where.said)


@pytest.mark.parametrize(
    "story",
    [
        Story().ready_to_buy(),
        Story().ready_to_buy().intended().tell("unknown", error="lost"),
        Story().bought().going_down().ending().tell("gone", decision=True),
    ],
    ids=["nothing bought", "not found yet", "gone"],
)
def test_a_run_without_a_rental_asks_nobody(computer: Computer, story: Story) -> None:
    where = site(computer, story)
    where.provider_is(inspect=silent)
    ProviderTime().ask(where.ports, load("run-1", where.ports), POLICY)
    assert where.said == []


def test_a_provider_that_tells_no_time_changes_nothing(computer: Computer) -> None:
    computer.ahead_s = 600
    where = site(computer, ready())
    right = where.ports.providers("simulated").inspect

    def timeless(ref: Ref, until: Time) -> Observation:
        return replace(right(ref, until), provider_time=None)

    where.provider_is(inspect=timeless)
    ProviderTime().ask(where.ports, load("run-1", where.ports), POLICY)
    assert where.said == [] and where.clock.now() == START + 600


# --- tending one run ---------------------------------------------------------------------------------------------------


def test_a_visit_returns_when_the_run_is_due_again_and_never_sleeps(computer: Computer) -> None:
    story = ready()
    computer.true = story.now + 100
    where = site(computer, story)
    due = tend("run-1", where.ports, POLICY, nobody, stays_s=0)
    assert "observed" in where.kinds()[len(story.records) :], "what was due was done"
    assert computer.slept == [] and computer.true < due <= computer.true + POLICY.inspect_every_s


def test_a_child_waits_itself_for_what_is_due_soon(computer: Computer) -> None:
    story = ready()
    computer.true = story.now + 100
    where = site(computer, story)
    where.cloud.machines[0].boot_s = 0
    due = tend("run-1", where.ports, POLICY, nobody, stays_s=30)
    assert due - computer.true > 30 and due <= where.clock.now() + POLICY.inspect_every_s


def test_the_step_is_left_to_a_command_at_a_terminal_and_taken_when_that_does_nothing(computer: Computer) -> None:
    computer.true = LIMIT + 1
    story = ready().at(LIMIT - 1).tell("shown")
    where = site(computer, story)
    tend("run-1", where.ports, POLICY, lambda run: True, stays_s=0)
    ended = next(d for d in where.cloud.deeds if d.what == "terminate")
    assert PATIENCE_S <= ended.at - (LIMIT - 1) <= PATIENCE_S + POLICY.wake_s


def test_a_run_that_is_closed_is_due_no_more_today(computer: Computer) -> None:
    story = Story().bought().going_down().ending().tell("gone", decision=True).tell("reconciled", None)
    story.tell("closed", None, decision=True)
    where = site(computer, story)
    assert tend("run-1", where.ports, POLICY, nobody) == computer.true + 86_400
    assert len(where.kinds()) == len(story.records)


# --- a ready machine that nobody launches on ---------------------------------------------------------------------------


def waiting(approved: bool) -> Story:
    """Ready, wished to train, the list of files shown, and nobody launched."""
    story = Story().bought().checked().wanted("training").tell("listed", preview=to_json(LIST))
    return story.approved(LIST.digest) if approved else story


def test_a_list_that_nobody_approves_is_given_the_setup_time_from_when_it_was_shown() -> None:
    story = waiting(approved=False)
    left = abandoned(story.state, story.now + 500, 0)
    assert left is not None and story.state.rental is not None and story.state.rental.work.preview_at is not None
    assert left.until == story.state.rental.work.preview_at + SPEC.setup_s
    assert left.why == f"not launched within {SPEC.setup_s:.0f} s of being ready"


def test_whoever_approved_and_went_away_is_given_the_setup_time_from_when_they_were_last_seen() -> None:
    story = waiting(approved=True)
    now = story.now + 5000
    assert abandoned(story.state, now, 0) is None, "a command at a terminal is at it"
    left = abandoned(story.state, now, 300)
    assert left is not None and left.until == now - 300 + SPEC.setup_s
    left = abandoned(story.state, now, 1e9)
    assert left is not None and left.until == story.state.wanted_at + SPEC.setup_s, "not before it was wished"


def test_a_wish_without_a_list_counts_from_when_the_command_went_away() -> None:
    story = Story().bought().checked().wanted("training")
    assert abandoned(story.state, story.now + 9, 0) is None
    left = abandoned(story.state, story.now + 9, 4)
    assert left is not None and left.until == story.now + 5 + SPEC.setup_s


@pytest.mark.parametrize(
    "story",
    [
        Story().ready_to_buy(),
        Story().bought().checked(),
        Story().bought().wanted("training"),
        Story().bought().checked(False).wanted("training"),
        waiting(approved=True).tell("launching", decision=True),
        Story().launched(),
        waiting(approved=False).going_down(),
        waiting(approved=False).tell("ended_elsewhere", by="spot"),
    ],
    ids=["nothing", "only ready", "unchecked", "bad", "launching", "launched", "going down", "ended elsewhere"],
)
def test_only_a_ready_rental_that_waits_for_its_launch_is_abandoned(story: Story) -> None:
    assert abandoned(story.state, story.now + 1e6, 1e6) is None


@pytest.mark.parametrize("approved", [False, True])
def test_the_guard_ends_what_was_abandoned_and_says_why(computer: Computer, approved: bool) -> None:
    story = waiting(approved)
    where = site(computer, story)
    computer.true = story.now + SPEC.setup_s - 20
    due = tend("run-1", where.ports, POLICY, nobody, lambda run: SPEC.setup_s - 20, stays_s=0)
    assert where.deeds() == [] and due <= story.now + SPEC.setup_s
    computer.true = story.now + SPEC.setup_s + 1
    tend("run-1", where.ports, POLICY, nobody, lambda run: SPEC.setup_s + 60, stays_s=0)
    state = load("run-1", where.ports)
    assert state.wanted == "closed" and "not launched within" in state.cause
    assert where.deeds() == [("terminate", "m-1")]


# --- the parent --------------------------------------------------------------------------------------------------------


@dataclass
class Kid:
    """A child process of so many seconds that then says something."""

    clock: Any
    ends_at: float
    output: str
    killed_at: float = math.inf

    def poll(self) -> int | None:
        return 0 if self.clock.now() >= min(self.ends_at, self.killed_at) else None

    def kill(self) -> None:
        self.killed_at = self.clock.now()

    def said(self) -> str:
        assert self.poll() is not None, "asked while it runs"
        return self.output


@dataclass
class Nursery:
    """A parent with everything around it: `bears` makes the children, `happens` changes the world at a moment."""

    computer: Computer
    bears: Callable[[str, float], Kid]
    open: dict[str, int] = field(default_factory=lambda: {"run-1": 1})
    happens: dict[float, Callable[[], None]] = field(default_factory=dict)
    unreadable: tuple[float, float] = (0.0, 0.0)
    started: list[tuple[float, str]] = field(default_factory=list)
    kids: list[Kid] = field(default_factory=list)

    def versions(self) -> dict[str, int]:
        at = self.computer.true - START
        for moment in [m for m in self.happens if m <= at]:
            self.happens.pop(moment)()
        if self.unreadable[0] <= at < self.unreadable[1]:
            raise JournalError("database is locked")
        return dict(self.open)

    def spawn(self, run: str) -> Kid:
        at = self.computer.true - START
        self.started.append((at, run))
        self.kids.append(self.bears(run, at))
        return self.kids[-1]

    def keep(self, seconds: float, idle_s: float = 60.0) -> float:
        """Run the parent for at most so long; returns when it ended."""
        stopped = lambda: self.computer.true >= START + seconds  # noqa: E731
        Parent(self.versions, self.spawn, MoneyClock(), stopped).keep(idle_s)
        return self.computer.true - START

    def starts(self, run: str = "run-1") -> list[float]:
        return [at for at, name in self.started if name == run]

    def kid(self, lasts_s: float, output: str) -> Kid:
        return Kid(MoneyClock(), self.computer.true + lasts_s, output)

    def due_in(self, seconds: float, lasts_s: float = 1.0) -> Kid:
        """A child that says that its run is due so long after its end."""
        now = self.computer.true + lasts_s
        return self.kid(lasts_s, "a line of somebody\n" + json.dumps({"next": now + seconds, "now": now}) + "\n")


def nursery(computer: Computer, bears: Callable[[Nursery, str, float], Kid], **more: Any) -> Nursery:
    made = Nursery(computer, lambda run, at: bears(made, run, at), **more)
    return made


def test_each_open_run_gets_a_child_at_once_and_again_when_it_is_due(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(100 if run == "run-1" else 30), open={"run-1": 1, "run-2": 1})
    n.keep(120)
    assert n.starts("run-1") == [0, 101] and n.starts("run-2") == [0, 31, 62, 93]


def test_what_somebody_else_wrote_makes_a_run_due(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(500))
    n.happens = {50.0: lambda: n.open.update({"run-1": 2}), 60.0: lambda: n.open.update({"run-2": 1})}
    n.keep(100)
    assert n.starts("run-1") == [0, 50] and n.starts("run-2") == [60]


def test_a_child_that_cannot_be_started_is_tried_again_and_keeps_no_other_run_waiting(computer: Computer) -> None:
    def bears(n: Nursery, run: str, at: float) -> Kid:
        if run == "run-1" and at < 20:
            raise OSError("no more processes")
        return n.due_in(500)

    n = nursery(computer, bears, open={"run-1": 1, "run-2": 1})
    n.keep(100)
    assert n.starts("run-2") == [0]
    assert n.starts("run-1") == [0, 2, 7, 22], "2, 5 and 15 s apart"


@pytest.mark.parametrize(
    "output", ["", "Traceback\n  File\n", '{"later": 1}\n', '{"next": null}', "[]", '"x"', "3", "{"]
)
def test_a_child_that_crashed_is_started_again_with_growing_gaps(computer: Computer, output: str) -> None:
    n = nursery(computer, lambda n, run, at: n.kid(1, output))
    n.keep(60)
    assert n.starts() == [0, 1 + 2, 4 + 5, 10 + 15, 26 + 15, 42 + 15]


def test_the_gaps_begin_anew_when_a_child_got_on_before_it_crashed(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.kid(1, ""))
    n.happens = {9.5: lambda: n.open.update({"run-1": 2})}
    n.keep(20)
    assert n.starts()[:3] == [0, 3, 9]
    assert any(10 <= at <= 13 for at in n.starts()), "15 s after the last crash otherwise"
    assert any(12 <= at <= 13 for at in n.starts()), "the first gap of a new row"


def test_a_child_that_ended_well_ends_a_row_of_crashes(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(10) if at == 9 else n.kid(1, ""))
    n.keep(40)
    assert n.starts() == [0, 3, 9, 20, 23, 29]


def test_a_child_that_hangs_is_killed_and_another_one_started(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(1e6) if at else n.kid(math.inf, ""))
    n.keep(HUNG_S + 100)
    assert HUNG_S <= n.kids[0].killed_at - START <= HUNG_S + 2
    assert len(n.starts()) == 2 and HUNG_S < n.starts()[1] <= HUNG_S + 6


def test_a_child_whose_journal_grows_does_not_hang(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.kid(math.inf, ""))
    n.happens = {1000.0: lambda: n.open.update({"run-1": 2})}
    n.keep(HUNG_S + 999)
    assert n.kids[0].killed_at == math.inf, "counted from the last growth"


def test_a_journal_that_cannot_be_read_for_a_moment_ends_nothing(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(19), unreadable=(10, 40))
    assert n.keep(60, idle_s=5) == 60
    assert n.starts() == [0, 20, 40], "due in the middle of it, and started"


def test_the_parent_ends_when_no_run_was_open_for_a_while(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(1000))
    n.happens = {100.0: n.open.clear, 130.0: lambda: n.open.update({"run-2": 1}), 150.0: n.open.clear}
    assert n.keep(10_000, idle_s=60) == pytest.approx(210, abs=1.5)
    assert n.starts("run-2") == [130]


def test_the_parent_does_not_end_before_its_children_do(computer: Computer) -> None:
    n = nursery(computer, lambda n, run, at: n.due_in(1000, lasts_s=500))
    n.happens = {10.0: n.open.clear}
    assert n.keep(10_000, idle_s=60) == pytest.approx(560, abs=1.5)


def test_the_guard_brings_a_run_down_in_time_though_this_computers_clock_is_an_hour_behind(
    computer: Computer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent talks to no provider: what a child says of the next time must not depend on whose clock is right."""
    computer.true, computer.ahead_s = DEADLINE - 600, -3600
    app = App(Home(tmp_path), Printer(as_json=False))
    where = site(computer, ready(), journal=app.journal)
    where.cloud.machines[0].boot_s = 0

    def spawn(run: str) -> Kid:
        clock = MoneyClock()
        app.ports, app.clock = replace(where.ports, clock=clock), clock  # type: ignore[misc]
        command._child(app, run)
        return Kid(clock, 0, capsys.readouterr().out)

    parents = MoneyClock(where.journal.clock_offset())
    Parent(where.journal.versions, spawn, parents, lambda: computer.true > LIMIT + 900).keep()
    assert where.cloud.deeds, "not even at the limit"
    assert where.wishes()[-1] == "closed" and where.deeds()[:1] == [("terminate", "m-1")]
    assert where.cloud.deeds[0].at <= DEADLINE


# --- the sentinel ------------------------------------------------------------------------------------------------------


def swept(where: Site, known: Callable[[Billable], bool] = lambda item: False) -> tuple[list[RunState], list[str]]:
    """What one visit of the sentinel drove, and its problems."""
    found = sentinel("simulated", where.ports, POLICY, known, patience_s=300)
    return list(found[0]), list(found[1])


@pytest.mark.parametrize("second", ["abcdefghijkl", "mnopqrstuvwx"], ids=["one create call", "two purchases"])
def test_two_rentals_of_one_run_past_the_limit_are_both_ended_and_proved(computer: Computer, second: str) -> None:
    where = site(computer)
    machines = [where.rental(START - 60), where.rental(START - 60, nonce=second)]
    driven, problems = swept(where)
    assert problems == [] and [s.closed for s in driven] == [True, True]
    assert {p.ref for s in driven for p in s.purchases.values()} == {m.ref for m in machines}
    assert all(p.life == "gone" and len(p.proofs) >= 2 for s in driven for p in s.purchases.values())
    assert not any(m.bills(computer.true) for m in machines)


def test_a_rental_that_cannot_be_ended_keeps_no_other_one_from_being_ended(computer: Computer) -> None:
    where = site(computer)
    stuck, other = where.rental(START - 60, "stuck-1"), where.rental(START - 60, "other-1", "mnopqrstuvwx")
    right = where.ports.providers("simulated").terminate

    def refuses(ref: Ref, until: Time) -> None:
        if ref == stuck.ref:
            raise ProviderError("500: internal error")
        right(ref, until)

    where.provider_is(terminate=refuses)
    driven, _ = swept(where)
    assert other.ended_at <= computer.true and stuck.bills(computer.true)
    assert {s.run: s.closed for s in driven} == {"stuck-1": False, "other-1": True}
    assert [p.ref for s in driven for p in s.may_bill] == [stuck.ref], "it is named as billing"
    assert computer.true <= START + 2 * (300 + 60), "bounded"


def test_an_error_about_one_rental_is_a_problem_with_its_name_and_ends_the_others(computer: Computer) -> None:
    where = site(computer)
    bad = where.rental(START - 60, "bad-1")
    good = where.rental(START - 60, "good-1", "mnopqrstuvwx")

    def refuses(run: str, *more: Any, **named: Any) -> Any:
        if run == "bad-1":
            raise JournalError("no room")
        return where.journal.append_facts(run, *more, **named)

    where.ports = replace(where.ports, journal=Instead(where.journal, append_facts=refuses))
    driven, problems = swept(where)
    assert problems == [f"{bad.ref}: no room"]
    assert [s.run for s in driven] == ["good-1"] and driven[0].closed and not good.bills(computer.true)


def test_what_is_before_its_limit_damaged_unmarked_or_ended_is_not_touched(computer: Computer) -> None:
    where = site(computer)
    where.rental(START + 1800)
    where.rental(START - 60, nonce="mnopqrstuvwx", name="gpuops-mnopqrstuvwx-000000-00-x")
    where.rental(START - 60, nonce="abcdabcdabcd").ended_at = START - 1
    where.cloud.plant("foreign", START - 5000, None)
    assert swept(where) == ([], []) and where.deeds() == []


def test_a_damaged_mark_is_never_acted_on_even_when_it_can_be_read(computer: Computer) -> None:
    where = site(computer)
    where.rental(START - 60)
    right = where.ports.providers("simulated").list_billable

    def damaged(scope: Scope, until: Time) -> Inventory:
        found = right(scope, until)
        return replace(found, items=tuple(replace(item, damaged=True) for item in found.items))

    where.provider_is(list_billable=damaged)
    assert swept(where) == ([], []) and where.deeds() == []


def test_what_this_computers_journal_knows_is_left_to_its_own_rules(computer: Computer) -> None:
    where = site(computer)
    mine, theirs = where.rental(START - 60, "mine-1"), where.rental(START - 60, "theirs-1", "mnopqrstuvwx")
    driven, problems = swept(where, lambda item: item.ref == mine.ref)
    assert [s.run for s in driven] == ["theirs-1"] and problems == []
    assert mine.bills(computer.true) and not theirs.bills(computer.true)
    assert set(where.deeds()) == {("terminate", theirs.ref.id)}


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_limit_in_a_mark_is_the_providers_time(computer: Computer, ahead_s: float) -> None:
    computer.ahead_s = ahead_s
    where = site(computer)
    over, ahead = where.rental(START - 60, "over-1"), where.rental(START + 1800, "ahead-1", "mnopqrstuvwx")
    driven, _ = swept(where)
    assert [s.run for s in driven] == ["over-1"] and not over.bills(computer.true) and ahead.bills(computer.true)


def test_an_account_that_cannot_be_listed_is_an_error_and_a_gap_is_an_alarm(computer: Computer) -> None:
    where = site(computer)
    where.cloud.blind_regions = {"region-1"}
    assert swept(where) == ([], [])
    assert where.said == [("alarm", "the listing is not complete: region-1/rental: a page could not be read")]
    where.provider_is(list_billable=silent)
    with pytest.raises(ProviderError, match="no answer"):
        swept(where)


def test_what_ignores_its_end_is_given_up_after_a_while(computer: Computer) -> None:
    where = site(computer)
    stuck = where.rental(START - 60)
    stuck.ignore = 10_000
    driven, problems = swept(where)
    assert problems == [] and not driven[0].closed and driven[0].may_bill[0].ref == stuck.ref
    assert 300 <= computer.true - START <= 300 + Policy().resend_every_s[-1]
