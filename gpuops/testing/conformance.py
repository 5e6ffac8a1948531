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
from collections.abc import Callable

import pytest

from gpuops.errors import CredentialsError, GpuopsError
from gpuops.provider import MovesEnd, MovesMark, Provider, TellsCharges, TellsHostKey
from gpuops.values import Billable, Created, Inventory, Need, Observation, Order, Ref, Refused, Scope, Time

ANSWER_S = 30.0
"""How long a single call may take."""

STEPS = 60
"""A wait for the cloud looks this many times."""


class NotOfferedError(Exception):
    """This world has no such hook."""


class ConformanceWorld:
    """What the suite needs of an adapter's surroundings; a subclass fills it in."""

    provider: Provider
    need: Need
    """Something that `quote` answers."""
    real_account = False
    settle_s = 5.0
    """Within this time a rental has started, or has ended after a request."""
    other_regions: tuple[str, ...] = ()
    """Regions other than the one that orders go to."""

    def now(self) -> Time:
        """The provider's time."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let this much of the provider's time pass."""
        raise NotImplementedError

    def order(self, ends_in_s: float = 3600.0) -> Order:
        """A fresh order with a nonce of its own that can be filled."""
        raise NotImplementedError

    def lose_answer(self) -> None:
        """The next create is accepted and its answer is lost."""
        raise NotOfferedError

    def error_after_create(self) -> None:
        """The next create is accepted and answered by a server error."""
        raise NotOfferedError

    def refuse_capacity(self) -> None:
        """The next create is refused for lack of capacity."""
        raise NotOfferedError

    def hide_new(self, seconds: float) -> None:
        """Listings show a new rental only after this time."""
        raise NotOfferedError

    def ignore_terminate(self) -> None:
        """The next terminate is accepted and nothing happens."""
        raise NotOfferedError

    def gap(self, region: str) -> None:
        """Listings cannot read this region."""
        raise NotOfferedError

    def unknown_word(self, ref: Ref) -> None:
        """The cloud uses a word for the state of `ref` that the adapter has never seen."""
        raise NotOfferedError

    def damage_mark(self, ref: Ref) -> None:
        """The check characters in the mark of `ref` fit no more; its nonce can still be read."""
        raise NotOfferedError

    def foreign(self) -> Ref:
        """A billable that somebody else made."""
        raise NotOfferedError

    def break_credentials(self) -> None:
        """The credentials are good no more."""
        raise NotOfferedError


def offered(world: ConformanceWorld, hook: Callable[[], object]) -> None:
    """Call a hook; without it a test on a real account is skipped, and any other fails."""
    try:
        hook()
    except NotOfferedError:
        if not world.real_account:
            raise
        pytest.skip("a real account has no such switch")


def listed(world: ConformanceWorld, scope: Scope | None = None) -> Inventory:
    """A listing now."""
    return world.provider.list_billable(scope or Scope(), world.now() + ANSWER_S)


def seen(world: ConformanceWorld, ref: Ref) -> Observation:
    """An inspection now."""
    return world.provider.inspect(ref, world.now() + ANSWER_S)


def by_nonce(world: ConformanceWorld, nonce: str) -> list[Billable]:
    """What carries the nonce, searched as the engine searches: rentals, every region, no gap."""
    inventory = listed(world, Scope(("rental",)))
    assert not inventory.gaps
    return [item for item in inventory.items if item.nonce == nonce]


def pass_lag(world: ConformanceWorld) -> None:
    """Let the guaranteed listing lag pass."""
    world.advance(world.provider.traits.listing_lag_s or 0.0)


def created(world: ConformanceWorld, order: Order) -> Ref:
    """Buy and insist."""
    answer = world.provider.provision(order, world.now() + ANSWER_S)
    assert isinstance(answer, Created), answer
    return answer.ref


def wait_for(world: ConformanceWorld, condition: Callable[[], bool], what: str) -> None:
    """Advance until the condition holds, at most for the world's settling time."""
    for _ in range(STEPS):
        if condition():
            return
        world.advance(world.settle_s / STEPS)
    pytest.fail(f"{what} did not happen within {world.settle_s} s")


