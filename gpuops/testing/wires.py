"""The ports of one life: clock, journal and wires that take virtual time, fail as the faults say, and can kill."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpuops.errors import JournalError, ProviderError, RateLimited, Unreachable
from gpuops.journal import SqliteJournal
from gpuops.policy import Policy
from gpuops.testing.faults import START, Faults, Lives
from gpuops.testing.invariants import Watch
from gpuops.testing.scheduler import Life
from gpuops.values import Event, Record, RunId, Time

T = TypeVar("T")


class SimulatedClock:
    """Money time with an error until the first answer of the provider tells better; a wall clock that is simply wrong."""

    def __init__(self, life: Life, lives: Lives) -> None:
        self._life, self._wall = life, lives.wall_skew_s
        self.skew = lives.clock_skew_s
        self._heard = False

    def now(self) -> Time:
        """True time and an error."""
        return self._life.now + self.skew

    def wall(self) -> Time:
        """Another error."""
        return self._life.now + self._wall

    def learn(self, provider_time: Time) -> None:
        """Follow the provider."""
        self._heard = True
        if abs(provider_time - self.now()) > 1.5:
            self.skew = provider_time - self._life.now

    def heard(self) -> bool:
        """The provider has told the time."""
        return self._heard

    def sleep_until(self, at: Time) -> None:
        """Sleep in virtual time; never less than a tick, so that a loop without a wait is seen and not endless."""
        self._life.spend(max(at - self.now(), 0.001), light=True)


class SimulatedJournal:
    """The real journal behind the baton; every append is a point where a kill can strike."""

    def __init__(self, journal: SqliteJournal, life: Life, faults: Faults, watch: Watch | None) -> None:
        self._journal, self._life, self._faults, self._watch = journal, life, faults, watch

    def append(self, run: RunId, event: Event, *, expected: int, at: Time, wall: Time) -> Record:
        """Append a decision."""
        self._ready()

        def do() -> Record:
            before = self._last(run)
            record = self._journal.append(run, event, expected=expected, at=at, wall=wall)
            if self._watch:
                self._watch.decided(record, expected, before, self._life)
            return record

        record = self._life.point(f"append {event.kind}", do)
        self._tell()
        self._life.spend(0.005)  # the sync takes time, and a computer may fall asleep right after it
        return record

    def append_facts(self, run: RunId, events: tuple[Event, ...], *, at: Time, wall: Time) -> tuple[Record, ...]:
        """Append facts."""
        self._ready()

        def do() -> tuple[Record, ...]:
            records = self._journal.append_facts(run, events, at=at, wall=wall)
            if self._watch:
                self._watch.told(records, self._life)
            return records

        records = self._life.point(f"append {'+'.join(e.kind for e in events)}", do)
        self._tell()
        return records

    def records(self, run: RunId, after: int = 0) -> tuple[Record, ...]:
        """The records of a run."""
        self._life.alive()
        if self._watch and after >= self._watch.version:
            return ()  # most looks find no news; the watch has seen every append
        return self._journal.records(run, after)

    def runs(self, *, open_only: bool = False) -> tuple[RunId, ...]:
        """The runs."""
        self._life.alive()
        return self._journal.runs(open_only=open_only)

    def _tell(self) -> None:
        """Whoever waits for something to happen to the run looks at the journal every few seconds and sees this."""
        if self._watch:
            self._life.scheduler.news(self._life.now + Policy().wake_s)

    def _last(self, run: RunId) -> int:
        records = self._journal.records(run, self._watch.version if self._watch else 0)
        return records[-1].seq if records else (self._watch.version if self._watch else 0)

    def _ready(self) -> None:
        self._life.spend(0.01)
        if any(START + a <= self._life.now < START + b for a, b in self._faults.journal_full):
            if self._watch:
                self._watch.unwritable(self._life)
            raise JournalError("the journal cannot be used: database or disk is full")


class SimulatedWire:
    """A way to the provider, to a host or to this computer's disk."""

    def __init__(
        self, life: Life, clock: SimulatedClock, faults: Faults, chance: random.Random, watch: Watch, to: str
    ) -> None:
        self.name = life.name
        self._life, self._clock, self._faults, self._random = life, clock, faults, chance
        self._watch, self._to = watch, to
        self._lost = faults.lost_terminates

    def call(self, what: str, until: Time, do: Callable[[float], T], *, effect: bool = False) -> T:
        """Carry one call: it takes time on the way there and on the way back, and may fail on either."""
        life = self._life
        life.alive()
        self._watch.called(self._to, what, until - self._clock.now(), life)
        way = self._way(what)
        self._travel(way, until, what)
        if self._to == "provider":
            self._weather(what, until)
        result = life.point(what, lambda: self._arrive(what, do)) if effect else do(life.now)
        if what == "terminate" and self._lost > 0:
            self._lost -= 1
            raise ProviderError("no answer")
        self._travel(way, until, what)
        return result

    def keyed(self) -> bool:
        """The key is refused while it is revoked; the guard may never have had it."""
        begin, end = self._faults.revoked
        if begin <= self._life.now - START < end:
            return False
        begin, end = self._faults.guard_keyless
        return not (self.name == "guard" and begin <= self._life.now - START < end)

    def transfer(self, seconds: float, until: Time) -> float:
        """Let bytes flow until they have arrived or the time is up."""
        left = until - self._clock.now()
        ran = max(min(seconds, left), 0.0)
        self._life.spend(ran)
        return ran

    def _arrive(self, what: str, do: Callable[[float], T]) -> T:
        self._watch.effect(what, self._life)
        return do(self._life.now)

    def _way(self, what: str) -> float:
        if self._to == "disk":
            return 0.01
        if self._random.random() < self._faults.slow_part:
            return self._random.uniform(4, 25)
        return self._random.uniform(0.02, 0.8)

    def _travel(self, seconds: float, until: Time, what: str) -> None:
        left = until - self._clock.now()
        self._life.spend(max(min(seconds, left + 0.01), 0.0))
        if self._clock.now() > until:
            raise self._late(f"{what}: no answer in time")

    def _late(self, message: str) -> Exception:
        return ProviderError(message) if self._to == "provider" else Unreachable(message)

    def _weather(self, what: str, until: Time) -> None:
        now = self._life.now
        if any(START + a <= now < START + b for a, b in self._faults.outages):
            self._travel(self._random.uniform(0.1, 10), until, what)
            raise ProviderError("503: service unavailable")
        if self._random.random() < self._faults.limited_part:
            raise RateLimited("429: too many requests")


class SimulatedLocks:
    """Advisory locks of one computer: a dead process holds none."""

    def __init__(self, holders: dict[RunId, Life], life: Life) -> None:
        self._holders, self._life = holders, life

    @contextlib.contextmanager
    def bulk(self, run: RunId) -> Iterator[bool]:
        """True when nobody alive does bulk work for the run."""
        holder = self._holders.get(run)
        mine = holder is None or holder.dead
        if mine:
            self._holders[run] = self._life
        try:
            yield mine
        finally:
            if mine and not self._life.dead:
                self._holders.pop(run, None)


SIMULATED_POLICY = Policy(wake_s=120.0, status_every_s=60.0)
"""The product's numbers; only a sleeping driver looks less often, because each look costs real time: news wakes it."""
