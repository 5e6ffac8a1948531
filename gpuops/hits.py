"""What a listed item with our nonce means for a purchase: ours, a duplicate of one create call, or a clone of our mark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpuops.codec import to_json
from gpuops.errors import ProviderError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import fact
from gpuops.values import Billable, Created, Event, Inventory

Hit = Literal["ours", "again", "duplicate", "part", "clone", "damaged", "known"]

_CLOCK_ROUNDING_S = 5.0
"""Vendors round created-at to seconds and their clocks differ a little from their own response dates."""


def judge(s: RunState, purchase: Purchase, item: Billable, policy: Policy) -> Hit:
    """Say what `item`, which carries the nonce of `purchase`, is.

    ours: the purchase has no ref yet, and this can come from its create call. again: it was proved gone and bills again.
    duplicate: a second machine from the same create call, to be ended. part: of another kind, made for it. clone: not
    certainly made by the create call, so somebody may have copied our mark; it is never touched. damaged: the check
    characters do not fit, nothing is done. known: nothing new.
    """
    for other in s.purchases.values():
        if other.ref == item.ref:
            return "again" if other.life in ("gone", "refused") and item.bills else "known"
    if item.damaged:
        return "damaged"
    # an intent may have been decided by a clock that is wrong by as much as is borne; nobody can carry its nonce before it
    start = purchase.intended_at - policy.clock_warn_s - _CLOCK_ROUNDING_S
    end = purchase.send_before + policy.twin_horizon_s
    dated = item.since is not None and start <= item.since <= end
    if item.ref.kind != "rental":
        # what costs nothing is named by the nonce alone; a disk may be that of somebody's clone
        return "part" if dated or not item.bills else "clone"
    if item.since is not None and not dated:
        return "clone"
    if purchase.ref is None:
        return "ours"
    # what cannot be dated may be anybody's: only what certainly came from the create call is ended
    return "duplicate" if item.since is not None else "clone"


def listed_events(s: RunState, items: Iterable[Billable], policy: Policy) -> tuple[Event, ...]:
    """Facts that follow from a listing: what was found again, what is a duplicate, and an alarm for each clone.

    Several hits for one purchase that has no ref: the oldest is ours, the others are duplicates; the fold tells them apart.
    """
    events: list[Event] = []
    for item in sorted(items, key=lambda i: (i.since is None, i.since or 0.0, str(i.ref))):
        for purchase in [p for p in s.intents if p.nonce == item.nonce]:
            hit = judge(s, purchase, item, policy)
            if hit in ("ours", "duplicate"):
                created = to_json(Created(item.ref, item.since, item.rate))
                events.append(fact("created", purchase.id, created=created, via="search"))
            elif hit == "part":
                rate = to_json(item.rate.times(1 if item.bills else 0))
                events.append(fact("part", purchase.id, ref=to_json(item.ref), rate=rate, via="search"))
            elif hit == "again":
                owner = next(p for p in s.purchases.values() if p.ref == item.ref)
                events.append(fact("reappeared", owner.id))
                message = _ALARMS["again"].format(ref=item.ref)
                if message not in s.alarms:
                    events.append(fact("alarm", owner.id, message=message, ref=to_json(item.ref)))
            elif hit in ("clone", "damaged"):
                message = _ALARMS[hit].format(ref=item.ref)
                if message not in s.alarms:
                    events.append(fact("alarm", purchase.id, message=message, ref=to_json(item.ref)))
    return tuple(events)


def read_listing(ports: Ports, s: RunState, inventory: Inventory, policy: Policy) -> tuple[Event, ...]:
    """Everything that a listing tells about a run, a person told of each new alarm. What is missing is not judged here."""
    if inventory.account != s.account:
        # a complete, empty listing of somebody else's account would turn "unknown" into "gone"
        raise ProviderError(f"the credentials now belong to account {inventory.account}, the run is on {s.account}")
    if inventory.provider_time is not None:
        ports.clock.learn(inventory.provider_time)
    shown = {item.ref for item in inventory.items}
    first = [fact("shown", p.id) for p in s.purchases.values() if p.listed_at is None and p.ref in shown]
    events = listed_events(s, inventory.items, policy)
    for event in events:
        if event.kind == "alarm":
            ports.notify(s.run, "alarm", event.data["message"])
    return (*first, *events)


def gaps(inventory: Inventory) -> str:
    """The gaps of a listing in words; empty when it is complete."""
    return "; ".join(f"{g.region}/{g.kind}: {g.reason}" for g in inventory.gaps)


_ALARMS: dict[str, str] = {
    "again": "{ref} was proved gone and bills again: it is ended anew, and what it costs may come on top of the cap",
    "clone": "{ref} carries this run's mark but was not made by it: look at it, end it yourself if it is yours",
    "damaged": "{ref} carries this run's mark, but its check characters do not fit: look at it; nothing is done to it",
}
