"""The engine: rules are pure and total, and the order of the rules is the safety argument."""

from __future__ import annotations

import ast
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runstory import DEADLINE, LIMIT, LIST, LOG, OFFER, POLICY, SPEC, START, Story, generation, ref

from gpuops.codec import to_json
from gpuops.engine import GUARD, OPERATOR, RULES, advance, drive, load
from gpuops.errors import HostError, JournalError, ListChanged, ProviderError, Unreachable
from gpuops.fold import ImpossibleTransition
from gpuops.hits import judge, listed_events
from gpuops.journal import SqliteJournal
from gpuops.ports import Ports, no_progress
from gpuops.spec import Teardown
from gpuops.stages import buy
from gpuops.stages.mirror import mirror
from gpuops.stages.move_end import move_end
from gpuops.stages.transfer import MOST_LISTINGS
from gpuops.steps import Ask, Closed, Do, Wait, bounded
from gpuops.testing.cloud import Cloud
from gpuops.testing.faults import Faults
from gpuops.testing.host import Hosts, SimulatedHost
from gpuops.testing.provider import DirectLine, connect
from gpuops.testing.store import SimulatedStore
from gpuops.values import Billable, HostKey, HostStatus, Mark, Scope, SendFile

CORE = Path(__file__).resolve().parent.parent / "gpuops"
PURE = ["engine", "fold", "fold_purchase", "state", "policy", "cost", "steps", "hits", "copying", "fitting"]


def named(step: object) -> str:
    """The rule that a step belongs to."""
    assert isinstance(step, Do), step
    return step.name


def decided(step: object) -> str:
    """The kind of decision that a step begins with."""
    assert isinstance(step, Do) and step.decision is not None, step
    return step.decision.kind


# --- pure and total ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CORE / f"{n}.py" for n in PURE] + sorted((CORE / "stages").glob("*.py")), ids=str)
def test_what_decides_imports_nothing_that_reads_a_clock_or_touches_the_world(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {(n.module or "").split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not imported & {
        "time",
        "threading",
        "random",
        "os",
        "socket",
        "subprocess",
        "pathlib",
        "datetime",
        "asyncio",
    }


CHAPTERS: list[Callable[[Story], Any]] = [
    lambda s: s.wanted("ready"), lambda s: s.wanted("training"), lambda s: s.going_down(), lambda s: s.approved(),
    lambda s: s.approved("list-digest"), lambda s: s.tell("preflight", None, problem=""), lambda s: s.intended(),
    lambda s: s.tell("preflight", None, problem="no credentials", final=True), lambda s: s.intended(2),
    lambda s: s.created(), lambda s: s.created(2, "m-3"), lambda s: s.created(name="m-2", via="search"),
    lambda s: s.tell("unknown", error="lost"), lambda s: s.tell("refused", reason="quota"),
    lambda s: s.tell("not_sent", why="late"), lambda s: s.tell("unproven", decision=True, why="24 h"),
    lambda s: s.tell("searched", hits=0), lambda s: s.observed(), lambda s: s.observed("stopped"),
    lambda s: s.observed("absent"), lambda s: s.observed("refused"), lambda s: s.observed("unknown"),
    lambda s: s.tell("ended_elsewhere", by="spot"), lambda s: s.tell("reappeared"), lambda s: s.checked(),
    lambda s: s.checked(False), lambda s: s.tell("transferred", files=0, bytes=0),
    lambda s: s.tell("launching", decision=True), lambda s: s.tell("launched", boot_id="boot-1"),
    lambda s: s.status("g1"), lambda s: s.status("g1", "g2", phase="ended"),
    lambda s: s.tell("ended", outcome="failed"), lambda s: s.sealed(generation(1)), lambda s: s.sealed(),
    lambda s: s.tell("unreachable", why="gone"), lambda s: s.copied(generation(1)), lambda s: s.copied(LOG),
    lambda s: s.tell("sliced", generation="g1"), lambda s: s.tell("forced", decision=True, reason="user", by="user"),
    lambda s: s.ending(), lambda s: s.tell("proof", ok=True, why=""), lambda s: s.tell("proof", ok=False, why="bills"),
    lambda s: s.tell("gone", decision=True), lambda s: s.tell("reconciled", None),
    lambda s: s.tell("closed", None, decision=True), lambda s: s.tell("retained", decision=True, until=LIMIT, reason="x"),
    lambda s: s.tell("released", decision=True), lambda s: s.tell("surveyed"), lambda s: s.tell("shown"),
    lambda s: s.tell("layer", name="provider timer", grade="read back", at=LIMIT),
    lambda s: s.tell("extend_wanted", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60),
    lambda s: s.tell("extended", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60),
    lambda s: s.tell("attempted", rule="copy g1", error="broke"), lambda s: s.tell("attempted", rule="terminate", error="x"),
    lambda s: s.tell("attempted", rule="launch", error="x", final=True),
    lambda s: s.tell("attempted", None, rule="buy", error="x"),
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(range(len(CHAPTERS))), st.floats(0, 5000)), max_size=30),
    st.floats(0, 200_000),
    st.sampled_from([OPERATOR, GUARD]),
)
def test_whatever_was_recorded_the_engine_has_an_answer(
    chapters: list[tuple[int, float]], later: float, may: frozenset[str]
) -> None:
    story = Story()
    for number, wait in chapters:
        before = len(story.records)
        try:
            CHAPTERS[number](story)
        except (ImpossibleTransition, AssertionError, KeyError):
            # not legal here; a journal would not have it
            del story.records[before + 1 :]
        story.wait(wait)
    story.wait(later)
    step = story.step(may)
    assert isinstance(step, Do | Wait | Ask | Closed)
    if isinstance(step, Wait):
        assert step.until > story.now
    if isinstance(step, Do):
        assert step.until > story.now
        if step.decision is not None:
            story.tell(step.decision.kind, step.decision.purchase, decision=True, **step.decision.data)


