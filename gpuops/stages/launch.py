"""Launch: start the supervisor once; from the decision on, the rental may hold work and ends only when it is copied."""

from __future__ import annotations

from gpuops.errors import HostError, Unreachable
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState, host_deadline
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Event, Time


def launch(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Start training once everything was transferred and verified."""
    p = s.rental
    if (
        p is None
        or p.life != "created"
        or s.wanted != "training"
        or p.work.sent is None
        or p.work.launched_at is not None
        or (s.restore is not None and not p.work.restored)
        or not _prepared(s, p)
    ):
        return None
    failed = s.failures("launch", p.id)
    if failed and failed.final:
        return None
    due = s.due("launch", policy, p.id)
    if due > now:
        return Wait(due, "starting training again")
    decision = fact("launching", p.id) if p.work.launching_at is None else None
    return Do("launch", _launch, bounded(now, policy.call_s, s.limit, s.deadline), p.id, decision)


def _prepared(s: RunState, p: Purchase) -> bool:
    """The environment is as expected, and what the probe measured fits."""
    if s.spec.environment is not None and not p.work.environment_ok:
        return False
    if s.spec.train.probe is None or s.restore is not None:
        return True
    return p.work.probed is not None and all(c.ok for c in p.work.probe_checks)


def _launch(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    missing = [name for name in s.spec.secrets if ports.secret(name) is None]
    if missing or p.endpoint is None:
        return (attempted("launch", f"secrets without a value: {', '.join(missing)}", p.id, final=True),)
    secrets = {name: ports.secret(name) or "" for name in s.spec.secrets}
    deadline = host_deadline(s.deadline, s.spec.train.grace_s)
    try:
        started = ports.host.launch(s.run, p.endpoint, s.spec, secrets, deadline, p.work.restored or s.resume, do.until)
    except Unreachable as error:
        return (attempted("launch", error.message, p.id),)
    except HostError as error:
        return (attempted("launch", error.message, p.id, final=True),)
    layer = fact("layer", p.id, name="host deadline", grade="declared", at=deadline)
    return (fact("launched", p.id, boot_id=started.boot_id, how=started.how), layer)
