"""One suite that every adapter passes. It needs pytest; nothing of gpuops imports it.

An adapter joins with a subclass and one fixture:

    class TestMyCloud(ProviderConformance):
        @pytest.fixture
        def world(self) -> Iterator[ConformanceWorld]:
            ...

A world wraps the adapter and the cloud behind it. The hooks make the cloud misbehave; only a world on a
real account (`real_account`) may leave them out, and the tests that need them are skipped there.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from gpuops.errors import CredentialsError, GpuopsError
from gpuops.provider import MovesEnd, TellsHostKey
from gpuops.testing.conformance_optional import OptionalConformance
from gpuops.testing.conformance_wire import WireConformance
from gpuops.testing.conformance_world import (
    ANSWER_S,
    ConformanceWorld,
    NotOfferedError,
    by_nonce,
    created,
    gone,
    listed,
    offered,
    ordered,
    pass_lag,
    seen,
    the_one,
    unknown,
    wait_for,
)
from gpuops.values import Created, Ref, Refused, Scope

__all__ = ["ConformanceWorld", "NotOfferedError", "ProviderConformance"]


class ProviderConformance(OptionalConformance, WireConformance):
    """Subclass it, override `world`."""

    @pytest.fixture
    def world(self) -> ConformanceWorld:
        """To be overridden."""
        raise NotImplementedError

    def test_traits_agree_with_methods(self, world: ConformanceWorld) -> None:
        provider, traits = world.provider, world.provider.traits
        assert traits.end_movable == isinstance(provider, MovesEnd)
        assert (traits.host_key_route == "read back") == isinstance(provider, TellsHostKey)
        assert "rental" in traits.kinds
        assert set(traits.outlives) <= set(traits.kinds)
        assert traits.deadline != "none" or not traits.end_movable
        assert traits.billing_unit_s > 0

    def test_offers_are_complete_and_cheapest_first(self, world: ConformanceWorld) -> None:
        offers = world.provider.quote(world.need, world.now() + ANSWER_S)
        assert offers
        assert [o.rate.amount for o in offers] == sorted(o.rate.amount for o in offers)
        for offer in offers:
            assert offer.provider == world.provider.name
            assert offer.account == world.provider.account()
            assert offer.rate.amount > 0
            assert abs(offer.observed_at - world.now()) < ANSWER_S
            assert offer.device.count == world.need.count

    def test_a_quote_buys_nothing(self, world: ConformanceWorld) -> None:
        before = listed(world).items
        world.provider.quote(world.need, world.now() + ANSWER_S)
        assert [i.ref for i in listed(world).items] == [i.ref for i in before]

    def test_the_mark_is_part_of_the_create_call(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        pass_lag(world)
        item = the_one(world, order.mark.nonce)
        assert item.ref == ref
        assert item.mark == order.mark
        assert not item.damaged

    def test_a_rental_bills_from_its_creation(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ordered_at = world.now()
        ref = created(world, order)
        pass_lag(world)
        item = the_one(world, order.mark.nonce)
        assert item.bills
        assert item.rate == order.offer.rate
        assert seen(world, ref).bills
        assert abs((item.since or 0) - ordered_at) < ANSWER_S

    def test_a_rental_comes_to_run_at_an_endpoint(self, world: ConformanceWorld) -> None:
        ref = created(world, ordered(world))
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        assert seen(world, ref).endpoint is not None

    @pytest.mark.parametrize("fault", ["lose_answer", "error_after_create"])
    def test_an_answer_that_never_came_is_unknown_and_found_by_nonce(self, world: ConformanceWorld, fault: str) -> None:
        order = ordered(world)
        offered(world, getattr(world, fault))
        unknown(world, order)
        pass_lag(world)
        assert len(by_nonce(world, order.mark.nonce)) == 1

    def test_refused_means_that_nothing_was_done(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        offered(world, world.refuse_capacity)
        answer = world.provider.provision(order, world.now() + ANSWER_S)
        late = answer.ref if isinstance(answer, Created) else None  # creating is a long operation there: a look tells
        wait_for(world, lambda: late is None or seen(world, late).state == "refused", "a late refusal")
        assert isinstance(answer, Created) or answer.kind == "capacity"
        pass_lag(world)
        assert by_nonce(world, order.mark.nonce) == []

    def test_an_offer_that_does_not_exist_creates_nothing(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        order = dataclasses.replace(order, offer=dataclasses.replace(order.offer, id="no-such-offer"))
        assert isinstance(world.provider.provision(order, world.now() + ANSWER_S), Refused)
        assert by_nonce(world, order.mark.nonce) == []

    def test_a_create_call_that_comes_too_late_is_not_sent(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        try:
            answer = world.provider.provision(order, world.now() - 1)
        except GpuopsError:
            pass
        else:
            assert isinstance(answer, Refused)
        pass_lag(world)
        assert by_nonce(world, order.mark.nonce) == []

    def test_a_refusal_that_comes_late_shows_with_its_reason_and_nothing_bills(self, world: ConformanceWorld) -> None:
        if not world.refuses_late:
            pytest.skip("this cloud refuses at once")
        order = ordered(world)
        offered(world, world.refuse_late)
        answer = world.provider.provision(order, world.now() + ANSWER_S)
        if isinstance(answer, Created):
            ref = answer.ref
            wait_for(world, lambda: seen(world, ref).state == "refused", "the late refusal")
            assert seen(world, ref).refusal == "capacity" and not seen(world, ref).bills
        else:
            assert answer.kind == "capacity"
        assert not any(item.bills for item in by_nonce(world, order.mark.nonce))

    def test_a_repeated_create_call_with_its_token_makes_nothing_more(self, world: ConformanceWorld) -> None:
        if not world.provider.traits.idempotency_token:
            pytest.skip("this provider knows no token")
        order = ordered(world)
        first = created(world, order)
        assert created(world, order) == first
        pass_lag(world)
        assert len(by_nonce(world, order.mark.nonce)) == 1

    def test_preparing_twice_makes_the_same_free_objects(self, world: ConformanceWorld) -> None:
        order = world.order()
        first = world.provider.prepare(order, world.now() + ANSWER_S)
        assert world.provider.prepare(order, world.now() + ANSWER_S) == first
        assert not any(item.bills for item in listed(world).items if item.ref in first)

    def test_what_was_prepared_is_listed_free_with_its_nonce_and_can_be_removed(self, world: ConformanceWorld) -> None:
        order = world.order()
        made = world.provider.prepare(order, world.now() + ANSWER_S)
        assert {ref.kind for ref in made} <= set(world.provider.traits.free_kinds)
        for ref in made:
            (item,) = [i for i in listed(world).items if i.ref == ref]
            assert item.nonce == order.mark.nonce and not item.bills
            world.provider.terminate(ref, world.now() + ANSWER_S)
            wait_for(world, lambda ref=ref: ref not in [i.ref for i in listed(world).items], "its removal")  # type: ignore[misc]
            assert seen(world, ref).state in ("absent", "terminal")

    def test_a_rental_that_is_listed_late_is_found_later(self, world: ConformanceWorld) -> None:
        offered(world, lambda: world.hide_new(world.settle_s / 4))
        order = ordered(world)
        ref = created(world, order)
        assert by_nonce(world, order.mark.nonce) == []
        assert seen(world, ref).bills
        wait_for(world, lambda: len(by_nonce(world, order.mark.nonce)) == 1, "visibility")

    def test_a_listing_covers_what_was_asked_for(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        pass_lag(world)
        inside = listed(world, Scope(("rental",), (order.offer.region,)))
        assert ref in [item.ref for item in inside.items]
        assert {item.ref.kind for item in inside.items} == {"rental"}
        assert {item.ref.region for item in inside.items} == {order.offer.region}
        assert inside.account == order.offer.account
        for region in world.other_regions:
            assert ref not in [item.ref for item in listed(world, Scope((), (region,))).items]

    def test_a_kind_that_cannot_be_listed_is_never_an_empty_list(self, world: ConformanceWorld) -> None:
        try:
            inventory = listed(world, Scope(("no-such-kind",)))
        except GpuopsError:
            return
        assert inventory.gaps

    def test_what_cannot_be_read_is_a_gap_and_only_there(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        offered(world, lambda: world.gap(order.offer.region))
        half = listed(world)
        assert order.offer.region in {gap.region for gap in half.gaps}
        assert listed(world, Scope(("rental",), (order.offer.region,))).gaps
        for region in world.other_regions:
            assert not listed(world, Scope((), (region,))).gaps

    def test_what_somebody_else_made_is_listed_without_a_mark_whatever_its_kind(self, world: ConformanceWorld) -> None:
        traits = world.provider.traits
        for kind in [k for k in traits.kinds if k not in traits.free_kinds]:
            found: list[Ref] = []
            offered(world, lambda kind=kind, found=found: found.append(world.foreign(kind)))  # type: ignore[misc]
            pass_lag(world)
            items = [item for item in listed(world).items if item.ref == found[0]]
            assert len(items) == 1, f"{kind} is not listed"
            assert items[0].ref.kind == kind and items[0].bills
            assert items[0].mark is None and not items[0].nonce

    def test_money_and_time_come_in_the_contracts_units(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        pass_lag(world)
        item = the_one(world, order.mark.nonce)
        look, inventory = seen(world, ref), listed(world)
        for at in (item.since, look.created_at, look.provider_time, inventory.provider_time):
            assert at is None or abs(at - world.now()) < 3600, "seconds since 1970"
        for money in (item.rate, order.offer.rate):
            assert re.fullmatch("[A-Z]{3}", money.currency)

    def test_a_rental_with_another_name_bills_on_in_the_listing(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        offered(world, lambda: world.rename(ref))
        (item,) = [item for item in listed(world).items if item.ref == ref]
        assert item.bills
        assert item.nonce in ("", order.mark.nonce)

    def test_a_clone_of_the_mark_is_a_second_hit(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        found: list[Ref] = []
        offered(world, lambda: found.append(world.clone(ref)))
        pass_lag(world)
        hits = by_nonce(world, order.mark.nonce)
        assert {item.ref for item in hits} == {ref, found[0]}
        assert all(item.since is not None for item in hits), "the engine tells them apart by their age"

    def test_a_damaged_mark_is_flagged_and_its_nonce_still_found(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        offered(world, lambda: world.damage_mark(ref))
        item = the_one(world, order.mark.nonce)
        assert item.damaged
        assert item.bills

    def test_a_word_that_nobody_knows_counts_as_billing(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        offered(world, lambda: world.unknown_word(ref))
        observation = seen(world, ref)
        assert observation.state == "unknown"
        assert observation.bills
        pass_lag(world)
        assert the_one(world, order.mark.nonce).bills

    def test_what_is_ending_has_not_ended(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        offered(world, lambda: world.ending(ref))
        assert seen(world, ref).state not in ("terminal", "absent", "refused")
        assert not gone(world, ref, order.mark.nonce)

    def test_what_never_existed_is_absent(self, world: ConformanceWorld) -> None:
        ref = created(world, ordered(world))
        other = dataclasses.replace(ref, id=ref.id[:-1] + ("0" if ref.id[-1] != "0" else "1"))
        assert seen(world, other).state == "absent"
        # Nobody's answer about this account says anything about another one.
        with pytest.raises(GpuopsError):
            seen(world, dataclasses.replace(other, account="another-account"))

    def test_what_is_asked_too_late_is_not_answered(self, world: ConformanceWorld) -> None:
        ref, late = created(world, ordered(world)), world.now() - 1
        for call in (
            lambda: world.provider.inspect(ref, late),
            lambda: world.provider.list_billable(Scope(), late),
            lambda: world.provider.quote(world.need, late),
        ):
            with pytest.raises(GpuopsError):
                call()

    def test_without_good_credentials_nothing_is_absent_and_nothing_is_empty(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        offered(world, world.break_credentials)
        provider, until = world.provider, world.now() + ANSWER_S
        for call in (
            provider.account,
            lambda: seen(world, ref),
            lambda: listed(world),
            lambda: provider.quote(world.need, until),
            lambda: provider.terminate(ref, until),
        ):
            with pytest.raises(CredentialsError):
                call()

    def test_terminating_is_only_a_request(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        # Whatever comes back: only inspect and the listing may say that it is gone.
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        world.advance(world.settle_s / 10)
        assert gone(world, ref, order.mark.nonce), "the second round must agree"

    def test_what_the_create_call_made_beside_the_rental_ends_with_it(self, world: ConformanceWorld) -> None:
        kinds = world.provider.traits.made_kinds
        if not kinds:
            pytest.skip("this provider's create call makes a rental and nothing else")
        order = ordered(world)
        ref = created(world, order)

        def left() -> list[Ref]:
            inventory = listed(world, Scope(kinds, (ref.region,)))
            assert not inventory.gaps
            return [i.ref for i in inventory.items if i.nonce == order.mark.nonce and i.bills]

        wait_for(world, lambda: bool(left()), "its own disk in the listing")
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce) and not left(), "the end of all of it")

    def test_terminating_is_safe_to_repeat(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        for _ in range(3):
            world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        world.provider.terminate(ref, world.now() + ANSWER_S)
        assert gone(world, ref, order.mark.nonce)

    def test_a_terminate_that_is_ignored_leaves_the_rental_billing(self, world: ConformanceWorld) -> None:
        order = ordered(world)
        ref = created(world, order)
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        offered(world, world.ignore_terminate)
        world.provider.terminate(ref, world.now() + ANSWER_S)
        world.advance(world.settle_s / 2)
        assert seen(world, ref).bills
        assert by_nonce(world, order.mark.nonce)[0].bills
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