def test_what_ends_a_bill_comes_before_what_starts_or_uses_one() -> None:
    order = [rule.__name__ for rule in RULES]
    ends = ["close", "resolve", "enforce_limit", "prove_gone", "terminate"]
    assert order[: len(ends)] == ends
    assert order[-1] == "buy"
    assert OPERATOR - {"buy", "launch", "probe", "environment", "transfer", "check_host"} == GUARD


def test_an_effect_is_bounded_by_the_limits_that_lie_ahead() -> None:
    assert bounded(100, 30, 90, 110, 200) == 110
    assert bounded(100, 30, 90) == 130


# --- buying --------------------------------------------------------------------------------------------------------------


def test_nothing_is_bought_without_an_approved_plan() -> None:
    assert isinstance(Story().wanted("ready").step(), Ask)
    assert not isinstance(Story().wanted("ready").step(GUARD), Ask | Do)


def test_an_intent_needs_a_preflight_that_is_fresh() -> None:
    story = Story().wanted("ready").approved()
    step = story.step()
    assert named(step) == "buy" and isinstance(step, Do) and step.decision is None
    assert decided(story.tell("preflight", None, problem="").step()) == "intended"
    later = story.wait(POLICY.preflight_fresh_s + 1).step()
    assert isinstance(later, Do) and later.decision is None


@pytest.mark.parametrize("known", [True, False])
def test_an_unknown_create_call_is_searched_for_and_only_then_bought_again(known: bool) -> None:
    story = Story().ready_to_buy().intended()
    if known:
        story.tell("unknown", error="no answer")
    assert named(story.wait(20).step()) == "resolve"
    story.tell("searched", hits=0)
    assert isinstance(story.step(), Wait)
    story.wait(POLICY.search_active_s).tell("searched", hits=0)
    assert named(story.step()) == "buy"


def test_what_was_never_found_counts_as_possibly_billing_only_after_a_last_look() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="lost").going_down()
    story.wait(26 * 3600)
    step = story.step()
    assert named(step) == "resolve" and isinstance(step, Do) and step.decision is None
    assert decided(story.tell("searched", hits=0).step()) == "unproven"


