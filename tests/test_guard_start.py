"""Starting the guard: it counts as a layer only when it holds its lock, and there is one per home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from commandcase import Desk
from runstory import Story

from gpuops.cli import driving
from gpuops.cli.context import App
from gpuops.cli.driving import ensure_guard
from gpuops.cli.home import Home, find_home
from gpuops.cli.leaving import guard_runs
from gpuops.cli.output import Printer
from gpuops.cli.start import begin
from gpuops.errors import GpuopsError
from gpuops.locks import held

HOLDS = """
import sys, fcntl, os
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@dataclass
class Starter:
    """Stands in for `subprocess.Popen`: remembers what was asked for, and starts something else."""

    instead: list[str]
    starts: list[tuple[list[str], dict[str, Any]]] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    real: Any = subprocess.Popen

    def __call__(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        self.starts.append((argv, options))
        stdin = subprocess.PIPE if self.instead[0] == sys.executable else options.get("stdin")
        self.processes.append(self.real(self.instead, **{**options, "stdin": stdin, "cwd": "/"}))
        return self.processes[-1]

    def end(self) -> None:
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
            process.wait(timeout=20)


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    """What is started in the guard's place dies at once."""
    made = Starter(["true"])
    monkeypatch.setattr("gpuops.cli.driving.subprocess.Popen", made)
    monkeypatch.setattr(driving, "GUARD_STARTS_S", 0.3)
    yield made
    made.end()


def app(home: Path, **changes: Any) -> App:
    return App(Home(home, **changes), Printer(as_json=False))


def test_a_guard_that_dies_before_it_holds_its_lock_is_no_layer(tmp_path: Path, starter: Starter) -> None:
    assert ensure_guard(app(tmp_path / "home")) is False
    assert len(starter.starts) == 1
    assert not guard_runs(app(tmp_path / "home"))


def test_a_guard_that_cannot_be_started_in_this_home_is_tried_again_by_the_next_command(
    tmp_path: Path, starter: Starter
) -> None:
    for _ in range(2):
        assert ensure_guard(app(tmp_path)) is False
    assert len(starter.starts) == 2


def test_a_guard_that_holds_its_lock_counts(tmp_path: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "GUARD_STARTS_S", 20.0)
    starter.instead = [sys.executable, "-c", HOLDS, str(tmp_path / "guard.lock")]
    assert ensure_guard(app(tmp_path)) is True
    assert ensure_guard(app(tmp_path)) is True, "it is found"
    assert len(starter.starts) == 1, "and no second one is started"
    assert guard_runs(app(tmp_path))


def test_no_second_guard_is_started_while_the_lock_is_held(tmp_path: Path, starter: Starter) -> None:
    with held(tmp_path / "guard.lock") as mine:
        assert mine and ensure_guard(app(tmp_path)) is True
    assert starter.starts == []


def test_looking_for_a_guard_does_not_say_who_holds_the_lock(tmp_path: Path, starter: Starter) -> None:
    """Whoever only looks must not be taken for the guard, nor for a stopped one."""
    ensure_guard(app(tmp_path))
    assert (tmp_path / "guard.lock").read_text() == ""


def test_a_guard_that_is_switched_off_is_never_started(tmp_path: Path, starter: Starter) -> None:
    assert ensure_guard(app(tmp_path / "home", guard=False)) is False
    assert starter.starts == [] and not (tmp_path / "home").exists()


def test_the_guard_gets_this_home_by_its_absolute_path_and_outlives_the_terminal(
    tmp_path: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works in another directory, where a relative path would name another, empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUOPS_HOME", "some/home")
    monkeypatch.setenv("TOKEN", "value")
    home = find_home(os.environ)
    ensure_guard(App(home, Printer(as_json=False)))
    ((argv, options),) = starter.starts
    assert argv == [sys.executable, "-m", "gpuops", "guard"]
    assert options["env"]["GPUOPS_HOME"] == str(tmp_path / "some" / "home") and options["env"]["TOKEN"] == "value"
    assert options["start_new_session"] is True and options["cwd"] == "/" and options["stdin"] == subprocess.DEVNULL
    log = options["stdout"]
    assert log is options["stderr"] and Path(log.name) == tmp_path / "some" / "home" / "guard.log"


def test_going_on_with_a_rental_that_nothing_guards_says_that_it_bills(
    tmp_path: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command typed again on a full disk, say: the rental of the open run is there."""
    story = Story().bought()
    desk = Desk(tmp_path, story.now, story)
    desk.home = replace(desk.home, guard=True)
    monkeypatch.setattr("gpuops.cli.start.read_manifest", lambda path, now: story.state.spec)
    with pytest.raises(GpuopsError) as refused:
        begin(desk.app(), tmp_path / "manifest.yaml", "ready", "", new=False)
    assert "Nothing was bought" not in refused.value.message
    assert refused.value.exit_code == 5 and refused.value.may_bill == ("simulated/region-1/rental/m-1",)


def test_a_home_beneath_the_users_folder_is_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home({"GPUOPS_HOME": "~/gpu"}).path == tmp_path / "gpu"
