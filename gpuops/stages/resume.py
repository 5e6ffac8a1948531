"""Resume: go on with another rental after one was lost, from the newest verified copy, where that was approved."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import CopyError, HostError, Unreachable
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.replacing import newest_copy, replaceable
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, announce, attempted, bounded, fact
from gpuops.values import Copied, Endpoint, Event, Time


def resume(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Decide to go on without a lost rental; bring the copy to the next one before training starts there."""
    lost = replaceable(s, now, policy)
    if lost is not None:
        copy = newest_copy(s)
        number = f"{len(s.replaced) + 1} of at most {s.spec.train.resume}"
        said = (
            f"{lost.ref} was lost; renting another one ({number}), from {copy.generation if copy else 'the beginning'}"
        )
        decision = fact("replaced", lost.id, copy=to_json(copy) if copy else None)
        return Do("resume", announce("warning", said), bounded(now, policy.call_s), lost.id, decision)
    return _restore_due(s, now, policy)


def _restore_due(s: RunState, now: Time, policy: Policy) -> Step | None:
    p = s.rental
    if s.restore is None or p is None or p.life != "created" or s.wanted != "training" or p.endpoint is None:
        return None
    if p.work.sent is None or p.work.restored or p.work.launching_at is not None:
        return None
    failed = s.failures("resume", p.id)
    if failed and failed.final:
        return None
    due = s.due("resume", policy, p.id)
    if due > now:
        return Wait(due, "sending the checkpoint again")
    effect = partial(_restore, endpoint=p.endpoint, copy=s.restore)
    until = bounded(now, policy.transfer_slice_s, s.limit, s.deadline)
    return Do("resume", effect, until, p.id, detail=f"sending {s.restore.generation}")


def _restore(ports: Ports, s: RunState, do: Do, endpoint: Endpoint, copy: Copied) -> tuple[Event, ...]:
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("resume", "another process of this computer is sending", do.purchase, busy=True),)
        try:
            generation = ports.store.load(copy)
            path = ports.host.restore(s.run, endpoint, s.spec, generation, copy.path, do.until)
        except Unreachable as error:
            return (attempted("resume", error.message, do.purchase),)
        except (CopyError, HostError) as error:
            return (attempted("resume", error.message, do.purchase, final=True),)
    return (fact("restored", do.purchase, generation=generation.id, path=path),)