def test_the_limit_of_the_mark_is_what_the_cap_pays_in_whole_billing_units() -> None:
    hourly = to_json(replace(OFFER, billing_unit_s=3600))
    spec = to_json(replace(SPEC, cap=replace(SPEC.cap, amount=SPEC.cap.amount / 4), deadline_s=9000))
    story = Story(offer=hourly, spec=spec).ready_to_buy()
    step = story.step()
    assert isinstance(step, Do) and step.decision is not None
    assert step.decision.data["limit"] == story.now + 3600


# --- going down ----------------------------------------------------------------------------------------------------------


def test_a_duplicate_is_ended_at_once_whatever_the_rental_does() -> None:
    step = Story().launched().created(name="m-2", via="search").step()
    assert decided(step) == "ending" and isinstance(step, Do) and step.purchase == "p1.m-2"


def test_a_rental_found_late_beside_another_one_is_ended() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="lost").wait(1000).intended(2).created(2, "m-2")
    step = story.created(1, "m-1", via="search").step()
    assert decided(step) == "ending" and isinstance(step, Do) and step.purchase == "p1"


def item(name: str, since: float | None, nonce: str = "nonce1", **more: Any) -> Billable:
    mark = Mark("run-1", nonce, "ada", LIMIT)
    return Billable(ref(name), name, mark, ("compute",), since, OFFER.rate, nonce=nonce, **more)


def test_a_clone_of_our_mark_is_an_alarm_once_and_never_a_purchase() -> None:
    story = Story().bought()
    clone = item("m-9", START + 5000)
    events = listed_events(story.state, [clone], POLICY)
    assert [e.kind for e in events] == ["alarm"]
    story.tell("alarm", **events[0].data)
    assert listed_events(story.state, [clone], POLICY) == ()


def test_what_cannot_be_dated_is_ours_only_when_we_have_nothing_else() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="lost")
    assert judge(story.state, story.state.purchases["p1"], item("m-1", None), POLICY) == "ours"
    story.created()
    assert judge(story.state, story.state.purchases["p1"], item("m-2", None), POLICY) == "clone"


def test_a_damaged_mark_is_an_alarm_and_no_other_action() -> None:
    story = Story().ready_to_buy().intended().tell("unknown", error="lost")
    events = listed_events(story.state, [item("m-1", story.now, damaged=True)], POLICY)
    assert [e.kind for e in events] == ["alarm"]


def test_another_operators_rental_is_not_ours() -> None:
    assert listed_events(Story().bought().state, [item("m-7", START, nonce="other")], POLICY) == ()


def test_what_was_gone_and_bills_again_is_ours_again() -> None:
    story = Story().bought().going_down().ending().tell("gone", decision=True)
    events = listed_events(story.state, [item("m-1", START + 5)], POLICY)
    assert [e.kind for e in events] == ["reappeared", "alarm"]


def test_training_that_ended_is_sealed_copied_and_only_then_ended() -> None:
    story = Story().launched().tell("ended", outcome="completed")
    assert decided(story.step()) == "wanted"
    story.going_down()
    assert named(story.step()) == "seal"
    story.sealed(generation(2), generation(1))
    for name in ("copy g2", "copy g1", "copy telemetry"):
        assert named(story.step()) == name
        story.copied(*[g for g in (generation(2), generation(1), LOG) if name.endswith(g.id)])
    assert decided(story.step()) == "ending"


def test_a_generation_that_cannot_be_copied_does_not_hold_up_the_others() -> None:
    story = Story().launched().going_down().sealed(generation(2), generation(1))
    story.tell("attempted", rule="copy g2", error="differs")
    assert named(story.step()) == "copy g1"


def test_a_mirror_that_was_begun_is_finished_before_a_newer_one() -> None:
    story = Story().launched().status("g1").wait(POLICY.mirror_every_s)
    step = mirror(story.state, story.now, POLICY)
    assert isinstance(step, Do) and step.detail.endswith("g1")
    story.tell("sliced", generation="g1").status("g1", "g2")
    step = mirror(story.state, story.now, POLICY)
    assert isinstance(step, Do) and step.detail.endswith("g1")
    story.status("g2", "g3")
    step = mirror(story.state, story.now, POLICY)
    assert isinstance(step, Do) and step.detail.endswith("g3")


