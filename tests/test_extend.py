"""`gpuops extend`: what the cap lets it promise, and whose mark moves when it counts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from commandcase import Desk
from runstory import DEADLINE, LIMIT, OFFER, POLICY, SPEC, START, Story
from typer.testing import Result

from gpuops.codec import to_json
from gpuops.errors import GateRefused, UsageError
from gpuops.fold import fold
from gpuops.plan import make_plan
from gpuops.provider import Traits
from gpuops.stages.move_end import move_end
from gpuops.state import RunState
from gpuops.steps import Do
from gpuops.values import Money

HOLD = SPEC.hold_s
RATE = float(OFFER.rate.amount)


def capped(hours: float, unit_s: int = 1) -> dict[str, Any]:
    """A plan whose cap pays for so many hours of one rental."""
    cap = Money(OFFER.rate.amount * Decimal(str(hours)))
    return {
        "spec": to_json(replace(SPEC, cap=cap, setup_s=1e6)),
        "offer": to_json(replace(OFFER, billing_unit_s=unit_s)),
    }


def running(hours: float = 4, unit_s: int = 1, beside: str = "") -> Story:
    """A rental that is ready, from START on, with or without another purchase that may exist."""
    story = Story(**capped(hours, unit_s)).ready_to_buy()
    story.now = START
    if beside:
        story.intended(2).tell(beside, "p2", error="no answer", reason="quota", why="too late").at(START)
    story.intended()
    for record in story.records:
        if record.event.kind == "intended":
            record.event.data["offer"]["billing_unit_s"] = unit_s
    story._state = fold(story.records)
    return story.created(since=START).observed().checked()


def extend(path: Path, monkeypatch: pytest.MonkeyPatch, story: Story, at: float, by: str) -> tuple[Desk, Result]:
    """Type `extend --by` at a moment."""
    desk = Desk(path, at, story)
    machine = desk.cloud.plant("ours", START, story.state.purchases["p1"].mark)
    machine.ref, machine.name = story.state.purchases["p1"].ref, "x"  # type: ignore[assignment]
    return desk, desk.run(monkeypatch, "extend", "--by", by)


def test_an_extension_that_the_cap_pays_counts_when_every_layer_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, done = extend(tmp_path, monkeypatch, running(), START + 600, "1h")
    assert done.exit_code == 0, (done.output, done.exception)
    state = desk.state()
    assert (state.deadline, state.limit) == (DEADLINE + 3600, LIMIT + 3600)
    assert desk.cloud.machines[0].mark is not None and desk.cloud.machines[0].mark.limit_at == LIMIT + 3600
    kinds = desk.kinds()
    assert kinds.index("extend_wanted") < kinds.index("layer", kinds.index("extend_wanted")) < kinds.index("extended")


def test_the_cap_bounds_what_may_be_promised_to_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hours are paid, the limit lies at 70 minutes: 170 more, and not one second beyond."""
    _, done = extend(tmp_path / "a", monkeypatch, running(), START + 600, "10200s")
    assert done.exit_code == 0, (done.output, done.exception)
    desk, done = extend(tmp_path / "b", monkeypatch, running(), START + 600, "10201s")
    assert isinstance(done.exception, GateRefused) and "pays until" in done.exception.message
    assert "extend_wanted" not in desk.kinds() and desk.state().limit == LIMIT


def test_money_reserved_for_another_purchase_that_may_bill_is_not_promised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its create call may have worked: until its own limit it may cost as much as the rental until then."""
    left_s = 4 * 3600 - (LIMIT - START)
    at_most = int(START + left_s - LIMIT)
    _, done = extend(tmp_path / "a", monkeypatch, running(beside="unknown"), START + 600, f"{at_most}s")
    assert done.exit_code == 0, (done.output, done.exception)
    desk, done = extend(tmp_path / "b", monkeypatch, running(beside="unknown"), START + 600, f"{at_most + 1}s")
    assert isinstance(done.exception, GateRefused) and "extend_wanted" not in desk.kinds()


@pytest.mark.parametrize("beside", ["refused", "not_sent"])
def test_a_purchase_that_certainly_bills_nothing_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    _, done = extend(tmp_path, monkeypatch, running(beside=beside), START + 600, "10200s")
    assert done.exit_code == 0, (done.output, done.exception)


def test_whole_billing_units_bound_an_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two and a half hours are capped and hours are billed: nothing is promised beyond the second one."""
    _, done = extend(tmp_path / "a", monkeypatch, running(2.5, 3600), START, f"{7200 - int(LIMIT - START)}s")
    assert done.exit_code == 0, (done.output, done.exception)
    _, done = extend(tmp_path / "b", monkeypatch, running(2.5, 3600), START, f"{7201 - int(LIMIT - START)}s")
    assert isinstance(done.exception, GateRefused)


