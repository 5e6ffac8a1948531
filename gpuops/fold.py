"""The fold: records in order make a `RunState`. Pure, and tolerant of late facts but not of impossible decisions.

Facts are never refused by the journal, so a fact may arrive after the life it speaks of has moved on (a lost answer that was
found by search in the meantime). Such a fact changes nothing. A decision that does not fit the life tables is a bug and raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gpuops.codec import from_json
from gpuops.errors import GpuopsError
from gpuops.state import (
    PURCHASE_LIFE,
    RUN_LIFE,
    Attempt,
    Extension,
    Layer,
    Life,
    Proof,
    Purchase,
    RunState,
    Work,
    later_wish,
)
from gpuops.values import (
    Check,
    Copied,
    Created,
    HostStatus,
    Mark,
    Money,
    Observation,
    Offer,
    Record,
    Sealed,
    SendList,
    Spec,
)


class ImpossibleTransition(GpuopsError):
    """A decision does not fit the life tables."""


# A success of one of these kinds ends the row of failures of the rule.
_CLEARS: dict[str, tuple[str, ...]] = {
    "preflight": ("buy",),
    "searched": ("resolve",),
    "created": ("resolve", "buy"),
    "observed": ("observe",),
    "checked": ("check_host",),
    "listed": ("transfer",),
    "transferred": ("transfer",),
    "launched": ("launch",),
    "status": ("status",),
    "sealed": ("seal",),
    "copied": ("copy", "mirror"),
    "sliced": ("copy", "mirror"),
    "terminated": ("terminate",),
    "proof": ("prove_gone",),
    "layer": ("move_end",),
    "reconciled": ("close",),
}


def fold(records: Iterable[Record], state: RunState | None = None) -> RunState | None:
    """Apply `records` to `state` (None for a new run). Unknown kinds are kept in the journal and change nothing here."""
    for record in records:
        if record.event.kind == "planned":
            state = _planned(record)
        elif state is None:
            raise ImpossibleTransition(f"run {record.run} begins with '{record.event.kind}', not with 'planned'")
        else:
            state = _apply(state, record)
    return state


def _apply(state: RunState, record: Record) -> RunState:
    kind, before = record.event.kind, state.phase
    handler = _HANDLERS.get(kind)
    if handler is not None:
        state = handler(state, record)
    first = state.first_at if kind in state.first_at else {**state.first_at, kind: record.at}
    state = replace(state, version=record.seq, last_at=max(state.last_at, record.at), first_at=first)
    for rule in _CLEARS.get(kind, ()):
        key = (rule, record.event.purchase or "")
        if key in state.attempts:
            state = replace(state, attempts={k: v for k, v in state.attempts.items() if k != key})
    after = state.phase
    if record.decision and after != before and after not in RUN_LIFE[before] and kind not in ("intended",):
        raise ImpossibleTransition(f"run {state.run}: '{before}' cannot become '{after}' by decision '{kind}'")
    return state


def _planned(r: Record) -> RunState:
    d = r.event.data
    return RunState(
        run=r.run,
        version=r.seq,
        spec=from_json(Spec, d["spec"]),
        seed=d["seed"],
        plan=d.get("plan", {}),
        plan_digest=d["plan_digest"],
        offer=from_json(Offer, d["offer"]),
        planned_at=r.at,
        deadline=d["deadline"],
        limit=d["limit"],
        account=d["account"],
        listing_lag_s=d.get("listing_lag_s"),
        adopted=bool(d.get("adopted")),
        last_at=r.at,
        first_at={"planned": r.at},
    )


# --- changes to one purchase or its work -------------------------------------------------------------------------------


def _purchase(s: RunState, r: Record) -> Purchase:
    purchase = s.purchases.get(r.event.purchase or "")
    if purchase is None:
        raise ImpossibleTransition(f"run {s.run}: '{r.event.kind}' names no known purchase ({r.event.purchase})")
    return purchase


def _put(s: RunState, p: Purchase, **run_changes: Any) -> RunState:
    return replace(s, purchases={**s.purchases, p.id: p}, **run_changes)


def _move(s: RunState, r: Record, life: Life, **changes: Any) -> RunState:
    """Move a purchase along its life table; a late fact changes nothing, a wrong decision raises."""
    p = _purchase(s, r)
    if life not in PURCHASE_LIFE[p.life]:
        if r.decision:
            raise ImpossibleTransition(f"purchase {p.id}: '{p.life}' cannot become '{life}'")
        return s
    return _put(s, replace(p, life=life, **changes))


def _work(s: RunState, r: Record, **changes: Any) -> RunState:
    p = _purchase(s, r)
    return _put(s, replace(p, work=replace(p.work, **changes)))


# --- one function per kind ---------------------------------------------------------------------------------------------


def _wanted(s: RunState, r: Record) -> RunState:
    what, cause = r.event.data["what"], r.event.data.get("cause", "")
    if not later_wish(s.wanted, what):
        return s
    return replace(s, wanted=what, wanted_at=r.at, cause=cause or s.cause)


def _approved(s: RunState, r: Record) -> RunState:
    return replace(s, approved=s.approved | {r.event.data["digest"]})


def _preflight(s: RunState, r: Record) -> RunState:
    d = r.event.data
    return replace(s, preflight_at=r.at, preflight_problem=d.get("problem", ""), preflight_final=bool(d.get("final")))


def _intended(s: RunState, r: Record) -> RunState:
    d = r.event.data
    p = Purchase(
        id=r.event.purchase or "",
        nonce=d["mark"]["nonce"],
        mark=from_json(Mark, d["mark"]),
        offer=from_json(Offer, d["offer"]),
        life="intended",
        intended_at=r.at,
        send_before=d["send_before"],
        member=d.get("member", 0),
    )
    return _put(s, p, deadline=d["deadline"], limit=d["limit"])


def _created(s: RunState, r: Record) -> RunState:
    p, made = _purchase(s, r), from_json(Created, r.event.data["created"])
    changes: dict[str, Any] = {"ref": made.ref, "via": r.event.data.get("via", "answer")}
    if made.created_at is not None:
        changes["created_at"] = made.created_at
    if made.rate is not None:
        changes["rate"] = made.rate
    if r.event.data.get("via") == "search":
        changes["seen_at"] = r.at
    if p.ref == made.ref:
        return s
    if p.ref is None:
        moved = _move(s, r, "created", **changes)
        return replace(moved, closed=False)
    twin_id = f"{p.id}.{made.ref.id}"
    if twin_id in s.purchases:
        return s
    twin = replace(
        p, id=twin_id, life="created", twin_of=p.id, work=Work(), observation=None, observed_at=None, proofs=(),
        terminates=0, terminated_at=None, ending_at=None, gone_at=None, cause="", **changes,
    )  # fmt: skip
    return _put(s, twin, closed=False)


def _observed(s: RunState, r: Record) -> RunState:
    p, seen = _purchase(s, r), from_json(Observation, r.event.data["observation"])
    work = p.work
    if seen.endpoint is not None and work.endpoint_at is None:
        work = replace(work, endpoint_at=r.at)
    if seen.endpoint is None and p.observation is not None and p.observation.endpoint is not None:
        seen = replace(seen, endpoint=p.observation.endpoint)  # a hidden address is no news about where it was
    created_at = p.created_at if p.created_at is not None else seen.created_at
    seen_at = p.seen_at
    if seen_at is None and seen.state not in ("absent", "unknown"):
        seen_at = r.at
    p = replace(p, observation=seen, observed_at=r.at, seen_at=seen_at, work=work, created_at=created_at)
    layers = s.layers
    if seen.ends_at is not None and not p.twin_of:
        grade = str(r.event.data.get("grade", "read back"))
        layers = {**layers, "provider timer": Layer("provider timer", grade, seen.ends_at)}
    s = _put(s, p, layers=layers)
    if seen.state == "refused":
        return _move(s, r, "refused", cause=seen.reason)
    return s


def _ended_elsewhere(s: RunState, r: Record) -> RunState:
    return _move(s, r, "ended_elsewhere", cause=r.event.data.get("by", ""), proofs=())


def _reappeared(s: RunState, r: Record) -> RunState:
    moved = _move(s, r, "created", gone_at=None, proofs=(), terminates=0, terminated_at=None)
    return replace(moved, closed=False)


def _checked(s: RunState, r: Record) -> RunState:
    d = r.event.data
    checks = tuple(from_json(Check, c) for c in d["checks"])
    return _work(s, r, checks=checks, facts=d.get("facts", {}), checked_at=r.at, boot_id=d.get("boot_id", ""))


def _status(s: RunState, r: Record) -> RunState:
    status = from_json(HostStatus, r.event.data["status"])
    first = _purchase(s, r).work.first_update_at
    if first is None and int(status.beat.get("step") or 0) > 0:
        first = r.at
    return _work(s, r, status=status, status_at=r.at, first_update_at=first)


def _ended(s: RunState, r: Record) -> RunState:
    if _purchase(s, r).work.outcome:
        return s
    d = r.event.data
    return _work(
        s, r, outcome=d["outcome"], exit_code=d.get("exit_code"), end_reason=d.get("reason", ""), ended_at=r.at
    )


def _sealed(s: RunState, r: Record) -> RunState:
    sealed, work = from_json(Sealed, r.event.data["sealed"]), _purchase(s, r).work
    changes: dict[str, Any] = {"sealed": sealed, "sealed_at": work.sealed_at or r.at, "unreachable": ""}
    if not work.outcome:
        changes |= {
            "outcome": sealed.outcome,
            "exit_code": sealed.exit_code,
            "end_reason": sealed.reason,
            "ended_at": r.at,
        }
    return _work(s, r, **changes)


def _unreachable(s: RunState, r: Record) -> RunState:
    work = _purchase(s, r).work
    if work.sealed is not None:
        return s
    return _work(
        s, r, unreachable=r.event.data["why"], outcome=work.outcome or "interrupted", ended_at=work.ended_at or r.at
    )


def _copied(s: RunState, r: Record) -> RunState:
    work, d = _purchase(s, r).work, r.event.data
    copied = from_json(Copied, d["copied"])
    seconds = float(d.get("seconds", 0))
    rate = copied.bytes / seconds if seconds > 0 and copied.bytes > 1_000_000 else work.copy_rate
    return _work(
        s, r, copied={**work.copied, copied.generation: copied}, copied_at=r.at, mirrored_at=r.at, copy_rate=rate
    )


def _ending(s: RunState, r: Record) -> RunState:
    return _move(s, r, "ending", cause=r.event.data["cause"], ending_at=r.at, proofs=())


def _terminated(s: RunState, r: Record) -> RunState:
    p = _purchase(s, r)
    return _put(s, replace(p, terminates=p.terminates + 1, terminated_at=r.at))


def _proof(s: RunState, r: Record) -> RunState:
    p, d = _purchase(s, r), r.event.data
    proof = Proof(r.at, bool(d["ok"]), d.get("why", ""))
    # only an unbroken row of good rounds counts
    kept = p.proofs if proof.ok and p.proofs and p.proofs[-1].ok else ()
    return _put(s, replace(p, proofs=(*kept, proof)))


def _retained(s: RunState, r: Record) -> RunState:
    d = r.event.data
    return _move(s, r, "retained", retained_until=d["until"], retained_why=d["reason"])


def _released(s: RunState, r: Record) -> RunState:
    return replace(_move(s, r, "created", retained_until=None), closed=False)


def _layer(s: RunState, r: Record) -> RunState:
    d = r.event.data
    layer = Layer(d["name"], d["grade"], d["at"])
    s = replace(s, layers={**s.layers, layer.name: layer})
    return _work(s, r, host_deadline=layer.at) if layer.name == "host deadline" else s


def _ends(s: RunState, r: Record) -> RunState:
    d = r.event.data
    marks = {
        i: replace(p, mark=replace(p.mark, limit_at=d["limit"])) if p.life in ("created", "intended", "unknown") else p
        for i, p in s.purchases.items()
    }
    return replace(s, deadline=d["deadline"], limit=d["limit"], extension=None, purchases=marks)


def _extend_wanted(s: RunState, r: Record) -> RunState:
    return replace(s, extension=Extension(r.event.data["deadline"], r.event.data["limit"]))


def _reconciled(s: RunState, r: Record) -> RunState:
    d = r.event.data
    purchases = dict(s.purchases)
    for pid, billed in d.get("billed", {}).items():
        if pid in purchases:
            purchases[pid] = replace(purchases[pid], billed=from_json(Money, billed))
    return replace(s, reconciled_at=r.at, reconcile_gaps=tuple(d.get("gaps", ())), purchases=purchases)


def _attempted(s: RunState, r: Record) -> RunState:
    d = r.event.data
    key = (d["rule"], r.event.purchase or "")
    old = s.attempts.get(key)
    failures = 1 if d.get("busy") else (old.failures if old else 0) + 1
    attempt = Attempt(failures, r.at, d.get("error", ""), bool(d.get("final")))
    return replace(s, attempts={**s.attempts, key: attempt})


_HANDLERS: dict[str, Callable[[RunState, Record], RunState]] = {
    "wanted": _wanted,
    "approved": _approved,
    "preflight": _preflight,
    "intended": _intended,
    "created": _created,
    "refused": lambda s, r: _move(s, r, "refused", cause=r.event.data["reason"]),
    "unknown": lambda s, r: _move(s, r, "unknown", cause=r.event.data.get("error", "")),
    "not_sent": lambda s, r: _move(s, r, "not_sent", cause=r.event.data.get("why", "")),
    "unproven": lambda s, r: _move(s, r, "unproven", cause=r.event.data.get("why", "")),
    "searched": lambda s, r: _put(s, replace(_purchase(s, r), searched_at=r.at)),
    "observed": _observed,
    "ended_elsewhere": _ended_elsewhere,
    "reappeared": _reappeared,
    "pinned": lambda s, r: _work(s, r, fingerprint=r.event.data["fingerprint"], key_route=r.event.data["route"]),
    "checked": _checked,
    "listed": lambda s, r: _work(s, r, preview=from_json(SendList, r.event.data["preview"]), preview_at=r.at),
    "transferred": lambda s, r: _work(s, r, sent=(r.event.data["files"], r.event.data["bytes"]), sent_at=r.at),
    "launching": lambda s, r: _work(s, r, launching_at=r.at),
    "launched": lambda s, r: _work(s, r, launched_at=r.at, boot_id=r.event.data["boot_id"]),
    "status": _status,
    "ended": _ended,
    "sealed": _sealed,
    "unreachable": _unreachable,
    "copied": _copied,
    "forced": lambda s, r: _work(s, r, forced=r.event.data["reason"]),
    "ending": _ending,
    "terminated": _terminated,
    "proof": _proof,
    "gone": lambda s, r: _move(s, r, "gone", gone_at=r.event.data.get("at", r.at)),
    "retained": _retained,
    "released": _released,
    "layer": _layer,
    "extend_wanted": _extend_wanted,
    "extended": _ends,
    "shortened": _ends,
    "alarm": lambda s, r: replace(s, alarms=(*s.alarms, r.event.data["message"])),
    "reconciled": _reconciled,
    "closed": lambda s, r: replace(s, closed=True, closed_at=r.at),
    "attempted": _attempted,
}
