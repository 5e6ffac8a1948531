"""Mirror: copy published generations while training runs, because a lost host cannot be sealed."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.copying import copy_slice
from gpuops.errors import CopyError, HostError, Unreachable
from gpuops.fitting import copies_fit
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase, Work
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Event, Generation, Time


def mirror(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Copy the newest complete generation of a running training when it has no copy yet; finish one that was begun."""
    p = s.rental
    if p is None or p.life != "created" or s.wanted == "closed" or not s.spec.outputs.mirror:
        return None
    work = p.work
    if work.launched_at is None or work.outcome or work.status is None or p.endpoint is None:
        return None
    target = _target(work)
    if not target:
        return None
    sliced = s.failures("mirror", p.id)
    due = max((work.mirrored_at or work.launched_at) + policy.mirror_every_s, s.due("mirror", policy, p.id))
    if due > now:
        return Wait(due, "mirroring the newest generation" if sliced is None else "mirroring again")
    failed = (
        sliced is not None and sliced.failures > 0
    )  # that another process had the lock says nothing about the hashes
    if work.hashed is None or work.hashed.id != target or failed:
        # hashed once and then copied slice by slice; after a failure the hashes themselves are in doubt. A cut pass starts
        # over, so the next one gets twice the time
        slice_s = policy.bulk_slice_s * 2 ** min(sliced.failures if sliced else 0, 6)
        until = bounded(now, slice_s, s.limit, s.teardown_at(policy))
        return Do("mirror", partial(_hash, target=target, policy=policy), until, p.id, detail=f"hashing {target}")
    until = bounded(now, policy.bulk_slice_s, s.limit, s.teardown_at(policy))
    return Do("mirror", partial(_mirror, generation=work.hashed), until, p.id, detail=f"mirroring {target}")


def _target(work: Work) -> str:
    """The generation that was begun with, by hashing it or by its first slice, as long as the host has it; else the newest.

    A program that publishes faster than the line can carry would otherwise never get one copy complete. What is damaged
    comes last: the newest whole one is what a lost host would be missed for.
    """
    published = work.status.generations if work.status else ()
    complete = tuple(g for g in published if g not in work.passed_over) or published
    for begun in (work.slicing, work.hashed.id if work.hashed is not None else ""):
        if begun in complete and begun not in work.copied:
            return begun
    return "" if not complete or complete[-1] in work.copied else complete[-1]


def _hash(ports: Ports, s: RunState, do: Do, target: str, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    if p.endpoint is None:
        raise Unreachable("the rental has no address")
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("mirror", "another process of this computer is copying", p.id, busy=True),)
        try:
            generation = ports.host.hash_generation(s.run, p.endpoint, s.spec, target, do.until)
        except Unreachable:
            raise
        except HostError as error:
            return (fact("passed_over", p.id, generation=target), attempted("mirror", error.message, p.id))
    return (fact("hashed", p.id, generation=to_json(generation)), *_foreseen(ports, s, p, generation, policy))


def _foreseen(ports: Ports, s: RunState, p: Purchase, generation: Generation, policy: Policy) -> tuple[Event, ...]:
    """A word to a person, once, when the first generation shows that copies of its size will not fit."""
    if p.work.hashed is not None or p.work.copied:
        return ()
    try:
        free = ports.store.free_bytes(s.spec.outputs.destination)
    except CopyError:  # the copy itself will say so
        return ()
    checks = copies_fit(generation.bytes, s, ports.clock.now(), policy, free)
    wrong = "; ".join(f"{c.name}: {c.expected} needed, {c.seen}" for c in checks if not c.ok)
    if not wrong:
        return ()
    said = f"the checkpoints are larger than foreseen: {wrong}. Make room at {s.spec.outputs.destination}, or: gpuops extend"
    ports.notify(s.run, "warning", said)
    return (fact("alarm", p.id, message=said),)


def _mirror(ports: Ports, s: RunState, do: Do, generation: Generation) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("mirror", "another process of this computer is copying", p.id, busy=True),)
        return copy_slice(ports, s, p, generation, do.until, "mirror")
