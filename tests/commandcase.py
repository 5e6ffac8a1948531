"""A command at a desk of its own: a journal on disk that holds told stories, the simulated cloud, a clock that the test moves.

Nothing is started, nobody is asked: no guard, no host, no network.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from runstory import Story
from typer.testing import CliRunner, Result

from gpuops.cli.context import App
from gpuops.cli.home import Home
from gpuops.cli.output import Printer
from gpuops.fold import fold
from gpuops.journal import SqliteJournal
from gpuops.ports import Ports, no_progress
from gpuops.state import RunState
from gpuops.testing.cloud import NAME, Cloud
from gpuops.testing.faults import Faults
from gpuops.testing.host import Hosts, SimulatedHost
from gpuops.testing.provider import DirectLine, SimulatedProvider, connect
from gpuops.testing.store import SimulatedStore
from gpuops.values import Record, Time


@dataclass
class Clock:
    """A clock that is right, or ahead of the provider until an answer corrects it."""

    at: Time
    ahead_s: float = 0.0
    learned: list[Time] = field(default_factory=list)

    def now(self) -> Time:
        return self.at + self.ahead_s

    def wall(self) -> Time:
        return self.now()

    def learn(self, provider_time: Time) -> None:
        self.learned.append(provider_time)
        self.ahead_s = provider_time - self.at

    def heard(self) -> bool:
        return bool(self.learned)

    def sleep_until(self, at: Time) -> None:
        self.at = max(self.at, at - self.ahead_s)


class Line(DirectLine):
    """A line without faults on the clock of the desk; bulk transfers take no time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def call(self, what: str, until: Time, do: Any, *, effect: bool = False) -> Any:
        self.now = self._clock.at
        return super().call(what, until, do, effect=effect)

    def transfer(self, seconds: float, until: Time) -> float:
        return seconds


class Free:
    """Locks that nobody else holds."""

    def bulk(self, run: str) -> Any:
        return contextlib.nullcontext(True)


class Raising:
    """A port on which some calls raise."""

    def __init__(self, inner: Any, **errors: Exception) -> None:
        self._inner, self._errors = inner, errors

    def __getattr__(self, name: str) -> Any:
        if name in self._errors:
            raise self._errors[name]
        return getattr(self._inner, name)


class Desk:
    """One user's home on one simulated account; `run` types a command there."""

    def __init__(self, path: Path, at: Time, *stories: Story, faults: Faults | None = None, **home: Any) -> None:
        self.home = Home(path, guard=False, **home)
        self.clock = Clock(at)
        self.cloud = Cloud(faults or Faults(timer="none"))
        line: Any = Line(self.clock)
        self.provider: SimulatedProvider = connect(self.cloud, line)
        self.said: list[str] = []
        journal = SqliteJournal(self.home.journal)
        for story in stories:
            run = story.state.run
            for record in story.records:
                journal.append_facts(run, (record.event,), at=record.at, wall=record.wall)
        hosts = Hosts(self.cloud, self.cloud.faults, random.Random(0))
        self.ports = Ports(
            clock=self.clock, journal=journal, providers=lambda name: self.provider, host=SimulatedHost(hosts, line),
            store=SimulatedStore(hosts, line), notify=lambda run, level, text: self.said.append(text), locks=Free(),
            secret=lambda name: None, random_bytes=bytes, progress=no_progress,
        )  # fmt: skip

    def app(self, *, as_json: bool = False) -> App:
        """What a command would assemble from its environment."""
        app = App(self.home, Printer(as_json=as_json))
        app._providers[NAME] = self.provider
        for name, port in (("journal", self.ports.journal), ("clock", self.clock)):
            app.__dict__[name] = port
        app.__dict__["ports"] = replace(self.ports, shield=app.interrupts.shield)
        return app

    def run(self, monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> Result:
        """Type one command without a terminal; an error that leaves it is `result.exception`."""
        module = importlib.import_module(f"gpuops.cli.{command}")
        monkeypatch.setattr(module, "make_app", self.app)
        return CliRunner().invoke(module.app, list(arguments))

    def records(self, run: str = "run-1") -> tuple[Record, ...]:
        """The journal of a run."""
        return self.ports.journal.records(run)

    def kinds(self, run: str = "run-1") -> list[str]:
        """What was recorded of a run."""
        return [r.event.kind for r in self.records(run)]

    def state(self, run: str = "run-1") -> RunState:
        """The state of a run."""
        found = fold(self.records(run))
        assert found is not None
        return found
