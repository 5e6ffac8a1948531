"""The words of gpuops as frozen values. `Time` is seconds since 1970 UTC; sizes are bytes unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

# `as`: the words of the journal and of the host are handed on, since everybody else takes all words from here
from gpuops.hostvalues import Check as Check
from gpuops.hostvalues import Copied as Copied
from gpuops.hostvalues import FileHash as FileHash
from gpuops.hostvalues import Generation as Generation
from gpuops.hostvalues import HostStatus as HostStatus
from gpuops.hostvalues import InputsSeen as InputsSeen
from gpuops.hostvalues import InputThere as InputThere
from gpuops.hostvalues import Probed as Probed
from gpuops.hostvalues import Sealed as Sealed
from gpuops.hostvalues import SendFile as SendFile
from gpuops.hostvalues import SendList as SendList
from gpuops.hostvalues import Surroundings as Surroundings
from gpuops.records import Event as Event
from gpuops.records import PurchaseId as PurchaseId
from gpuops.records import Record as Record
from gpuops.records import RunId as RunId
from gpuops.records import Time as Time

# --- money ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in one currency; written as a decimal string."""

    amount: Decimal
    currency: str = "USD"

    def __add__(self, other: Money) -> Money:
        if other.currency != self.currency:
            raise ValueError(f"cannot add {other.currency} to {self.currency}")
        return Money(self.amount + other.amount, self.currency)

    def times(self, factor: float | Decimal) -> Money:
        """Multiply by a plain number."""
        return Money(self.amount * Decimal(str(factor)), self.currency)

    def __str__(self) -> str:
        return f"{self.amount.quantize(Decimal('0.0001')).normalize():f} {self.currency}"


# --- what can be bought --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator of an offer; `memory_gb` is per device."""

    name: str
    count: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Need:
    """What the manifest asks a provider for."""

    device: str
    count: int = 1
    region: str | None = None
    offer: str | None = None
    disk_gb: float = 0
    max_price_per_hour: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be bought now. `rate` is per hour and covers everything that the create call starts to bill."""

    id: str
    provider: str
    account: str
    region: str
    product: str
    device: Device
    rate: Money
    billing_unit_s: int
    observed_at: Time
    source: str
    terms: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mark:
    """What is written on every resource at creation. `host_key` is the fingerprint where there is room, else empty."""

    run: RunId
    nonce: str
    owner: str
    limit_at: Time
    host_key: str = ""


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """A volume that exists already, attached by id and mounted at `mount`."""

    id: str
    mount: str
    min_free_gb: float = 0


@dataclass(frozen=True, slots=True)
class HostKey:
    """A per-run SSH host key. The private half exists only in the run directory and inside the create call."""

    private: str
    public: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that one create call needs."""

    mark: Mark
    member: int
    offer: Offer
    image: str
    disk_gb: float
    volumes: tuple[VolumeUse, ...]
    ssh_public_keys: tuple[str, ...]
    host_key: HostKey | None
    startup: str
    ends_at: Time
    allow_from: tuple[str, ...] = ()
    """Networks from which SSH is let in, where the rental has a firewall of its own; empty: the provider's default."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The full name of a billable; ids are unique only together with account and region."""

    provider: str
    account: str
    region: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.region}/{self.kind}/{self.id}"


@dataclass(frozen=True, slots=True)
class Created:
    """The provider says that it made `ref`. `created_at` is the provider's own time where it tells."""

    ref: Ref
    created_at: Time | None = None
    rate: Money | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The provider certainly did nothing."""

    reason: str
    kind: Literal["capacity", "price", "quota", "invalid", "account"] = "invalid"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where SSH answers."""

    host: str
    port: int
    user: str = "root"


ObservedState = Literal["starting", "running", "stopped", "ending", "terminal", "absent", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One fresh look at a billable. `unknown` counts as billing; `terminal` and `absent` are the provider's word, not proof."""

    ref: Ref
    state: ObservedState
    bills: tuple[str, ...]
    reason: str = ""
    endpoint: Endpoint | None = None
    created_at: Time | None = None
    ends_at: Time | None = None
    provider_time: Time | None = None
    raw_state: str = ""
    request_id: str = ""
    refusal: str = ""
    """For `refused`: capacity, price, quota, invalid or account, where the provider tells."""
    fetching_image: bool = False
    """It is not running yet because its image is being fetched, as the provider tells."""


@dataclass(frozen=True, slots=True)
class Billable:
    """One thing on the account that costs money or is ours. `bills` empty means that it is shown but free."""

    ref: Ref
    name: str
    mark: Mark | None
    bills: tuple[str, ...]
    since: Time | None
    rate: Money
    parent: str = ""
    nonce: str = ""
    """The nonce parsed from the best carrier; set even when the rest of the mark is damaged."""
    damaged: bool = False
    """The mark's check characters do not fit: alarm, no other action."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which kinds in which regions a listing covers; an empty tuple means all."""

    kinds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A page, region or kind that could not be read."""

    region: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """A listing; complete exactly when `gaps` is empty."""

    account: str
    scope: Scope
    items: tuple[Billable, ...]
    gaps: tuple[Gap, ...]
    provider_time: Time | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of the provider's own usage record."""

    ref: Ref
    nonce: str
    start: Time
    end: Time | None
    amount: Money
    kind: str


FindingState = Literal["ok", "warning", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about this computer. `missing` is needed and not there; a warning can be lived with."""

    name: str
    state: FindingState
    meaning: str
    fix: str = ""
    """The command that mends it."""
