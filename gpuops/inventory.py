"""Reconciliation: what the provider lists against what the journal knows, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpuops.codec import to_json
from gpuops.hits import judge
from gpuops.marks import new_nonce
from gpuops.policy import Policy
from gpuops.purchase import MAY_BILL, Purchase
from gpuops.spec import Checks, Outputs, Spec, Teardown, Train
from gpuops.state import RunState, host_deadline
from gpuops.steps import fact
from gpuops.units import instant
from gpuops.values import (
    Billable,
    Check,
    Created,
    Device,
    Event,
    Gap,
    Mark,
    Money,
    Need,
    Observation,
    Offer,
    RunId,
    Time,
)

Class = Literal["pending", "retained", "expired", "orphaned", "another operator's", "foreign", "clone", "damaged mark"]
OURS_UNWANTED: frozenset[str] = frozenset({"expired", "orphaned", "clone"})


@dataclass(frozen=True)
class Line:
    """One item of the reconcile table."""

    item: Billable
    cls: Class
    run: RunId
    purchase: str
    why: str
    yours: bool = False
    """Marked by this owner, and not known to this journal: of another home, or of a journal that was lost."""


def classify(
    items: Iterable[Billable], states: Iterable[RunState], now: Time, policy: Policy, owner: str = ""
) -> tuple[Line, ...]:
    """Say for every listed item whose it is and whether it should be there; `owner` is who asks."""
    known = list(states)
    lines = (_line(item, known, now, policy) for item in items)
    return tuple(_told_apart(line, owner) for line in lines)


def _told_apart(line: Line, owner: str) -> Line:
    """Another operator may be the same person: at another home, or before the journal was lost."""
    mark = line.item.mark
    if line.cls != "another operator's" or mark is None or not owner or mark.owner != owner:
        return line
    why = line.why.replace(f"owner {owner}", f"yours ({owner}), unknown to this journal", 1)
    return replace(line, yours=True, why=why)


def unlisted(items: Iterable[Billable], states: Iterable[RunState]) -> tuple[tuple[RunState, Purchase], ...]:
    """Purchases that may bill and that no listing shows: the other difference."""
    refs = {item.ref for item in items}
    return tuple((s, p) for s in states for p in s.may_bill if p.ref not in refs)


def known_gap(provider: str, gap: Gap, known: Iterable[Mapping[str, str]], now: Time) -> bool:
    """Whether the user has said that this gap is known; an expired word no longer counts."""
    for word in known:
        fits = all(
            word.get(key, "*") in ("*", value)
            for key, value in (("provider", provider), ("region", gap.region), ("kind", gap.kind))
        )
        try:
            until = instant(word.get("until", ""))
        except ValueError:
            continue
        if fits and word.get("reason") and now < until:
            return True
    return False


def _line(item: Billable, states: list[RunState], now: Time, policy: Policy) -> Line:
    known = [(s, p) for s in states for p in s.purchases.values()]
    for s, p in known:
        if p.ref == item.ref:
            return _known(item, s, p, now)
    if item.damaged:
        return Line(item, "damaged mark", "", "", "the check characters of the mark do not fit: nothing is done")
    for s, p in known:
        if p.nonce == item.nonce and p in s.intents and item.nonce:
            hit = judge(s, p, item, policy)
            if hit == "part" and not s.closed:
                return Line(item, "pending", s.run, p.id, "made for this purchase: it ends after it")
            if not item.bills:
                return Line(item, "pending", s.run, p.id, "ended; still shown, free")
            if hit == "part":
                return Line(item, "orphaned", s.run, p.id, "made for a purchase that is over")
            if hit == "clone":
                return Line(item, "clone", s.run, p.id, "carries our mark but was not made by our create call")
            return Line(item, "orphaned", s.run, p.id, "made by a create call of ours and not yet recorded")
    if item.mark is None:
        return Line(item, "foreign", "", "", "no mark of gpuops")
    if not item.bills:
        return Line(item, "another operator's", item.mark.run, "", f"owner {item.mark.owner}, ended; still shown, free")
    if now <= item.mark.limit_at:
        return Line(item, "another operator's", item.mark.run, "", f"owner {item.mark.owner}, before its limit")
    return Line(item, "orphaned", item.mark.run, "", f"owner {item.mark.owner}, past the limit in its mark")


def _known(item: Billable, s: RunState, p: Purchase, now: Time) -> Line:
    if p.life == "retained":
        until = p.retained_until or 0.0
        kind: Class = "retained" if now < until or not item.bills else "expired"
        return Line(item, kind, s.run, p.id, f"kept on purpose: {p.retained_why}")
    if p.life in MAY_BILL and not s.closed:
        return Line(
            item, "pending", s.run, p.id, f"run is {s.phase}" + (", going down" if s.wanted == "closed" else "")
        )
    if not item.bills:
        return Line(item, "pending", s.run, p.id, "ended; still shown, free")
    return Line(item, "orphaned", s.run, p.id, f"the journal says {p.life}, but it bills")


@dataclass(frozen=True)
class Found:
    """What a look at a rental to be adopted found. `boot_id` is empty where its training could not be asked."""

    observation: Observation
    fingerprint: str = ""
    route: str = ""
    boot_id: str = ""


def adopt(
    item: Billable, spec: Spec, now: Time, seed: bytes, *, launched: bool, found: Found | None = None
) -> tuple[RunId, tuple[Event, ...]]:
    """Events that rebuild a run from what a rental carries: its mark, and the spec that its host kept.

    The rental is taken on as it is; nothing is bought for an adopted run. `launched`: training may have written
    something, so that it ends only after a verified copy.
    """
    mark = item.mark or Mark("adopted", item.nonce, spec.owner, now)
    offer = Offer(
        "adopted", item.ref.provider, item.ref.account, item.ref.region, item.ref.kind, Device("", 0, 0), item.rate, 1,
        now, "listing",
    )  # fmt: skip
    limit = mark.limit_at
    planned = fact(
        "planned", None, spec=to_json(spec), seed=new_nonce(seed), plan={}, plan_digest="adopted", offer=to_json(offer),
        deadline=limit - spec.hold_s, limit=limit, account=item.ref.account, adopted=True,
    )  # fmt: skip
    intended = fact(
        "intended", "p1", mark=to_json(mark), offer=to_json(offer), member=0, send_before=item.since or now,
        deadline=limit - spec.hold_s, limit=limit,
    )  # fmt: skip
    created = fact("created", "p1", created=to_json(Created(item.ref, item.since, item.rate)), via="search")
    events = [planned, intended, created]
    if found is not None:
        events.append(fact("observed", "p1", observation=to_json(found.observation)))
    if found is not None and found.fingerprint:
        key = Check("host key", found.fingerprint, found.fingerprint, True)
        events.append(fact("pinned", "p1", fingerprint=found.fingerprint, route=found.route))
        events.append(fact("checked", "p1", checks=[to_json(key)], facts={}, boot_id=found.boot_id))
    if launched:
        events += [fact("launching", "p1"), fact("layer", "p1", name="mark", grade="read back", at=limit)]
    if launched and found is not None and found.boot_id:
        at = host_deadline(limit - spec.hold_s, spec.train.grace_s)
        events.append(fact("launched", "p1", boot_id=found.boot_id))
        events.append(fact("layer", "p1", name="host deadline", grade="declared", at=at))
    return mark.run, tuple(events)


def blind_spec(item: Billable, owner: str, destination: str = "/nonexistent", setup_s: float = 0) -> Spec:
    """A spec for a rental of which nothing but the mark is known: enough to end it and to prove that it is gone.

    `setup_s`: how long it may stay ready without being launched.
    """
    return Spec(
        name=(item.mark.run if item.mark else "adopted")[:40], owner=owner, provider=item.ref.provider, need=Need(""),
        image="", disk_gb=0, volumes=(), checks=Checks(), transfers=(), max_total_bytes=0, inputs_sha256="", env=(),
        secrets=(), train=Train((), "/"), outputs=Outputs("/nonexistent", destination, mirror=False),
        cap=Money(item.rate.amount * 0, item.rate.currency), deadline_s=0, deadline_at=0, hold_s=0, setup_s=setup_s,
        teardown=Teardown(),
    )  # fmt: skip