def test_forced_is_decided_at_the_limit_and_not_before() -> None:
    story = Story().launched().going_down().at(LIMIT - 1)
    assert named(story.step()) == "seal"
    # this computer's clock alone does not decide what cannot be undone
    asking = story.at(LIMIT).step()
    assert named(asking) == "enforce_limit" and isinstance(asking, Do) and asking.decision is None
    assert named(story.observed(provider_time=LIMIT - 1).step()) == "seal", "not asked again without a pause"
    assert named(story.wait(POLICY.ask_time_every_s).step()) == "enforce_limit"
    assert decided(story.observed(provider_time=LIMIT).step()) == "forced"
    story.tell("forced", decision=True, reason="limit reached", by="limit")
    assert decided(story.step()) == "ending"


def test_a_provider_that_cannot_be_asked_for_the_time_does_not_hold_up_the_limit_for_ever() -> None:
    story = Story().launched().going_down().at(LIMIT)
    for _ in range(POLICY.confirm_attempts):
        assert named(story.wait(400).step(OPERATOR - {"seal", "observe"})) == "enforce_limit"
        story.tell("attempted", rule="enforce_limit", error="unreadable")
    assert story.now > LIMIT + 900
    assert decided(story.step()) == "forced"


def test_a_provider_that_goes_on_telling_an_old_time_does_not_hold_up_the_limit() -> None:
    story = Story().launched().going_down().at(LIMIT).observed(provider_time=LIMIT - 900)
    assert named(story.wait(POLICY.ask_time_every_s).step()) == "enforce_limit"
    story.at(LIMIT + POLICY.confirm_s + 1).observed(provider_time=LIMIT - 900)
    assert decided(story.step()) == "forced"


def test_where_a_look_cannot_be_read_a_listing_tells_the_time() -> None:
    story = Story().launched().going_down().at(LIMIT)
    story.tell("attempted", rule="enforce_limit", error="unreadable").wait(60).tell("time_told", at=LIMIT + 1)
    assert decided(story.step()) == "forced"


def test_one_rental_that_cannot_be_asked_does_not_hold_up_the_limit_of_another() -> None:
    story = Story(spec=to_json(replace(SPEC, train=replace(SPEC.train, resume=1)))).launched().status("g1")
    story.tell("ended_elsewhere", by="x").tell("gone", decision=True).tell("replaced", decision=True)
    story.tell("preflight", None, problem="").intended(2).created(2, "m-2").observed(purchase="p2")
    story.tell("launching", "p2").tell("launched", "p2", boot_id="b").tell("reappeared").going_down()
    story.at(LIMIT)
    for _ in range(4):
        story.tell("attempted", rule="enforce_limit", error="no answer")
    story.observed(purchase="p2", provider_time=LIMIT)
    step = story.step()
    assert decided(step) == "forced" and isinstance(step, Do) and step.purchase == "p2"


@pytest.mark.parametrize("wanted", ["closed", "training"])
def test_an_answer_that_the_adapter_cannot_read_stops_no_driver(wanted: str) -> None:
    story = Story().launched() if wanted == "training" else Story().bought().going_down()
    ports, cloud, said = ports_for(story)

    def changed_json(*_: Any) -> Any:
        raise KeyError("desiredStatus")

    broken = Broken(ports.providers("simulated"), "inspect", KeyError("desiredStatus"))
    ports = replace(ports, providers=lambda name: broken)  # type: ignore[arg-type,return-value]
    drive("run-1", ports, POLICY, GUARD, until=lambda s: bool(cloud.deeds) or ports.clock.now() > LIMIT + 4 * 3600)
    assert [d.what for d in cloud.deeds] == ["terminate"]
    assert any("KeyError" in text for text in said)


def test_past_the_limit_an_unreadable_answer_and_a_full_disk_keep_nothing_billing() -> None:
    story = Story().launched().at(LIMIT + 1)
    ports, cloud, _ = ports_for(story)
    broken = Broken(ports.providers("simulated"), "inspect", KeyError("x"))
    ports = replace(ports, journal=Unwritable(ports.journal), providers=lambda name: broken)  # type: ignore[arg-type,return-value]
    with pytest.raises(JournalError):
        advance("run-1", ports, POLICY, GUARD)
    assert [d.what for d in cloud.deeds] == ["terminate"]


