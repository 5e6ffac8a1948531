"""The simulated provider passes the suite that every adapter passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal

import pytest

from gpuops.testing.cloud import REGION, Cloud
from gpuops.testing.conformance import ConformanceWorld, ProviderConformance
from gpuops.testing.faults import START, Faults
from gpuops.testing.provider import DirectLine, connect
from gpuops.values import Device, Mark, Money, Need, Offer, Order, Ref, Time


class SimulatedWorld(ConformanceWorld):
    """A cloud without chance, and a clock that the suite moves."""

    need = Need("sim")
    settle_s = 120.0
    other_regions = ("region-2",)
    refuses_late = True

    def __init__(self, faults: Faults) -> None:
        self.cloud = Cloud(faults)
        self.line = DirectLine(START)
        self.provider = connect(self.cloud, self.line)
        self._orders = 0

    def now(self) -> Time:
        return self.line.now

    def advance(self, seconds: float) -> None:
        self.line.now += seconds

    def order(self, ends_in_s: float = 3600.0) -> Order:
        self._orders += 1
        nonce = "abcdefghijk" + "abcdefghijklmnop"[self._orders]
        offer = Offer(
            "one",
            "simulated",
            "account-1",
            REGION,
            "box",
            Device("sim", 1, 80),
            Money(Decimal("2.0")),
            1,
            self.now(),
            "test",
        )
        mark = Mark("run-1", nonce, "ada", float(int(self.now() + ends_in_s)))
        return Order(mark, 0, offer, "", 10, (), (), None, "", self.now() + ends_in_s)

    def lose_answer(self) -> None:
        self.cloud.next_create.append("lost")

    def error_after_create(self) -> None:
        self.cloud.next_create.append("error")

    def refuse_capacity(self) -> None:
        self.cloud.next_create.append("capacity")

    def hide_new(self, seconds: float) -> None:
        self.cloud.faults = dataclasses.replace(self.cloud.faults, listed_after_s=seconds)

    def ignore_terminate(self) -> None:
        self.cloud.machines[-1].ignore += 1

    def gap(self, region: str) -> None:
        self.cloud.blind_regions.add(region)

    def unknown_word(self, ref: Ref) -> None:
        machine = self.cloud.find(ref)
        assert machine is not None
        machine.word = "quiescing"

    def ending(self, ref: Ref) -> None:
        machine = self.cloud.find(ref)
        assert machine is not None
        machine.word = "ending"

    def damage_mark(self, ref: Ref) -> None:
        machine = self.cloud.find(ref)
        assert machine is not None
        nonce, limit, check, *rest = machine.name.removeprefix("gpuops-").split("-")
        other = "00" if check != "00" else "01"
        machine.name = "-".join(["gpuops", nonce, limit, other, *rest])

    def foreign(self, kind: str = "rental") -> Ref:
        machine = self.cloud.plant("foreign", self.now(), None)
        if kind == "rental":
            return machine.ref
        ref = dataclasses.replace(machine.ref, kind=kind)
        self.cloud.disks[ref] = machine
        return ref

    def refuse_late(self) -> None:
        self.cloud.faults = dataclasses.replace(self.cloud.faults, late_refusal=True)

    def rename(self, ref: Ref) -> None:
        machine = self.cloud.find(ref)
        assert machine is not None
        machine.name = "my favourite machine"

    def clone(self, ref: Ref) -> Ref:
        machine = self.cloud.find(ref)
        assert machine is not None
        return self.cloud.plant("clone", self.now() + 5, machine.mark, machine.name).ref

    def break_credentials(self) -> None:
        self.cloud.credentials_good = False


class TestSimulated(ProviderConformance):
    """With a timer that moves."""

    @pytest.fixture
    def world(self) -> Iterator[ConformanceWorld]:
        yield SimulatedWorld(Faults())


class TestSimulatedWithoutTimer(ProviderConformance):
    """As on a cloud that has no timer of its own."""

    @pytest.fixture
    def world(self) -> Iterator[ConformanceWorld]:
        yield SimulatedWorld(Faults(timer="none"))
