"""One slice of copying one generation: found, fetched further, or verified and published. Shared by copy and mirror."""

from __future__ import annotations

from gpuops.codec import to_json
from gpuops.errors import CopyError, GpuopsError, Unreachable
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import attempted, fact
from gpuops.values import Event, Generation, Time


def copy_slice(
    ports: Ports, s: RunState, p: Purchase, generation: Generation, until: Time, name: str
) -> tuple[Event, ...]:
    """Bring `generation` closer to a verified copy. A verified generation is never written over."""
    destination = s.spec.outputs.destination
    started = ports.clock.now()
    copied = ports.store.find(s.run, destination, generation)
    if copied is None:
        if p.endpoint is None:
            raise Unreachable("the rental has no address")
        attempt = ports.store.attempt(s.run, destination, generation)
        if not ports.host.fetch(s.run, p.endpoint, s.spec, generation, attempt, until, ports.progress):
            return (fact("sliced", p.id, generation=generation.id),)
        try:
            copied = ports.store.publish(s.run, destination, generation, attempt)
        except CopyError as error:
            ports.store.discard(attempt)
            return (attempted(name, f"{generation.id}: {error.message}", p.id),)
    seconds = max(ports.clock.now() - started, 0.001)
    return (fact("copied", p.id, copied=to_json(copied), seconds=round(seconds, 3)),)


def prune(ports: Ports, s: RunState, p: Purchase, newest: str) -> tuple[Event, ...]:
    """Keep the last n copies, the newest and the best; called only after a newer copy was verified."""
    best = best_generation(p)
    goes_on_from = s.restore.generation if s.restore else ""
    keep = tuple(g for g in (newest, best, goes_on_from, "telemetry") if g)
    try:
        removed = ports.store.prune(s.run, s.spec.outputs.destination, max(s.spec.outputs.keep_last, 1), keep)
    except GpuopsError as error:  # tidying up never costs the record of a verified copy
        return (fact("notified", p.id, level="warning", message=f"old copies were not removed: {error.message}"),)
    return tuple(fact("pruned", p.id, generation=g) for g in removed)


def best_generation(p: Purchase) -> str:
    """The sealed generation with the lowest metric, or an empty string."""
    rated = [g for g in (p.work.sealed.generations if p.work.sealed else ()) if g.metric is not None]
    return min(rated, key=lambda g: g.metric or 0.0).id if rated else ""
