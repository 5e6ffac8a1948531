"""Each step on the way to training has its time: the manifest's, else the provider's, else the policy's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from runstory import LIMIT, POLICY, SPEC, Story, generation

from gpuops.codec import to_json
from gpuops.engine import OPERATOR, decide
from gpuops.policy import with_timeouts
from gpuops.spec import Timeouts
from gpuops.stages.limit import why_down
from gpuops.stages.mirror import mirror
from gpuops.steps import Do
from gpuops.values import HostStatus

HOUR_S = POLICY.first_update_s


def cause(story: Story, **policy: float) -> str:
    """Why the engine would take the run down now; empty when it would not."""
    step = decide(story.state, story.now, replace(POLICY, **policy), OPERATOR)
    wish = step.decision if isinstance(step, Do) else None
    return str(wish.data["cause"]) if wish is not None and wish.kind == "wanted" else ""


def told(story: Story, log: str = "", beat: dict[str, Any] | None = None, *generations: str) -> Story:
    status = HostStatus("running", "boot-1", story.now, log_tail=log, beat=beat or {}, generations=generations)
    return story.tell("status", status=to_json(status))


def test_the_manifest_counts_before_the_provider_and_the_provider_before_the_policy() -> None:
    provider, manifest = Timeouts(allocate_s=100, image_s=200), Timeouts(image_s=20)
    got = with_timeouts(POLICY, provider, manifest)
    assert (got.allocate_s, got.image_s, got.ssh_s) == (100, 20, POLICY.ssh_s)


@pytest.mark.parametrize(("provider_s", "manifest_s", "after_s"), [(0, 0, 900), (60, 0, 60), (60, 120, 120)])
def test_a_machine_that_never_comes_is_given_up_after_the_time_that_counts(
    provider_s: float, manifest_s: float, after_s: float
) -> None:
    spec = replace(SPEC, timeouts=Timeouts(allocate_s=manifest_s))
    story = Story(spec, timeouts=to_json(Timeouts(allocate_s=provider_s))).ready_to_buy().intended().created()
    since = story.state.purchases["p1"].intended_at
    assert cause(story.at(since + after_s - 2).observed("starting")) == ""
    said = cause(story.at(since + after_s).observed("starting"))
    assert said == f"no running host within {after_s:g} s of the purchase"


def test_an_image_that_is_being_fetched_has_a_time_of_its_own() -> None:
    story = Story().ready_to_buy().intended().created().wait(POLICY.allocate_s - 10)
    since = story.now
    story.observed("starting", fetching_image=True, reason="layer 3 of 9")
    assert cause(story.at(since + POLICY.image_s - 2).observed("starting", fetching_image=True, reason="layer 8")) == ""
    said = cause(story.at(since + POLICY.image_s).observed("starting", fetching_image=True, reason="layer 8"))
    assert said == f"the image was not there within {POLICY.image_s:g} s; the provider says: layer 8"


def test_training_that_shows_nothing_at_all_for_an_hour_is_ended() -> None:
    story = Story(limit=LIMIT + 9 * HOUR_S, deadline=LIMIT + 8 * HOUR_S).launched()
    launched = story.state.purchases["p1"].work.launched_at
    assert launched is not None
    for after_s, said in ((HOUR_S - 1, ""), (HOUR_S, f"training showed no update within {HOUR_S:g} s of its start")):
        assert why_down(told(story.at(launched + after_s)).state, story.now, POLICY) == said


def test_a_look_from_before_the_time_was_over_ends_no_training() -> None:
    """A computer that slept, or a line that was down, says nothing about what training did meanwhile."""
    story = told(Story(limit=LIMIT + 9 * HOUR_S, deadline=LIMIT + 8 * HOUR_S).launched())
    assert why_down(story.state, story.now + 3 * HOUR_S, POLICY) == ""


@pytest.mark.parametrize(
    ("log", "beat", "generations"),
    [("epoch 1", None, ()), ("", {"step": 1}, ()), ("", None, ("g1",))],
    ids=["a line in its log", "an update", "a generation"],
)
def test_any_sign_of_training_is_enough(log: str, beat: dict[str, Any] | None, generations: tuple[str, ...]) -> None:
    story = Story(limit=LIMIT + 9 * HOUR_S, deadline=LIMIT + 8 * HOUR_S).launched().wait(2 * HOUR_S)
    assert why_down(told(story, log, beat, *generations).state, story.now, POLICY) == ""


def test_a_manifest_that_wants_an_update_is_not_content_with_a_log() -> None:
    spec = replace(SPEC, timeouts=Timeouts(first_update_s=60))
    story = told(Story(spec).launched().wait(61), "loading the data")
    assert cause(story) == "training showed no update within 60 s of its start"


@pytest.mark.parametrize(
    ("free", "named"),
    [(10**15, "copy before the deadline: 20000120 s needed"), (10**9, "room for copies here: ")],
)
def test_the_first_generation_that_does_not_fit_is_told_once(free: int, named: str) -> None:
    big = replace(generation(1), files=(replace(generation(1).files[0], size=4 * 10**14),))
    said: list[str] = []
    ports = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: story.now),
        host=SimpleNamespace(hash_generation=lambda *rest: big),
        locks=SimpleNamespace(bulk=lambda run: _Mine()),
        notify=lambda run, level, message: said.append(message),
        store=SimpleNamespace(free_bytes=lambda destination: free),
    )
    story = Story().launched().status("g1").wait(61)
    for _ in range(2):
        step = mirror(story.state, story.now, POLICY)
        assert isinstance(step, Do)
        for event in step.effect(ports, story.state, step):  # type: ignore[arg-type]
            story.tell(event.kind, event.purchase, **event.data)
        story.tell("attempted", rule="mirror", error="cut").wait(300)  # hashed again
    assert len(said) == 1 and named in said[0], said
    assert "gpuops extend" in said[0]


class _Mine:
    def __enter__(self) -> bool:
        return True

    def __exit__(self, *error: object) -> None:
        return None
