"""Terminate: ask for the end of what must end, again and again, until the proof says that it is gone."""

from __future__ import annotations

from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import FINAL, Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, bounded, fact, first_due
from gpuops.values import Event, Time


def terminate(s: RunState, now: Time, policy: Policy) -> Step | None:
    """End duplicates and late finds at once; the run's rental when it is to close and its work is copied or forced."""
    return first_due(_one(s, p, now, policy) for p in s.purchases.values())


def _one(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    if p.life in ("created", "ended_elsewhere"):
        return _decide(s, p, now, policy)
    if p.life != "ending":
        return None
    due = s.due("terminate", policy, p.id)
    if p.terminated_at is not None:
        due = max(due, p.terminated_at + policy.backoff(p.terminates, policy.resend_every_s))
    if due > now:
        return Wait(due, "asking the provider again to end the rental")
    return Do("terminate", _send, bounded(now, policy.call_s), p.id, detail=f"asking again ({p.terminates})")


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
    return Do("terminate", _send, bounded(now, policy.call_s), p.id, fact("ending", p.id, cause=cause))


def _send(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    ref = s.purchases[do.purchase or ""].ref
    if ref is not None:
        ports.providers(s.spec.provider).terminate(ref, do.until)
    return (fact("terminated", do.purchase),)
