"""Prove gone: inspect and a complete listing agree, in two rounds a gap apart. 404 alone proves nothing."""

from __future__ import annotations

from functools import partial

from gpuops.hits import gaps, read_listing
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, announce, bounded, fact, first_due
from gpuops.values import Event, Inventory, Observation, Scope, Time


def prove_gone(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Run proof rounds for what was asked to end or is said to have ended."""
    return first_due(_one(s, p, now, policy) for p in s.purchases.values() if p.life in ("ending", "ended_elsewhere"))


def proved(p: Purchase, policy: Policy) -> bool:
    """Two good rounds in a row, at least the gap apart."""
    good = [r for r in p.proofs if r.ok]
    return len(good) >= 2 and good[-1].at - good[0].at >= policy.proof_gap_s


def _one(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    asked_at = p.terminated_at
    if p.life == "ending" and asked_at is None:
        # the request must go out first; one that always fails must not stand in the way of seeing that it is gone
        failed = s.failures("terminate", p.id)
        if failed is None:
            return None
        asked_at = failed.at
    if proved(p, policy):
        first = next(r for r in p.proofs if r.ok)
        said = f"{p.ref} is gone: two rounds {p.proofs[-1].at - first.at:.0f} s apart"
        decision = fact("gone", p.id, at=first.at)
        if p.observation is not None and p.observation.state == "refused":
            reason = p.observation.reason or "refused after the create call"
            decision = fact("refused", p.id, reason=reason, why=p.observation.refusal)
        return Do("prove_gone", announce("info", said), bounded(now, policy.call_s), p.id, decision)
    if p.proofs and p.proofs[-1].ok:
        due = p.proofs[-1].at + policy.proof_gap_s
    elif p.proofs:
        # while it ends the looks stay close together; what does not end is looked at ever more seldom
        patience = p.rounds - policy.proof_soon
        due = p.proofs[-1].at + policy.backoff(max(p.terminates, 1, patience), policy.proof_every_s)
    else:
        due = (asked_at or now) + policy.proof_every_s[0] if p.life == "ending" else now
    due = max(due, s.due("prove_gone", policy, p.id))
    visible = s.visible_from(p, policy)
    if due > now:
        return Wait(due, "proving that the rental is gone")
    return Do("prove_gone", partial(_round, visible=visible, policy=policy), bounded(now, policy.call_s), p.id)


def _round(ports: Ports, s: RunState, do: Do, visible: Time, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    if p.ref is None:
        return (fact("proof", p.id, ok=False, why="no ref"),)
    provider = ports.providers(s.spec.provider)
    seen = provider.inspect(p.ref, do.until)
    if p.life == "ended_elsewhere" and seen.state in ("starting", "running", "stopped"):
        return (fact("reappeared", p.id, state=seen.state),)
    inventory = provider.list_billable(Scope((p.ref.kind,), (p.ref.region,)), do.until)
    events = read_listing(ports, s, inventory, policy)
    looked_at = ports.clock.now()
    # a refusal is the provider's word on the create call itself, not on what a listing may not show yet
    late = looked_at < visible and seen.state != "refused"
    why = doubt(p, seen, inventory, any(e.kind == "created" for e in events)) or (
        "it may not be visible yet" if late else ""
    )
    return (*events, fact("proof", p.id, ok=not why, why=why, at=looked_at, state=seen.state, raw=seen.raw_state))


def doubt(p: Purchase, seen: Observation, inventory: Inventory, again: bool) -> str:
    """Why one round does not prove that `p` is gone; empty when it does. `again`: its nonce showed up on something new."""
    if seen.state not in ("absent", "terminal", "refused"):
        return f"the provider says {seen.state} ({seen.raw_state})"
    if seen.bills:
        return f"it still bills for {', '.join(seen.bills)}"
    if inventory.gaps:
        return f"the listing has gaps: {gaps(inventory)}"
    for item in inventory.items:
        if item.ref == p.ref and item.bills:
            return f"the listing still shows it, billing for {', '.join(item.bills)}"
    return "the listing shows another rental from the same create call" if again else ""
