"""The search for a purchase whose create call got no answer: when "not listed" says that nothing was sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandcase import Clock, Desk
from runstory import POLICY, Story

from gpuops.engine import GUARD, advance
from gpuops.stages.prove_gone import prove_gone
from gpuops.steps import Do
from gpuops.testing.cloud import Cloud
from gpuops.testing.provider import SimulatedProvider
from gpuops.values import Inventory, Mark, Scope

LAG_S = 60.0
NONCE = "abcdefghijkl"


class Tells(SimulatedProvider):
    """A provider that says what time it is, or does not."""

    def __init__(self, cloud: Cloud, line: Any, provider_time: bool) -> None:
        super().__init__(cloud, line)
        self._tells = provider_time

    def list_billable(self, scope: Scope, until: float) -> Inventory:
        found = super().list_billable(scope, until)
        return found if self._tells else replace(found, provider_time=None)


def lost(lag_s: float | None = LAG_S) -> Story:
    """A create call without an answer, at a provider with a guaranteed bound on late visibility, or with none."""
    story = Story(listing_lag_s=lag_s).ready_to_buy().intended(nonce=NONCE)
    return story.tell("unknown", error="no answer")


def certain_at(story: Story) -> float:
    """From when on "not listed" means that the call cannot have worked."""
    return story.state.purchases["p1"].send_before + POLICY.accept_s + LAG_S


def searched(
    path: Path, story: Story, at: float, *, ahead_s: float = 0.0, provider_time: bool = True, **more: Any
) -> Desk:
    """One search at true time `at`, on a computer whose clock is `ahead_s` ahead."""
    desk = Desk(path, at, story)
    desk.clock.ahead_s = ahead_s
    desk.provider = Tells(desk.cloud, desk.provider._line, provider_time)
    for name, value in more.items():
        setattr(desk.cloud, name, value)
    step = advance("run-1", desk.ports, POLICY, GUARD)
    assert isinstance(step, Do) and step.name == "resolve"
    return desk


def life(desk: Desk) -> str:
    return desk.state().purchases["p1"].life


def test_what_is_not_listed_after_the_guaranteed_lag_was_not_sent(tmp_path: Path) -> None:
    story = lost()
    assert life(searched(tmp_path / "a", story, certain_at(story))) == "unknown", "not before"
    desk = searched(tmp_path / "b", story, certain_at(story) + 1)
    assert life(desk) == "not_sent" and "searched" not in desk.kinds()


@pytest.mark.parametrize("ahead_s", [LAG_S, 3600.0, 7200.0])
def test_a_clock_that_is_ahead_makes_nothing_certain_too_early(tmp_path: Path, ahead_s: float) -> None:
    """The answer is judged by the provider's own time: a rental that shows up a minute later would be bought twice."""
    story = lost()
    desk = searched(tmp_path, story, certain_at(story) - 1, ahead_s=ahead_s)
    assert life(desk) == "unknown" and desk.kinds()[-1] == "searched"
    assert desk.clock.learned, "and the clock is right from now on"


def test_a_clock_that_is_behind_makes_nothing_certain_too_early_either(tmp_path: Path) -> None:
    """The listing was asked for at the earlier of both times: what came between it does not show."""
    story = lost()
    assert life(searched(tmp_path, story, certain_at(story) + 1, ahead_s=-10)) == "unknown"


def test_where_the_provider_does_not_tell_the_time_this_computers_counts(tmp_path: Path) -> None:
    story = lost()
    assert life(searched(tmp_path, story, certain_at(story) + 1, provider_time=False)) == "not_sent"


def test_the_time_of_the_question_counts_and_not_that_of_the_answer(tmp_path: Path) -> None:
    """A listing that takes long to arrive shows what was there when it was asked for."""

    class Slow(Tells):
        def list_billable(self, scope: Scope, until: float) -> Inventory:
            found = super().list_billable(scope, until)
            clock.at += 20
            return found

    story = lost()
    desk = Desk(tmp_path, certain_at(story) - 10, story)
    clock: Clock = desk.clock
    desk.provider = Slow(desk.cloud, desk.provider._line, provider_time=False)
    advance("run-1", desk.ports, POLICY, GUARD)
    assert clock.at > certain_at(story) and life(desk) == "unknown"


def test_without_a_guarantee_nothing_makes_it_certain(tmp_path: Path) -> None:
    story = lost(None)
    assert life(searched(tmp_path, story, certain_at(story) + 3600)) == "unknown"


def test_a_listing_with_gaps_makes_nothing_certain(tmp_path: Path) -> None:
    story = lost()
    desk = searched(tmp_path, story, certain_at(story) + 1, blind_regions={"region-1"})
    assert life(desk) == "unknown" and desk.kinds()[-1] == "attempted"


def test_what_the_listing_shows_is_found_however_late(tmp_path: Path) -> None:
    story = lost()
    desk = Desk(tmp_path, certain_at(story) + 1, story)
    desk.cloud.plant("ours", story.now, Mark("run-1", NONCE, "ada", story.state.limit))
    advance("run-1", desk.ports, POLICY, GUARD)
    assert life(desk) == "created" and desk.state().purchases["p1"].via == "search"


@pytest.mark.parametrize(("refused", "ok"), [(True, True), (False, False)])
def test_a_late_refusal_is_proved_at_once_and_what_may_only_not_be_listed_yet_is_not(
    tmp_path: Path, refused: bool, ok: bool
) -> None:
    """Creating is a long operation there: its failure says what became of it, a missing line in a list says nothing."""
    story = Story(listing_lag_s=None).ready_to_buy().intended(nonce=NONCE).created()
    story.observed("refused" if refused else "absent", bills=()).tell("ended_elsewhere", by="its word")
    desk = Desk(tmp_path, story.now + 5, story)
    machine = desk.cloud.plant("ours", story.now, story.state.purchases["p1"].mark)
    machine.ref, machine.refused = story.state.purchases["p1"].ref, refused  # type: ignore[assignment]
    if not refused:
        machine.ended_at = machine.seen_from = story.now
    step = prove_gone(story.state, desk.clock.now(), POLICY)
    assert isinstance(step, Do)
    (proof,) = [event for event in step.effect(desk.ports, story.state, step) if event.kind == "proof"]
    assert proof.data["ok"] is ok, proof.data
