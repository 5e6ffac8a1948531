"""What a rule may answer, and the small helpers that rules and effects share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.values import Event, PurchaseId, Time


@dataclass(frozen=True, slots=True)
class Do:
    """Something to do now. `name` keys its failures in the state; the effect returns by `until`."""

    name: str
    effect: Effect
    until: Time
    purchase: PurchaseId | None = None
    decision: Event | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until`."""

    until: Time
    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must approve `digest` first."""

    question: str
    digest: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The run is over and nothing of it bills that is not meant to."""

    reason: str


Step = Do | Wait | Ask | Closed
Rule = Callable[[RunState, Time, Policy], Step | None]
Effect = Callable[[Ports, RunState, Do], tuple[Event, ...]]


def fact(kind: str, purchase: PurchaseId | None = None, **data: Any) -> Event:
    """An event with JSON values."""
    return Event(kind, data, purchase)


def attempted(
    name: str, error: str, purchase: PurchaseId | None = None, *, final: bool = False, busy: bool = False
) -> Event:
    """The fact that something was tried and failed: backoff is computed from it.

    `final`: trying again cannot help. `busy`: another process has the lock; that is no failure, and has its own short gaps.
    """
    flags = {k: True for k, v in (("final", final), ("busy", busy)) if v}
    return Event("attempted", {"rule": name, "error": error, **flags}, purchase)


def announce(level: str, message: str) -> Effect:
    """An effect that only tells a person."""

    def effect(ports: Ports, state: RunState, do: Do) -> tuple[Event, ...]:
        ports.notify(state.run, level, message)
        return (fact("notified", do.purchase, level=level, message=message),)

    return effect


def bounded(now: Time, seconds: float, *limits: Time) -> Time:
    """`until` for an effect: `seconds` from now, but no later than those of `limits` that still lie ahead."""
    return min([now + seconds, *(limit for limit in limits if limit > now)])


def again_until(ports: Ports, do: Do, seconds: float) -> Time:
    """The bound of a further call in the same step: the first answer may have put this process's clock back by hours."""
    return min(do.until, ports.clock.now() + seconds)


def first_due(steps: Iterable[Step | None]) -> Step | None:
    """The first Do among the answers for several purchases, else the earliest Wait."""
    waits: list[Wait] = []
    for step in steps:
        if isinstance(step, Wait):
            waits.append(step)
        elif step is not None:
            return step
    return min(waits, key=lambda w: w.until) if waits else None
