"""The truth about one simulated account, kept apart from what it shows, with its own record of what it charges."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from gpuops.errors import ProviderError
from gpuops.marks import mark_name, parse_name
from gpuops.testing.faults import ECLIPSE_APART_S, ECLIPSE_S, START, Faults
from gpuops.values import (
    Billable,
    Charge,
    Created,
    Device,
    Endpoint,
    Gap,
    Inventory,
    Mark,
    Money,
    Observation,
    ObservedState,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
)

NAME, ACCOUNT, REGION = "simulated", "account-1", "region-1"
SHOWN_AFTER_S = 30.0
"""A rental that has ended stays in listings this long, free."""
STATES: frozenset[str] = frozenset({"starting", "running", "stopped", "ending", "terminal", "absent"})
"""The vendor's words that have a meaning here; any other is `unknown`."""


@dataclass
class Machine:
    """One rental as it really is."""

    ref: Ref
    name: str
    mark: Mark | None
    nonce: str
    created_at: float
    rate: Money
    billing_unit_s: int
    boot_s: float
    whose: str
    """ours, clone, another operator's or foreign."""
    ends_at: float = math.inf
    ended_at: float = math.inf
    """May lie ahead: then its end is already certain."""
    seen_from: float = 0.0
    listed_from: float = 0.0
    ignore: int = 0
    ending_from: float = math.inf
    reclaimed_at: float = math.inf
    refused: bool = False
    word: str = ""
    """A word for its state that the adapter does not know."""
    eclipse: tuple[float, float] = (0.0, 0.0)

    def bills(self, now: float) -> bool:
        """Whether it costs money at `now`."""
        return not self.refused and self.created_at <= now < self.ended_at

    def cost(self, now: float) -> Decimal:
        """What the provider charges up to `now`, in begun billing units."""
        if self.refused:
            return Decimal(0)
        units = math.ceil(max(min(self.ended_at, now) - self.created_at, 0) / self.billing_unit_s)
        return self.rate.amount * units * self.billing_unit_s / 3600


@dataclass(frozen=True)
class Deed:
    """Something that was really done to the account."""

    at: float
    who: str
    what: str
    ref: Ref
    nonce: str = ""
    until: float = math.inf


