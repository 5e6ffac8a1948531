"""A listing of another account says nothing about a run: what was unknown stays unknown, what must be proved is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from computer import Computer, Site, site
from runstory import POLICY, Story

from gpuops.engine import GUARD, advance, drive, load
from gpuops.errors import ProviderError
from gpuops.hits import read_listing
from gpuops.state import RunState
from gpuops.values import Inventory, Scope, Time


@pytest.fixture
def computer(monkeypatch: pytest.MonkeyPatch) -> Computer:
    made = Computer()
    monkeypatch.setattr("gpuops.clock.time", made)
    return made


def elsewhere(where: Site) -> None:
    """The credentials belong to another account now: its listings are complete and empty."""
    right = where.ports.providers("simulated").list_billable

    def wrong(scope: Scope, until: Time) -> Inventory:
        return replace(right(scope, until), account="account-2", items=())

    where.provider_is(list_billable=wrong)


def test_a_listing_of_another_account_is_an_error(computer: Computer) -> None:
    where = site(computer, Story().bought())
    state = load("run-1", where.ports)
    good = where.ports.providers("simulated").list_billable(Scope(("rental",)), computer.true + 30)
    assert [e.kind for e in read_listing(where.ports, state, good, POLICY)] == ["shown"]
    before = where.clock.now()
    other = replace(good, account="account-2", provider_time=before + 9999)
    with pytest.raises(ProviderError, match=r"now belong to account account-2, the run is on account-1"):
        read_listing(where.ports, state, other, POLICY)
    assert where.clock.now() == before, "nothing of it is believed"


def test_a_lost_create_call_stays_unknown_when_another_account_is_listed(computer: Computer) -> None:
    """With a guaranteed lag of nought a complete listing without a hit would mean: never sent."""
    story = Story(listing_lag_s=0).ready_to_buy().intended().tell("unknown", error="no answer").wait(600)
    computer.true = story.now
    where = site(computer, story)
    where.cloud.machines.clear()
    elsewhere(where)
    advance("run-1", where.ports, POLICY, GUARD)
    state = load("run-1", where.ports)
    failed = state.failures("resolve", "p1")
    assert where.kinds()[-1] == "attempted" and failed is not None and "account-2" in failed.error
    assert state.purchases["p1"].life == "unknown" and state.purchases["p1"] in state.may_bill
    assert state.purchases["p1"].searched_at is None, "it was not searched for"


def test_nothing_is_proved_gone_by_a_listing_of_another_account(computer: Computer) -> None:
    story = Story().bought().going_down().ending().tell("shown")
    computer.true = story.now
    where = site(computer, story)
    where.cloud.machines[0].ended_at = computer.true - 1000
    elsewhere(where)

    def over(state: RunState) -> bool:
        failed = state.failures("prove_gone", "p1")
        return state.purchases["p1"].life == "gone" or (failed is not None and failed.failures >= 3)

    state, _ = drive("run-1", where.ports, POLICY, GUARD, until=over)
    assert state.purchases["p1"].life == "ending" and state.purchases["p1"].proofs == ()
    assert "proof" not in where.kinds() and "account-2" in state.attempts["prove_gone", "p1"].error
