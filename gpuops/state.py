"""The state of a run as frozen values, and its life table. `fold` builds it from the journal, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from gpuops.cost import copy_seconds, limit_and_deadline
from gpuops.policy import Policy
from gpuops.purchase import MAY_BILL, Purchase, Work
from gpuops.spec import Spec, Timeouts
from gpuops.values import Copied, Money, Offer, PurchaseId, RunId, Time

Phase = Literal["planned", "ready", "training", "ended", "sealed", "copied", "closed"]
Wanted = Literal["nothing", "ready", "training", "closed"]

# The life of a run. It may close from every phase: it can fail before it trains; what was never launched needs no copy.
RUN_LIFE: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        "planned": frozenset({"ready", "closed"}),
        "ready": frozenset({"training", "closed"}),
        "training": frozenset({"ended", "sealed", "closed"}),
        "ended": frozenset({"sealed", "closed"}),
        "sealed": frozenset({"copied", "closed"}),
        "copied": frozenset({"closed"}),
        "closed": frozenset({"planned", "ready", "training", "ended", "sealed", "copied"}),
    }
)
BLIND_LAYERS = ("provider timer", "guest timer", "mark")
"""What ends a rental at a moment of its own and knows nothing of copies."""
GUARD_LAYER = "guard on this computer"
_WANTED_ORDER: tuple[Wanted, ...] = ("nothing", "ready", "training", "closed")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Failures in a row of one rule for one purchase, and when it was last tried."""

    failures: int
    at: Time
    error: str
    final: bool = False
    """Trying again cannot help: the host or the provider said no."""
    busy: int = 0
    """So often in a row, since the last failure, another process had the lock. That is no failure, and undoes none."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Something that ends the rental without the user, and when it will."""

    name: str
    grade: str
    at: Time


@dataclass(frozen=True, slots=True)
class Extension:
    """A deadline that was asked for and that is not in force before every layer has moved."""

    deadline: Time
    limit: Time