def test_what_does_not_end_is_asked_again_looked_at_ever_more_seldom_and_told_to_a_person() -> None:
    story = Story().bought().going_down()
    ports, _, said = ports_for(story)
    broken = Broken(ports.providers("simulated"), "terminate", ProviderError("403: forbidden"))
    ports = replace(ports, providers=lambda name: broken)  # type: ignore[arg-type,return-value]
    end = story.now + 2 * 3600
    state, _ = drive("run-1", ports, POLICY, GUARD, until=lambda s: ports.clock.now() > end)
    found = kinds(ports)
    assert 20 < found.count("proof") < 200, "bounded by a growing gap"
    assert sum("was asked to end" in text for text in said) == 1 and len(state.alarms) == 1


def test_the_users_reason_ends_a_rental_at_once() -> None:
    story = Story().launched().going_down().tell("forced", decision=True, reason="I have it", by="user")
    assert decided(story.step()) == "ending"


def test_a_run_that_is_not_launched_goes_down_after_its_setup_time() -> None:
    story = Story().bought().checked().wait(SPEC.setup_s - 10)
    assert not isinstance(story.step(), Do) or named(story.step()) != "enforce_limit"
    step = story.wait(10).step()
    assert decided(step) == "wanted" and isinstance(step, Do) and step.decision is not None
    assert "not launched within" in step.decision.data["cause"]


def test_a_failed_training_is_kept_as_long_as_the_manifest_says_and_no_longer() -> None:
    spec = to_json(replace(SPEC, teardown=Teardown(keep_failed_s=600)))
    story = Story(spec=spec).launched().tell("ended", outcome="failed")
    assert all(named(s) != "enforce_limit" for s in [story.wait(500).step()] if isinstance(s, Do))
    assert decided(story.wait(101).step()) == "wanted"


def test_teardown_starts_early_enough_to_be_complete_by_the_deadline() -> None:
    story = Story().launched()
    at = story.state.teardown_at(POLICY)
    assert at < DEADLINE - SPEC.train.grace_s
    assert named(story.at(at).step()) == "enforce_limit", "the provider is asked for the time first"
    assert decided(story.observed(provider_time=at).step()) == "wanted"


def test_a_layer_that_ends_earlier_than_the_limit_moves_the_teardown_forward() -> None:
    story = Story().launched()
    usual = story.state.teardown_at(POLICY)
    story.tell("layer", name="provider timer", grade="read back", at=LIMIT - 1000)
    assert story.state.teardown_at(POLICY) == pytest.approx(usual - 1000)


