"""The vendor's times: RFC 3339, with zones of its own."""

from __future__ import annotations

from datetime import UTC, datetime

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
