"""Resolve: a create call whose outcome is unknown is searched for by nonce until it is found or certainly was not sent."""

from __future__ import annotations

from functools import partial

from gpuops.hits import gaps, read_listing
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, announce, attempted, bounded, fact, first_due
from gpuops.values import Event, Scope, Time


def resolve(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Search for every purchase whose create call may have worked."""
    return first_due(_one(s, p, now, policy) for p in s.purchases.values() if p.life in ("intended", "unknown"))


def _one(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step:
    age = now - p.intended_at
    # a computer that slept through the horizon looks once more before it says so
    if age >= policy.search_end_s and (p.searched_at or 0.0) >= p.intended_at + policy.search_end_s:
        message = (
            f"purchase {p.id} was never found and never disproved in {age / 3600:.0f} h: it counts as possibly billing"
        )
        return Do(
            "resolve",
            announce("alarm", message),
            bounded(now, policy.call_s),
            p.id,
            fact("unproven", p.id, why=message),
        )
    every = policy.search_every(age)
    if age >= policy.search_end_s:
        every = policy.search_fast_every_s
    due = max((p.searched_at or p.intended_at) + every, s.due("resolve", policy, p.id))
    if p.life == "unknown" and p.searched_at is None:
        due = s.due("resolve", policy, p.id)
    if due > now:
        return Wait(due, "searching for a rental whose create answer was lost")
    return Do("resolve", partial(_search, policy=policy), bounded(now, policy.call_s), p.id)


def _search(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    began_at = ports.clock.now()
    inventory = ports.providers(s.spec.provider).list_billable(Scope(("rental",), (p.offer.region,)), do.until)
    # by the provider's own clock where it tells: this computer's may be ahead
    asked_at = min(began_at, inventory.provider_time) if inventory.provider_time is not None else began_at
    events = read_listing(ports, s, inventory, policy)
    if any(e.kind == "created" and e.purchase == p.id for e in events):
        return events
    if inventory.gaps:
        return (*events, attempted("resolve", f"the listing is not complete: {gaps(inventory)}", p.id))
    # a guaranteed listing lag and nothing there: no call of ours can have arrived after `send_before` plus its time under way
    if s.listing_lag_s is not None and asked_at > p.send_before + policy.accept_s + s.listing_lag_s:
        return (*events, fact("not_sent", p.id, why="not listed after the provider's guaranteed lag"))
    return (*events, fact("searched", p.id, hits=0))
