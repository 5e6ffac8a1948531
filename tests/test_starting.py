"""From the purchase to a host that answers: what is shown meanwhile, and the named end of each wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from runstory import POLICY, SPEC, Story

from gpuops.cli.context import App
from gpuops.cli.driving import Teller
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.narration import narrate, starting
from gpuops.stages.check_host import check_host
from gpuops.stages.limit import why_down
from gpuops.steps import Do, Wait

PULL = "pulling the image, 40 %"


def pulling() -> Story:
    return Story().ready_to_buy().intended().created().observed("starting", reason=PULL)


def test_what_the_provider_says_of_a_slow_start_is_shown_once_for_each_new_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = pulling().observed("starting", reason=PULL).observed("starting", reason="starting\x1b[2J").observed()
    teller = Teller(App(Home(tmp_path), Printer(as_json=False)), 0)
    monkeypatch.setattr(App, "journal", SimpleNamespace(records=lambda run, after: story.records))
    teller(story.state, Wait(story.now, ""))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Starting")]
    assert shown == [f"Starting: {PULL}", "Starting: starting\\x1b[2J"]
    assert starting(story.records[-1]) == "", "a host that runs is told of by its checks"


def test_a_start_that_never_ends_is_given_up_with_what_the_provider_said_last() -> None:
    story = pulling()
    since = story.state.purchases["p1"].intended_at
    assert why_down(story.state, since + POLICY.allocate_s - 1, POLICY) == ""
    cause = why_down(story.state, since + POLICY.allocate_s, POLICY)
    assert cause == f"no running host within 900 s of the purchase; the provider says: {PULL}"


@pytest.mark.parametrize(
    ("tools", "seconds"), [("refuse", POLICY.call_s), ("install", POLICY.call_s + POLICY.install_s)]
)
def test_a_check_gets_the_time_to_install_and_never_outlasts_the_bound_on_reaching_the_host(
    tools: str, seconds: float
) -> None:
    story = Story(replace(SPEC, host_tools=tools)).bought()  # type: ignore[arg-type]
    known = story.state.purchases["p1"].work.endpoint_at
    assert known is not None
    first, late = (check_host(story.state, known + after, POLICY) for after in (0, POLICY.ssh_s - 2))
    assert isinstance(first, Do) and isinstance(late, Do)
    assert (first.until, late.until) == (known + seconds, known + POLICY.ssh_s)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("tmux", "Training started in tmux; it goes on when this terminal closes"),
        ("detached", "Training started in a detached session of its own; it goes on when this terminal closes"),
        ("", "Training started; it goes on when this terminal closes"),
    ],
)
def test_it_is_said_in_what_training_runs(how: str, said: str) -> None:
    story = Story().bought().tell("launched", boot_id="boot-1", how=how)
    assert narrate(story.records[-1], story.state) == [said]
