"""A purchase as frozen values: its life table, and the work that was done on it. `fold` builds them, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gpuops.cost import accrued
from gpuops.values import (
    Check,
    Copied,
    Endpoint,
    Generation,
    HostStatus,
    Mark,
    Money,
    Observation,
    Offer,
    Probed,
    PurchaseId,
    Ref,
    Sealed,
    SendList,
    Surroundings,
    Time,
)

Life = Literal[
    "intended", "unknown", "created", "ending", "gone", "refused", "not_sent", "retained", "unproven", "ended_elsewhere"
]

# The life of a purchase: from → to. `not_sent` is `refused` by ourselves: the create call certainly never left.
PURCHASE_LIFE: Mapping[Life, frozenset[Life]] = MappingProxyType(
    {
        "intended": frozenset({"unknown", "created", "refused", "not_sent", "unproven"}),
        "unknown": frozenset({"created", "refused", "not_sent", "unproven"}),
        "created": frozenset({"ending", "ended_elsewhere", "retained"}),
        "ending": frozenset({"gone", "refused", "unproven"}),
        "ended_elsewhere": frozenset({"gone", "refused", "created", "ending"}),
        "retained": frozenset({"created", "ended_elsewhere"}),
        "unproven": frozenset({"created", "gone"}),
        "not_sent": frozenset({"created"}),
        "refused": frozenset({"created"}),
        "gone": frozenset({"created"}),
    }
)
FINAL: frozenset[Life] = frozenset({"gone", "refused", "not_sent", "unproven"})
MAY_BILL: frozenset[Life] = frozenset(
    {"intended", "unknown", "created", "ending", "unproven", "ended_elsewhere", "retained"}
)
HELD: frozenset[Life] = frozenset({"created", "retained"})
"""The machine is there as far as anybody knows, and its work can be brought home."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One round of the proof that something is gone."""

    at: Time
    ok: bool
    why: str


