"""Seal: stop at an update boundary, leave nothing writing, and hash what is complete, on the host."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import HostError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import HELD, Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact, first_due
from gpuops.values import Event, Time


def seal(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Seal the work of a launched rental once the run is to close, or at once where it came back after being replaced."""
    return first_due(_one(s, p, now, policy) for p in s.intents if p.replaced_at is not None or s.wanted == "closed")


def _one(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    if p.life not in HELD or p.work.launching_at is None or p.work.sealed is not None or p.work.forced:
        return None
    due = s.due("seal", policy, p.id)
    if due > now:
        return Wait(due, "sealing again")
    # a cut seal starts over, so the next one gets twice the time: a large checkpoint is hashed in one pass
    failed = s.failures("seal", p.id)
    slice_s = s.spec.train.grace_s + policy.seal_extra_s * 2 ** min(failed.failures if failed else 0, 6)
    return Do("seal", partial(_seal, late=now >= s.deadline), bounded(now, slice_s, s.limit), p.id)


def _seal(ports: Ports, s: RunState, do: Do, late: bool) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("seal", "another process of this computer is sealing", p.id, busy=True),)
        try:
            if p.endpoint is None:
                raise HostError("the rental has no address")
            if not s.spec.train.argv:
                # adopted while its host did not tell what runs there: sealing blindly would find nothing and lose it
                spec = ports.host.recall(s.run, p.endpoint, do.until)
                if spec is not None:
                    return (fact("recalled", p.id, spec=to_json(spec)),)
            sealed = ports.host.seal(s.run, p.endpoint, s.spec, do.until)
        except HostError as error:
            failed = attempted("seal", error.message, p.id)
            # before the deadline there is time to try again; after it, or when the provider says that nothing runs, it is said
            if (late or not p.running) and not p.work.unreachable:
                newest = p.work.status.generations[-1:] if p.work.status else ()
                ports.notify(s.run, "alarm", f"the host cannot be sealed: {error.message}")
                return (failed, fact("unreachable", p.id, why=error.message, newest=list(newest)))
            return (failed,)
    return (fact("sealed", p.id, sealed=to_json(sealed)),)
