"""Move the end: bring every layer to the moment that is wanted, and only then let an extension count.

The journal's limit is never later than any blind layer's. To extend: decide, move and read back each layer, then append
`extended`. To shorten: the journal first (the command appends `shortened`), then the layers follow here.
"""

from __future__ import annotations

from functools import partial

from gpuops.errors import ProviderError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import MovesEnd, MovesMark
from gpuops.purchase import Purchase
from gpuops.state import BLIND_LAYERS, RunState, host_deadline
from gpuops.steps import Do, Step, Wait, announce, bounded, fact
from gpuops.values import Event, Time

_SAME_S = 1.5
"""Vendors keep whole seconds."""


def move_end(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Move the first layer that is not where it should be; append `extended` when all are."""
    p = s.rental
    if p is None or p.life != "created" or s.wanted == "closed":
        return None
    limit = s.extension.limit if s.extension else s.limit
    deadline = s.extension.deadline if s.extension else s.deadline
    targets = dict.fromkeys(BLIND_LAYERS, limit) | {"host deadline": host_deadline(deadline, s.spec.train.grace_s)}
    arming = "provider timer" if to_arm(s, p) else ""
    if s.extension is None:
        # shortened: a timer that cannot move ends it too late and no more; it must not keep the others where they are
        targets["provider timer"] = targets.pop("provider timer")
    for name, target in targets.items():
        layer = s.layers.get(name)
        if name != arming and (layer is None or abs(layer.at - target) <= _SAME_S):
            continue
        due = s.due("move_end", policy, p.id)
        if due > now:
            return Wait(due, f"moving the {name}")
        effect = partial(_move, name=name, target=target)
        return Do("move_end", effect, bounded(now, policy.call_s, s.limit), p.id, detail=f"moving the {name}")
    if s.extension and not p.running:
        return Wait(
            now + policy.inspect_every_s, "extending: the rental must be seen first, with all that would end it"
        )
    if s.extension:
        decision = fact("extended", None, deadline=s.extension.deadline, limit=s.extension.limit)
        return Do("move_end", announce("info", "every layer has moved"), bounded(now, policy.call_s), decision=decision)
    return None


def to_arm(s: RunState, p: Purchase) -> bool:
    """The provider's timer is set after the create call, and was not yet. Not before every volume is seen to be kept."""
    kept = "attach" not in s.after_create or p.work.attached >= {v.id for v in s.spec.volumes}
    return "arm" in s.after_create and p.running and "provider timer" not in s.layers and kept


def _move(ports: Ports, s: RunState, do: Do, name: str, target: Time) -> tuple[Event, ...]:
    p: Purchase = s.purchases[do.purchase or ""]
    if p.ref is None:
        raise ProviderError("the rental has no name yet")
    provider = ports.providers(s.spec.provider)
    if name in ("host deadline", "guest timer"):
        if p.endpoint is None:
            raise ProviderError("the rental has no address yet")
        move = ports.host.set_deadline if name == "host deadline" else ports.host.set_guest_end
        at, grade = move(s.run, p.endpoint, target, do.until), "read back"
    elif name == "mark":
        if not isinstance(provider, MovesMark):
            raise ProviderError("the mark cannot be moved: a sentinel ends the rental at the limit that it names")
        at, grade = provider.set_mark(p.ref, target, do.until), "read back"
    else:
        if not isinstance(provider, MovesEnd):
            raise ProviderError("the provider's timer cannot be moved")
        at, grade = provider.set_end(p.ref, target, do.until), provider.traits.deadline
    if abs(at - target) > _SAME_S:
        raise ProviderError(f"the {name} was moved to {target:.0f} but reads back {at:.0f}")
    return (fact("layer", p.id, name=name, grade=grade, at=at),)
