"""Marks as labels, and the vendor's errors in our classes: pure translation."""

from __future__ import annotations

from decimal import Decimal

import pytest
from gpuops_providers.gcp import failures, marks, places, times
from hypothesis import given
from hypothesis import strategies as st

from gpuops.errors import CredentialsError, GpuopsError, RateLimited
from gpuops.marks import mark_name
from gpuops.values import Mark, Money

MARK = Mark("l4-20261130-abcd", "abcdefghij23", "Ada.Lovelace@example.org", 1_796_000_000.0)


def test_a_mark_comes_back_as_it_was() -> None:
    found = marks.labels(MARK)
    assert marks.read(found, mark_name(MARK)) == (MARK, MARK.nonce, False)
    assert all(len(value) <= 63 and value == value.lower() for value in found.values())


@given(st.text(max_size=15))
def test_any_owner_survives_a_label(owner: str) -> None:
    value = marks.escape(owner)
    assert (set(value) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_") and len(value) <= 63) or not owner.isprintable()
    if len("".join(f"_{b:02x}" for b in owner.encode("utf-8", "surrogatepass"))) <= 63:
        assert marks.unescape(value) == owner


def test_an_owner_that_is_too_long_is_cut_at_a_whole_character() -> None:
    assert marks.unescape(marks.escape("@" * 40)) == "@" * 21


@pytest.mark.parametrize("key", [marks.LIMIT, marks.CHECK])
def test_a_label_that_was_changed_is_noticed(key: str) -> None:
    found = {**marks.labels(MARK), key: "17"}
    assert marks.read(found, mark_name(MARK)) == (None, MARK.nonce, True)


def test_labels_that_were_copied_to_another_machine_of_ours_are_noticed() -> None:
    other = Mark("x", "zyxwvutsrq23", "", 1.0)
    assert marks.read(marks.labels(MARK), mark_name(other))[2]


def test_labels_that_were_copied_to_something_with_a_plain_name_are_read() -> None:
    assert marks.read(marks.labels(MARK), "somebodys-clone")[0] == MARK


def test_a_limit_moves_in_the_labels_while_the_name_stays() -> None:
    mark, nonce, damaged = marks.read(marks.moved(marks.labels(MARK), MARK.limit_at + 60), mark_name(MARK))
    assert mark is not None and mark.limit_at == MARK.limit_at + 60
    assert nonce == MARK.nonce and not damaged


def test_what_is_not_ours_has_no_mark() -> None:
    assert marks.read({"team": "ada"}, "web-1") == (None, "", False)


def test_a_rate_is_rounded_up_to_what_a_label_carries() -> None:
    found = marks.labels(MARK, Money(Decimal("0.70711234567")))
    assert marks.rate(found) == Money(Decimal("0.707113")) == marks.exact(Money(Decimal("0.70711234567")))


def test_the_token_of_an_order_follows_from_its_nonce() -> None:
    assert marks.request_id("a") == marks.request_id("a") != marks.request_id("b")
    assert len(marks.request_id("a")) == 36


@pytest.mark.parametrize(
    ("status", "codes", "kind", "certain"),
    [
        (503, ("ZONE_RESOURCE_POOL_EXHAUSTED",), "capacity", True),
        (503, ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",), "capacity", True),
        (403, ("quotaExceeded",), "quota", True),
        (409, ("alreadyExists",), "exists", False),
        (400, ("invalid",), "invalid", True),
        (400, ("somethingNew",), "invalid", True),
        (404, ("notFound",), "not found", True),
        (412, ("conditionNotMet",), "invalid", True),
        (409, ("resourceNotReady",), "busy", False),
        (408, ("requestTimeout",), "invalid", False),
        (503, ("backendError",), "unknown", False),
        (500, (), "unknown", False),
        (404, (), "not found", False),
        (400, (), "invalid", False),
    ],
)
def test_errors_are_told_by_their_code(status: int, codes: tuple[str, ...], kind: str, certain: bool) -> None:
    error = failures.translate(status, "words that mean nothing", codes, "p")
    assert isinstance(error, failures.Failure)
    assert (error.kind, error.certain) == (kind, certain)


@pytest.mark.parametrize(
    ("status", "codes", "cls"),
    [
        (401, ("authError",), CredentialsError),
        (403, ("forbidden",), CredentialsError),
        (403, ("accessNotConfigured",), CredentialsError),
        (403, ("rateLimitExceeded",), RateLimited),
        (429, (), RateLimited),
    ],
)
def test_errors_about_the_account_and_its_limits_are_classes_of_their_own(
    status: int, codes: tuple[str, ...], cls: type[GpuopsError]
) -> None:
    assert isinstance(failures.translate(status, "", codes, "p"), cls)


def test_a_region_covers_its_zones_and_what_is_said_of_it_concerns_them() -> None:
    assert places.covers(("us-central1",), "us-central1-a") and not places.covers(("us-central1-a",), "us-central1")
    assert places.concerns(("us-central1-a",), "us-central1") and places.concerns(("x",), "")
    assert not places.concerns(("us-central1-a",), "us-central1-b")


def test_times_are_read_with_their_zone_and_written_without_fractions() -> None:
    assert times.parse("2026-11-30T14:00:00.123-08:00") == times.parse("2026-11-30T22:00:00.123Z")
    assert times.parse("soon") is None
    assert times.write(times.parse("2026-11-30T22:00:00.999Z") or 0) == "2026-11-30T22:00:00Z"


def test_a_time_to_wait_comes_in_seconds_or_as_a_date_and_nonsense_is_none() -> None:
    assert times.wait_s("7", 0.0) == 7.0
    assert times.wait_s("Mon, 30 Nov 2026 22:00:10 GMT", times.parse("2026-11-30T22:00:00Z") or 0) == 10.0
    assert times.wait_s("Mon, 30 Nov 2026 22:00:00 GMT", 9e9) == 0.0
    assert times.wait_s("soon", 0.0) == times.wait_s("", 0.0) == 0.0


@pytest.mark.parametrize("status", [401, 403])
def test_a_page_without_a_code_says_nothing_about_the_credentials(status: int) -> None:
    error = failures.translate(status, "<html>", (), "p")
    assert isinstance(error, failures.Failure) and not error.certain
