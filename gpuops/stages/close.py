"""Close: when nothing can bill any more, a complete listing of what the run's intents touched says so."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.hits import gaps, read_listing
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import TellsCharges
from gpuops.purchase import FINAL
from gpuops.state import RunState
from gpuops.steps import Closed, Do, Step, Wait, again_until, announce, attempted, bounded, fact
from gpuops.values import Event, Money, Scope, Time


def close(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Reconcile once every purchase is final, and close when the listing is complete and shows nothing of ours."""
    if s.closed:
        return Closed(s.cause)
    if s.wanted != "closed" or any(p.life not in FINAL for p in s.purchases.values()):
        return None
    # told by the order of records: a wish that was made by a wrong clock may lie ahead
    if not s.purchases or s.reconciled_seq > max([s.wanted_seq, *(p.final_seq for p in s.purchases.values())]):
        unproven = [p.id for p in s.purchases.values() if p.life == "unproven"]
        said = "closed, purchase unproven" if unproven else "closed"
        decision = fact("closed", None, how=said, spent=to_json(s.spent(now)))
        return Do(
            "close", announce("warning" if unproven else "info", said), bounded(now, policy.call_s), decision=decision
        )
    if s.due("close", policy, table=policy.close_every_s) > now:
        return Wait(s.due("close", policy, table=policy.close_every_s), "reconciling again")
    return Do("close", partial(_reconcile, policy=policy), bounded(now, policy.call_s))


def _reconcile(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    provider = ports.providers(s.spec.provider)
    regions = tuple(sorted({p.offer.region for p in s.purchases.values()}))
    kinds = ("rental", *provider.traits.made_kinds, *provider.traits.free_kinds)
    inventory = provider.list_billable(Scope(kinds, regions), do.until)
    events = list(read_listing(ports, s, inventory, policy))
    if inventory.gaps:
        return (*events, attempted("close", f"the listing is not complete: {gaps(inventory)}"))
    if any(e.kind in ("created", "part", "reappeared") for e in events):
        return tuple(events)
    billed: dict[str, object] = {}
    if isinstance(provider, TellsCharges):
        try:
            billed = _billed(s, provider, ports.clock.now(), again_until(ports, do, policy.call_s))
        except Exception as error:  # what was billed is shown beside what accrued; it never holds up the close
            events.append(fact("notified", None, level="warning", message=f"charges could not be read: {error}"))
    return (*events, fact("reconciled", None, items=[to_json(i.ref) for i in inventory.items], gaps=[], billed=billed))


def _billed(s: RunState, provider: TellsCharges, now: Time, until: Time) -> dict[str, object]:
    start = min(p.intended_at for p in s.purchases.values())
    charges = provider.charges(start, now, until)
    billed: dict[str, object] = {}
    for p in s.purchases.values():
        # some vendors tell charges by tag only: then all that was made under the nonce stands beside its intent
        lines = [c.amount for c in charges if c.ref == p.ref] or [
            c.amount for c in charges if c.nonce == p.nonce and p in s.intents
        ]
        if lines:
            billed[p.id] = to_json(Money(sum((m.amount for m in lines), start=lines[0].amount * 0), lines[0].currency))
    return billed
