"""The model adapter of docs/how-to/adapter.md passes the suite that every provider passes, over real HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from conformance.pond.cloud import Pond, served
from conformance.pond.world import PondWorld

from gpuops.testing.conformance import ConformanceWorld, ProviderConformance
from gpuops.values import Created


class TestPond(ProviderConformance):
    @pytest.fixture
    def world(self) -> Iterator[ConformanceWorld]:
        pond = Pond()
        with served(pond) as url:
            yield PondWorld(pond, url)

    @pytest.mark.parametrize("fault", ["cut_connection", "answer_late", "answer_late_by_drips"])
    def test_a_create_call_that_is_cut_off_is_unknown_and_found_by_nonce(self, wire: PondWorld, fault: str) -> None:
        # a timeout of each wait by itself never ends a drip
        wire.late = "drip" if fault.endswith("drips") else "silent"
        super().test_a_create_call_that_is_cut_off_is_unknown_and_found_by_nonce(wire, fault.removesuffix("_by_drips"))

    @pytest.mark.parametrize("status", [200, 403, 404, 503])
    def test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(
        self, wire: PondWorld, status: int
    ) -> None:
        wire.page_status = status
        super().test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(wire)

    def test_what_was_ordered_is_what_is_asked_for(self, world: PondWorld) -> None:
        # the kit cannot see into a machine
        order = dataclasses.replace(world.order(), volumes=(world.volume(),), startup="echo hello")
        world.provider.prepare(order, world.now() + 30)
        answer = world.provider.provision(order, world.now() + 30)
        assert isinstance(answer, Created)
        asked = world.pond.things[answer.ref.id].asked
        assert asked["volumes"] == {order.volumes[0].id: "/data"}
        assert (asked["image"], asked["disk_gb"], asked["startup"]) == ("image", 10, "echo hello")
        assert asked["host_key"] == "private"

    def test_cents_become_dollars(self, world: PondWorld) -> None:
        # the kit cannot know a vendor's prices
        (offer,) = world.provider.quote(dataclasses.replace(world.need, region="river"), world.now() + 30)
        assert (offer.id, str(offer.rate)) == ("oak", "0.725 USD")