def test_an_extension_waits_for_a_timer_that_nobody_has_seen_yet() -> None:
    story = (
        Story().wanted("ready").approved().tell("preflight", None, problem="", timer="read back").intended().created()
    )
    story.tell("extend_wanted", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    story.tell("layer", name="mark", grade="read back", at=LIMIT + 60)
    step = move_end(story.state, story.now, POLICY)
    assert isinstance(step, Do) and step.decision is None and "provider timer" in step.detail
    story.observed(ends_at=LIMIT)
    story.tell("layer", name="provider timer", grade="read back", at=LIMIT + 60)
    assert decided(move_end(story.state, story.now, POLICY)) == "extended"


def test_an_extension_does_not_count_before_the_rental_was_seen() -> None:
    story = Story().ready_to_buy().intended().created()
    story.tell("extend_wanted", None, decision=True, deadline=DEADLINE + 60, limit=LIMIT + 60)
    story.tell("layer", name="mark", grade="read back", at=LIMIT + 60)
    assert isinstance(move_end(story.state, story.now, POLICY), Wait)


def test_a_status_that_says_terminal_does_not_end_training_before_it_is_proved() -> None:
    story = Story().launched().observed("terminal").tell("ended_elsewhere", by="the provider says terminal")
    assert named(story.step()) == "prove_gone"
    story.tell("reappeared")
    assert story.state.wanted == "training"


def test_gone_needs_two_good_rounds_a_gap_apart() -> None:
    story = Story().bought().going_down().ending().wait(5)
    assert named(story.step()) == "prove_gone"
    story.tell("proof", ok=True, why="", at=story.now)
    assert isinstance(story.step(), Wait)
    assert named(story.wait(POLICY.proof_gap_s).step()) in ("prove_gone", "terminate")
    story.tell("proof", ok=True, why="", at=story.now)
    assert decided(story.step()) == "gone"


def test_asking_to_end_goes_on_for_ever_with_growing_gaps() -> None:
    story = Story().bought().going_down().ending()
    for gap in (*POLICY.resend_every_s, POLICY.resend_every_s[-1]):
        story.tell("proof", ok=False, why="it bills", at=story.now)
        assert not isinstance(story.step(), Do)
        story.wait(gap).tell("proof", ok=False, why="it bills", at=story.now)
        assert named(story.step()) == "terminate"
        story.tell("terminated")


def test_an_end_that_cannot_be_asked_for_is_still_looked_for() -> None:
    story = Story().bought().going_down().tell("ending", decision=True, cause="test")
    assert named(story.step()) == "terminate"
    story.tell("attempted", rule="terminate", error="404").wait(POLICY.proof_every_s[0])
    assert "prove_gone" in {named(story.step())}


def test_a_run_closes_only_after_a_listing_that_came_after_the_last_end() -> None:
    story = Story().bought().going_down().tell("reconciled", None).ending()
    story.tell("gone", decision=True, at=story.now)
    step = story.step()
    assert named(step) == "close" and isinstance(step, Do) and step.decision is None
    assert decided(story.tell("reconciled", None).step()) == "closed"


def test_a_question_never_hides_what_must_be_done() -> None:
    story = Story().bought().checked().wanted("training")
    story.tell("listed", preview={"trees": [], "excluded": [], "suspicious": [], "total_bytes": 0, "digest": "unseen"})
    assert isinstance(story.step(), Ask)
    story.created(name="m-2", via="search")
    assert decided(story.step()) == "ending"


# --- effects ---------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    wall = now

    def learn(self, provider_time: float) -> None:
        pass

    def heard(self) -> bool:
        return True

    def sleep_until(self, at: float) -> None:
        self.at = max(self.at, at)


class Broken:
    """A host on which one call raises."""

    def __init__(self, inner: Any, name: str, error: Exception) -> None:
        self._inner, self._name, self._error = inner, name, error

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise self._error
        return getattr(self._inner, name)


class Free:
    """Locks that nobody else holds."""

    def bulk(self, run: str) -> Any:
        return contextlib.nullcontext(True)


class Flowing(DirectLine):
    """A line on which transfers take no time, to a cloud whose time is the driver's."""

    clock: Any = None

    def call(self, *arguments: Any, **options: Any) -> Any:
        self.now = self.clock.now()
        return super().call(*arguments, **options)

    def transfer(self, seconds: float, until: float) -> float:
        return seconds


class Unwritable:
    """A journal that can be read and not written."""

    def __init__(self, inner: SqliteJournal) -> None:
        self.records, self.runs = inner.records, inner.runs

    def append(self, *_: Any, **__: Any) -> Any:
        raise JournalError("database or disk is full")

    append_facts = append


def ports_for(story: Story, **changes: Any) -> tuple[Ports, Cloud, list[str]]:
    """Ports over a calm world in which the rental of the story exists."""
    cloud = Cloud(Faults())
    machine = cloud.plant("ours", START, Mark("run-1", "nonce1", "ada", LIMIT))
    machine.ref = ref("m-1")
    line, hosts = Flowing(story.now), Hosts(cloud, Faults(), random.Random(0))
    line.clock = clock = Clock(story.now)
    journal, provider, said = SqliteJournal(":memory:"), connect(cloud, line), []
    for record in story.records:
        journal.append_facts("run-1", (record.event,), at=record.at, wall=record.wall)
    ports = Ports(
        clock=clock, journal=journal, providers=lambda name: provider, host=SimulatedHost(hosts, line),  # type: ignore[arg-type]
        store=SimulatedStore(hosts, line), notify=lambda run, level, text: said.append(text),  # type: ignore[arg-type]
        locks=Free(), secret=lambda name: None, random_bytes=bytes, progress=no_progress,
    )  # fmt: skip
    return replace(ports, **changes), cloud, said


def kinds(ports: Ports) -> list[str]:
    return [r.event.kind for r in ports.journal.records("run-1")]


def test_past_the_limit_a_rental_is_ended_even_when_nothing_can_be_written() -> None:
    story = Story().launched().at(LIMIT + 1)
    ports, cloud, said = ports_for(story)
    ports = replace(ports, journal=Unwritable(ports.journal))  # type: ignore[arg-type]
    with pytest.raises(JournalError):
        advance("run-1", ports, POLICY, GUARD)
    assert [d.what for d in cloud.deeds] == ["terminate"]
    assert "without recording it" in said[-1]


def test_before_the_limit_an_unwritable_journal_ends_nothing() -> None:
    story = Story().launched().going_down()
    ports, cloud, _ = ports_for(story)
    ports = replace(ports, journal=Unwritable(ports.journal))  # type: ignore[arg-type]
    with pytest.raises(JournalError):
        advance("run-1", ports, POLICY, GUARD)
    assert cloud.deeds == []


@pytest.mark.parametrize("error", [HostError("no"), Unreachable("no"), ProviderError("no"), ZeroDivisionError("a bug")])
def test_whatever_an_effect_raises_is_recorded_and_the_rental_still_ends(error: Exception) -> None:
    story = Story().launched().going_down()
    bugs: list[str] = []
    ports, cloud, _ = ports_for(story, bug=lambda what, error: bugs.append(what))
    ports = replace(ports, host=Broken(ports.host, "seal", error))  # type: ignore[arg-type]
    state, _ = drive("run-1", ports, POLICY, GUARD, until=lambda s: bool(s.purchases["p1"].terminates))
    assert "attempted" in kinds(ports)
    assert bool(bugs) == isinstance(error, ZeroDivisionError)
    assert ports.clock.now() >= LIMIT and state.purchases["p1"].work.forced
    assert [d.what for d in cloud.deeds] == ["terminate"]


def test_a_list_that_changed_before_it_was_sent_is_asked_about_again() -> None:
    story = Story().bought().checked().wanted("training")
    story.tell("listed", preview=to_json(LIST)).approved(LIST.digest)
    ports, cloud, _ = ports_for(story)
    cloud.machines[0].boot_s = 0
    ports = replace(ports, host=Broken(ports.host, "send", ListChanged("changed")))  # type: ignore[arg-type]
    state, step = drive("run-1", ports, POLICY, OPERATOR, until=lambda s: False)
    assert step == Ask("Send these files?", "nothing-to-send")
    assert kinds(ports)[-1] == "listed" and state.failures("transfer", "p1") is None
    assert cloud.deeds == []


def test_a_list_that_never_stands_still_is_given_up_with_the_file_that_moves() -> None:
    moved = replace(LIST, trees=(("/w", (SendFile("run.log", 5, "file"),)),), digest="another")
    story = Story().bought().checked().wanted("training")
    for _ in range(MOST_LISTINGS):
        story.tell("listed", preview=to_json(moved))
    story.approved("another")
    ports, cloud, _ = ports_for(story)
    cloud.machines[0].boot_s = 0
    ports = replace(ports, host=Broken(ports.host, "send", ListChanged("changed")))  # type: ignore[arg-type]
    advance("run-1", ports, POLICY, OPERATOR)
    state = load("run-1", ports)
    failed = state.failures("transfer", "p1")
    assert failed is not None and failed.final and failed.error.startswith("run.log changed each of the 5 times")


def test_failures_in_a_row_are_tried_again_with_growing_gaps() -> None:
    story = Story().launched().going_down()
    gaps = []
    for _ in range(5):
        story.tell("attempted", rule="seal", error="broke")
        gaps.append(story.state.due("seal", POLICY, "p1") - story.now + 1)
    assert gaps == list(POLICY.backoff_s)
    story.sealed()
    assert story.state.failures("seal", "p1") is None


def test_a_prune_that_fails_does_not_lose_the_record_of_a_copy() -> None:
    story = Story().launched().going_down().sealed()
    ports, cloud, _ = ports_for(story)
    cloud.machines[0].boot_s = 0
    ports = replace(ports, store=Broken(ports.store, "prune", HostError("busy")))  # type: ignore[arg-type]
    advance("run-1", ports, POLICY, GUARD)
    assert "copied" in kinds(ports)


@pytest.mark.parametrize(
    ("beat", "down"),
    [
        ({"step": 100}, False),
        ({"step": 101}, True),
        ({"tokens": 5001}, True),
        ({"step": "x", "tokens": None}, False),
        ({}, False),
    ],
)
def test_a_program_that_goes_beyond_what_is_allowed_is_brought_down(beat: dict[str, Any], down: bool) -> None:
    story = Story(replace(SPEC, train=replace(SPEC.train, max_updates=100, max_tokens=5000))).launched()
    status = HostStatus("running", "boot-1", story.now, beat=beat)
    story.tell("status", status=to_json(status))
    step = story.step()
    decided_down = isinstance(step, Do) and step.decision is not None and step.decision.kind == "wanted"
    assert decided_down is down
    if down and isinstance(step, Do) and step.decision is not None:
        assert "the manifest allows" in step.decision.data["cause"]


@pytest.mark.parametrize(("off_s", "sent"), [(0.0, True), (-695.0, False), (700.0, False)])
def test_a_process_whose_clock_was_wrong_sends_nothing_on_another_ones_preflight(off_s: float, sent: bool) -> None:
    story = Story().ready_to_buy().intended()
    cloud, line = Cloud(Faults(), random=random.Random(1)), DirectLine()
    provider = connect(cloud, line)

    class Unheard(Clock):
        def heard(self) -> bool:
            return False

        def learn(self, provider_time: float) -> None:
            self.at = provider_time

    told = provider.list_billable(Scope(("rental",)), math.inf).provider_time
    assert told is not None
    clock = Unheard(told + off_s)
    p = replace(story.state.purchases["p1"], send_before=clock.at + 30)
    state = replace(story.state, purchases={"p1": p})
    ports = SimpleNamespace(
        clock=clock, providers=lambda name: provider, clean=str, authorized_keys=(),
        host=SimpleNamespace(keys=lambda run: ("ssh-ed25519 k", HostKey("", "ssh-ed25519 h", "SHA256:h"))),
    )  # fmt: skip
    do = Do("buy", lambda *a: (), clock.at + 30, "p1")
    kinds = [e.kind for e in buy._provision(ports, state, do, "p1", POLICY)]  # type: ignore[arg-type]
    assert ("created" in kinds) is sent and ("not_sent" in kinds) is not sent
    assert len(cloud.machines) == int(sent)


def mirroring(story: Story) -> str:
    """What the mirror would do now."""
    step = mirror(story.state, story.now + 1_000, POLICY)
    assert isinstance(step, Do), step
    return step.detail


def test_a_generation_that_was_hashed_is_copied_before_a_newer_one_is_hashed() -> None:
    story = Story().launched().status("g1")
    assert mirroring(story) == "hashing g1"
    story.tell("hashed", generation=to_json(generation(1))).status("g1", "g2")
    assert mirroring(story) == "mirroring g1", (
        "a program that publishes faster than one pass of hashing would never get a copy"
    )
    assert mirroring(story.status("g2")) == "hashing g2", "the host does not have it any more"


def test_another_process_with_the_lock_does_not_put_the_hashes_in_doubt() -> None:
    story = Story().launched().status("g1").tell("hashed", generation=to_json(generation(1)))
    story.tell("attempted", rule="mirror", error="another process of this computer is copying", busy=True)
    assert mirroring(story) == "mirroring g1"
    story.tell("attempted", rule="mirror", error="differs")
    assert mirroring(story) == "hashing g1"
