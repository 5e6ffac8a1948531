"""A lost rental is replaced where that was approved: when, from what, by whom; and what came back is not forgotten."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from runstory import DEADLINE, LOG, POLICY, SPEC, Story, generation, ref

from gpuops.copying import prune
from gpuops.engine import GUARD, OPERATOR
from gpuops.replacing import intents_left, newest_copy, replaceable
from gpuops.stages.buy import buy
from gpuops.steps import Ask, Do, Step, Wait

TWICE = replace(SPEC, train=replace(SPEC.train, resume=2))


def lost(story: Story) -> Story:
    """The provider ended the rental, and that was proved."""
    story.tell("ended_elsewhere", by="reclaimed")
    story.tell("proof", ok=True).wait(20).tell("proof", ok=True)
    return story.tell("gone", decision=True)


def lost_in_training(spec: Any = TWICE) -> Story:
    return lost(Story(spec).launched().status("g1", "g2").copied(generation(1)))


def replaced(story: Story) -> Story:
    """Take the step that the engine takes next, which must be the replacement."""
    step = doing(story.step(), "resume")
    assert step.decision is not None and step.decision.kind == "replaced"
    return story.tell("replaced", decision=True, **step.decision.data)


def second(story: Story) -> Story:
    """The next rental is bought, checked and has the files."""
    story.tell("preflight", None, problem="").intended(2).created(2, "m-2").observed(purchase="p2")
    checks = [{"name": "device", "expected": "a", "seen": "a", "ok": True}]
    story.tell("checked", "p2", checks=checks, facts={}, boot_id="boot-2")
    story.tell("listed", "p2", preview=story.records[-1].event.data.get("preview") or LISTED)
    return story.tell("transferred", "p2", files=0, bytes=0)


LISTED = {"trees": [], "excluded": [], "suspicious": [], "total_bytes": 0, "digest": "list-digest", "excluded_count": 0}


def doing(step: Step, name: str) -> Do:
    assert isinstance(step, Do) and step.name == name, step
    return step


def test_a_lost_rental_is_replaced_from_its_newest_copy() -> None:
    story = replaced(lost_in_training())
    assert story.state.rental is None
    assert story.state.restore is not None and story.state.restore.generation == "g1"
    assert story.state.layers == {}
    assert doing(story.step(), "buy").detail == "preflight"


def test_nothing_is_replaced_before_it_is_proved_gone() -> None:
    story = Story(TWICE).launched().status("g1").tell("ended_elsewhere", by="reclaimed")
    assert replaceable(story.state, story.now, POLICY) is None
    story.tell("proof", ok=True)
    assert replaceable(story.state, story.now, POLICY) is None


def test_without_approval_the_run_goes_down() -> None:
    story = lost_in_training(SPEC)
    step = doing(story.step(), "enforce_limit")
    assert step.decision is not None and "the rental ended without us" in step.decision.data["cause"]


def test_it_is_replaced_as_often_as_approved_and_no_more() -> None:
    story = lost_in_training(replace(SPEC, train=replace(SPEC.train, resume=1)))
    second(replaced(story))
    story.tell("ended_elsewhere", "p2", by="reclaimed").tell("proof", "p2", ok=True).wait(20).tell(
        "proof", "p2", ok=True
    )
    story.tell("gone", "p2", decision=True)
    assert doing(story.step(), "enforce_limit").decision is not None


@pytest.mark.parametrize("outcome", ["failed", "completed"])
def test_a_program_that_ended_by_itself_is_not_run_again(outcome: str) -> None:
    story = Story(TWICE).launched().status("g1").tell("ended", outcome=outcome)
    assert replaceable(lost(story).state, story.now, POLICY) is None


def test_it_is_not_replaced_for_a_few_minutes_or_when_the_user_wants_it_down() -> None:
    story = lost_in_training()
    assert replaceable(story.state, DEADLINE - POLICY.replace_least_s + 1, POLICY) is None
    assert replaceable(story.going_down().state, story.now, POLICY) is None


def test_the_guard_buys_only_what_replaces_a_lost_rental() -> None:
    fresh = Story(TWICE).ready_to_buy()
    assert not isinstance(fresh.step(GUARD), Do)
    story = lost_in_training()
    doing(story.step(GUARD), "resume")
    assert doing(replaced(story).step(GUARD), "buy").detail == "preflight"
    # who only watches a run neither rents nor sends for it
    assert not isinstance(story.step(GUARD - {"resume"}), Do)


def test_training_starts_again_only_after_its_checkpoint_is_back() -> None:
    story = second(replaced(lost_in_training()))
    assert doing(story.step(), "resume").detail == "sending g1"
    story.tell("attempted", "p2", rule="resume", error="broken")
    assert isinstance(story.step(OPERATOR - {"observe", "mirror"}), Wait)
    story.wait(10).tell("restored", "p2", generation="g1", path="/out/.resumed/g1")
    assert doing(story.step(), "launch").purchase == "p2"


def test_a_checkpoint_that_cannot_be_sent_ends_the_run_with_its_reason() -> None:
    story = second(replaced(lost_in_training())).tell("attempted", "p2", rule="resume", error="rotten", final=True)
    step = doing(story.step(), "enforce_limit")
    assert step.decision is not None and step.decision.data["cause"] == "resume failed: rotten"


def test_a_changed_list_of_files_is_asked_about_again() -> None:
    story = replaced(lost_in_training())
    story.tell("preflight", None, problem="").intended(2).created(2, "m-2").observed(purchase="p2")
    checks = [{"name": "device", "expected": "a", "seen": "a", "ok": True}]
    story.tell("checked", "p2", checks=checks, facts={}, boot_id="boot-2")
    story.tell("listed", "p2", preview={**LISTED, "digest": "other"})
    assert isinstance(story.step(GUARD), Ask)


def test_every_replacement_brings_an_intent_of_its_own() -> None:
    story = lost_in_training()
    before = intents_left(story.state, POLICY)
    assert intents_left(replaced(story).state, POLICY) == before + 1


def test_what_came_back_is_sealed_copied_and_ended_at_once() -> None:
    """A provider that took its word back: two rentals hold work, and neither is ended before it is copied."""
    story = second(replaced(lost_in_training())).tell("restored", "p2", generation="g1", path="/x")
    story.tell("launching", "p2", decision=True).tell("launched", "p2", boot_id="boot-2").tell("reappeared")
    assert story.state.rental is not None and story.state.rental.id == "p2"
    assert doing(story.step(), "seal").purchase == "p1"
    story.sealed(generation(2))
    assert doing(story.step(), "copy g2").purchase == "p1"
    story.copied(generation(2), LOG)
    ended = doing(story.step(), "terminate")
    assert ended.purchase == "p1" and ended.decision is not None


def test_the_newest_copy_is_the_newest_that_the_host_published() -> None:
    story = Story(TWICE).launched().status("g1", "g2", "g3").copied(generation(2), generation(1), LOG)
    found = newest_copy(story.state)
    assert found is not None and found.generation == "g2"
    assert newest_copy(Story(TWICE).launched().state) is None


# --- parts: what is made for a purchase, costs nothing and must go all the same ------------------------------------------


def part(story: Story) -> Story:
    key = replace(ref("key-1"), kind="key")
    return story.tell("part", ref=vars_of(key), rate={"amount": "0", "currency": "USD"}, via="prepare")


def vars_of(made: Any) -> dict[str, str]:
    return {k: getattr(made, k) for k in ("provider", "account", "region", "kind", "id")}


def test_a_part_ends_after_its_purchase_and_before_the_run_is_closed() -> None:
    story = part(Story().ready_to_buy().intended()).created().observed().going_down().ending()
    assert story.state.rental is not None and story.state.rental.id == "p1"
    assert [p.id for p in story.state.may_bill] == ["p1"]
    assert not isinstance(step := story.step(), Do) or step.purchase == "p1"
    story.tell("proof", ok=True).wait(20).tell("proof", ok=True).tell("gone", decision=True)
    step = doing(story.step(), "terminate")
    assert step.purchase == "p1.key.key-1" and step.decision is not None
    story.ending("p1.key.key-1")
    assert doing(story.wait(5).step(), "prove_gone").purchase == "p1.key.key-1"
    story.tell("gone", "p1.key.key-1", decision=True)
    assert all(p.life == "gone" for p in part(story).state.purchases.values()), "a late word does not bring it back"
    assert doing(story.step(), "close")


def test_a_part_is_made_only_once_and_reopens_a_closed_run() -> None:
    story = part(part(Story().ready_to_buy().intended()))
    assert len(story.state.purchases) == 2
    late = Story().ready_to_buy().intended().tell("not_sent", why="test").tell("closed", None, decision=True)
    assert late.state.closed and not part(late).state.closed


# --- the guard must show that it reaches the account ---------------------------------------------------------------------

COUNTED = {"plan": {"layers": [{"name": "guard on this computer"}]}}


def test_nothing_is_bought_before_the_guard_has_shown_that_it_reaches_the_account() -> None:
    story = Story(**COUNTED).wanted("ready").approved()
    assert isinstance(story.step(), Wait)
    story.tell("armed", None, layer="guard on this computer", account="account-1")
    assert doing(story.step(), "buy").detail == "preflight"


def test_a_guard_without_the_key_or_without_a_word_is_no_layer() -> None:
    story = Story(**COUNTED).wanted("ready").approved()
    doing(Story(**COUNTED).wanted("ready").approved().wait(POLICY.arm_s).step(), "buy")
    story.tell("unarmed", None, layer="guard on this computer", why="no key")
    assert doing(story.step(), "buy").effect.keywords["problem"].endswith("no key")  # type: ignore[attr-defined]


# --- what a replacement must not disturb -----------------------------------------------------------------------------------


def test_a_deadline_that_was_moved_stays_moved_for_the_next_rental() -> None:
    fixed = replace(TWICE, deadline_at=DEADLINE)
    story = Story(fixed).launched().status("g1").tell("shortened", None, deadline=DEADLINE - 1200, limit=DEADLINE - 600)
    _, deadline = replaced(lost(story)).state.ends(story.now)
    assert deadline == DEADLINE - 1200


def test_an_older_create_call_without_an_answer_does_not_become_the_runs_rental_again() -> None:
    story = Story(TWICE).ready_to_buy().intended().tell("unknown", error="lost").wait(901)
    story.tell("preflight", None, problem="").intended(3).created(3, "m-3").observed(purchase="p3")
    story.tell("launching", "p3").tell("launched", "p3", boot_id="b").wanted("training")
    story.tell("ended_elsewhere", "p3", by="x").tell("gone", "p3", decision=True)
    step = doing(story.step(OPERATOR - {"resolve"}), "resume")
    assert step.decision is not None
    story.tell("replaced", "p3", decision=True, **step.decision.data)
    assert story.state.rental is None
    buying = buy(story.state, story.now, POLICY)
    assert buying is not None and doing(buying, "buy").detail == "preflight"


def test_the_guard_must_show_again_that_it_reaches_the_account() -> None:
    story = Story(TWICE, **COUNTED)
    story.tell("armed", None, layer="guard on this computer", account="account-1")
    replaced(lost(story.launched().status("g1")))
    assert isinstance(story.step(OPERATOR - {"observe"}), Wait)
    story.tell("armed", None, layer="guard on this computer", account="account-1")
    assert doing(story.step(), "buy").detail == "preflight"


def test_the_layers_of_a_run_are_those_of_the_rental_it_works_on() -> None:
    story = second(replaced(lost_in_training())).observed(purchase="p2", ends_at=DEADLINE)
    before = story.state.layers
    story.tell("reappeared").observed(purchase="p1", ends_at=DEADLINE - 3000)
    assert story.state.layers == before


def test_a_free_part_that_cannot_be_removed_is_given_up_after_a_day_and_said() -> None:
    story = (
        part(Story().ready_to_buy().intended())
        .tell("refused", reason="no capacity")
        .going_down()
        .ending("p1.key.key-1")
    )
    story.wait(POLICY.search_end_s)
    awake = doing(story.step(OPERATOR - {"prove_gone"}), "terminate")
    assert awake.decision is None, "a computer that slept through that day has not tried"
    for _ in range(POLICY.give_up_attempts - story.state.purchases["p1.key.key-1"].terminates):
        assert doing(story.step(OPERATOR - {"prove_gone"}), "terminate").decision is None
        story.tell("attempted", "p1.key.key-1", rule="terminate", error="409: it is in use")
        story.wait(POLICY.backoff(POLICY.give_up_attempts))
    step = doing(story.step(OPERATOR - {"prove_gone"}), "terminate")
    assert step.decision is not None and step.decision.kind == "unproven"
    story.tell("unproven", "p1.key.key-1", decision=True, why="test")
    assert doing(story.step(), "close")


def test_the_copy_that_the_next_rental_goes_on_from_is_never_pruned() -> None:
    story = replaced(lost_in_training())
    kept: list[tuple[str, ...]] = []

    class Pruning:
        def prune(self, run: str, destination: str, keep_last: int, keep: tuple[str, ...]) -> tuple[str, ...]:
            kept.append(keep)
            return ()

    prune(SimpleNamespace(store=Pruning()), story.state, story.state.purchases["p1"], "g7")  # type: ignore[arg-type]
    assert "g1" in kept[0]
