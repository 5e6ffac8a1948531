"""Copy: bring sealed generations and telemetry to independent storage, verify from disk, publish by one rename."""

from __future__ import annotations

from functools import partial

from gpuops.copying import copy_slice, prune
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import HELD, Purchase
from gpuops.state import RunState, copy_name
from gpuops.steps import Do, Step, Wait, attempted, bounded, first_due
from gpuops.values import Event, Generation, Time


def copy(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Copy what is sealed and has no verified copy, newest first, in slices; one that fails does not hold up the others."""
    held = (p for p in s.intents if p.life in HELD and not p.work.forced)
    return first_due(_one(s, p, g, now, policy) for p in held for g in p.work.to_copy)


def _one(s: RunState, p: Purchase, generation: Generation, now: Time, policy: Policy) -> Step:
    name = copy_name(generation.id)
    due = s.due(name, policy, p.id)
    if due > now:
        return Wait(due, "copying again")
    effect = partial(_copy, generation=generation)
    return Do(name, effect, bounded(now, policy.bulk_slice_s, s.limit), p.id, detail=f"copying {generation.id}")


def _copy(ports: Ports, s: RunState, do: Do, generation: Generation) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted(do.name, "another process of this computer is copying", p.id, busy=True),)
        events = copy_slice(ports, s, p, generation, do.until, do.name)
        newest = p.work.sealed.generations[0].id if p.work.sealed and p.work.sealed.generations else ""
        if events[-1].kind == "copied" and len(p.work.to_copy) == 1:
            events += prune(ports, s, p, newest)
    return events
