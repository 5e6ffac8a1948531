"""A computer whose clock may be wrong, on a simulated account: time passes only by sleeping."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runstory import LIMIT, START, Story, ref

from gpuops.clock import MoneyClock
from gpuops.journal import SqliteJournal
from gpuops.ports import Ports, no_progress
from gpuops.testing.cloud import Cloud, Machine
from gpuops.testing.faults import Faults
from gpuops.testing.host import Hosts, SimulatedHost
from gpuops.testing.provider import connect
from gpuops.testing.store import SimulatedStore
from gpuops.values import Mark

T = TypeVar("T")


@dataclass
class Computer:
    """Stands in for the module `time`. `true` is the provider's time; this computer's own clock is `ahead_s` off."""

    true: float = START
    ahead_s: float = 0.0
    slept: list[float] = field(default_factory=list)
    suspended_s: float = 0.0
    """Each sleep takes this much longer than was asked for."""
    CLOCK_BOOTTIME: int = 7

    def time(self) -> float:
        """The wall clock."""
        return self.true + self.ahead_s

    def clock_gettime(self, which: int) -> float:
        """Seconds since this computer was started, suspend included."""
        assert which == self.CLOCK_BOOTTIME
        return self.true - START + 500

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds > 0
        self.slept.append(seconds)
        self.true += seconds + self.suspended_s


@dataclass
class Way:
    """A line to the provider on which every call arrives at once; only the provider's own clock counts."""

    computer: Computer
    name: str = "test"

    def keyed(self) -> bool:
        """The key is good."""
        return True

    def call(self, what: str, until: float, do: Callable[[float], T], *, effect: bool = False) -> T:
        """Arrive."""
        return do(self.computer.true)

    def transfer(self, seconds: float, until: float) -> float:
        """Transfers take no time."""
        return seconds


class Instead:
    """Something of which some calls are other ones."""

    def __init__(self, inner: Any, **calls: Any) -> None:
        self._inner = inner
        vars(self).update(calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Unlocked:
    """Locks that nobody else holds."""

    def bulk(self, run: str) -> Any:
        """Free."""
        return contextlib.nullcontext(True)


@dataclass
class Site:
    """An account, a journal, and what a person was told."""

    computer: Computer
    cloud: Cloud
    journal: SqliteJournal
    ports: Ports
    said: list[tuple[str, str]]
    clock: MoneyClock

    def kinds(self, run: str = "run-1") -> list[str]:
        """The kinds of all records of a run."""
        return [r.event.kind for r in self.journal.records(run)]

    def wishes(self, run: str = "run-1") -> list[str]:
        """Every wish and every end without a copy that stands in the journal."""
        events = [r.event for r in self.journal.records(run)]
        return [str(e.data.get("what", e.kind)) for e in events if e.kind in ("wanted", "forced")]

    def deeds(self) -> list[tuple[str, str]]:
        """What was really done to the account."""
        return [(d.what, d.ref.id) for d in self.cloud.deeds]

    def provider_is(self, **calls: Any) -> None:
        """From now on these calls of the provider are other ones."""
        changed = Instead(self.ports.providers("simulated"), **calls)
        self.ports = Ports(**{**vars(self.ports), "providers": lambda name: changed})

    def rental(self, limit_at: float, run: str = "other-1", nonce: str = "abcdefghijkl", **more: Any) -> Machine:
        """A rental of somebody else that was made long ago."""
        machine = self.cloud.plant("another operator's", START - 5000, Mark(run, nonce, "bob", limit_at), **more)
        machine.boot_s = 0
        return machine


def site(computer: Computer, *stories: Story, offset_s: float = 0.0, journal: SqliteJournal | None = None) -> Site:
    """The site of a computer. The rental `m-1` exists; the journal tells the stories; `gpuops.clock.time` is patched."""
    cloud = Cloud(Faults())
    way, hosts = Way(computer), Hosts(cloud, Faults(), random.Random(0))
    journal, provider, said = journal or SqliteJournal(":memory:"), connect(cloud, way), []
    for story in stories:
        cloud.plant("ours", START, Mark("run-1", "nonce1", "ada", LIMIT)).ref = ref("m-1")
        write(journal, story)
    clock = MoneyClock(offset_s)
    ports = Ports(
        clock=clock, journal=journal, providers=lambda name: provider, host=SimulatedHost(hosts, way),
        store=SimulatedStore(hosts, way), notify=lambda run, level, text: said.append((level, text)), locks=Unlocked(),
        secret=lambda name: None, random_bytes=bytes, progress=no_progress,
    )  # fmt: skip
    return Site(computer, cloud, journal, ports, said, clock)


def write(journal: SqliteJournal, story: Story, run: str = "run-1", wall_ahead_s: float = 0.0) -> None:
    """Write a story down as a computer would whose wall clock was so far ahead."""
    for record in story.records:
        journal.append_facts(run, (record.event,), at=record.at, wall=record.at + wall_ahead_s)
