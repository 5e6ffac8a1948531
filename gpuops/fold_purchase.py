"""The part of the fold that changes one purchase or the work on it: one function per kind of record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuops.codec import changed, from_json
from gpuops.errors import GpuopsError
from gpuops.names import content_digest
from gpuops.purchase import FINAL, PURCHASE_LIFE, Life, Proof, Purchase
from gpuops.state import Layer, RunState
from gpuops.values import (
    Check,
    Copied,
    Created,
    Generation,
    HostStatus,
    Money,
    Observation,
    Probed,
    Record,
    Ref,
    Sealed,
    SendList,
    Surroundings,
)


class ImpossibleTransition(GpuopsError):
    """A decision does not fit the life tables."""


def purchase_of(s: RunState, r: Record) -> Purchase:
    """The purchase that a record names. Raises `ImpossibleTransition` when there is none."""
    purchase = s.purchases.get(r.event.purchase or "")
    if purchase is None:
        raise ImpossibleTransition(f"run {s.run}: '{r.event.kind}' names no known purchase ({r.event.purchase})")
    return purchase


def put(s: RunState, p: Purchase, **run_changes: Any) -> RunState:
    """The state with this purchase in it."""
    return changed(s, purchases={**s.purchases, p.id: p}, **run_changes)


def move(s: RunState, r: Record, life: Life, **changes: Any) -> RunState:
    """Move a purchase along its life table; a late fact changes nothing, a wrong decision raises."""
    p = purchase_of(s, r)
    if life not in PURCHASE_LIFE[p.life]:
        if r.decision:
            raise ImpossibleTransition(f"purchase {p.id}: '{p.life}' cannot become '{life}'")
        return s
    if life in FINAL:
        changes["final_seq"] = r.seq
    return put(s, changed(p, life=life, **changes))


def on_work(s: RunState, r: Record, **changes: Any) -> RunState:
    """Change the work of the purchase that a record names."""
    p = purchase_of(s, r)
    return put(s, changed(p, work=changed(p.work, **changes)))


def created(s: RunState, r: Record) -> RunState:
    """The provider made something for a purchase: its rental, or a second one from the same create call."""
    p, made = purchase_of(s, r), from_json(Created, r.event.data["created"])
    changes: dict[str, Any] = {"ref": made.ref, "via": r.event.data.get("via", "answer")}
    if made.created_at is not None:
        changes["created_at"] = made.created_at
    if made.rate is not None:
        changes["rate"] = made.rate
    changes["made_at"] = r.at
    if r.event.data.get("via") == "search":
        changes |= {"seen_at": r.at, "listed_at": r.at}
    if p.ref == made.ref:
        return s
    if p.ref is None:
        # both went out with the create call; a look may come much later, and an extension must not forget them
        timer = s.timer != "none" and "arm" not in s.after_create
        names = {"mark": True, "provider timer": timer, "guest timer": "guest timer" in s.after_create}
        made_with = {name: Layer(name, "declared", p.mark.limit_at) for name, there in names.items() if there}
        return changed(move(s, r, "created", **changes), closed=False, layers={**s.layers, **made_with})
    twin_id = f"{p.id}.{made.ref.id}"
    if twin_id in s.purchases:
        return s
    fresh = Purchase(
        id=twin_id, nonce=p.nonce, mark=p.mark, offer=p.offer, life="created", intended_at=p.intended_at,
        send_before=p.send_before, member=p.member, twin_of=p.id,
    )  # fmt: skip
    return put(s, changed(fresh, **changes), closed=False)


def part(s: RunState, r: Record) -> RunState:
    """Something that was made for a purchase, under its nonce."""
    p, ref = purchase_of(s, r), from_json(Ref, r.event.data["ref"])
    if any(other.ref == ref for other in s.purchases.values()):
        return s
    fresh = Purchase(
        id=f"{p.id}.{ref.kind}.{ref.id}", nonce=p.nonce, mark=p.mark, offer=p.offer, life="created",
        intended_at=p.intended_at, send_before=p.send_before, member=p.member, part_of=p.id, ref=ref,
        rate=from_json(Money, r.event.data["rate"]), via=r.event.data["via"], made_at=r.at,
    )  # fmt: skip
    return put(s, fresh, closed=False)


def refused(s: RunState, r: Record) -> RunState:
    """The create call was refused, or a late refusal was proved; what has a name is not final by one late word."""
    if not r.decision and purchase_of(s, r).ref is not None:
        return s
    s = move(s, r, "refused", cause=r.event.data["reason"])
    p = purchase_of(s, r)
    sold_out = r.event.data.get("why") == "capacity" and p.life == "refused" and not p.passed
    if not sold_out or not s.further or (p.offer.id, p.offer.region) != (s.offer.id, s.offer.region):
        return s
    following, *rest = s.further
    # the look before the intent was about another offer
    return put(s, changed(p, passed=True), offer=following, further=tuple(rest), preflight_at=None)


def observed(s: RunState, r: Record) -> RunState:
    """A look at a rental by its id."""
    p, seen = purchase_of(s, r), from_json(Observation, r.event.data["observation"])
    work = p.work
    if seen.fetching_image and work.image_at is None:
        work = changed(work, image_at=r.at)
    if seen.endpoint is not None and work.endpoint_at is None:
        work = changed(work, endpoint_at=r.at)
    if seen.endpoint is None and p.observation is not None and p.observation.endpoint is not None:
        seen = replace(seen, endpoint=p.observation.endpoint)  # a hidden address is no news about where it was
    created_at = p.created_at if p.created_at is not None else seen.created_at
    seen_at = p.seen_at
    if seen_at is None and seen.state not in ("absent", "refused", "unknown"):
        seen_at = r.at
    p = changed(p, observation=seen, observed_at=r.at, seen_at=seen_at, work=work, created_at=created_at)
    layers, rental = s.layers, s.rental
    works = rental is not None and rental.id == p.id  # the layers are those of the rental that the run works on
    if seen.ends_at is not None and works:
        grade = str(r.event.data.get("grade", "read back"))
        layers = {**layers, "provider timer": Layer("provider timer", grade, seen.ends_at)}
    elif seen.state == "running" and works:
        layers = {k: v for k, v in layers.items() if k != "provider timer"}  # what is not read back ends nothing
    return put(s, p, layers=layers)


def ended_elsewhere(s: RunState, r: Record) -> RunState:
    """The provider says that a rental ended without us; it still has to be proved."""
    return move(s, r, "ended_elsewhere", cause=r.event.data.get("by", ""), proofs=())


def reappeared(s: RunState, r: Record) -> RunState:
    """What was gone or said to be gone bills."""
    moved = move(s, r, "created", gone_at=None, proofs=(), terminates=0, terminated_at=None)
    return changed(moved, closed=False)


def checked(s: RunState, r: Record) -> RunState:
    """The host was compared with what was ordered."""
    d = r.event.data
    checks = tuple(from_json(Check, c) for c in d["checks"])
    return on_work(s, r, checks=checks, facts=d.get("facts", {}), checked_at=r.at, boot_id=d.get("boot_id", ""))


def listed(s: RunState, r: Record) -> RunState:
    """A dry run said what would be sent."""
    preview, made = from_json(SendList, r.event.data["preview"]), purchase_of(s, r).work.listings
    return on_work(s, r, preview=preview, preview_at=r.at, listings=made + 1)


def environment(s: RunState, r: Record) -> RunState:
    """What training runs in was made and compared with what is expected."""
    d = r.event.data
    checks = tuple(from_json(Check, c) for c in d["checks"])
    found = from_json(Surroundings, d["found"])
    return on_work(s, r, surroundings=found, environment_checks=checks, environment_at=r.at)


def probed(s: RunState, r: Record) -> RunState:
    """A few updates were measured and compared with what there is."""
    d = r.event.data
    checks = tuple(from_json(Check, c) for c in d["checks"])
    return on_work(s, r, probed=from_json(Probed, d["found"]), probe_checks=checks)


MEASURABLE_BYTES = 1_000_000
"""Less than this shows how long it takes to begin, and not how fast a line is."""


def _rate(size: float, seconds: float, known: float) -> float:
    return size / seconds if seconds > 0 and size >= MEASURABLE_BYTES else known


def sent(s: RunState, r: Record) -> RunState:
    """What goes from here is on the host; inputs are still to come."""
    d, work = r.event.data, purchase_of(s, r).work
    uplink = _rate(d["bytes"], d.get("seconds", 0), work.uplink)
    return on_work(s, r, delivered=(d["files"], d["bytes"]), uplink=uplink)


def transferred(s: RunState, r: Record) -> RunState:
    """Everything that training needs is on the host."""
    d, work = r.event.data, purchase_of(s, r).work
    uplink = _rate(d["bytes"], d.get("seconds", 0), work.uplink)
    return on_work(s, r, sent=(d["files"], d["bytes"]), sent_at=r.at, uplink=uplink)


def brought(s: RunState, r: Record) -> RunState:
    """Inputs that lie verified on the host."""
    fetched = [i for i in r.event.data["inputs"] if i["how"] == "fetched"]
    known = purchase_of(s, r).work.downlink
    downlink = _rate(sum(i["bytes"] for i in fetched), sum(i["seconds"] for i in fetched), known)
    came = {i["to"]: 0 if i["how"] == "sent" else i["bytes"] for i in r.event.data["inputs"]}
    there = purchase_of(s, r).work.inputs | came
    return on_work(s, r, inputs=there, downlink=downlink)


def status(s: RunState, r: Record) -> RunState:
    """What the supervisor says."""
    status = from_json(HostStatus, r.event.data["status"])
    first = purchase_of(s, r).work.first_update_at
    step = status.beat.get("step")  # whatever the program wrote: it must never stop the fold
    if first is None and isinstance(step, (int, float)) and step > 0:
        first = r.at
    return on_work(s, r, status=status, status_at=r.at, first_update_at=first)


def ended(s: RunState, r: Record) -> RunState:
    """Training ended by itself; the first word counts."""
    if purchase_of(s, r).work.outcome:
        return s
    d = r.event.data
    return on_work(
        s, r, outcome=d["outcome"], exit_code=d.get("exit_code"), end_reason=d.get("reason", ""), ended_at=r.at
    )


def sealed(s: RunState, r: Record) -> RunState:
    """Training has stopped and this is what it left."""
    seal, work = from_json(Sealed, r.event.data["sealed"]), purchase_of(s, r).work
    changes: dict[str, Any] = {"sealed": seal, "sealed_at": work.sealed_at or r.at, "unreachable": ""}
    changes["copied"] = {i: c for i, c in work.copied.items() if not _other_content(seal, c)}
    # a look at the host counts what seems complete; only the seal has read it
    if not work.outcome or {work.outcome, seal.outcome} <= {"completed", "ended"}:
        changes |= {"outcome": seal.outcome, "exit_code": seal.exit_code, "end_reason": seal.reason}
        changes |= {"ended_at": work.ended_at or r.at}
    return on_work(s, r, **changes)


def _other_content(seal: Sealed | None, copy: Copied) -> bool:
    """A mirrored copy under the name of a sealed generation, but of other content: it is kept and does not count."""
    same = [g for g in (*seal.generations, seal.telemetry) if g.id == copy.generation] if seal else []
    return any(content_digest(g) != copy.digest for g in same)


def unreachable(s: RunState, r: Record) -> RunState:
    """The host cannot be sealed, and why."""
    work = purchase_of(s, r).work
    if work.sealed is not None:
        return s
    return on_work(
        s, r, unreachable=r.event.data["why"], outcome=work.outcome or "interrupted", ended_at=work.ended_at or r.at
    )


def copied(s: RunState, r: Record) -> RunState:
    """A copy was verified and published."""
    work, d = purchase_of(s, r).work, r.event.data
    copy = from_json(Copied, d["copied"])
    seconds = float(d.get("seconds", 0))
    rate = copy.bytes / seconds if seconds > 0 and copy.bytes > 1_000_000 else work.copy_rate
    kept = work.copied if _other_content(work.sealed, copy) else {**work.copied, copy.generation: copy}
    slicing = "" if work.slicing == copy.generation else work.slicing
    return on_work(s, r, copied=kept, mirrored_at=r.at, copy_rate=rate, slicing=slicing)


def ending(s: RunState, r: Record) -> RunState:
    """The decision to end a rental."""
    return move(s, r, "ending", cause=r.event.data["cause"], ending_at=r.at, proofs=(), rounds=0)


def terminated(s: RunState, r: Record) -> RunState:
    """The end was asked for once more."""
    p = purchase_of(s, r)
    return put(s, changed(p, terminates=p.terminates + 1, terminated_at=r.at))


def proof(s: RunState, r: Record) -> RunState:
    """One round of the proof; only an unbroken row of good rounds counts."""
    p, d = purchase_of(s, r), r.event.data
    # when it was looked at: a driver that slept before it could write proves nothing about the time it slept
    proof = Proof(d.get("at", r.at), bool(d["ok"]), d.get("why", ""))
    kept = p.proofs if proof.ok and p.proofs and p.proofs[-1].ok else ()
    return put(s, changed(p, proofs=(*kept, proof), rounds=p.rounds + (not proof.ok)))


def gone(s: RunState, r: Record) -> RunState:
    """Proved gone. Training that nobody saw the end of was interrupted by the end of its rental."""
    work = purchase_of(s, r).work
    if work.launching_at is not None and not work.outcome:
        cause = purchase_of(s, r).cause
        s = on_work(s, r, outcome="interrupted", end_reason=f"the rental ended: {cause}", ended_at=r.at)
    return move(s, r, "gone", gone_at=r.event.data.get("at", r.at))


def retained(s: RunState, r: Record) -> RunState:
    """Kept on purpose."""
    d = r.event.data
    return move(s, r, "retained", retained_until=d["until"], retained_why=d["reason"])


def released(s: RunState, r: Record) -> RunState:
    """No longer kept."""
    return changed(move(s, r, "created", retained_until=None), closed=False)


def shown(s: RunState, r: Record) -> RunState:
    """A listing showed the rental."""
    p = purchase_of(s, r)
    return put(s, changed(p, listed_at=r.at, seen_at=p.seen_at if p.seen_at is not None else r.at))


def hashed(s: RunState, r: Record) -> RunState:
    """The hash list of a generation that is being mirrored."""
    return on_work(s, r, hashed=from_json(Generation, r.event.data["generation"]))


def passed_over(s: RunState, r: Record) -> RunState:
    """A generation that could not be hashed for mirroring: others come first."""
    work = purchase_of(s, r).work
    return on_work(s, r, passed_over=work.passed_over | {r.event.data["generation"]})


def sliced(s: RunState, r: Record) -> RunState:
    """A copy got further and is not complete."""
    return on_work(s, r, slicing=r.event.data["generation"])
