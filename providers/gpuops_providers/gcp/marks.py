"""Our mark as labels, beside the name that carries it too.

Labels take `[a-z0-9_-]`, at most 63 characters, so other characters of an owner are written as `_` and two hexadecimal digits
(docs.cloud.google.com/compute/docs/labeling-resources). Labels rank above the name: they move when a run is extended, a name
cannot. They carry the name's check characters, so that a broken one is noticed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal

from gpuops.marks import mark_name, parse_name
from gpuops.values import Mark, Money

RUN, NONCE, OWNER, LIMIT, CHECK = "gpuops-run", "gpuops-nonce", "gpuops-owner", "gpuops-limit", "gpuops-check"
RATE, CURRENCY = "gpuops-rate", "gpuops-currency"
_MICRO = Decimal("0.000001")
_LONGEST = 63
_REQUESTS = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # uuid.NAMESPACE_URL


def labels(mark: Mark, rate: Money | None = None) -> dict[str, str]:
    """The labels of a resource that is made for `mark`. `rate`: what a rental costs per hour, all of it."""
    found = {
        RUN: escape(mark.run),
        NONCE: mark.nonce,
        OWNER: escape(mark.owner),
        LIMIT: str(int(mark.limit_at)),
        CHECK: _check(mark),
    }
    if rate is not None:
        found |= {RATE: str(int(exact(rate).amount / _MICRO)), CURRENCY: rate.currency.lower()}
    return found


def moved(found: Mapping[str, str], limit_at: float) -> dict[str, str]:
    """The labels with another limit."""
    nonce = found.get(NONCE, "")
    return {**found, LIMIT: str(int(limit_at)), CHECK: _check(Mark("", nonce, "", limit_at))}


def read(found: Mapping[str, str], name: str) -> tuple[Mark | None, str, bool]:
    """The mark, its nonce, and whether it is damaged; from the labels, else from the name."""
    parsed = parse_name(name)
    nonce = found.get(NONCE, "")
    if nonce:
        limit = found.get(LIMIT, "")
        if not limit.isdigit():
            return None, nonce, True
        mark = Mark(unescape(found.get(RUN, "")), nonce, unescape(found.get(OWNER, "")), float(limit))
        good = found.get(CHECK, "") == _check(mark) and (parsed is None or parsed.nonce == nonce)
        return (mark, nonce, False) if good else (None, nonce, True)
    if parsed is None:
        return None, "", False
    if parsed.state == "damaged" or parsed.limit_at is None:
        return None, parsed.nonce, True
    # somebody took the labels away: the name still says when the machine has to end, and no more
    return Mark(parsed.slug, parsed.nonce, "", parsed.limit_at), parsed.nonce, False


def rate(found: Mapping[str, str]) -> Money | None:
    """What a rental of ours costs per hour, as it was when it was bought."""
    word = found.get(RATE, "")
    return Money(Decimal(word) * _MICRO, found.get(CURRENCY, "usd").upper()) if word.isdigit() else None


def exact(money: Money) -> Money:
    """Rounded up to what a label can carry: millionths."""
    return Money(money.amount.quantize(_MICRO, ROUND_UP), money.currency)


def request_id(nonce: str) -> str:
    """The token that makes a repeated create call the same one; can be told again from the nonce alone."""
    return str(uuid.uuid5(_REQUESTS, f"gpuops/{nonce}"))


def escape(text: str) -> str:
    """`text` as the value of a label; what is too long for one is cut at a whole character."""
    pieces = [c if re.fullmatch(r"[a-z0-9-]", c) else "".join(f"_{b:02x}" for b in c.encode()) for c in text]
    while sum(map(len, pieces)) > _LONGEST:
        pieces.pop()
    return "".join(pieces)


def unescape(value: str) -> str:
    """The text that `escape` wrote."""
    raw = re.sub(r"_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), value)
    try:
        return raw.encode("latin-1").decode()
    except ValueError:
        return raw


def _check(mark: Mark) -> str:
    return mark_name(Mark("x", mark.nonce, "", mark.limit_at)).split("-")[3]