@dataclass(frozen=True)
class RunState:
    """Everything that is known about a run. `version` is the seq of the last record.

    Without slots, so that what every rule asks for is worked out once for each version.
    """

    run: RunId
    version: int
    spec: Spec
    seed: str
    plan: dict[str, Any]
    plan_digest: str
    offer: Offer
    planned_at: Time
    deadline: Time
    limit: Time
    account: str
    further: tuple[Offer, ...] = ()
    """What the approved plan buys instead of `offer`, in this order, where the provider has no capacity for it."""
    listing_lag_s: float | None = None
    """The provider's guaranteed bound on late visibility; None where there is no guarantee."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """The provider's defaults; those of the manifest stand in the spec."""
    adopted: bool = False
    resume: str = ""
    """The generation on the host that training goes on from; empty: it begins anew."""
    restore: Copied | None = None
    """The verified copy that the next rental goes on from, after one was lost."""
    time_told: Time = 0.0
    """The provider's time as a listing told it, asked for because a look by id could not."""
    time_told_at: Time = 0.0
    armed_at: Time | None = None
    """When the guard on this computer last showed that it reaches this run's account."""
    armed_from: Time = 0.0
    """From when on it has to show that again: a lost rental was replaced."""
    unarmed: str = ""
    """Why the guard does not reach it."""
    wanted: Wanted = "nothing"
    wanted_at: Time = 0.0
    wanted_seq: int = 0
    cause: str = ""
    approved: frozenset[str] = frozenset()
    preflight_at: Time | None = None
    preflight_seq: int = 0
    preflight_problem: str = ""
    preflight_final: bool = False
    timer: str = "none"
    """The declared grade of the provider's own timer."""
    after_create: frozenset[str] = frozenset()
    """What this provider needs or has beside the create call, as its adapter said: attach, arm, admit, guest timer."""
    purchases: Mapping[PurchaseId, Purchase] = field(default_factory=dict)
    attempts: Mapping[tuple[str, str], Attempt] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)
    extension: Extension | None = None
    alarms: tuple[str, ...] = ()
    reconciled_at: Time | None = None
    reconciled_seq: int = 0
    reconcile_gaps: tuple[str, ...] = ()
    closed: bool = False
    closed_at: Time | None = None
    last_at: Time = 0.0
    first_at: Mapping[str, Time] = field(default_factory=dict)
    """Money time of the first record of each kind: the timing sheet."""

    @cached_property
    def rental(self) -> Purchase | None:
        """The purchase that the run works on: the launched one, else the first that exists, else the newest intent.

        No duplicate and nothing that fell through. With two intents whose answers were lost, either may be found first.
        """
        live = [p for p in self.current if p.life not in ("refused", "not_sent")]
        if len(live) < 2:
            return live[0] if live else None
        launched = [p for p in live if p.work.launching_at is not None]
        made = [p for p in live if p.ref is not None and p.life != "gone"]
        made.sort(key=lambda p: (p.life != "created", p.made_at or 0.0))
        return (launched or made or live[-1:])[0]

    @cached_property
    def intents(self) -> tuple[Purchase, ...]:
        """Purchases for which a create call was decided on: no duplicates, no parts."""
        return tuple(p for p in self.purchases.values() if not p.twin_of and not p.part_of)

    @cached_property
    def current(self) -> tuple[Purchase, ...]:
        """The intents since a rental was last replaced: what came before is only searched for, brought home and ended."""
        last = max((p.seq for p in self.replaced), default=0)
        return tuple(p for p in self.intents if p.seq > last)

    @cached_property
    def refused(self) -> tuple[Purchase, ...]:
        """Current intents that the provider refused, and for which no other offer stands in."""
        return tuple(p for p in self.current if p.life == "refused" and not p.passed)

    @cached_property
    def replaced(self) -> tuple[Purchase, ...]:
        """Lost rentals that the run goes on without."""
        return tuple(p for p in self.purchases.values() if p.replaced_at is not None)

    @property
    def to_prepare(self) -> Purchase | None:
        """The rental that has everything that was sent and on which training was not launched yet."""
        p = self.rental
        ready = p is not None and p.life == "created" and self.wanted == "training" and p.work.sent is not None
        return p if ready and p is not None and p.work.launching_at is None else None

    @property
    def surplus(self) -> tuple[Purchase, ...]:
        """Rentals found late while the run works on another one: nothing was launched on them, and nothing will be."""
        found = (p for p in self.intents if p.life == "created" and p is not self.rental)
        return tuple(p for p in found if p.work.launching_at is None)

    @property
    def phase(self) -> Phase:
        """Where the run is in its life."""
        if self.closed:
            return "closed"
        rental = self.rental
        if rental is None:
            return "planned"
        return work_phase(rental.work)

    @property
    def outcome(self) -> str:
        """How training ended; empty while it has not, or when it never began."""
        works = [p.work for p in self.purchases.values() if p.work.launching_at is not None]
        return works[-1].outcome if works else ""

    @property
    def may_bill(self) -> tuple[Purchase, ...]:
        """Purchases that bill, or may bill, now; what is unknown counts."""
        return tuple(p for p in self.purchases.values() if p.life in MAY_BILL and not p.free)

    @property
    def last_intent_seq(self) -> int:
        """The record with which the run last decided to buy; 0 when it never did."""
        return max((p.seq for p in self.intents), default=0)

    @property
    def counts_on_guard(self) -> bool:
        """The approved plan names the guard on this computer among what ends the rental."""
        return any(layer.get("name") == GUARD_LAYER for layer in self.plan.get("layers", ()))

    def spent(self, now: Time) -> Money:
        """Accrued estimate over all purchases."""
        total = Money(self.spec.cap.amount * 0, self.spec.cap.currency)
        for p in self.purchases.values():
            total = total + p.spent(now)
        return total

    def available(self, now: Time) -> Money:
        """What the cap leaves for a further purchase: reservations of unknown ones stay reserved."""
        left = self.spec.cap
        for p in self.purchases.values():
            left = left + p.reserved(now, p.mark.limit_at).times(-1)
        return left

    def ends(self, now: Time) -> tuple[Time, Time]:
        """(limit, deadline) for a purchase made now: as planned from now on, and as far as the cap pays."""
        planned = self.spec.deadline_at or now + self.spec.deadline_s
        wanted = self.deadline if self.purchases else planned  # what was moved meanwhile stays moved
        rate, unit_s = self.offer.rate, self.offer.billing_unit_s
        return limit_and_deadline(now, wanted, self.spec.hold_s, self.available(now), rate, unit_s)

    def failures(self, rule: str, purchase: PurchaseId = "") -> Attempt | None:
        """The last failures in a row of a rule, or None."""
        return self.attempts.get((rule, purchase))

    def due(self, rule: str, policy: Policy, purchase: PurchaseId = "", table: tuple[float, ...] | None = None) -> Time:
        """When a rule may act again after its failures; minus infinity when it has not failed."""
        attempt = self.failures(rule, purchase)
        if attempt is None:
            return -math.inf
        gap = policy.backoff(attempt.failures, table) if attempt.failures else 0.0
        return attempt.at + max(gap, policy.backoff(attempt.busy, policy.busy_every_s) if attempt.busy else 0.0)

    def visible_from(self, purchase: Purchase, policy: Policy) -> Time:
        """From when on "not listed" is news: once it was listed, or when late visibility is over.

        That it was seen by id does not count: the listing may lag behind, and a proof needs two routes that both see.
        """
        if purchase.listed_at is not None:
            return purchase.listed_at
        if purchase.free:
            return -math.inf  # nothing is lost when the provider is believed about what costs nothing
        lag = policy.twin_horizon_s if self.listing_lag_s is None else self.listing_lag_s
        made_at = purchase.made_at if purchase.made_at is not None else purchase.send_before + policy.accept_s
        return made_at + lag

    def teardown_at(self, policy: Policy) -> Time:
        """When seal and copy must start, so that teardown is complete by the deadline."""
        rental = self.rental
        size = self.spec.outputs.expected_bytes
        rate = policy.copy_bytes_per_s
        if rental is not None:
            rate = rental.work.copy_rate or rate
            probed = rental.work.probed.generation_bytes if rental.work.probed else 0
            size = max([size, probed, *(c.bytes for c in rental.work.copied.values())])
        margin = min(policy.copy_margin_s, policy.copy_margin_part * max(self.deadline - self.planned_at, 0))
        # a layer that could not be moved as far as the journal's limit ends the rental at its own
        blind = [x.at - self.spec.hold_s for name, x in self.layers.items() if name in BLIND_LAYERS]
        return min([self.deadline, *blind]) - copy_seconds(size, rate) - margin - self.spec.train.grace_s


def work_phase(work: Work) -> Phase:
    """The phase that the work on one rental has reached."""
    if work.sealed is not None and not work.to_copy:
        return "copied"
    if work.sealed is not None or work.unreachable:
        return "sealed"
    if work.outcome:
        return "ended"
    if work.launching_at is not None:
        return "training"
    return "ready" if work.checks_ok else "planned"


def copy_name(generation: str) -> str:
    """Where the failures of copying one generation are counted: one that fails must not hold up the others."""
    return f"copy {generation}"


def later_wish(old: Wanted, new: Wanted) -> bool:
    """A wish only moves forward."""
    return _WANTED_ORDER.index(new) > _WANTED_ORDER.index(old)


def host_deadline(deadline: Time, grace_s: float) -> Time:
    """When the supervisor stops training by itself, should nobody have sealed: the grace then ends by the deadline."""
    return deadline - grace_s
