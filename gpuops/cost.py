"""Money and the deadline as pure functions. Rates are per hour; nothing here knows a provider."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from gpuops.values import Money, Time

HOUR_S = 3600


def accrued(rate: Money, start: Time, end: Time, billing_unit_s: int = 1) -> Money:
    """Cost of the time between `start` and `end`, rounded up to whole billing units."""
    unit = max(billing_unit_s, 1)
    units = math.ceil(max(end - start, 0) / unit)
    return Money(rate.amount * units * unit / HOUR_S, rate.currency)


def affordable_until(now: Time, available: Money, rate: Money, billing_unit_s: int = 1) -> Time:
    """The moment at which `available` is used up at `rate` from `now` on; infinite for a free rate.

    Whole billing units only: a begun unit is billed in full, so what pays for half of one pays for none of it.
    """
    if rate.amount <= 0:
        return math.inf
    seconds = max(available.amount, Decimal(0)) / rate.amount * HOUR_S
    unit = max(billing_unit_s, 1)
    return now + (float(seconds) if unit == 1 else float(seconds // unit * unit))


def limit_and_deadline(
    now: Time, deadline: Time, hold_s: float, available: Money, rate: Money, billing_unit_s: int = 1
) -> tuple[Time, Time]:
    """The limit that the cap can pay, and the deadline that leaves `hold_s` before it.

    `limit <= now + available / rate` and `deadline <= limit - hold`: a cap that is too small moves both forward, never back.
    """
    limit = min(deadline + hold_s, affordable_until(now, available, rate, billing_unit_s))
    return limit, min(deadline, limit - hold_s)


@dataclass(frozen=True, slots=True)
class Upload:
    """What goes over this computer's own line before training, and what that costs. Rates are bytes per second."""

    bytes: int
    uplink: float = 0.0
    """0: not measured yet to this provider and region."""
    seconds: float = 0.0
    cost: Money | None = None
    fetch_s: float = 0.0
    """How long the host would take to fetch the same by itself; 0 when that would save nothing worth naming."""
    fetch_cost: Money | None = None


WORTH_NAMING_S = 60.0


def upload(size: int, uplink: float, downlink: float, rate: Money, billing_unit_s: int = 1) -> Upload:
    """Lay out an upload at the measured rate; `downlink` is what the host is known or assumed to fetch with."""
    if uplink <= 0:
        return Upload(size)
    seconds, fetch_s = size / uplink, size / max(downlink, 1.0)
    cost = accrued(rate, 0, seconds, billing_unit_s)
    if seconds - fetch_s < WORTH_NAMING_S:
        return Upload(size, uplink, seconds, cost)
    return Upload(size, uplink, seconds, cost, fetch_s, accrued(rate, 0, fetch_s, billing_unit_s))


def copy_seconds(bytes_to_copy: int, bytes_per_s: float) -> float:
    """Predicted copy time."""
    return bytes_to_copy / max(bytes_per_s, 1.0)
