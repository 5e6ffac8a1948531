"""The mark as tags: `Name` carries it with check characters, the others what has no room in a name."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gpuops.marks import mark_name, parse_name
from gpuops.values import Mark, Money, Time

RUN, NONCE, OWNER, LIMIT, HOST_KEY = "gpuops:run", "gpuops:nonce", "gpuops:owner", "gpuops:limit", "gpuops:host-key"
RATE = "gpuops:rate"
"""What the offer said that a rental costs per hour, everything that its create call starts included."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the tags of a resource tell. `nonce` may be there when the rest cannot be read."""

    name: str
    mark: Mark | None = None
    nonce: str = ""
    damaged: bool = False
    rate: Money | None = None


def tags(mark: Mark, rate: Money | None = None) -> list[dict[str, str]]:
    """The tags that carry `mark`, as every call takes them."""
    found = {
        "Name": mark_name(mark),
        RUN: mark.run,
        NONCE: mark.nonce,
        OWNER: mark.owner,
        LIMIT: moment(mark.limit_at),
        HOST_KEY: mark.host_key,
    }
    if rate is not None:
        found[RATE] = f"{rate.amount} {rate.currency}"
    return [{"Key": key, "Value": value} for key, value in found.items()]


def carried(listed: Iterable[Mapping[str, Any]]) -> Carried:
    """Read a mark. The name ranks first, since it alone has check characters; one that contradicts the tags is damaged."""
    found = {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in listed}
    name, said = found.get("Name", ""), found.get(NONCE, "")
    parsed = parse_name(name)
    if parsed is None and not said:
        return Carried(name)
    nonce = said or (parsed.nonce if parsed else "")
    if parsed and (parsed.state == "damaged" or parsed.nonce != nonce):
        return Carried(name, nonce=nonce, damaged=True)
    limit = parsed.limit_at if parsed else seconds(found.get(LIMIT, ""))
    if limit is None or RUN not in found:
        return Carried(name, nonce=nonce, damaged=parsed is None)
    mark = Mark(found[RUN], nonce, found.get(OWNER, ""), limit, found.get(HOST_KEY, ""))
    return Carried(name, mark, nonce, rate=_rate(found.get(RATE, "")))


def moment(at: Time) -> str:
    """A time as people read it in a console."""
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> Time | None:
    """The other way round; None when it is no time."""
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None


def _rate(text: str) -> Money | None:
    amount, _, currency = text.partition(" ")
    try:
        return Money(Decimal(amount), currency) if currency else None
    except InvalidOperation:
        return None
