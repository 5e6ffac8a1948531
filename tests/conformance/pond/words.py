"""Pond's words and ours: one table each way, and pure functions from a row of an answer to a value of the contract."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from gpuops.marks import parse_name
from gpuops.values import Billable, Device, Endpoint, Mark, Money, Need, Observation, ObservedState, Offer, Ref, Time

PATHS = {"rental": "machines", "volume": "volumes", "key": "keys"}
BILLS = {"rental": ("compute",), "volume": ("storage",), "key": ()}
STATES: dict[str, ObservedState] = {
    "filling": "starting",
    "full": "running",
    "kept": "running",
    "draining": "ending",
    "dry": "terminal",
}
"""Any other word is unknown, which counts as billing."""
REFUSALS: dict[str, Literal["capacity", "price", "quota", "invalid", "account"]] = {
    "no_capacity": "capacity",
    "over_quota": "quota",
    "invalid": "invalid",
    "no_credit": "account",
}
"""What Pond says before it makes anything, and as the `failure` of a machine that never came to be."""
BAD_CREDENTIALS = ("bad_token", "no_right")
BILLING_UNIT_S = 60


def offers(row: Any, account: str, at: Time) -> list[Offer]:
    """A size in each of its regions."""
    device = Device(row["device"], row["count"], row["memory_gb"])
    return [
        Offer(row["id"], "pond", account, region, row["id"], device, rate(row), BILLING_UNIT_S, at, "GET /v1/sizes")
        for region in row["regions"]
    ]


def fits(offer: Offer, need: Need) -> bool:
    """Whether it is what was asked for."""
    return (
        need.device.lower() in offer.device.name.lower()
        and need.count == offer.device.count
        and need.region in (None, offer.region)
        and need.offer in (None, offer.id)
        and (need.max_price_per_hour is None or offer.rate.amount <= need.max_price_per_hour)
    )


def labels(given: Mark) -> dict[str, str]:
    """What the name has no room for."""
    carried = {"run": given.run, "nonce": given.nonce, "owner": given.owner, "host-key": given.host_key}
    return {f"gpuops-{word}": value for word, value in carried.items()}


def mark(row: Any) -> Mark | None:
    """The mark, as far as it is whole. The name ranks before the labels: check characters protect its limit."""
    parsed, known = parse_name(row["name"]), row["labels"]
    if parsed is None or parsed.limit_at is None:
        return None
    run, owner, host_key = (str(known.get(f"gpuops-{word}", "")) for word in ("run", "owner", "host-key"))
    return Mark(run, parsed.nonce, owner, parsed.limit_at, host_key)


def observation(ref: Ref, row: Any, at: Time) -> Observation:
    """One look."""
    state, failure, ssh = _state(row), row.get("failure") or "", row.get("ssh")
    return Observation(
        ref,
        state,
        _bills(ref.kind, row),
        reason=failure,
        endpoint=Endpoint(ssh["host"], ssh["port"], ssh["user"]) if ssh else None,
        created_at=created_at(row),
        provider_time=at,
        raw_state=row["state"],
        refusal=REFUSALS[failure] if state == "refused" else "",
    )


def billable(kind: str, row: Any, account: str) -> Billable:
    """One row of a list, whosever it is. Whoever renames a machine leaves the nonce in its labels."""
    bills, parsed = _bills(kind, row), parse_name(row["name"])
    return Billable(
        reference(kind, row, account),
        row["name"],
        mark(row),
        bills,
        created_at(row),
        rate(row).times(1 if bills else 0),
        nonce=parsed.nonce if parsed else row["labels"].get("gpuops-nonce", ""),
        damaged=parsed is not None and parsed.state == "damaged",
    )


def reference(kind: str, row: Any, account: str) -> Ref:
    """The full name."""
    return Ref("pond", account, str(row["region"]), kind, str(row["id"]))


def rate(row: Any) -> Money:
    """Cents become dollars, without binary fractions on the way."""
    return Money(Decimal(str(row["cents_per_hour"])) / 100)


def created_at(row: Any) -> Time:
    """RFC 3339 becomes seconds since 1970."""
    return datetime.fromisoformat(row["created"]).timestamp()


def _state(row: Any) -> ObservedState:
    if row["state"] == "failed" and row.get("failure") in REFUSALS:
        return "refused"
    return STATES.get(row["state"], "unknown")


def _bills(kind: str, row: Any) -> tuple[str, ...]:
    return () if _state(row) in ("terminal", "refused") else BILLS[kind]
