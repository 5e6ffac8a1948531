"""The fold: lives follow their tables, late facts change nothing, impossible decisions raise."""

from __future__ import annotations

import pytest
from runstory import DEADLINE, LIMIT, LOG, START, Story, generation, ref

from gpuops.fold import ImpossibleTransition, fold
from gpuops.purchase import FINAL, MAY_BILL, PURCHASE_LIFE
from gpuops.state import RUN_LIFE
from gpuops.values import Event, Record


def life(story: Story, purchase: str = "p1") -> str:
    return story.state.purchases[purchase].life


def test_every_life_that_ends_may_still_be_found_alive() -> None:
    for final in FINAL - {"retained"}:
        assert "created" in PURCHASE_LIFE[final], final
    assert set(PURCHASE_LIFE) == FINAL | MAY_BILL


def test_nothing_times_out_into_gone() -> None:
    assert {a for a, following in PURCHASE_LIFE.items() if "gone" in following} == {
        "ending",
        "ended_elsewhere",
        "unproven",
    }
    assert "gone" not in PURCHASE_LIFE["created"]
    assert all("closed" in following for phase, following in RUN_LIFE.items() if phase != "closed")


def test_a_run_begins_with_planned() -> None:
    with pytest.raises(ImpossibleTransition, match="begins with 'wanted'"):
        fold([Record("run-1", 1, Event("wanted", {"what": "ready"}), True, START, START)])


def test_an_unknown_kind_changes_nothing_but_the_version() -> None:
    story = Story().bought()
    before = story.state
    story.tell("something-of-a-later-gpuops", None, decision=True)
    assert story.state.version == before.version + 1
    assert story.state.purchases == before.purchases


def test_folding_at_once_or_record_by_record_is_the_same() -> None:
    story = Story().launched().status("g1").sealed(generation(1)).copied(generation(1), LOG)
    assert fold(story.records) == story.state


def test_a_wish_only_moves_forward() -> None:
    story = Story().bought().wanted("closed", "enough").wanted("training").wanted("ready")
    assert (story.state.wanted, story.state.cause) == ("closed", "enough")


def test_an_answer_that_comes_after_the_search_found_the_same_rental_changes_nothing() -> None:
    story = Story().ready_to_buy().intended().created(via="search")
    before = story.state.purchases
    assert story.created().state.purchases == before


def test_an_answer_that_comes_after_not_sent_makes_the_rental_known() -> None:
    story = Story().ready_to_buy().intended().tell("not_sent", why="lag passed").created()
    assert life(story) == "created"
    assert story.state.may_bill


def test_a_second_rental_of_one_create_call_is_a_duplicate_with_nothing_on_it() -> None:
    story = Story().launched().created(name="m-2", via="search")
    twin = story.state.purchases["p1.m-2"]
    assert (twin.twin_of, twin.life, twin.work.launched_at) == ("p1", "created", None)
    assert story.state.rental is story.state.purchases["p1"]


def test_a_late_fact_about_a_life_that_moved_on_changes_nothing() -> None:
    story = Story().bought().going_down().ending()
    story.tell("ended_elsewhere", by="a paused observer").tell("unknown", error="late").tell("refused", reason="late")
    assert life(story) == "ending"
    story = Story().bought().going_down().ending().tell("gone", decision=True).tell("ended_elsewhere", by="late")
    assert life(story) == "gone"


def test_a_decision_against_the_life_table_raises_with_both_names() -> None:
    story = Story().bought()
    with pytest.raises(ImpossibleTransition, match="'created' cannot become 'gone'"):
        story.tell("gone", decision=True)


def test_a_late_find_opens_a_closed_run_again() -> None:
    story = Story().ready_to_buy().intended().tell("unproven", decision=True, why="24 h").going_down()
    story.tell("closed", None, decision=True)
    assert story.state.phase == "closed"
    story.created(via="search")
    assert not story.state.closed and story.state.may_bill


def test_only_an_unbroken_row_of_good_rounds_is_a_proof() -> None:
    story = Story().bought().going_down().ending()
    for ok in (True, True, False, True):
        story.tell("proof", ok=ok, why="", at=story.now)
    assert [r.ok for r in story.state.purchases["p1"].proofs] == [True]


def test_a_round_counts_from_when_it_was_looked_at_not_from_when_it_was_written() -> None:
    story = Story().bought().going_down().ending().tell("proof", ok=True, why="", at=START + 50)
    assert story.state.purchases["p1"].proofs[-1].at == START + 50


def test_a_mirrored_copy_of_other_content_does_not_count_for_what_was_sealed() -> None:
    story = Story().launched().copied(generation(1, "a")).sealed(generation(1, "b"))
    assert [g.id for g in story.state.purchases["p1"].work.to_copy] == ["g1", "telemetry"]
    story.copied(generation(1, "a"))
    assert [g.id for g in story.state.purchases["p1"].work.to_copy] == ["g1", "telemetry"]
    story.copied(generation(1, "b"), LOG)
    assert story.state.purchases["p1"].work.safe_to_end


def test_what_was_launched_is_safe_to_end_only_when_copied_or_forced() -> None:
    story = Story().bought()
    assert story.state.purchases["p1"].work.safe_to_end
    story = Story().launched()
    assert not story.state.purchases["p1"].work.safe_to_end
    story.sealed(generation(1)).copied(generation(1))
    assert not story.state.purchases["p1"].work.safe_to_end
    assert story.copied(LOG).state.purchases["p1"].work.safe_to_end


def test_an_extension_counts_only_when_it_is_extended() -> None:
    story = Story().launched().tell("extend_wanted", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    assert (story.state.deadline, story.state.limit) == (DEADLINE, LIMIT)
    story.tell("extended", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    assert (story.state.deadline, story.state.limit) == (DEADLINE + 60, LIMIT + 60)
    assert story.state.purchases["p1"].mark.limit_at == LIMIT + 60


def test_an_unknown_purchase_bills_and_stays_reserved() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="no answer")
    p = story.state.purchases["p1"]
    assert p in story.state.may_bill
    assert p.spent(story.now + 3600).amount > 1
    assert story.state.available(story.now).amount < story.state.spec.cap.amount


def test_the_rental_is_the_one_that_was_found_and_stays_it_when_the_other_turns_up() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="no answer").wait(1000).intended(2)
    assert story.state.rental is story.state.purchases["p2"]
    story.created(2, "m-2").created(1, "m-1", via="search")
    assert story.state.rental is story.state.purchases["p2"]
    assert story.state.surplus == (story.state.purchases["p1"],)
    story = Story().ready_to_buy().intended().tell("unknown", error="no answer").wait(1000).intended(2)
    story.tell("unknown", "p2", error="no answer").created(1, "m-1", via="search")
    assert story.state.rental is story.state.purchases["p1"]
    assert ref("m-1") == story.state.purchases["p1"].ref
