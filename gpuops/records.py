"""What the journal holds. A module of its own, so that `status` on an empty journal loads nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Time = float
"""Seconds since 1970 UTC."""
PurchaseId = str
RunId = str


@dataclass(frozen=True, slots=True)
class Event:
    """A wish, a decision or a fact. `data` holds JSON values only."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    purchase: PurchaseId | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An event in the journal: `at` is money time, `wall` this computer's clock."""

    run: RunId
    seq: int
    event: Event
    decision: bool
    at: Time
    wall: Time
