"""The provider contract: few calls, each with its obligation. An adapter only calls and translates.

No policy, no printing, no journal, no sleep in an adapter. Every call takes `until`, the money time after which its answer is
worth nothing; it must return or raise by then. An adapter is made as `(settings, secret, now)`: the seconds that are left are
`until - now()`, never by this computer's own clock, which may be hours off. Any exception of `provision` means that the outcome
is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from gpuops.spec import Timeouts as Timeouts  # `as`: adapters take the words of the contract from here
from gpuops.values import (
    Charge,
    Created,
    Finding,
    Inventory,
    Need,
    Observation,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
    VolumeUse,
)

Grade = Literal["none", "declared", "read back", "observed to fire"]


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What `resources.image` means on a provider: a container by digest, a machine image, or nothing at all."""

    kind: Literal["container", "machine", "none"]
    pattern: str = ""
    """What a name that cannot change its content looks like, as a regular expression for the whole text."""
    example: str = ""


CONTAINER = ImageForm(
    "container", r"[^\s@]+@sha256:[0-9a-f]{64}", "docker.io/pytorch/pytorch@sha256:<64 hexadecimal digits>"
)


@dataclass(frozen=True, slots=True)
class Traits:
    """What code cannot show about a provider. Where a fact is not confirmed, the expensive answer stands here."""

    idempotency_token: bool
    """A provider-side token makes a repeated create harmless."""
    billing_unit_s: int
    stopped_bills: tuple[str, ...]
    """What a stopped rental goes on billing for."""
    outlives: tuple[str, ...]
    """Kinds that survive the end of the rental."""
    listing_lag_s: float | None
    """Guaranteed bound after which a created rental is listed; None where no vendor text guarantees one."""
    deadline: Grade
    """The best grade that the provider's own timer has reached."""
    end_movable: bool
    """`set_end` moves the provider's timer."""
    host_key_route: Literal["injected", "read back", "none"]
    kinds: tuple[str, ...]
    """Every kind that `list_billable` can list; `rental` is among them."""
    free_kinds: tuple[str, ...] = ()
    """Kinds that `prepare` makes: they cost nothing, are listed with their nonce, and must be removed all the same."""
    made_kinds: tuple[str, ...] = ()
    """Kinds that bill and that the create call itself makes beside the rental, such as its own disk; they carry its nonce."""
    image: ImageForm = ImageForm("none")
    timeouts: Timeouts = field(default_factory=Timeouts)
    """What its machines take at most on the way to training, where the policy's numbers do not fit them."""
    guest_timer: bool = False
    """The machine powers off at the moment in /etc/gpuops/deadline, written by the create call, and that ends its bill."""
    end_armed_after_create: bool = False
    """The timer is no part of the create call: it is set by `set_end`, once attached volumes were seen to be kept."""
    simulated: bool = False
    """The devices are pretended; every screen says so."""


class Provider(Protocol):
    """One account on one cloud."""

    name: str
    traits: Traits

    def account(self) -> str:
        """The account behind the credentials. Raises `CredentialsError` when they are not good."""
        ...

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """Live offers for `need`, cheapest first; buys nothing."""
        ...

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """Make the free objects that the order needs, named by its nonce; safe to repeat."""
        ...

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """Send **one** create call, with the mark inside it. Never waits for the machine.

        `Refused` only when the provider certainly did nothing. Any exception means unknown.
        """
        ...

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """A fresh look. Words that the adapter does not know become `unknown`, which counts as billing.

        `absent` only when an authenticated answer says so. May report a late `refused`.
        """
        ...

    def terminate(self, ref: Ref, until: Time) -> None:
        """Ask for the end of any kind of billable; safe to repeat. Returning means *requested*, never *gone*."""
        ...

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """Everything that bills or is ours, whoever made it. What cannot be read is a gap; an unreadable answer raises."""
        ...


@runtime_checkable
class MovesEnd(Protocol):
    """The provider has a timer of its own that ends a rental, and it can be moved."""

    def set_end(self, ref: Ref, at: Time, until: Time) -> Time:
        """Move the timer to `at` and return what the provider says afterwards, read back by a separate call."""
        ...


@runtime_checkable
class MovesMark(Protocol):
    """The mark on a rental can be rewritten."""

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Rewrite the limit in the mark of `ref` and return the limit read back."""
        ...


@runtime_checkable
class TellsHostKey(Protocol):
    """The host key's fingerprint can be read over the authenticated API."""

    def host_key(self, ref: Ref, until: Time) -> str | None:
        """The fingerprint (`SHA256:…`), or None while the provider does not know it yet."""
        ...


@runtime_checkable
class AttachesVolumes(Protocol):
    """Volumes that exist already join a rental by a call of their own, once it runs."""

    def attach(self, ref: Ref, volume: VolumeUse, until: Time) -> None:
        """Attach `volume` to `ref` and read back that it outlives the rental; safe to repeat.

        Returning means that the provider shows it attached and kept. Raises when it does not, or not yet.
        """
        ...


@runtime_checkable
class AdmitsCaller(Protocol):
    """A firewall of the rental's own lets SSH in from named addresses only (`Order.allow_from` when it is made)."""

    def caller(self, until: Time) -> str:
        """The address of this computer as the provider's side sees it, as a network: `198.51.100.7/32`."""
        ...

    def admit(self, ref: Ref, sources: tuple[str, ...], until: Time) -> tuple[str, ...]:
        """Let SSH reach `ref` from exactly these networks and return what is admitted afterwards, read back."""
        ...


@runtime_checkable
class TellsCharges(Protocol):
    """The provider shows what it has charged."""

    def charges(self, start: Time, end: Time, until: Time) -> tuple[Charge, ...]:
        """Usage records that overlap the window, ours or not."""
        ...


@runtime_checkable
class TellsNeeds(Protocol):
    """The adapter knows what this computer must have for it, beside what every provider needs."""

    def needs(self, until: Time) -> tuple[Finding, ...]:
        """What is here and what is missing, each with the command that mends it; changes nothing."""
        ...
