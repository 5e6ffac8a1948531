"""Copy: bring sealed generations and telemetry to independent storage, verify from disk, publish by one rename."""

from __future__ import annotations

from gpuops.copying import copy_slice, prune
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded
from gpuops.values import Event, Time


def copy(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Copy what is sealed and has no verified copy, newest first, in slices."""
    p = s.rental
    if p is None or p.life != "created" or not p.work.to_copy or p.work.forced:
        return None
    due = s.due("copy", policy, p.id)
    if due > now:
        return Wait(due, "copying again")
    what = p.work.to_copy[0].id
    return Do("copy", _copy, bounded(now, policy.bulk_slice_s, s.limit), p.id, detail=f"copying {what}")


def _copy(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    generation = p.work.to_copy[0]
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("copy", "another process of this computer is copying", p.id, busy=True),)
        events = copy_slice(ports, s, p, generation, do.until, "copy")
        newest = p.work.sealed.generations[0].id if p.work.sealed and p.work.sealed.generations else ""
        if events[-1].kind == "copied" and len(p.work.to_copy) == 1:
            events += prune(ports, s, p, newest)
    return events
