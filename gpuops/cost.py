"""Money and the deadline as pure functions. Rates are per hour; nothing here knows a provider."""

from __future__ import annotations

import math
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


def copy_seconds(bytes_to_copy: int, bytes_per_s: float) -> float:
    """Predicted copy time."""
    return bytes_to_copy / max(bytes_per_s, 1.0)
