"""A seeded scheduler on baton threads: actors run real code, one at a time, and switch only where they touch a port.

The running actor keeps the baton while it is the earliest. Time is virtual: it passes only inside `wait`. A killed actor
gets `Killed` at the port; from then on every port call of that life refuses and is counted, also from `finally`, `except`
and exit handlers. When the world ends, or after too many steps, every actor gets `Finished`, so that threads always end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpuops.testing.faults import PAUSE_S

T = TypeVar("T")


class Killed(BaseException):
    """This life of the actor is over."""


class Finished(BaseException):
    """The simulated world has ended."""


def _taken() -> threading.Lock:
    """A lock that one thread waits for and another one releases: a semaphore of one, at a fifth of its price."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class Actor:
    """One thread of control."""

    name: str
    at: float
    body: Callable[[], None]
    baton: threading.Lock = field(default_factory=_taken)
    """Free for an instant, when this actor is handed it."""
    light: bool = False
    """Asleep in a way that news ends."""
    done: bool = False
    failure: BaseException | None = None


class Scheduler:
    """Hands the baton to the earliest actor."""

    def __init__(self, start: float, horizon: float, steps: int) -> None:
        self.horizon = horizon
        self.steps_left = steps
        self.over = ""
        self._actors: list[Actor] = []
        self._running: Actor | None = None
        self._start = start
        self._ended = _taken()

    @property
    def now(self) -> float:
        """The time of the running actor."""
        return self._running.at if self._running else self._start

    @property
    def latest(self) -> float:
        """The latest time that any actor has seen."""
        return max((a.at for a in self._actors), default=self._start)

    @property
    def actor(self) -> str:
        """The name of the running actor."""
        return self._running.name if self._running else "world"

    def add(self, name: str, body: Callable[[], None], at: float) -> None:
        """Add an actor whose body begins at `at`."""
        self._actors.append(Actor(name, at, body))

    def run(self) -> None:
        """Run until every actor has ended. Raises what an actor's body raised, the first in order."""
        threads = [threading.Thread(target=self._live, args=(a,), name=a.name, daemon=True) for a in self._actors]
        for thread in threads:
            thread.start()
        self._hand_on(None)
        self._ended.acquire()
        for thread in threads:
            thread.join()
        for actor in self._actors:
            if actor.failure is not None:
                raise actor.failure

    def wait(self, until: float, *, light: bool = False) -> None:
        """Let time pass for the running actor; `light`: news may end it sooner. Raises `Finished` at the end of the world."""
        actor = self._running
        assert actor is not None
        self.steps_left -= 1
        if self.steps_left <= 0:
            self.over = self.over or "too many steps"
        actor.at, actor.light = max(actor.at, until), light
        if actor.at > self.horizon or self.over:
            raise Finished
        if self._earliest() is not actor:
            self._hand_on(actor)
        actor.light = False
        if self.over:
            raise Finished

    def news(self, at: float) -> None:
        """Something was written that others may read at `at`: who sleeps lightly wakes then."""
        for actor in self._actors:
            if actor.light and actor is not self._running:
                actor.at = min(actor.at, at)

    def finish(self, why: str) -> None:
        """End the world: every actor gets `Finished` at its next port."""
        self.over = self.over or why

    def _earliest(self) -> Actor | None:
        alive = [a for a in self._actors if not a.done]
        return min(alive, key=lambda a: a.at, default=None)  # the first of equals: deterministic

    def _hand_on(self, giver: Actor | None) -> None:
        following = self._earliest()
        if following is None:
            self._ended.release()
            return
        self._running = following
        following.baton.release()
        if giver is not None and not giver.done:
            giver.baton.acquire()

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if not self.over:
                actor.body()
        except (Killed, Finished):
            pass
        except BaseException as error:
            actor.failure = error
            self.finish(f"{actor.name} raised {type(error).__name__}: {error}")
        actor.done = True
        self._hand_on(actor)


class Life:
    """One life of an actor, from its start to its end or its kill: what its ports ask before they do anything."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        kill: tuple[int, str] | None = None,
        pauses: dict[int, float] | None = None,
        asleep: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.dead = False
        self.points = 0
        """Appends and outside effects so far: where a kill can strike."""
        self.calls = 0
        self.refused = 0
        self._kill = kill
        self._pauses = pauses or {}
        self._asleep = asleep
        self.paused_s = 0.0

    @property
    def now(self) -> float:
        """True time."""
        return self.scheduler.now

    def alive(self) -> None:
        """Raise when this life or the world is over; called first by every port."""
        if self.dead:
            self.refused += 1
            raise Killed(self.name)
        if self.scheduler.over:
            raise Finished

    def spend(self, seconds: float, *, light: bool = False) -> None:
        """Let time pass; a pause that is due here (a closed laptop) comes on top, and no news ends it."""
        self.alive()
        self.calls += 1
        pause = self._pauses.pop(self.calls, 0.0)
        self.paused_s += pause
        self.scheduler.wait(self.now + seconds + pause, light=light and not pause)
        begin, end = self._asleep
        if begin <= self.now < end:
            self.scheduler.wait(end)
        self.alive()

    def point(self, what: str, do: Callable[[], T]) -> T:
        """Do something that outlives this process; a kill strikes right before or after it, or it falls asleep there."""
        self.alive()
        self.points += 1
        if self._kill == (self.points, "before"):
            self.kill(f"before {what}")
        try:
            return do()
        finally:
            if self._kill == (self.points, "after") and not self.dead:
                self.kill(f"after {what}")
            if self._kill == (self.points, "asleep"):
                self.scheduler.wait(self.now + PAUSE_S)

    def kill(self, where: str) -> None:
        """End this life here."""
        self.dead = True
        raise Killed(f"{self.name} {where}")
