"""Sold out: the next offer of the approved plan stands in, but only where the one before it certainly made nothing."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from runstory import OFFER, POLICY, SPEC, Story

from gpuops.codec import to_json
from gpuops.plan import make_plan
from gpuops.provider import Traits
from gpuops.stages.limit import why_down
from gpuops.steps import Do
from gpuops.values import Money, Offer, VolumeUse

SECOND = replace(OFFER, id="two", region="region-2", rate=Money(Decimal("2.50")))
TRAITS = Traits(False, 1, (), (), 0, "read back", True, "injected", ("rental",))


def sold_out(why: str = "capacity", further: tuple[Offer, ...] = (SECOND,)) -> Story:
    story = Story(further=to_json(further)).ready_to_buy().intended()
    return story.tell("refused", "p1", reason="none left", why=why)


def test_the_next_offer_is_looked_at_and_bought() -> None:
    story = sold_out()
    step = story.step()
    assert isinstance(step, Do) and (step.name, step.detail) == ("buy", "preflight")
    assert why_down(story.state, story.now, POLICY) == ""
    step = story.tell("preflight", None, problem="").step()
    assert isinstance(step, Do) and step.decision is not None and step.decision.kind == "intended"
    assert step.decision.data["offer"]["id"] == "two" and step.decision.purchase == "p2"


@pytest.mark.parametrize("why", ["quota", "account", "invalid", "price", ""])
def test_any_other_refusal_ends_the_run(why: str) -> None:
    assert why_down(sold_out(why).state, 0, POLICY) == "the provider refused: none left"


def test_the_last_refusal_ends_the_run() -> None:
    story = sold_out().tell("preflight", None, problem="")
    step = story.step()
    assert isinstance(step, Do) and step.decision is not None
    story.tell("intended", "p2", decision=True, **step.decision.data)
    story.tell("refused", "p2", reason="none left there either", why="capacity")
    assert why_down(story.state, story.now, POLICY) == "the provider refused: none left there either"


def test_a_create_call_without_an_answer_is_no_reason_to_buy_something_else() -> None:
    story = Story(further=to_json((SECOND,))).ready_to_buy().intended().tell("unknown", "p1", error="no answer")
    assert story.state.offer == OFFER
    step = story.step()
    assert isinstance(step, Do) and step.name == "resolve"


def test_a_word_that_comes_late_about_a_rental_that_has_a_name_moves_nothing() -> None:
    story = Story(further=to_json((SECOND,))).bought().tell("refused", "p1", reason="none left", why="capacity")
    assert story.state.offer == OFFER and story.state.purchases["p1"].life == "created"


def test_a_late_refusal_that_is_proved_does() -> None:
    story = Story(further=to_json((SECOND,))).ready_to_buy().intended().created()
    story.observed("refused", reason="none left", refusal="capacity").tell("ended_elsewhere", by="none left")
    for _ in range(2):
        story.tell("proof", ok=True, at=story.now).wait(POLICY.proof_gap_s)
    step = story.wait(POLICY.twin_horizon_s).step()
    assert isinstance(step, Do) and step.decision is not None and step.decision.kind == "refused"
    story.tell("refused", decision=True, **step.decision.data)
    assert story.state.offer == SECOND and story.state.rental is None


def plan(*offers: Offer, **spec: Any) -> tuple[str, ...]:
    made = make_plan(replace(SPEC, **spec), offers, TRAITS, OFFER.observed_at, POLICY, guard=True)
    return tuple(o.id for o in made.further)


def test_the_plan_names_what_stands_in_and_nothing_much_dearer() -> None:
    dear = replace(SECOND, id="dear", rate=Money(Decimal("3.01")))
    assert plan(OFFER, SECOND, dear) == ("two",)


def test_an_offer_that_the_manifest_names_has_no_stand_in() -> None:
    assert plan(OFFER, SECOND, need=replace(SPEC.need, offer="one")) == ()


def test_volumes_keep_a_run_in_their_region() -> None:
    assert plan(OFFER, SECOND, replace(SECOND, region=OFFER.region, id="near"), volumes=(VolumeUse("v", "/d"),)) == (
        "near",
    )


def test_what_stands_in_is_part_of_what_is_approved() -> None:
    one, two = (
        make_plan(SPEC, offers, TRAITS, OFFER.observed_at, POLICY, guard=True) for offers in [(OFFER,), (OFFER, SECOND)]
    )
    assert one.digest != two.digest