@dataclass
class Cloud:
    """The truth about one account. Its methods are what a perfect observer sees."""

    faults: Faults
    machines: list[Machine] = field(default_factory=list)
    keys: dict[Ref, str] = field(default_factory=dict)
    """Free objects and their nonces."""
    disks: dict[Ref, Machine] = field(default_factory=dict)
    """Disks that create calls made, each with its machine."""
    deeds: list[Deed] = field(default_factory=list)
    blind_regions: set[str] = field(default_factory=set)
    credentials_good: bool = True
    next_create: list[str] = field(default_factory=list)
    """What happens to the coming create calls: lost, error, capacity."""
    refusals: int = 0
    stuck: int = 0
    """Requests to remove a free object so far."""
    pending: list[tuple[float, Order, str, float]] = field(default_factory=list)
    """Create calls on their way that nobody waits for any more: (arrival, order, sender, until)."""
    random: random.Random = field(default_factory=random.Random)
    watching: Callable[[Machine | None, float, str], None] = lambda machine, now, who: None
    """Called before a terminate request takes effect."""

    def offers(self, now: float, device: Device) -> tuple[Offer, ...]:
        """The two things that can be bought, the second one a quarter dearer."""
        rates = {"one": Decimal(str(self.faults.rate)), "two": Decimal(str(self.faults.rate)) * Decimal("1.25")}
        unit_s, said = self.faults.billing_unit_s, "the simulated world"
        return tuple(
            Offer(name, NAME, ACCOUNT, REGION, f"box {name}", device, Money(rate), unit_s, now, said)
            for name, rate in rates.items()
        )

    def settle(self, now: float) -> None:
        """Let calls that were on their way arrive."""
        for late in [p for p in self.pending if p[0] <= now]:
            self.pending.remove(late)
            self.create(late[1], late[0], late[2], late[3])

    def create(self, order: Order, now: float, who: str, until: float) -> Created | Refused:
        """One create call that has arrived."""
        if self.refusals < self.faults.refusals or "capacity" in self.next_create:
            self.refusals += 1
            self.next_create = [f for f in self.next_create if f != "capacity"]
            return Refused("no capacity", "capacity")
        if order.offer.id not in ("one", "two"):
            return Refused(f"no such offer: {order.offer.id}", "invalid")
        first = self._machine(order, now)
        self.deeds.append(Deed(now, who, "create", first.ref, order.mark.nonce, until))
        if self.faults.twin:
            self._machine(order, now + 1)
        return Created(first.ref, first.created_at, first.rate)

    def _machine(self, order: Order, now: float) -> Machine:
        f, marked = self.faults, mark_name(order.mark)
        # names carry whole seconds and no owner; this provider has a tag for the rest
        machine = Machine(
            Ref(NAME, ACCOUNT, order.offer.region, "rental", f"m-{len(self.machines) + 1:04d}"), marked, order.mark,
            order.mark.nonce, now, order.offer.rate, order.offer.billing_unit_s, f.boot_s, "ours",
            seen_from=now + f.seen_after_s, listed_from=now + f.listed_after_s, ignore=f.ignored_terminates,
            refused=f.late_refusal and order.offer.id == "one",
        )  # fmt: skip
        if f.timer != "none":
            machine.ends_at = order.ends_at
        taken = sum(m.reclaimed_at < math.inf for m in self.machines)
        if f.reclaim_s and taken < f.reclaims:
            machine.reclaimed_at = START + f.reclaim_s if not taken and START + f.reclaim_s > now else now + f.reclaim_s
        self.machines.append(machine)
        self.set_timer(machine)
        self.disks[Ref(NAME, ACCOUNT, order.offer.region, "disk", f"disk-{machine.ref.id}")] = machine
        return machine

    def disk_bills(self, ref: Ref, now: float) -> bool:
        """Whether a disk is there: as long as its machine, or until somebody removes it where it is kept by mistake."""
        machine = self.disks.get(ref)
        if machine is None or machine.refused:
            return False
        return now < machine.ended_at or self.faults.keeps_disk

    def make_key(self, order: Order) -> Ref:
        """A free object that belongs to an order; making it again changes nothing."""
        ref = Ref(NAME, ACCOUNT, order.offer.region, "key", f"key-{order.mark.nonce}")
        self.keys[ref] = order.mark.nonce
        return ref

    def set_timer(self, machine: Machine) -> None:
        """Let the provider's own timer follow `ends_at`."""
        late = {"fires": 2.0, "late": 400.0, "never": math.inf, "none": math.inf}[self.faults.timer]
        if machine.ending_from == math.inf:
            machine.ended_at = min(machine.ends_at + late, machine.reclaimed_at)

    def plant(self, whose: str, now: float, mark: Mark | None, name: str = "") -> Machine:
        """Something on the account that our create calls did not make."""
        ref = Ref(NAME, ACCOUNT, REGION, "rental", f"m-{len(self.machines) + 1:04d}")
        rate = Money(Decimal(1))
        nonce = mark.nonce if mark else ""
        machine = Machine(ref, name or (mark_name(mark) if mark else "web"), mark, nonce, now, rate, 1, 1.0, whose)
        self.machines.append(machine)
        return machine

    def terminate(self, ref: Ref, now: float, who: str, until: float = math.inf) -> None:
        """A request to end something; whatever is not there any more is ended already."""
        self.deeds.append(Deed(now, who, "terminate", ref, until=until))
        if ref.kind == "key":
            self.stuck += 1
            if self.stuck <= self.faults.sticky_keys and now < self.faults.calm_from:
                raise ProviderError("409: it is in use")
            self.keys.pop(ref, None)
            return
        if ref.kind == "disk":
            disk_of = self.disks.get(ref)
            if disk_of is not None and disk_of.bills(now):
                raise ProviderError("409: it is attached")
            self.disks.pop(ref, None)
            return
        machine = self.find(ref)
        self.watching(machine, now, who)
        if machine is None or machine.ended_at <= now:
            return
        if self.faults.eclipses and now > machine.eclipse[1] + ECLIPSE_APART_S:
            begin = now + self.random.uniform(0.5, 6)
            machine.eclipse = (begin, begin + ECLIPSE_S)
        if machine.ignore > 0:
            machine.ignore -= 1
            return
        machine.ending_from = min(machine.ending_from, now)
        machine.ended_at = min(machine.ended_at, now + self.faults.terminate_s)

    def find(self, ref: Ref) -> Machine | None:
        """The machine behind a ref."""
        return next((m for m in self.machines if m.ref == ref), None)

    def ours(self, nonce: str | None = None) -> list[Machine]:
        """Machines that our create calls made."""
        return [m for m in self.machines if m.whose == "ours" and nonce in (None, m.nonce)]

    # --- what it shows

    def look(self, ref: Ref, now: float) -> Observation:
        """The answer to a look by id: late, lying or in a word that nobody knows."""
        self.settle(now)
        if ref.kind == "key":
            return Observation(ref, "running" if ref in self.keys else "absent", (), provider_time=now)
        if ref.kind == "disk":
            there = self.disk_bills(ref, now)
            return Observation(ref, "running" if there else "absent", ("storage",) if there else (), provider_time=now)
        machine = self.find(ref)
        if machine is None or now < machine.seen_from or _within(machine.eclipse, now):
            return Observation(ref, "absent", (), provider_time=now, raw_state="404")
        word = machine.word or self._word(machine, now)
        for begin, end, lie in self.faults.lies:
            if machine.whose == "ours" and START + begin <= now < START + end:
                word = lie
        state: ObservedState = word if word in STATES else "unknown"  # type: ignore[assignment]
        if machine.refused:
            why = "no capacity after all"
            return Observation(ref, "refused", (), why, provider_time=now, raw_state="failed", refusal="capacity")
        there = state in ("running", "ending") and now >= machine.created_at + machine.boot_s
        return Observation(
            ref, state, ("compute",) if state not in ("terminal", "absent") else (),
            endpoint=Endpoint(ref.id, 22) if there else None, created_at=machine.created_at,
            ends_at=machine.ends_at if machine.ends_at < math.inf else None, provider_time=now, raw_state=word,
        )  # fmt: skip

    def _word(self, machine: Machine, now: float) -> str:
        if now >= machine.ended_at:
            return "terminal" if now < machine.ended_at + SHOWN_AFTER_S else "absent"
        if now >= machine.ending_from:
            return "ending"
        return "running" if now >= machine.created_at + machine.boot_s else "starting"

    def listing(self, scope: Scope, now: float) -> Inventory:
        """What a listing shows: late, with gaps that are named, and blind for a moment."""
        self.settle(now)
        regions = set(scope.regions) or {REGION}
        kinds = scope.kinds or ("rental", "disk", "key")
        gaps = [Gap(r, "rental", "a page could not be read") for r in sorted(regions & self.blind_regions)]
        gaps += [Gap(REGION, k, "no such kind") for k in kinds if k not in ("rental", "disk", "key")]
        items = [
            self._item(m, now)
            for m in self.machines
            if m.ref.region in regions - self.blind_regions and m.ref.kind in kinds and self._listed(m, now)
        ]
        free = Money(Decimal(0))
        items += [
            Billable(ref, ref.id, None, (), None, free, nonce=nonce)
            for ref, nonce in self.keys.items()
            if "key" in kinds and ref.region in regions - self.blind_regions
        ]
        items += [
            Billable(
                ref, ref.id, None, ("storage",), m.created_at, Money(Decimal("0.01")), parent=str(m.ref), nonce=m.nonce
            )
            for ref, m in self.disks.items()
            if "disk" in kinds and ref.region in regions - self.blind_regions
            and self.disk_bills(ref, now) and now >= m.listed_from
        ]  # fmt: skip
        if self.faults.gap_part and self.random.random() < self.faults.gap_part:
            gaps.append(Gap(REGION, "rental", "page 2 could not be read"))
            items = items[:-1] if self.random.random() < 0.7 else []
        return Inventory(ACCOUNT, scope, tuple(items), tuple(gaps), provider_time=now)

    def _listed(self, m: Machine, now: float) -> bool:
        return m.listed_from <= now < m.ended_at + SHOWN_AFTER_S and not m.refused and not _within(m.eclipse, now)

    def _item(self, m: Machine, now: float) -> Billable:
        begin = self.faults.rename_s
        name = "renamed-by-hand" if m.whose == "ours" and begin and now >= START + begin else m.name
        parsed = parse_name(name)
        damaged = parsed is not None and parsed.state == "damaged"
        bills = ("compute",) if now < m.ended_at else ()
        # the tag is the higher carrier of the mark, the name the lower one
        nonce = m.mark.nonce if m.mark is not None else parsed.nonce if parsed else ""
        mark = None if damaged else m.mark
        return Billable(m.ref, name, mark, bills, m.created_at, m.rate, nonce=nonce, damaged=damaged)

    def charges(self, start: Time, end: Time) -> tuple[Charge, ...]:
        """The provider's own record of what it charges."""
        return tuple(
            Charge(
                m.ref, m.nonce, m.created_at, m.ended_at if m.ended_at <= end else None, Money(m.cost(end)), "compute"
            )
            for m in self.machines
            if m.created_at < end and m.ended_at > start and not m.refused
        )


def _within(window: tuple[float, float], now: float) -> bool:
    return window[0] <= now < window[1]
