"""Whose a billable is: what a listing shows against what the journal knows, and what an adopted run is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runstory import LIMIT, OFFER, POLICY, SPEC, START, Story, ref

from gpuops.engine import GUARD, decide
from gpuops.fold import fold
from gpuops.inventory import OURS_UNWANTED, Found, Line, adopt, blind_spec, classify, known_gap, unlisted
from gpuops.state import RunState
from gpuops.steps import Do
from gpuops.values import Billable, Endpoint, Event, Gap, Mark, Observation, Record

NOW = START + 100


def item(
    name: str = "m-1", nonce: str = "nonce1", *, owner: str = "ada", limit: float = LIMIT, **more: Any
) -> Billable:
    """A listed rental that carries a mark and bills; an empty nonce: it carries none."""
    mark = Mark("run-1", nonce, owner, limit) if nonce else None
    made: dict[str, Any] = {"bills": ("compute",), "since": START + 5, **more}
    return Billable(ref(name), name, mark, rate=OFFER.rate, nonce=nonce, **made)


def line(item: Billable, *stories: Story, now: float = NOW) -> Line:
    (found,) = classify([item], [s.state for s in stories], now, POLICY)
    return found


def closed(story: Story) -> Story:
    story.going_down().ending().tell("gone", decision=True)
    return story.tell("reconciled", None).tell("closed", None, decision=True)


# --- the classes -------------------------------------------------------------------------------------------------------


def test_a_rental_of_an_open_run_is_pending_and_its_phase_is_said() -> None:
    found = line(item(), Story().bought())
    assert (found.cls, found.run, found.purchase, found.why) == ("pending", "run-1", "p1", "run is planned")
    assert line(item(), Story().launched().going_down()).why == "run is training, going down"


def test_what_is_kept_on_purpose_is_retained_until_its_time_is_over() -> None:
    story = Story().bought().tell("retained", decision=True, until=NOW, reason="look at it")
    assert line(item(), story, now=NOW - 1).cls == "retained"
    over = line(item(), story, now=NOW)
    assert over.cls == "expired" and "look at it" in over.why


def test_what_the_journal_calls_gone_and_still_bills_is_an_orphan() -> None:
    found = line(item(), closed(Story().bought()))
    assert (found.cls, found.purchase) == ("orphaned", "p1")
    assert found.why == "the journal says gone, but it bills"


def test_a_rental_of_a_closed_run_that_was_never_proved_is_an_orphan() -> None:
    story = Story().ready_to_buy().intended().tell("unproven", decision=True, why="24 h").going_down()
    story.tell("closed", None, decision=True)
    assert line(item("m-9"), story).cls == "orphaned"


def test_what_a_create_call_of_ours_made_and_nobody_recorded_is_an_orphan() -> None:
    found = line(item("m-9"), Story().ready_to_buy().intended().tell("unknown", error="no answer"))
    assert (found.cls, found.run, found.purchase) == ("orphaned", "run-1", "p1")
    assert "not yet recorded" in found.why


def test_what_our_create_call_cannot_have_made_is_a_clone() -> None:
    found = line(item("m-9", since=START + 50_000), Story().bought(), now=START + 60_000)
    assert (found.cls, found.run) == ("clone", "run-1")


def test_another_operators_rental_is_theirs_up_to_the_limit_in_its_mark_and_then_anybodys() -> None:
    theirs = item("m-7", "another", owner="bob", limit=NOW)
    found = line(theirs, Story().bought())
    assert (found.cls, found.why) == ("another operator's", "owner bob, before its limit")
    found = line(theirs, Story().bought(), now=NOW + 1)
    assert found.cls == "orphaned" and "past the limit in its mark" in found.why


def test_what_carries_no_mark_is_foreign() -> None:
    found = line(item("web", ""), Story().bought())
    assert (found.cls, found.run, found.purchase) == ("foreign", "", "")


def test_a_purchase_without_a_nonce_does_not_claim_what_carries_no_mark() -> None:
    blind = Story().ready_to_buy()
    mark = {"run": "run-1", "nonce": "", "owner": "ada", "limit_at": LIMIT, "host_key": ""}
    offer = blind.records[0].event.data["offer"]
    blind.tell("intended", mark=mark, offer=offer, send_before=blind.now + 30, deadline=LIMIT, limit=LIMIT)
    assert line(item("web", ""), blind).cls == "foreign"


def test_a_damaged_mark_is_a_class_of_its_own_whatever_else_it_carries() -> None:
    """Past its limit, with our nonce, while its create call is searched for: nothing of that counts."""
    story = Story().ready_to_buy().intended().tell("unknown", error="no answer")
    found = line(item("m-9", damaged=True, limit=START), story)
    assert (found.cls, found.run, found.purchase) == ("damaged mark", "", "")
    assert found.cls not in OURS_UNWANTED


def test_a_rental_that_the_journal_knows_by_its_id_is_ours_however_its_mark_looks() -> None:
    """By ref first: a renamed, damaged or unmarked rental is the one that was bought."""
    story = Story().bought()
    for changed in (item(damaged=True), item(nonce=""), item(nonce="another", owner="bob", limit=START)):
        assert line(changed, story).cls == "pending", changed
    # a second rental of the same nonce does not take its place
    story.created(name="m-2", via="search")
    assert line(item("m-2"), story).purchase == "p1.m-2"


def test_the_ref_decides_between_two_runs_not_the_nonce() -> None:
    first = replace(Story().bought().state, run="first")
    second = replace(Story().ready_to_buy().intended().created(name="m-2").state, run="second")
    found = classify([item("m-2")], [first, second], NOW, POLICY)
    assert [x.run for x in found] == ["second"]


@pytest.mark.parametrize(
    "story", [closed(Story().bought()), closed(Story().ready_to_buy().intended().created(name="m-2"))]
)
def test_what_is_still_shown_and_free_is_not_unwanted(story: Story) -> None:
    """Known by its id or by its nonce alone."""
    found = line(item(bills=()), story)
    assert (found.cls, found.why) == ("pending", "ended; still shown, free")


@pytest.mark.parametrize("which", ["unknown run", "clone", "retention over"])
def test_nothing_that_is_free_is_unwanted(which: str) -> None:
    """Whatever it was: what bills nothing is no reason for exit code 5."""
    kept = Story().bought().tell("retained", decision=True, until=NOW, reason="look at it")
    free, story = {
        "unknown run": (item("m-7", "another", owner="bob", limit=START, bills=()), Story().bought()),
        "clone": (item("m-9", since=START + 50_000, bills=()), Story().bought()),
        "retention over": (item(bills=()), kept),
    }[which]
    assert line(free, story, now=START + 60_000).cls not in OURS_UNWANTED


def test_only_what_is_ours_and_not_wanted_is_unwanted() -> None:
    assert {"expired", "orphaned", "clone"} == OURS_UNWANTED


# --- the other direction -----------------------------------------------------------------------------------------------


def test_what_may_bill_and_no_listing_shows_is_named() -> None:
    unknown = Story().ready_to_buy().intended().tell("unknown", error="no answer").state
    bought, gone = Story().bought().state, closed(Story().bought()).state
    missing = unlisted([item("m-1")], [unknown, bought, gone])
    assert [(s is unknown, p.id) for s, p in missing] == [(True, "p1")]
    assert [p.id for _, p in unlisted([], [bought])] == ["p1"]


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ({"reason": "closed region", "until": "2100-01-01T00:00:00Z"}, True),
        ({"provider": "simulated", "region": "region-1", "kind": "volume", "reason": "x", "until": "2100-01-01T00:00:00Z"}, True),
        ({"region": "region-2", "reason": "x", "until": "2100-01-01T00:00:00Z"}, False),
        ({"kind": "rental", "reason": "x", "until": "2100-01-01T00:00:00Z"}, False),
        ({"provider": "other", "reason": "x", "until": "2100-01-01T00:00:00Z"}, False),
        ({"until": "2100-01-01T00:00:00Z"}, False),
        ({"reason": "x"}, False),
        ({"reason": "x", "until": "1970-01-02T00:00:00Z"}, False),
    ],
)  # fmt: skip
def test_a_gap_is_known_only_with_a_reason_and_until_a_moment_that_lies_ahead(
    word: dict[str, str], known: bool
) -> None:
    assert known_gap("simulated", Gap("region-1", "volume", "403"), [word], NOW) == known


# --- what an adopted run is made of ------------------------------------------------------------------------------------


def adopted(found: Billable, events: tuple[Event, ...]) -> RunState:
    records = [Record("run-1", n, e, False, NOW, NOW) for n, e in enumerate(events, 1)]
    state = fold(records)
    assert state is not None and state.purchases["p1"].ref == found.ref
    return state


def test_an_adopted_run_has_the_limit_of_its_mark_and_buys_nothing() -> None:
    found = item()
    run, events = adopt(found, SPEC, NOW, bytes(8), launched=False)
    state = adopted(found, events)
    assert run == "run-1" and state.adopted
    assert (state.limit, state.deadline) == (LIMIT, LIMIT - SPEC.hold_s)
    assert state.purchases["p1"].life == "created" and state.purchases["p1"].work.safe_to_end


def test_what_was_launched_on_an_adopted_rental_ends_only_after_a_copy() -> None:
    found = item()
    _, events = adopt(found, SPEC, NOW, bytes(8), launched=True)
    assert not adopted(found, events).purchases["p1"].work.safe_to_end


@pytest.mark.parametrize("setup_s", [0.0, 900.0])
def test_a_blind_run_may_stay_ready_as_long_as_its_spec_says(setup_s: float) -> None:
    seen = Observation(ref(), "running", ("compute",), endpoint=Endpoint("m-1", 22), created_at=START + 5)
    found, look = item(), Found(seen, "SHA256:x", "mark")
    spec = blind_spec(found, "", setup_s=setup_s)
    state = adopted(found, adopt(found, spec, NOW, bytes(8), launched=False, found=look)[1])
    step = decide(state, NOW + setup_s, POLICY, GUARD)
    assert isinstance(step, Do) and step.decision is not None
    assert step.decision.data["cause"] == f"not launched within {setup_s:.0f} s of being ready"
    if setup_s:
        before = decide(state, NOW + setup_s - 1, POLICY, GUARD)
        assert not isinstance(before, Do) or before.decision is None
