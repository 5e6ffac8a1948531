"""What was billed stands beside what accrued: by the provider's own name of a thing, else by the nonce that it carries."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from runstory import Story, ref

from gpuops.stages.close import _billed
from gpuops.values import Charge, Money, Ref


def billed(*charges: Charge) -> dict[str, object]:
    provider: Any = SimpleNamespace(charges=lambda start, end, until: charges)
    story = Story().bought()
    return _billed(story.state, provider, story.now, story.now + 30)


def charge(thing: Ref, nonce: str, amount: str) -> Charge:
    return Charge(thing, nonce, 0, 1, Money(Decimal(amount)), "compute")


def test_a_charge_that_names_the_rental_counts_for_it() -> None:
    assert billed(charge(ref("m-1"), "nonce1", "1.25"), charge(ref("other"), "", "9"))["p1"] == {
        "amount": "1.25", "currency": "USD"
    }  # fmt: skip


def test_charges_that_name_only_the_nonce_are_summed_for_the_intent() -> None:
    unnamed = ref("")
    got = billed(charge(unnamed, "nonce1", "1.00"), charge(unnamed, "nonce1", "0.25"), charge(unnamed, "nonce9", "7"))
    assert got == {"p1": {"amount": "1.25", "currency": "USD"}}


def test_a_charge_that_names_it_is_not_counted_again_by_its_nonce() -> None:
    got = billed(charge(ref("m-1"), "nonce1", "1.00"), charge(ref("disk-1"), "nonce1", "0.25"))
    assert got == {"p1": {"amount": "1.00", "currency": "USD"}}


def test_what_is_not_told_is_not_invented() -> None:
    assert billed() == {}