@pytest.mark.parametrize("by", ["-10m", "50m"])
def test_the_begun_billing_unit_is_paid_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Two hours are capped, hours are billed, half of the first has passed: the second one's end is what the cap pays.

    In particular what shortens costs nothing and is never refused for money.
    """
    story = running(2, 3600)
    if by.startswith("-"):
        story.tell("extended", None, decision=True, deadline=START + 7200 - HOLD, limit=START + 7200)
    _, done = extend(tmp_path, monkeypatch, story, START + 1800, by)
    assert done.exit_code == 0, (done.output, done.exception)


def test_to_shorten_the_journal_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, done = extend(tmp_path, monkeypatch, running(), START + 600, "-10m")
    assert done.exit_code == 0, (done.output, done.exception)
    kinds = desk.kinds()
    assert "extend_wanted" not in kinds and "shortened" in kinds
    assert (desk.state().deadline, desk.state().limit) == (DEADLINE - 600, LIMIT - 600)


@pytest.mark.parametrize(
    ("story", "by", "words"),
    [
        (running(), "-2h", "has passed"),
        (running().going_down(), "1h", "going down or closed"),
        (Story().ready_to_buy().intended().tell("unknown", error="lost"), "1h", "no rental yet"),
        (running().tell("retained", decision=True, until=LIMIT, reason="x"), "1h", "no rental yet"),
        (running(), "soon", "not a duration"),
        (running(), "", "either --by or --to"),
    ],
)
def test_what_cannot_move_is_said_and_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Story, by: str, words: str
) -> None:
    desk = Desk(tmp_path, START + 600, story)
    before = desk.kinds()
    done = desk.run(monkeypatch, "extend", "--by", by)
    assert isinstance(done.exception, UsageError) and words in done.exception.message
    assert desk.kinds() == before


# --- a timer that cannot move ------------------------------------------------------------------------------------------


def fixed(path: Path) -> tuple[Desk, Story]:
    """A rental whose provider ends it at the limit by a timer that nobody can move."""
    story = running().observed(ends_at=LIMIT)
    desk = Desk(path, START + 600, story)
    desk.provider.traits = replace(desk.provider.traits, deadline="read back", end_movable=False)
    machine = desk.cloud.plant("ours", START, story.state.purchases["p1"].mark)
    machine.ref, machine.name = story.state.purchases["p1"].ref, "x"  # type: ignore[assignment]
    machine.ends_at = LIMIT
    return desk, story


def test_a_timer_that_cannot_move_bounds_an_extension_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, _ = fixed(tmp_path)
    done = desk.run(monkeypatch, "extend", "--by", "1h")
    assert isinstance(done.exception, GateRefused) and "cannot be moved" in done.exception.message
    assert "extend_wanted" not in desk.kinds()


def test_the_plan_says_that_the_limit_is_final() -> None:
    traits = Traits(
        idempotency_token=True, billing_unit_s=60, stopped_bills=(), outlives=(), listing_lag_s=None, deadline="read back",
        end_movable=False, host_key_route="injected", kinds=("rental",),
    )  # fmt: skip
    told = make_plan(SPEC, (OFFER,), traits, START, POLICY, guard=True, accept_loss="a test").notes
    assert any("extend" in note and "refused" in note for note in told)


def test_a_timer_that_cannot_move_does_not_keep_the_others_from_moving_forward() -> None:
    """It would end the rental too late; mark and host end it in time."""
    story = running().observed(ends_at=LIMIT).tell("layer", name="mark", grade="read back", at=LIMIT)
    story.tell("shortened", None, decision=True, deadline=DEADLINE - 600, limit=LIMIT - 600)
    first = move_end(story.state, story.now, POLICY)
    assert isinstance(first, Do) and first.detail == "moving the mark"
    story.tell("layer", name="mark", grade="read back", at=LIMIT - 600)
    second = move_end(story.state, story.now, POLICY)
    assert isinstance(second, Do) and second.detail == "moving the provider timer"


# --- whose mark moves --------------------------------------------------------------------------------------------------


def marks(state: RunState) -> dict[str, float]:
    return {p.id: p.mark.limit_at for p in state.purchases.values()}


@pytest.mark.parametrize(("kind", "limit"), [("extended", LIMIT + 60), ("shortened", LIMIT - 60)])
def test_only_the_rentals_mark_moves(kind: str, limit: float) -> None:
    """Another purchase that may exist was made with its own limit, and nobody has told it a new one."""
    story = Story().ready_to_buy().intended().tell("unknown", error="lost").wait(1000).intended(2).created(2, "m-2")
    before = marks(story.state)
    story.tell(kind, None, decision=True, deadline=limit - HOLD, limit=limit)
    assert story.state.rental is not None and story.state.rental.id == "p2"
    assert marks(story.state) == {**before, "p2": limit}
    assert story.state.limit == limit


def test_a_duplicate_keeps_the_limit_that_it_was_made_with() -> None:
    story = Story().launched().created(name="m-2", via="search")
    story.tell("extended", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    assert marks(story.state) == {"p1": LIMIT + 60, "p1.m-2": LIMIT}


def test_what_another_purchase_may_cost_is_reserved_until_its_own_limit() -> None:
    story = running(beside="unknown").tell("extended", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    state = story.state
    spent = state.spec.cap.amount - state.available(story.now).amount
    assert float(spent) == pytest.approx(RATE * (LIMIT + 60 - START + LIMIT - START) / 3600)


def test_nothing_moves_before_the_rental_is_seen() -> None:
    """What would end it may be a timer that nobody has read yet."""
    story = Story().ready_to_buy().intended().created()
    story.tell("extend_wanted", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    story.tell("layer", name="mark", grade="read back", at=LIMIT + 60)
    assert not isinstance(move_end(story.state, story.now, POLICY), Do)
    step = move_end(story.observed().state, story.now, POLICY)
    assert isinstance(step, Do) and step.decision is not None and step.decision.kind == "extended"
