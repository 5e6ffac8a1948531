"""What a provider may offer beside the six calls: each test is skipped where its traits and methods say that it does not."""

from __future__ import annotations

import dataclasses
import ipaddress
import re

import pytest

from gpuops.provider import AdmitsCaller, AttachesVolumes, MovesEnd, MovesMark, TellsCharges, TellsHostKey
from gpuops.testing.conformance_world import (
    ANSWER_S,
    ConformanceWorld,
    created,
    gone,
    listed,
    offered,
    ordered,
    pass_lag,
    seen,
    the_one,
    wait_for,
)
from gpuops.values import Scope, VolumeUse


class OptionalConformance:
    """The tests of optional protocols and of what outlives a rental; part of `ProviderConformance`."""

    @pytest.fixture
    def world(self) -> ConformanceWorld:
        """To be overridden."""
        raise NotImplementedError

    @pytest.mark.parametrize("end", ["terminate", "timer"])
    def test_an_attached_volume_survives_the_rental(self, world: ConformanceWorld, end: str) -> None:
        provider, traits = world.provider, world.provider.traits
        if "volume" not in traits.outlives:
            pytest.skip("this provider attaches no volumes")
        if end == "timer" and traits.deadline != "observed to fire":
            pytest.skip("this provider's timer was never observed to fire")
        uses: list[VolumeUse] = []
        offered(world, lambda: uses.append(world.volume()))
        order = dataclasses.replace(ordered(world, world.settle_s if end == "timer" else 3600.0), volumes=tuple(uses))
        ref = created(world, order)
        if isinstance(provider, AttachesVolumes):
            wait_for(world, lambda: seen(world, ref).state == "running", "running")
            for _ in range(2):
                provider.attach(ref, uses[0], world.now() + ANSWER_S)
        if end == "terminate":
            provider.terminate(ref, world.now() + ANSWER_S)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end")
        (item,) = [i for i in listed(world, Scope(("volume",))).items if i.ref.id == uses[0].id]
        assert item.bills
        assert seen(world, item.ref).bills

    def test_a_firewall_lets_in_exactly_who_is_named(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, AdmitsCaller):
            pytest.skip("this provider's rentals have no firewall of their own")
        here = provider.caller(world.now() + ANSWER_S)
        assert ipaddress.ip_network(here).num_addresses == 1
        order = dataclasses.replace(world.order(), allow_from=(here,))
        provider.prepare(order, world.now() + ANSWER_S)
        ref = created(world, order)
        for sources in ((here,), ("198.51.100.0/24", "203.0.113.7/32"), (here,)):
            assert set(provider.admit(ref, sources, world.now() + ANSWER_S)) == set(sources)

    def test_the_host_key_can_be_read_where_that_is_the_route(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, TellsHostKey):
            pytest.skip("this provider tells no host key")
        ref = created(world, ordered(world))
        wait_for(world, lambda: provider.host_key(ref, world.now() + ANSWER_S) is not None, "the host key")
        key = provider.host_key(ref, world.now() + ANSWER_S)
        assert key is not None and re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", key)

    def test_what_it_has_charged_names_the_nonce(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, TellsCharges):
            pytest.skip("this provider tells no charges")
        order, start = ordered(world), world.now()
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
        ref = created(world, ordered(world))
        wait_for(world, lambda: seen(world, ref).state == "running", "running")
        wanted = float(int(world.now()) + 7200)
        assert provider.set_end(ref, wanted, world.now() + ANSWER_S) == wanted
        assert seen(world, ref).ends_at == wanted

    def test_a_timer_that_is_graded_so_is_observed_to_fire(self, world: ConformanceWorld) -> None:
        if world.provider.traits.deadline != "observed to fire":
            pytest.skip("this provider's timer was never observed to fire")
        order = ordered(world, ends_in_s=world.settle_s / 4)
        ref = created(world, order)
        wait_for(world, lambda: gone(world, ref, order.mark.nonce), "the end by the timer")

    def test_a_moved_limit_is_read_back_and_listed(self, world: ConformanceWorld) -> None:
        provider = world.provider
        if not isinstance(provider, MovesMark):
            pytest.skip("this provider's marks do not move")
        order = ordered(world)
        ref = created(world, order)
        wanted = float(int(order.mark.limit_at) + 3600)
        assert provider.set_mark(ref, wanted, world.now() + ANSWER_S) == wanted
        pass_lag(world)
        item = the_one(world, order.mark.nonce)
        assert item.mark == dataclasses.replace(order.mark, limit_at=wanted)
        assert not item.damaged
