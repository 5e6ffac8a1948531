"""Terminate: ask for the end of what must end, again and again, until the proof says that it is gone."""

from __future__ import annotations

from functools import partial

from gpuops.errors import GpuopsError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import FINAL, Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, announce, attempted, bounded, fact, first_due
from gpuops.values import Event, Time


def terminate(s: RunState, now: Time, policy: Policy) -> Step | None:
    """End duplicates and late finds at once; the run's rental when it is to close and its work is copied or forced."""
    return first_due(_one(s, p, now, policy) for p in s.purchases.values())


def _one(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    if p.life in ("created", "ended_elsewhere"):
        return _decide(s, p, now, policy)
    if p.life != "ending":
        return None
    if p.free and _tried_enough(s, p, policy):
        said = f"{p.ref} costs nothing and could not be removed: remove it yourself"
        return Do(
            "terminate", announce("alarm", said), bounded(now, policy.call_s), p.id, fact("unproven", p.id, why=said)
        )
    due = s.due("terminate", policy, p.id)
    if p.terminated_at is not None:
        due = max(due, p.terminated_at + policy.backoff(p.terminates, policy.resend_every_s))
    if due > now:
        return Wait(due, "asking the provider again to end the rental")
    send = partial(_send, policy=policy)
    return Do("terminate", send, bounded(now, policy.call_s), p.id, detail=f"asking again ({p.terminates})")


def _tried_enough(s: RunState, p: Purchase, policy: Policy) -> bool:
    """A day is over, and it was tried often, also since: a computer that slept through that day has not tried."""
    failed = s.failures("terminate", p.id)
    asked_at = max(p.terminated_at or 0.0, failed.at if failed else 0.0)
    return (
        p.ending_at is not None
        and asked_at >= p.ending_at + policy.search_end_s
        and _asked(s, p) >= policy.give_up_attempts
    )


def _asked(s: RunState, p: Purchase) -> int:
    failed = s.failures("terminate", p.id)
    return p.terminates + (failed.failures if failed else 0)


def _decide(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    if p.part_of:
        if s.purchases[p.part_of].life not in FINAL:
            return None
        cause = f"{p.part_of} is over"
    elif p.twin_of:
        cause = f"duplicate of {p.twin_of}"
    elif p in s.surplus:
        cause = "found late: the run works on another rental"
    elif p.replaced_at is not None and p.work.safe_to_end:
        cause = "it came back after it was replaced"
    elif s.wanted == "closed" and p.work.safe_to_end:
        cause = f"forced: {p.work.forced}" if p.work.forced else s.cause
    else:
        return None
    send = partial(_send, policy=policy)
    return Do("terminate", send, bounded(now, policy.call_s), p.id, fact("ending", p.id, cause=cause))


def _send(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    told = _tell(ports, s, p, _asked(s, p), policy)
    try:
        if p.ref is not None:
            ports.providers(s.spec.provider).terminate(p.ref, do.until)
    except GpuopsError as error:
        return (*told, attempted("terminate", error.message, p.id))
    return (*told, fact("terminated", p.id))


def _tell(ports: Ports, s: RunState, p: Purchase, asked: int, policy: Policy) -> tuple[Event, ...]:
    """An alarm, once, when asking led to nothing so often that something is wrong."""
    said = f"{p.ref} was asked to end {policy.alarm_after} times and is not proved gone: look at the provider's console"
    if asked < policy.alarm_after or said in s.alarms or p.free:
        return ()
    ports.notify(s.run, "alarm", said)
    return (fact("alarm", p.id, message=said),)