def gone(world: ConformanceWorld, ref: Ref, nonce: str) -> bool:
    """One round of the proof: inspect and a complete listing agree that nothing bills."""
    if seen(world, ref).state not in ("terminal", "absent"):
        return False
    return not any(item.bills for item in by_nonce(world, nonce))


class ProviderConformance:
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
        order = world.order()
        ref = created(world, order)
        pass_lag(world)
        (item,) = by_nonce(world, order.mark.nonce)
        assert item.ref == ref
        assert item.mark == order.mark
        assert not item.damaged

    def test_a_rental_bills_from_its_creation(self, world: ConformanceWorld) -> None:
        order = world.order()
        ordered_at = world.now()
        ref = created(world, order)
        pass_lag(world)
        (item,) = by_nonce(world, order.mark.nonce)
        assert item.bills
        assert item.rate == order.offer.rate
        assert seen(world, ref).bills
        assert abs((item.since or 0) - ordered_at) < ANSWER_S

    def test_a_rental_comes_to_run_at_an_endpoint(self, world: ConformanceWorld) -> None:
        ref = created(world, world.order())
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        assert seen(world, ref).endpoint is not None

    @pytest.mark.parametrize("fault", ["lose_answer", "error_after_create"])
    def test_an_answer_that_never_came_is_unknown_and_found_by_nonce(self, world: ConformanceWorld, fault: str) -> None:
        offered(world, getattr(world, fault))
        order = world.order()
        with pytest.raises(GpuopsError):
            world.provider.provision(order, world.now() + ANSWER_S)
        pass_lag(world)
        assert len(by_nonce(world, order.mark.nonce)) == 1

    def test_refused_means_that_nothing_was_done(self, world: ConformanceWorld) -> None:
        offered(world, world.refuse_capacity)
        order = world.order()
        answer = world.provider.provision(order, world.now() + ANSWER_S)
        late = answer.ref if isinstance(answer, Created) else None  # creating is a long operation there: a look tells
        wait_for(world, lambda: late is None or seen(world, late).state == "refused", "a late refusal")
        assert isinstance(answer, Created) or answer.kind == "capacity"
        pass_lag(world)
        assert by_nonce(world, order.mark.nonce) == []

    def test_an_offer_that_does_not_exist_creates_nothing(self, world: ConformanceWorld) -> None:
        order = world.order()
        order = dataclasses.replace(order, offer=dataclasses.replace(order.offer, id="no-such-offer"))
        assert isinstance(world.provider.provision(order, world.now() + ANSWER_S), Refused)
        assert by_nonce(world, order.mark.nonce) == []

    def test_a_create_call_that_comes_too_late_is_not_sent(self, world: ConformanceWorld) -> None:
        order = world.order()
        try:
            answer = world.provider.provision(order, world.now() - 1)
        except GpuopsError:
            pass
        else:
            assert isinstance(answer, Refused)
        pass_lag(world)
        assert by_nonce(world, order.mark.nonce) == []

    def test_preparing_twice_makes_the_same_free_objects(self, world: ConformanceWorld) -> None:
        order = world.order()
        first = world.provider.prepare(order, world.now() + ANSWER_S)
        assert world.provider.prepare(order, world.now() + ANSWER_S) == first
        assert not any(item.bills for item in listed(world).items if item.ref in first)

    def test_a_rental_that_is_listed_late_is_found_later(self, world: ConformanceWorld) -> None:
        offered(world, lambda: world.hide_new(world.settle_s / 4))
        order = world.order()
        ref = created(world, order)
        assert by_nonce(world, order.mark.nonce) == []
        assert seen(world, ref).bills
        wait_for(world, lambda: len(by_nonce(world, order.mark.nonce)) == 1, "visibility")

    def test_a_listing_covers_what_was_asked_for(self, world: ConformanceWorld) -> None:
        order = world.order()
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
        order = world.order()
        offered(world, lambda: world.gap(order.offer.region))
        blind = listed(world)
        assert order.offer.region in {gap.region for gap in blind.gaps}
        assert listed(world, Scope(("rental",), (order.offer.region,))).gaps
        for region in world.other_regions:
            assert not listed(world, Scope((), (region,))).gaps

    def test_what_somebody_else_made_is_listed_without_a_mark(self, world: ConformanceWorld) -> None:
        found: list[Ref] = []
        offered(world, lambda: found.append(world.foreign()))
        (item,) = [item for item in listed(world).items if item.ref == found[0]]
        assert item.mark is None
        assert not item.nonce
        assert item.bills

    def test_a_damaged_mark_is_flagged_and_its_nonce_still_found(self, world: ConformanceWorld) -> None:
        order = world.order()
        ref = created(world, order)
        offered(world, lambda: world.damage_mark(ref))
        (item,) = by_nonce(world, order.mark.nonce)
        assert item.damaged
        assert item.bills

    def test_a_word_that_nobody_knows_counts_as_billing(self, world: ConformanceWorld) -> None:
        ref = created(world, world.order())
        offered(world, lambda: world.unknown_word(ref))
        observation = seen(world, ref)
        assert observation.state == "unknown"
        assert observation.bills

    def test_what_never_existed_is_absent(self, world: ConformanceWorld) -> None:
        ref = created(world, world.order())
        other = dataclasses.replace(ref, id=ref.id[:-1] + ("0" if ref.id[-1] != "0" else "1"))
        assert seen(world, other).state == "absent"

    def test_without_good_credentials_nothing_is_absent_and_nothing_is_empty(self, world: ConformanceWorld) -> None:
        order = world.order()
        ref = created(world, order)
        offered(world, world.break_credentials)
        for call in (lambda: seen(world, ref), lambda: listed(world), world.provider.account):
            with pytest.raises(CredentialsError):
                call()

    def test_terminating_is_only_a_request(self, world: ConformanceWorld) -> None:
        order = world.order()
        ref = created(world, order)
        # Whatever comes back: only inspect and the listing may say that it is gone.
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        world.advance(world.settle_s / 10)
        assert gone(world, ref, order.mark.nonce), "the second round must agree"

    def test_terminating_is_safe_to_repeat(self, world: ConformanceWorld) -> None:
        order = world.order()
        ref = created(world, order)
        for _ in range(3):
            world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        world.provider.terminate(ref, world.now() + ANSWER_S)
        assert gone(world, ref, order.mark.nonce)

    def test_a_terminate_that_is_ignored_leaves_the_rental_billing(self, world: ConformanceWorld) -> None:
        order = world.order()
        ref = created(world, order)
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        offered(world, world.ignore_terminate)
        world.provider.terminate(ref, world.now() + ANSWER_S)
        world.advance(world.settle_s / 2)
        assert seen(world, ref).bills
        assert by_nonce(world, order.mark.nonce)[0].bills
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")

    def test_what_it_has_charged_names_the_nonce(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, TellsCharges):
            pytest.skip("this provider tells no charges")
        order, start = world.order(), world.now()
        ref = created(world, order)
        world.provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        lines = provider.charges(start - 1, world.now() + 1, world.now() + ANSWER_S)
        (line,) = [line for line in lines if line.nonce == order.mark.nonce]
        assert line.amount.amount > 0
        assert line.end is not None

    def test_a_moved_end_is_read_back_and_observed(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, MovesEnd):
            pytest.skip("this provider has no timer that moves")
        ref = created(world, world.order())
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        wanted = float(int(world.now()) + 7200)
        assert provider.set_end(ref, wanted, world.now() + ANSWER_S) == wanted
        assert seen(world, ref).ends_at == wanted

    def test_a_timer_that_is_graded_so_is_observed_to_fire(self, world: ConformanceWorld) -> None:
        if world.provider.traits.deadline != "observed to fire":
            pytest.skip("this provider's timer was never observed to fire")
        order = world.order(ends_in_s=world.settle_s / 4)
        ref = created(world, order)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end by the timer")

    def test_a_moved_limit_is_read_back_and_listed(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, MovesMark):
            pytest.skip("this provider's marks do not move")
        order = world.order()
        ref = created(world, order)
        wanted = float(int(order.mark.limit_at) + 3600)
        assert provider.set_mark(ref, wanted, world.now() + ANSWER_S) == wanted
        pass_lag(world)
        (item,) = by_nonce(world, order.mark.nonce)
        assert item.mark == dataclasses.replace(order.mark, limit_at=wanted)
        assert not item.damaged
