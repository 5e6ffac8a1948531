"""Money and time: what a cap pays, in whole billing units, and the deadline that leaves time to bring the work home."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuops.cost import accrued, affordable_until, copy_seconds, limit_and_deadline
from gpuops.values import Money

NOW = 1_800_000_000.0

amounts = st.decimals("0", "10000", places=4).map(Money)
rates = st.decimals("0.0001", "100", places=4).map(Money)
units = st.sampled_from([1, 60, 600, 3600, 86400])
moments = st.integers(1_500_000_000, 2_000_000_000).map(float)
seconds = st.integers(0, 30 * 86400).map(float)


@pytest.mark.parametrize(
    ("lasts_s", "unit_s", "cost"),
    [
        (0, 1, "0"), (-5, 1, "0"), (1, 1, "1"), (1.2, 1, "2"), (3600, 1, "3600"), (1, 3600, "3600"), (3600, 3600, "3600"),
        (3601, 3600, "7200"), (61, 60, "120"), (5, 0, "5"),
    ],
)  # fmt: skip
def test_a_begun_billing_unit_costs_as_much_as_a_whole_one(lasts_s: float, unit_s: int, cost: str) -> None:
    assert accrued(Money(Decimal(3600)), NOW, NOW + lasts_s, unit_s) == Money(Decimal(cost))


@given(rates, moments, seconds, seconds, units)
def test_what_accrues_never_shrinks_and_lies_within_one_unit_of_the_time(
    rate: Money, start: float, lasts_s: float, more_s: float, unit_s: int
) -> None:
    cost = accrued(rate, start, start + lasts_s, unit_s)
    assert accrued(rate, start, start + lasts_s + more_s, unit_s).amount >= cost.amount
    exact = rate.amount * Decimal(lasts_s) / 3600
    assert 0 <= cost.amount - exact <= rate.amount * unit_s / 3600 + Decimal("1e-20")


@pytest.mark.parametrize(
    ("money", "unit_s", "pays_s"),
    [
        ("2", 1, 3600), ("1", 1, 1800), ("1", 3600, 0), ("2", 3600, 3600), ("3.9999", 3600, 3600), ("4", 3600, 7200),
        ("1", 600, 1800), ("0.9", 600, 1200), ("0", 1, 0), ("-1", 1, 0), ("-1", 3600, 0), ("1", 0, 1800),
    ],
)  # fmt: skip
def test_what_pays_for_half_a_billing_unit_pays_for_none_of_it(money: str, unit_s: int, pays_s: float) -> None:
    assert affordable_until(NOW, Money(Decimal(money)), Money(Decimal(2)), unit_s) == NOW + pays_s


def test_what_costs_nothing_is_paid_for_ever() -> None:
    assert affordable_until(NOW, Money(Decimal(0)), Money(Decimal(0))) == math.inf


@given(moments, amounts, rates, units)
def test_what_is_affordable_is_never_more_than_there_is(now: float, available: Money, rate: Money, unit_s: int) -> None:
    """To the unit; where seconds are billed, to the begun second."""
    until = affordable_until(now, available, rate, unit_s)
    assume(until - now < 30 * 365 * 86400)  # later, a float no longer keeps microseconds
    whole = math.floor(until) if unit_s == 1 else until
    assert until >= now and accrued(rate, now, whole, unit_s).amount <= available.amount
    assert (until - now) % unit_s == 0 or unit_s == 1


@given(moments, amounts, rates, units)
def test_one_unit_more_is_not_affordable(now: float, available: Money, rate: Money, unit_s: int) -> None:
    """It is the latest such moment: a cap pays for as much training as it can."""
    until = affordable_until(now, available, rate, unit_s)
    assume(until - now < 30 * 365 * 86400)
    assert accrued(rate, now, until + unit_s, unit_s).amount > available.amount


@given(moments, seconds, seconds, amounts, rates, units)
def test_limit_and_deadline_are_paid_for_leave_the_hold_and_are_never_later_than_asked(
    now: float, ahead_s: float, hold_s: float, available: Money, rate: Money, unit_s: int
) -> None:
    limit, deadline = limit_and_deadline(now, now + ahead_s, hold_s, available, rate, unit_s)
    assert limit <= affordable_until(now, available, rate, unit_s)
    assert limit <= now + ahead_s + hold_s and deadline <= now + ahead_s
    assert deadline <= limit - hold_s
    paid = now + ahead_s + hold_s <= affordable_until(now, available, rate, unit_s)
    assert ((limit, deadline) == (now + ahead_s + hold_s, now + ahead_s)) or not paid


@given(moments, seconds, seconds, amounts, rates)
def test_a_coarser_billing_unit_never_moves_the_limit_back(
    now: float, ahead_s: float, hold_s: float, available: Money, rate: Money
) -> None:
    limits = [limit_and_deadline(now, now + ahead_s, hold_s, available, rate, u)[0] for u in (1, 60, 3600, 86400)]
    assert limits == sorted(limits, reverse=True)


def test_a_cap_that_is_too_small_moves_both_forward_by_whole_units() -> None:
    rate, cap = Money(Decimal(2)), Money(Decimal("5.50"))
    assert limit_and_deadline(NOW, NOW + 36000, 600, cap, rate, 3600) == (NOW + 7200, NOW + 6600)
    assert limit_and_deadline(NOW, NOW + 36000, 600, cap, rate) == (NOW + 9900, NOW + 9300)
    assert limit_and_deadline(NOW, NOW + 1000, 600, cap, rate, 3600) == (NOW + 1600, NOW + 1000)


def test_a_hold_that_the_cap_does_not_pay_puts_the_deadline_into_the_past() -> None:
    """Which the plan and the preflight refuse."""
    _, deadline = limit_and_deadline(NOW, NOW + 3600, 7200, Money(Decimal(2)), Money(Decimal(2)))
    assert deadline < NOW


def test_a_copy_is_never_predicted_to_take_for_ever() -> None:
    assert copy_seconds(20_000_000, 20e6) == 1 and copy_seconds(10, 0) == 10
