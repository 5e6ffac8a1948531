"""The local cloud passes the suite that every provider passes."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from gpuops_providers.local import create_volume
from gpuops_providers.local.cloud import Rental
from localcloud import LocalCloud

from gpuops.testing.conformance import ConformanceWorld, ProviderConformance
from gpuops.values import Created, Need, Order, Ref, VolumeUse


class LocalWorld(ConformanceWorld):
    """Real time, so everything is kept short."""

    need = Need("L4", region="here")
    settle_s = 6.0
    other_regions = ("there",)

    def __init__(self) -> None:
        self.local = LocalCloud()
        self.provider = self.local.provider

    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def order(self, ends_in_s: float = 3600.0) -> Order:
        return self.local.order(ends_in_s=ends_in_s)

    def lose_answer(self) -> None:
        self.local.faults(lose_answer=1)

    def error_after_create(self) -> None:
        self.local.faults(error_after_create=1)

    def refuse_capacity(self) -> None:
        self.local.faults(refuse_capacity=1)

    def hide_new(self, seconds: float) -> None:
        self.local.faults(hide_new_s=seconds)

    def ignore_terminate(self) -> None:
        self.local.faults(ignore_terminate=1)

    def gap(self, region: str) -> None:
        self.local.faults(listing_gap=[region])

    def unknown_word(self, ref: Ref) -> None:
        self.local.faults(lying_status="hibernating")

    def ending(self, ref: Ref) -> None:
        self.local.faults(lying_status="shutting-down")

    def damage_mark(self, ref: Ref) -> None:
        # The third part of the name is the limit: another one does not fit the check characters.
        def damaged(rental: Rental) -> Rental:
            parts = rental.name.split("-")
            return replace(rental, name="-".join([*parts[:2], "zzzzzz", *parts[3:]]))

        self.local.cloud.change(ref.id, damaged)

    def rename(self, ref: Ref) -> None:
        self.local.cloud.change(ref.id, lambda rental: replace(rental, name="my favourite machine"))

    def clone(self, ref: Ref) -> Ref:
        mark = self.local.cloud.rental(ref.id).mark  # type: ignore[union-attr]
        answer = self.provider.provision(replace(self.order(), mark=mark), self.now() + 30)
        assert isinstance(answer, Created)
        return answer.ref

    def volume(self) -> VolumeUse:
        create_volume("a-volume", 10, "here", self.local.directory)
        return VolumeUse("a-volume", "/data")

    def foreign(self, kind: str = "rental") -> Ref:
        if kind == "volume":
            create_volume("somebody-elses", 10, "here", self.local.directory)
            return Ref("local", "default", "here", "volume", "somebody-elses")
        order = self.order()
        answer = self.provider.provision(order, self.now() + 30)
        assert isinstance(answer, Created)
        self.local.cloud.change(answer.ref.id, lambda rental: replace(rental, name="theirs", mark=None))
        return answer.ref

    def break_credentials(self) -> None:
        (self.local.directory / "tokens.json").write_text(json.dumps({"default": "the good one"}))


class TestLocal(ProviderConformance):
    @pytest.fixture
    def world(self) -> Iterator[ConformanceWorld]:
        world = LocalWorld()
        yield world
        world.local.close()
