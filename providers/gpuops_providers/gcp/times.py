"""The vendor's times: RFC 3339, with zones of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from gpuops.values import Time


def parse(text: str) -> Time | None:
    """Seconds since 1970; None for an empty or strange text."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo else at.replace(tzinfo=UTC).timestamp()


def write(at: Time) -> str:
    """Whole seconds, rounded down: a limit must never move to later."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wait_s(text: str, now: Time) -> float:
    """What a `Retry-After` asks to wait: seconds, or a date (RFC 9110, 10.2.3); 0 where it cannot be read."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError):
        return 0.0
