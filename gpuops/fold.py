"""The fold: records in order make a `RunState`. Pure, and tolerant of late facts but not of impossible decisions.

Facts are never refused by the journal, so a fact may arrive after the life it speaks of has moved on (a lost answer that
was found by search in the meantime). Such a fact changes nothing. A decision that does not fit the life tables is a bug
and raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuops import fold_purchase as purchases
from gpuops.codec import changed, from_json
from gpuops.fold_purchase import ImpossibleTransition, move, on_work, purchase_of, put
from gpuops.purchase import Purchase
from gpuops.spec import Spec, Timeouts
from gpuops.state import RUN_LIFE, Attempt, Extension, Layer, RunState, copy_name, later_wish
from gpuops.values import Copied, Mark, Money, Offer, Record

__all__ = ["ImpossibleTransition", "fold"]

# A success of one of these kinds ends the row of failures of the rule.
_CLEARS: dict[str, tuple[str, ...]] = {
    "preflight": ("buy",),
    "searched": ("resolve",),
    "created": ("resolve", "buy"),
    "observed": ("observe", "enforce_limit"),
    "time_told": ("enforce_limit",),
    "attached": ("attach",),
    "admitted": ("admit",),
    "checked": ("check_host",),
    "building": ("environment",),
    "environment": ("environment",),
    "probing": ("probe",),
    "probed": ("probe",),
    "listed": ("transfer",),
    "sent": ("transfer",),
    "brought": ("transfer",),
    "transferred": ("transfer",),
    "restored": ("resume",),
    "launched": ("launch",),
    "status": ("status",),
    "sealed": ("seal",),
    "copied": ("mirror",),
    "sliced": ("mirror",),
    "hashed": ("mirror",),
    "surveyed": ("survey",),
    "terminated": ("terminate",),
    "proof": ("prove_gone",),
    "layer": ("move_end",),
    "reconciled": ("close",),
}


def fold(records: Iterable[Record], state: RunState | None = None) -> RunState | None:
    """Apply `records` to `state` (None for a new run). Unknown kinds stay in the journal and change nothing here."""
    for record in records:
        if record.event.kind == "planned":
            state = _planned(record)
        elif state is None:
            raise ImpossibleTransition(f"run {record.run} begins with '{record.event.kind}', not with 'planned'")
        else:
            state = _apply(state, record)
    return state


def _apply(state: RunState, record: Record) -> RunState:
    kind, before = record.event.kind, state
    handler = _HANDLERS.get(kind)
    if handler is not None:
        state = handler(state, record)
    p = state.purchases.get(record.event.purchase or "")
    skip = kind in state.first_at or (p is not None and p not in state.intents)
    first = state.first_at if skip else {**state.first_at, kind: record.at}
    state = changed(state, version=record.seq, last_at=max(state.last_at, record.at), first_at=first)
    state = _cleared(state, record)
    if record.decision:
        _check_phase(before, state, kind)
    return state


def _check_phase(before: RunState, after: RunState, kind: str) -> None:
    old, new = before.rental, after.rental
    same = (old.id if old else "") == (new.id if new else "")  # another rental begins its own life
    if same and after.phase != before.phase and after.phase not in RUN_LIFE[before.phase]:
        raise ImpossibleTransition(
            f"run {before.run}: '{before.phase}' cannot become '{after.phase}' by decision '{kind}'"
        )


def _cleared(state: RunState, record: Record) -> RunState:
    kind, purchase = record.event.kind, record.event.purchase or ""
    keys = {(rule, purchase) for rule in _CLEARS.get(kind, ())}
    if kind == "sliced":
        keys.add((copy_name(record.event.data["generation"]), purchase))
    elif kind == "copied":
        keys.add((copy_name(record.event.data["copied"]["generation"]), purchase))
    if keys.isdisjoint(state.attempts):
        return state
    return changed(state, attempts={k: v for k, v in state.attempts.items() if k not in keys})


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
        further=tuple(from_json(Offer, o) for o in d.get("further", ())),
        listing_lag_s=d.get("listing_lag_s"),
        timeouts=from_json(Timeouts, d.get("timeouts", {})),
        adopted=bool(d.get("adopted")),
        last_at=r.at,
        first_at={"planned": r.at},
    )


# --- one function per kind -----------------------------------------------------------------------------------------


def _wanted(s: RunState, r: Record) -> RunState:
    what, cause = r.event.data["what"], r.event.data.get("cause", "")
    if not later_wish(s.wanted, what):
        return s
    return changed(s, wanted=what, wanted_at=r.at, wanted_seq=r.seq, cause=cause or s.cause)


def _approved(s: RunState, r: Record) -> RunState:
    return changed(s, approved=s.approved | {r.event.data["digest"]})


def _preflight(s: RunState, r: Record) -> RunState:
    d = r.event.data
    return changed(
        s,
        preflight_at=r.at,
        preflight_seq=r.seq,
        preflight_problem=d.get("problem", ""),
        preflight_final=bool(d.get("final")),
        timer=d.get("timer", s.timer),
        after_create=frozenset(d.get("after_create", s.after_create)),
    )


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
        seq=r.seq,
        member=d.get("member", 0),
    )
    return put(s, p, deadline=d["deadline"], limit=d["limit"])


def _layer(s: RunState, r: Record) -> RunState:
    d = r.event.data
    layer = Layer(d["name"], d["grade"], d["at"])
    return changed(s, layers={**s.layers, layer.name: layer})


def _ends(s: RunState, r: Record) -> RunState:
    d = r.event.data
    s = changed(s, deadline=d["deadline"], limit=d["limit"], extension=None)
    rental = s.rental  # only its layers were moved: another purchase that may exist keeps the limit it was made with
    return s if rental is None else put(s, changed(rental, mark=replace(rental.mark, limit_at=d["limit"])))


def _extend_wanted(s: RunState, r: Record) -> RunState:
    return changed(s, extension=Extension(r.event.data["deadline"], r.event.data["limit"]))


def _replaced(s: RunState, r: Record) -> RunState:
    """The run goes on without this rental; its layers went with it, and an extension that they had not taken yet."""
    copy = r.event.data.get("copy")
    lost = changed(purchase_of(s, r), replaced_at=r.at)
    restore = from_json(Copied, copy) if copy else s.restore
    again = {"armed_at": None, "armed_from": r.at, "unarmed": ""}
    return put(s, lost, restore=restore, layers={}, extension=None, **again)


def _reconciled(s: RunState, r: Record) -> RunState:
    d = r.event.data
    purchases = dict(s.purchases)
    for pid, billed in d.get("billed", {}).items():
        if pid in purchases:
            purchases[pid] = changed(purchases[pid], billed=from_json(Money, billed))
    return changed(
        s, reconciled_at=r.at, reconciled_seq=r.seq, reconcile_gaps=tuple(d.get("gaps", ())), purchases=purchases
    )


def _attempted(s: RunState, r: Record) -> RunState:
    d = r.event.data
    key = (d["rule"], r.event.purchase or "")
    old = s.attempts.get(key)
    failures = old.failures if old else 0
    if d.get("busy"):
        old = old or Attempt(0, r.at, d.get("error", ""))
        attempt = replace(old, at=r.at, busy=old.busy + 1)
    else:
        attempt = Attempt(failures + 1, r.at, d.get("error", ""), bool(d.get("final")))
    return changed(s, attempts={**s.attempts, key: attempt})


_HANDLERS: dict[str, Callable[[RunState, Record], RunState]] = {
    "resuming": lambda s, r: changed(s, resume=r.event.data["generation"]),
    "time_told": lambda s, r: changed(s, time_told=max(s.time_told, r.event.data["at"]), time_told_at=r.at),
    "armed": lambda s, r: changed(s, armed_at=r.at, unarmed=""),
    "unarmed": lambda s, r: changed(s, unarmed=r.event.data["why"]),
    "replaced": _replaced,
    "restored": lambda s, r: on_work(s, r, restored=r.event.data["path"]),
    "part": purchases.part,
    "recalled": lambda s, r: changed(s, spec=from_json(Spec, r.event.data["spec"])),
    "wanted": _wanted,
    "approved": _approved,
    "preflight": _preflight,
    "intended": _intended,
    "created": purchases.created,
    "refused": purchases.refused,
    "unknown": lambda s, r: move(s, r, "unknown", cause=r.event.data.get("error", "")),
    "not_sent": lambda s, r: move(s, r, "not_sent", cause=r.event.data.get("why", "")),
    "unproven": lambda s, r: move(s, r, "unproven", cause=r.event.data.get("why", "")),
    "searched": lambda s, r: put(s, changed(purchase_of(s, r), searched_at=r.at)),
    "observed": purchases.observed,
    "ended_elsewhere": purchases.ended_elsewhere,
    "reappeared": purchases.reappeared,
    "pinned": lambda s, r: on_work(s, r, fingerprint=r.event.data["fingerprint"], key_route=r.event.data["route"]),
    "checked": purchases.checked,
    "environment": purchases.environment,
    "probed": purchases.probed,
    "listed": purchases.listed,
    "transferred": purchases.transferred,
    "sent": purchases.sent,
    "brought": purchases.brought,
    "attached": lambda s, r: on_work(s, r, attached=purchase_of(s, r).work.attached | {r.event.data["volume"]}),
    "admitted": lambda s, r: on_work(s, r, admitted=tuple(r.event.data["sources"]), admitted_at=r.at),
    "launching": lambda s, r: on_work(s, r, launching_at=r.at),
    "launched": lambda s, r: on_work(s, r, launched_at=r.at, boot_id=r.event.data["boot_id"]),
    "status": purchases.status,
    "ended": purchases.ended,
    "sealed": purchases.sealed,
    "unreachable": purchases.unreachable,
    "copied": purchases.copied,
    "sliced": purchases.sliced,
    "passed_over": purchases.passed_over,
    "hashed": purchases.hashed,
    "shown": purchases.shown,
    "surveyed": lambda s, r: put(s, changed(purchase_of(s, r), surveyed_at=r.at)),
    "forced": lambda s, r: on_work(s, r, forced=r.event.data["reason"]),
    "ending": purchases.ending,
    "terminated": purchases.terminated,
    "proof": purchases.proof,
    "gone": purchases.gone,
    "retained": purchases.retained,
    "released": purchases.released,
    "layer": _layer,
    "extend_wanted": _extend_wanted,
    "extended": _ends,
    "shortened": _ends,
    "alarm": lambda s, r: changed(s, alarms=(*s.alarms, r.event.data["message"])),
    "reconciled": _reconciled,
    "closed": lambda s, r: changed(s, closed=True, closed_at=r.at),
    "attempted": _attempted,
}
