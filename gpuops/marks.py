"""The mark as a resource name: `gpuops-<nonce 12>-<limit base36 6>-<check 2>-<slug up to 20>`.

The slug stands last, so that a vendor which truncates names costs only words. Match on the parsed nonce, never on the whole
name: the limit inside it moves when a run is extended.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from gpuops.values import Mark, Time

NONCE_LENGTH = 12
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME = re.compile(r"^gpuops-([a-z2-7]{12})-([0-9a-z]{6})-([0-9a-z]{2})(?:-([a-z0-9-]{0,20}))?")
_LOOSE = re.compile(r"gpuops-([a-z2-7]{12})(?![a-z2-7])")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """What a name tells: `damaged` when the check characters do not fit the nonce and the limit."""

    nonce: str
    limit_at: Time | None
    slug: str
    state: Literal["good", "damaged"]


def new_nonce(random_bytes: bytes) -> str:
    """Make a nonce of 12 base32 characters (60 bits) from at least 8 random bytes."""
    return base64.b32encode(random_bytes[:8]).decode().lower()[:NONCE_LENGTH]


def mark_name(mark: Mark, slug: str = "") -> str:
    """The resource name for `mark`: at most 50 characters of `[a-z0-9-]`, as every vendor here accepts."""
    limit = _base36(int(mark.limit_at))
    words = re.sub(r"[^a-z0-9]+", "-", (slug or mark.run).lower()).strip("-")[:20].strip("-")
    return f"gpuops-{mark.nonce}-{limit}-{_check(mark.nonce, limit)}" + (f"-{words}" if words else "")


def parse_name(name: str) -> ParsedName | None:
    """Read a mark out of a name; None when the name is not ours at all."""
    match = _NAME.match(name)
    if match and _check(match[1], match[2]) == match[3]:
        return ParsedName(match[1], float(int(match[2], 36)), match[4] or "", "good")
    loose = _LOOSE.search(name)
    return ParsedName(loose[1], None, "", "damaged") if loose else None


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = _ALPHABET[rest] + digits
    return digits.rjust(6, "0")


def _check(nonce: str, limit: str) -> str:
    value = int.from_bytes(hashlib.sha256(f"{nonce}-{limit}".encode()).digest()[:4], "big") % 1296
    return _base36(value)[-2:]
