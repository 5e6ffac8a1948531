"""Durations, sizes, money and times as people write them. Pure; the manifest and the command line share it.

Every function raises `ValueError` with a sentence that says how to write it right.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?(B|[KMGT]B|[KMGT]iB)$"
MONEY_PATTERN = r"^[0-9]+(\.[0-9]{1,6})?( [A-Z]{3})?$"

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_ORDER = ("d", "h", "m", "s", "ms")
# Ten years: longer is a slip of the keyboard, and would overflow calendars further down.
_LONGEST_S = 10 * 366 * 86400


def duration_s(text: str) -> float:
    """Read `90s`, `20m`, `2h` or `1h30m` as seconds; the largest unit comes first and each unit stands once."""
    pieces = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", text)
    if "".join(number + unit for number, unit in pieces) != text or not pieces:
        raise ValueError(f"{text!r} is not a duration: write a number with its unit, such as 90s, 20m, 2h or 1h30m")
    places = [_ORDER.index(unit) for _, unit in pieces]
    if places != sorted(set(places)):
        raise ValueError(f"{text!r} is not a duration: each unit once, the largest first, such as 1h30m")
    seconds = float(sum(Decimal(number) * _SECONDS[unit] for number, unit in pieces))
    if seconds > _LONGEST_S:
        raise ValueError(f"{text!r} is longer than ten years")
    return seconds


def size_bytes(text: str) -> int:
    """Read `2GB`, `512 MiB` or `100B` as bytes; GB counts by 1000 and GiB by 1024."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?B|B)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number with its unit, such as 500MB, 2GB or 1.5TB")
    return int(Decimal(match[1]) * _BYTES[match[2]])


def money(text: str) -> tuple[Decimal, str]:
    """Read `1.50` or `1.50 USD` as (amount, currency); USD is the only currency for now."""
    amount, _, currency = text.partition(" ")
    try:
        value = Decimal(amount)
    except InvalidOperation:
        value = Decimal("NaN")
    if re.fullmatch(MONEY_PATTERN, text) is None or not value.is_finite():
        raise ValueError(f"{text!r} is not an amount of money: write 1.50 or 1.50 USD")
    if currency not in ("", "USD"):
        raise ValueError(f"{currency} is not supported: write the amount in USD")
    return value, currency or "USD"


def instant(text: str) -> float:
    """Read an RFC 3339 time such as `2026-12-01T06:00:00Z` as seconds since 1970; the zone is required."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write it like 2026-12-01T06:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} does not say in which time zone: end it with Z (UTC) or an offset such as +01:00")
    return moment.astimezone(UTC).timestamp()


def duration_text(seconds: float) -> str:
    """Write whole seconds the way `duration_s` reads them: 5400 becomes `1h30m`."""
    rest, pieces = round(seconds), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_SECONDS[unit]))
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"
