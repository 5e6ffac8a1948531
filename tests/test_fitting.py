"""What training needs against what there is: versions at dots, drivers by release family, figures against room and time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runstory import DEADLINE, LIST, POLICY, SPEC, START, Story

from gpuops.codec import to_json
from gpuops.engine import OPERATOR
from gpuops.fitting import fits, forecast, runs_as_expected
from gpuops.spec import Environment, Probe
from gpuops.steps import Do
from gpuops.values import Check, Probed, Surroundings

CUDA = Surroundings("image", False, 0.0, "3.11.9", "2.13.0+cu130", "13.0", True, 2)
GOOD = Probed(0, False, 5.0, 3, 1.0, 2000.0, 10**9, 30 * 10**9, 80 * 10**9, 10**9, 1.0, 100 * 10**9)
WITH_PROBE = replace(
    SPEC,
    environment=Environment(python="3.11"),
    train=replace(SPEC.train, probe=Probe(("train",), 3, 60), max_updates=100),
)


def wrong(checks: tuple[Check, ...]) -> set[str]:
    return {c.name for c in checks if not c.ok}


def sent(spec: object = WITH_PROBE, **planned: float) -> Story:
    story = Story(spec, **planned).ready_to_buy().intended().bought().checked().wanted("training")  # type: ignore[arg-type]
    return story.tell("listed", preview=to_json(LIST)).approved("list-digest").tell("transferred", files=0, bytes=0)


def made(story: Story, ok: bool = True) -> Story:
    checks = [to_json(Check("python", "3.11", "3.11.9", ok))]
    return story.tell("environment", found=to_json(CUDA), checks=checks)


def probed(story: Story, ok: bool = True, found: Probed = GOOD) -> Story:
    checks = [to_json(Check("probe", "exit 0", "exit 0", ok))]
    return story.tell("probed", found=to_json(found), checks=checks, forecast=[])


def doing(story: Story) -> str:
    step = story.step()
    return step.name if isinstance(step, Do) else type(step).__name__


def test_everything_as_expected_is_no_complaint() -> None:
    wanted = Environment(python="3.11", torch="2.13", cuda="13.0", devices=2)
    assert wrong(runs_as_expected(CUDA, wanted, "580.95.05")) == set()


@pytest.mark.parametrize(
    ("found", "wanted", "complaint"),
    [
        (CUDA, Environment(python="3.1"), "python"),
        (CUDA, Environment(torch="2.1"), "torch"),
        (replace(CUDA, torch=""), Environment(torch="2.13"), "torch"),
        (replace(CUDA, torch="", problem="libcudart.so: cannot open"), Environment(), "torch"),
        (replace(CUDA, torch="2.13.0+cpu", cuda=""), Environment(cuda="13.0"), "cuda of torch"),
        (replace(CUDA, available=False), Environment(cuda="13.0"), "torch.cuda.is_available()"),
        (replace(CUDA, devices=1), Environment(devices=2), "devices that torch sees"),
    ],
)
def test_each_difference_is_named(found: Surroundings, wanted: Environment, complaint: str) -> None:
    assert complaint in wrong(runs_as_expected(found, wanted, "580.95.05"))


@pytest.mark.parametrize(
    ("cuda", "driver", "runs"),
    [
        ("13.0", "580.65", True),
        ("13.0", "575.57", False),
        ("12.8", "525.60", True),
        ("12.1", "515.1", False),
        ("11.8", "450.80", True),
    ],
)
def test_a_driver_must_be_able_to_run_what_torch_was_built_for(cuda: str, driver: str, runs: bool) -> None:
    checks = runs_as_expected(replace(CUDA, cuda=cuda), Environment(), driver)
    assert (wrong(checks) == set()) is runs


def test_a_driver_that_nobody_told_is_not_judged() -> None:
    assert wrong(runs_as_expected(CUDA, Environment(), "none")) == set()


def test_what_fits_is_no_complaint() -> None:
    assert wrong(fits(GOOD, sent().state, START + 30, POLICY, 10**12)) == set()


@pytest.mark.parametrize(
    ("found", "room", "complaint"),
    [
        (replace(GOOD, exit_code=1), 10**12, "probe"),
        (replace(GOOD, timed_out=True), 10**12, "probe"),
        (replace(GOOD, device_bytes=79 * 10**9), 10**12, "device memory"),
        (replace(GOOD, free_bytes=2 * 10**9), 10**12, "room for checkpoints on the host"),
        (GOOD, 2 * 10**9, "room for copies here"),
        (replace(GOOD, generation_bytes=10**12, free_bytes=10**14), 10**14, "copy before the deadline"),
        (replace(GOOD, step_s=60.0), 10**12, "training time"),
    ],
)
def test_each_thing_that_does_not_fit_is_named(found: Probed, room: int, complaint: str) -> None:
    assert complaint in wrong(fits(found, sent().state, START + 30, POLICY, room))


def test_figures_that_were_not_told_are_not_judged() -> None:
    assert wrong(fits(Probed(0, False, 1.0), sent().state, START + 30, POLICY, 0)) == set()


def test_the_plan_is_worked_out_again_with_what_was_measured() -> None:
    lines = "\n".join(forecast(GOOD, sent().state, POLICY))
    assert "3 updates, 1 s each, 2,000 tokens/s" in lines
    assert "100 updates take 1.7 min and cost about 0.06 USD" in lines or "cost about 0.0556" in lines


def test_training_starts_only_after_environment_and_probe() -> None:
    story = sent()
    assert doing(story) == "environment"
    assert doing(story.tell("building", tail="installing")) == "environment"
    assert doing(made(story)) == "probe"
    assert doing(story.tell("probing", tail="")) == "probe"
    assert doing(probed(story)) == "launch"


def test_a_manifest_without_them_goes_on_as_before() -> None:
    assert doing(sent(SPEC)) == "launch"


@pytest.mark.parametrize("which", ["environment", "probe"])
def test_what_is_wrong_ends_the_rental_and_launches_nothing(which: str) -> None:
    story = made(sent(), which != "environment")
    if which == "probe":
        probed(story, False)
    step = story.step()
    assert isinstance(step, Do) and step.decision is not None and step.decision.kind == "wanted"
    assert "checks failed" in step.decision.data["cause"]


def test_a_host_that_never_finishes_is_given_up_with_a_name() -> None:
    story = sent(deadline=START + 20_000, limit=START + 21_000)
    for _ in range(200):
        story.tell("building", tail="still at it").wait(POLICY.environment_s / 100)
        step = story.step()
        if isinstance(step, Do) and step.decision is not None:
            assert "the environment of training was not ready within" in step.decision.data["cause"]
            return
    raise AssertionError("it was waited for without end")


def test_a_guard_alone_prepares_nothing() -> None:
    step = sent().step(OPERATOR - {"environment", "probe", "transfer", "launch", "buy", "check_host"})
    assert not isinstance(step, Do) or step.name not in ("environment", "probe", "launch")


def test_a_measured_checkpoint_starts_teardown_early_enough() -> None:
    story = made(sent())
    before = story.state.teardown_at(POLICY)
    probed(story, found=replace(GOOD, generation_bytes=50 * 10**9))
    assert story.state.teardown_at(POLICY) < before - 60 and story.state.deadline == DEADLINE
