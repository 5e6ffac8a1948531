"""The report of a run: timeline, cost by kind, layers and audit trail, as values; `render` prints them."""

from __future__ import annotations

import datetime
from typing import Any

from gpuops.codec import to_json
from gpuops.purchase import MAY_BILL, Purchase
from gpuops.state import BLIND_LAYERS, RunState
from gpuops.values import Money, Record, Time

# The timing sheet: (name, the record that begins it, the record that ends it).
TIMINGS: tuple[tuple[str, str, str], ...] = (
    ("allocation", "intended", "created"),
    ("dry run", "checked", "listed"),
    ("transfer", "listed", "transferred"),
    ("environment and start", "transferred", "launched"),
    ("training", "launched", "ended"),
    ("seal", "ended", "sealed"),
    ("copy", "sealed", "ending"),
    ("tail: end requested until proved", "ending", "gone"),
)


def rfc3339(at: Time | None) -> str | None:
    """A time as RFC 3339 in UTC, to the second; None stays None."""
    if at is None or at in (float("inf"), float("-inf")):
        return None
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_line(s: RunState, now: Time) -> dict[str, Any]:
    """One run of the `status` document."""
    limit = min([s.limit, *(layer.at for layer in s.layers.values() if layer.name in BLIND_LAYERS)])
    return {
        "id": s.run,
        "name": s.spec.name,
        "provider": s.spec.provider,
        "phase": s.phase,
        "wanted": s.wanted,
        "cause": s.cause,
        "outcome": s.outcome or None,
        "purchases": [purchase_line(p, now) for p in s.purchases.values()],
        "spent": _money(s.spent(now)),
        "cap": _money(s.spec.cap),
        "deadline": rfc3339(s.deadline),
        "limit": rfc3339(limit),
        "layers": [{"name": x.name, "grade": x.grade, "at": rfc3339(x.at)} for x in s.layers.values()],
        "alarms": list(s.alarms),
        "trouble": trouble(s),
        "may_bill": [name_of(p) for p in s.may_bill],
        "next": next_command(s),
    }


def next_command(s: RunState) -> str | None:
    """What a person types next about an open run; None for a closed one."""
    if s.closed:
        return None
    ready = s.wanted == "ready" and s.rental is not None and s.rental.work.checked_at is not None
    return f"gpuops {'launch' if ready else 'watch'} {s.run}"


def trouble(s: RunState) -> list[str]:
    """What was tried in vain, again and again, and what is kept on purpose: why an open run goes on as it does."""
    said = (
        []
        if s.closed
        else [f"{rule}: {a.error} ({a.failures} times)" for (rule, _), a in s.attempts.items() if a.failures > 2]
    )
    for p in s.purchases.values():
        if p.life == "retained":
            said.append(f"{name_of(p)} is kept until {rfc3339(p.retained_until)}: {p.retained_why}")
    return said


def purchase_line(p: Purchase, now: Time) -> dict[str, Any]:
    """One purchase as JSON values."""
    return {
        "id": p.id,
        "ref": str(p.ref) if p.ref else None,
        "life": p.life,
        "rate": _money(p.rate or p.offer.rate),
        "spent": _money(p.spent(now)),
        "billed": _money(p.billed) if p.billed else None,
        "since": rfc3339(p.created_at or p.intended_at),
        "gone": rfc3339(p.gone_at),
        "cause": p.cause,
        "may_bill": p.life in MAY_BILL and not p.free,
    }


def name_of(p: Purchase) -> str:
    """What to call a purchase on a screen: the provider's id, or the nonce that a search would find."""
    return str(p.ref) if p.ref else f"{p.offer.provider}/{p.offer.region}/rental with mark {p.nonce} (not found yet)"


def report(s: RunState, records: tuple[Record, ...], now: Time) -> dict[str, Any]:
    """Everything about one run."""
    work = next((p.work for p in reversed(list(s.purchases.values())) if p.work.checked_at), None)
    return {
        **status_line(s, now),
        "planned": rfc3339(s.planned_at),
        "closed": rfc3339(s.closed_at),
        "offer": to_json(s.offer),
        "cost": {
            "expected": {"rental": _money(s.spent(now))},
            "billed": {p.id: _money(p.billed) for p in s.purchases.values() if p.billed},
            "label": "accrued estimate from provider time; billed where the provider tells",
        },
        "training": {
            "outcome": s.outcome or None,
            "exit_code": work.exit_code if work else None,
            "reason": work.end_reason if work else "",
            "copies": [to_json(c) for p in s.purchases.values() for c in p.work.copied.values()],
            "forced": next((p.work.forced for p in s.purchases.values() if p.work.forced), None),
            "lost": lost(s),
        },
        "checks": [to_json(c) for c in work.checks] if work else [],
        "timings": timings(s),
        "audit": [
            {
                "seq": r.seq,
                "at": rfc3339(r.at),
                "kind": r.event.kind,
                "decision": r.decision,
                "purchase": r.event.purchase,
                "data": _short(r.event.data),
            }
            for r in records
        ],
    }


def lost(s: RunState) -> str:
    """What training produced and no verified copy holds; empty when nothing is known to be lost.

    What a lost rental had beyond its newest copy was trained anew, once training went on elsewhere.
    """
    worked = [p for p in s.purchases.values() if p.work.launching_at is not None]
    for p in worked:
        work = p.work
        if p.life not in ("gone", "ended_elsewhere", "ending") or (p.replaced_at is not None and p is not worked[-1]):
            continue
        if work.sealed is not None:
            missing = [g.id for g in work.to_copy]
            if missing:
                return f"sealed but not copied: {', '.join(missing)}"
            continue
        newest = work.status.generations[-1] if work.status and work.status.generations else ""
        copies = [g for g in work.copied if g != "telemetry"]
        if newest and newest in copies:
            return f"whatever came after {newest}, which is copied"
        if newest:
            return f"{newest} and whatever came after it" + (f"; {copies[-1]} is copied" if copies else "")
        return "nothing was published as far as is known"
    return ""


def timings(s: RunState) -> list[dict[str, Any]]:
    """Seconds per stage, from the first record of each kind; stages that did not happen are left out."""
    sheet = []
    for name, begin, end in TIMINGS:
        a, b = s.first_at.get(begin), s.first_at.get(end)
        if a is not None and b is not None and b >= a:
            sheet.append({"stage": name, "seconds": round(b - a, 1)})
    worked = next((p for p in s.purchases.values() if p.work.endpoint_at is not None), None)
    if worked is not None:
        work = worked.work
        rows = (
            ("image: bought until the provider tells an address", s.first_at.get("created"), work.endpoint_at),
            ("SSH and checks: address until checked", work.endpoint_at, work.checked_at),
            ("first update seen after start", work.launched_at, work.first_update_at),
        )
        sheet += [{"stage": n, "seconds": round(b - a, 1)} for n, a, b in rows if a is not None and b is not None]
    return sheet


def _money(value: Money) -> dict[str, str]:
    return {"amount": f"{value.amount:.4f}", "currency": value.currency}


def _short(data: dict[str, Any]) -> dict[str, Any]:
    """The audit trail without the long lists that stand elsewhere."""
    return {k: v for k, v in data.items() if k not in ("spec", "plan", "preview", "sealed", "status", "observation")}
