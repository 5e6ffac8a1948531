"""Observe: look at rentals through the provider and at training through the host. Both are facts, also when they fail."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import GpuopsError
from gpuops.hits import gaps, read_listing
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import Provider
from gpuops.purchase import HELD, Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, again_until, attempted, bounded, fact, first_due
from gpuops.timekeeping import look
from gpuops.values import Event, Observation, Ref, Scope, Time


def observe(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Inspect every rental that runs, ask the host of a launched one how training goes, and compare with a listing."""
    live = [p for p in s.intents if p.life in HELD]
    views = (_inspect, _ask, _survey)
    return first_due(view(s, p, now, policy) for view in views for p in live)


def _inspect(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step:
    every = policy.inspect_every_s if p.running and p.endpoint else policy.allocate_every(now - p.intended_at)
    due = max((p.observed_at or 0.0) + every, s.due("observe", policy, p.id))
    if due > now:
        return Wait(due, "looking at the rental")
    return Do("observe", partial(_look, policy=policy), bounded(now, policy.call_s, s.limit), p.id)


def _look(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    if p.ref is None:
        return ()
    provider = ports.providers(s.spec.provider)
    seen, observed = look(ports, s, p, p.ref, do.until)
    if lost := _lost_timer(s, p, seen):
        ports.notify(s.run, "alarm", lost)
        return (observed, fact("alarm", p.id, message=lost))
    if seen.state in ("terminal", "refused") or (seen.state == "absent" and p.seen_at is not None):
        if _listed(provider, p.ref, again_until(ports, do, policy.call_s)):
            # one word against another: what is listed as billing counts as running, and its work goes on being looked after
            message = f"the provider says {seen.raw_state or seen.state} of {p.ref} and lists it as billing: it counts as running"
            again = p.observation is not None and p.observation.state == seen.state
            return (observed, *((fact("alarm", p.id, message=message),) if again and message not in s.alarms else ()))
        last = p.work.status.generations[-1:] if p.work.status else ()
        copied = sorted(p.work.copied)
        by = seen.reason or f"the provider says {seen.raw_state or seen.state}"
        return (observed, fact("ended_elsewhere", p.id, by=by, newest=list(last), copied=copied))
    twice = seen.state == "stopped" and p.observation is not None and p.observation.state == "stopped"
    if twice and p.work.launched_at is not None and not p.work.outcome:
        # said twice, a look apart: it bills and nothing trains on it
        return (observed, fact("ended", p.id, outcome="interrupted", reason="the provider says stopped"))
    return (observed,)


def _listed(provider: Provider, ref: Ref, until: Time) -> bool:
    """A listing shows it billing; False also when there is none: the proof of its end will need one."""
    try:
        items = provider.list_billable(Scope((ref.kind,), (ref.region,)), until).items
    except GpuopsError:
        return False
    return any(item.ref == ref and item.bills for item in items)


def _lost_timer(s: RunState, p: Purchase, seen: Observation) -> str:
    """A timer that was read back once and is there no more: one layer less, and a person should know."""
    had = p.observation is not None and p.observation.ends_at is not None
    if not had or seen.ends_at is not None or seen.state != "running":
        return ""
    why = f" ({seen.reason})" if seen.reason else ""
    return f"the provider's own timer no longer ends {p.ref}{why}: the guard on this computer must"


def _survey(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step:
    due = p.intended_at + policy.survey_first_s
    if p.surveyed_at is not None:
        due = p.surveyed_at + policy.survey_every_s
    due = max(due, s.due("survey", policy, p.id))
    if due > now:
        return Wait(due, "comparing with a listing")
    return Do("survey", partial(_compare, policy=policy), bounded(now, policy.call_s, s.limit), p.id)


def _compare(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    """Two machines from one create call, or a clone, show up in no look by id."""
    p = s.purchases[do.purchase or ""]
    inventory = ports.providers(s.spec.provider).list_billable(Scope(("rental",), (p.offer.region,)), do.until)
    events = read_listing(ports, s, inventory, policy)
    if inventory.gaps:
        return (*events, attempted("survey", f"the listing is not complete: {gaps(inventory)}", p.id))
    return (*events, fact("surveyed", p.id))


def _ask(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    work = p.work
    if work.launched_at is None or work.sealed is not None or work.outcome:
        return None
    due = max((work.status_at or 0.0) + policy.status_every_s, s.due("status", policy, p.id))
    if due > now:
        return Wait(due, "training")
    return Do("status", _status, bounded(now, policy.call_s, s.limit), p.id)


def _status(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    if p.endpoint is None:
        return (fact("notified", p.id, level="warning", message="the rental has no address"),)
    status = ports.host.status(s.run, p.endpoint, s.spec, do.until)
    facts = [fact("status", p.id, status=to_json(status))]
    if status.boot_id != p.work.boot_id:
        facts.append(fact("ended", p.id, outcome="interrupted", reason="the host restarted"))
    elif status.phase == "missing":
        facts.append(fact("ended", p.id, outcome="interrupted", reason="the supervisor is no longer there"))
    elif status.phase == "ended":
        facts.append(
            fact("ended", p.id, outcome=status.outcome or "ended", exit_code=status.exit_code, reason=status.reason)
        )
    return tuple(facts)
