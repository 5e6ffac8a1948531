"""What a listed item with our nonce means for a purchase: ours, a duplicate of one create call, or a clone of our mark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpuops.codec import to_json
from gpuops.policy import Policy
from gpuops.state import Purchase, RunState
from gpuops.steps import fact
from gpuops.values import Billable, Created, Event

Hit = Literal["ours", "again", "duplicate", "clone", "known"]

_CLOCK_ROUNDING_S = 5.0
"""Vendors round created-at to seconds and their clocks differ a little from their own response dates."""


def judge(s: RunState, purchase: Purchase, item: Billable, policy: Policy) -> Hit:
    """Say what `item`, which carries the nonce of `purchase`, is.

    ours: the purchase has no ref yet, and this can come from its create call. again: it was proved gone and bills again.
    duplicate: a second machine from the same create call, to be ended. clone: made outside the window of the create call, so
    somebody copied our mark; it is never touched. known: nothing new.
    """
    for other in s.purchases.values():
        if other.ref == item.ref:
            return "again" if other.life == "gone" and item.bills else "known"
    start, end = purchase.intended_at - _CLOCK_ROUNDING_S, purchase.send_before + policy.twin_horizon_s
    if item.since is not None and not start <= item.since <= end:
        return "clone"
    return "ours" if purchase.ref is None else "duplicate"


def listed_events(s: RunState, items: Iterable[Billable], policy: Policy) -> tuple[Event, ...]:
    """Facts that follow from a listing: what was found again, what is a duplicate, and an alarm for each clone.

    Several hits for one purchase that has no ref: the oldest is ours, the others are duplicates; the fold tells them apart.
    """
    events: list[Event] = []
    for item in sorted(items, key=lambda i: (i.since is None, i.since or 0.0, str(i.ref))):
        for purchase in [p for p in s.purchases.values() if p.nonce == item.nonce and not p.twin_of]:
            hit = judge(s, purchase, item, policy)
            if hit in ("ours", "duplicate"):
                created = to_json(Created(item.ref, item.since, item.rate))
                events.append(fact("created", purchase.id, created=created, via="search"))
            elif hit == "again":
                owner = next(p for p in s.purchases.values() if p.ref == item.ref)
                events.append(fact("reappeared", owner.id))
            elif hit == "clone":
                message = f"{item.ref} carries this run's mark but was not made by it: look at it, end it yourself if it is yours"
                events += (
                    [] if message in s.alarms else [fact("alarm", purchase.id, message=message, ref=to_json(item.ref))]
                )
    return tuple(events)