@dataclass(frozen=True)
class Work:
    """What was done on one rental, and what became of it. Times are money time."""

    image_at: Time | None = None
    """When the provider first told that the image is being fetched."""
    endpoint_at: Time | None = None
    attached: frozenset[str] = frozenset()
    """Volumes that the provider shows attached and kept."""
    admitted: tuple[str, ...] = ()
    """Networks from which the rental's firewall lets SSH in, read back."""
    admitted_at: Time | None = None
    fingerprint: str = ""
    key_route: str = ""
    checks: tuple[Check, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    checked_at: Time | None = None
    preview: SendList | None = None
    preview_at: Time | None = None
    listings: int = 0
    """So many dry runs were made: a file that changes while it is listed would be listed for ever."""
    delivered: tuple[int, int] | None = None
    """Files and bytes that were sent and verified, where inputs are still to come."""
    inputs: dict[str, int] = field(default_factory=dict)
    """Where on the host the inputs lie that were verified, and the bytes that came beside what was sent."""
    uplink: float = 0.0
    """Bytes per second from here to the host, as measured; 0: not measured."""
    downlink: float = 0.0
    """Bytes per second that the host fetched with."""
    sent: tuple[int, int] | None = None
    sent_at: Time | None = None
    surroundings: Surroundings | None = None
    """The environment of training, as it was made and found."""
    environment_checks: tuple[Check, ...] = ()
    environment_at: Time | None = None
    probed: Probed | None = None
    probe_checks: tuple[Check, ...] = ()
    launching_at: Time | None = None
    launched_at: Time | None = None
    boot_id: str = ""
    status: HostStatus | None = None
    status_at: Time | None = None
    first_update_at: Time | None = None
    outcome: str = ""
    exit_code: int | None = None
    end_reason: str = ""
    ended_at: Time | None = None
    sealed: Sealed | None = None
    sealed_at: Time | None = None
    unreachable: str = ""
    """Why no seal was possible; the last known generation is in `status`."""
    copied: dict[str, Copied] = field(default_factory=dict)
    forced: str = ""
    mirrored_at: Time | None = None
    slicing: str = ""
    """The generation whose copy has begun and is not complete."""
    hashed: Generation | None = None
    """The generation that is being mirrored, with its hash list."""
    passed_over: frozenset[str] = frozenset()
    """Generations that could not be hashed for mirroring."""
    copy_rate: float = 0.0
    restored: str = ""
    """Where on this host the copy lies that training goes on from, after a lost rental was replaced."""

    @property
    def checks_ok(self) -> bool:
        """Every check passed."""
        return self.checked_at is not None and all(c.ok for c in self.checks)

    @property
    def environment_ok(self) -> bool:
        """The environment of training is as the manifest expects it."""
        return self.environment_at is not None and all(c.ok for c in self.environment_checks)

    @property
    def to_copy(self) -> tuple[Generation, ...]:
        """Sealed generations, telemetry last, that have no verified copy yet."""
        if self.sealed is None:
            return ()
        wanted = (*self.sealed.generations, self.sealed.telemetry)
        return tuple(g for g in wanted if g.id not in self.copied)

    @property
    def safe_to_end(self) -> bool:
        """Ending the rental loses nothing: never launched, all copied, or forced by a recorded reason."""
        return self.launching_at is None or bool(self.forced) or (self.sealed is not None and not self.to_copy)


@dataclass(frozen=True)
class Purchase:
    """One intent to obtain something that costs money, and what became of it."""

    id: PurchaseId
    nonce: str
    mark: Mark
    offer: Offer
    life: Life
    intended_at: Time
    send_before: Time
    seq: int = 0
    """The record that brought it into the journal. Order is told by records: clocks differ, and are put right."""
    member: int = 0
    ref: Ref | None = None
    created_at: Time | None = None
    rate: Money | None = None
    via: str = ""
    observation: Observation | None = None
    observed_at: Time | None = None
    made_at: Time | None = None
    """When the journal first knew that it exists."""
    seen_at: Time | None = None
    """When the provider first showed it: before that, "not found" may only mean "not yet visible"."""
    listed_at: Time | None = None
    """When a listing last showed it. A look by id and a listing become current at different moments."""
    surveyed_at: Time | None = None
    """When a complete listing was last compared with what this purchase should have made."""
    twin_of: PurchaseId = ""
    passed: bool = False
    """Refused for want of capacity, and another offer of the plan stands in."""
    part_of: PurchaseId = ""
    """The purchase whose order made it: free objects such as a rule set. It ends after that one."""
    replaced_at: Time | None = None
    """When the run decided to go on with another rental, because this one was lost."""
    cause: str = ""
    ending_at: Time | None = None
    terminates: int = 0
    terminated_at: Time | None = None
    proofs: tuple[Proof, ...] = ()
    rounds: int = 0
    """Rounds of the proof that failed since the end was decided on."""
    gone_at: Time | None = None
    final_seq: int = 0
    """The record with which it came to the end of its life."""
    searched_at: Time | None = None
    retained_until: Time | None = None
    retained_why: str = ""
    billed: Money | None = None
    work: Work = Work()

    @property
    def endpoint(self) -> Endpoint | None:
        """Where SSH answers, as last observed."""
        return self.observation.endpoint if self.observation else None

    @property
    def running(self) -> bool:
        """The provider's last word is that it runs."""
        return self.observation is not None and self.observation.state == "running"

    def spent(self, now: Time) -> Money:
        """Accrued estimate; billed from the intent until the provider tells when it was created."""
        rate = self.rate or self.offer.rate
        if self.life in ("refused", "not_sent"):
            return Money(rate.amount * 0, rate.currency)
        start = self.created_at if self.created_at is not None else self.intended_at
        return accrued(rate, start, self.gone_at or now, self.offer.billing_unit_s)

    @property
    def free(self) -> bool:
        """It costs nothing; it must go all the same."""
        return bool(self.part_of) and self.rate is not None and not self.rate.amount

    @property
    def doubtful(self) -> bool:
        """Its create call may have worked, and nobody knows."""
        return self.life in ("intended", "unknown")

    def reserved(self, now: Time, limit: Time) -> Money:
        """What this purchase may still cost at most: until its limit while it may bill."""
        return self.spent(max(now, limit)) if self.life in MAY_BILL else self.spent(now)
