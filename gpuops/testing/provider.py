"""The simulated provider: one program's way to a simulated cloud.

A `Line` decides how long a call takes and whether it arrives; `DirectLine` is a line without faults, for tests of other things
and for the conformance kit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gpuops.errors import CredentialsError, ProviderError, RateLimited
from gpuops.marks import mark_name
from gpuops.provider import Traits
from gpuops.testing.cloud import ACCOUNT, NAME, Cloud
from gpuops.testing.faults import ACCEPT_S, MAX_VISIBILITY_S, START
from gpuops.values import (
    Charge,
    Created,
    Device,
    Inventory,
    Need,
    Observation,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
)

T = TypeVar("T")


class Line(Protocol):
    """How a program reaches the cloud."""

    name: str

    def keyed(self) -> bool:
        """Whether the key that comes with the calls is good now."""
        ...

    def call(self, what: str, until: Time, do: Callable[[float], T], *, effect: bool = False) -> T:
        """Carry one call: `do` gets the true time at which it arrives. Raises `ProviderError` when it does not."""
        ...


@dataclass
class DirectLine:
    """A line without faults, on a clock that the caller moves."""

    now: float = START
    name: str = "test"

    def keyed(self) -> bool:
        """Always."""
        return True

    def call(self, what: str, until: Time, do: Callable[[float], T], *, effect: bool = False) -> T:
        """Arrive at once, unless it is too late already."""
        if self.now > until:
            raise ProviderError(f"{what}: no time left")
        return do(self.now)


class SimulatedProvider:
    """One program's view of a cloud. Its marks move; its timer, where there is one, does not."""

    name = NAME

    def __init__(self, cloud: Cloud, line: Line) -> None:
        self._cloud, self._line = cloud, line
        self.traits = Traits(
            idempotency_token=False,
            billing_unit_s=cloud.faults.billing_unit_s,
            stopped_bills=("disk",),
            outlives=(),
            listing_lag_s=MAX_VISIBILITY_S if cloud.faults.lag_guaranteed else None,
            deadline="none" if cloud.faults.timer == "none" else "read back",
            end_movable=isinstance(self, TimedProvider),
            host_key_route="injected",
            kinds=("rental", "disk", "key"),
            made_kinds=("disk",),
            free_kinds=("key",),
            simulated=True,
        )

    def account(self) -> str:
        """The account behind the credentials."""
        self._check()
        return ACCOUNT

    def _check(self) -> None:
        if not self._cloud.credentials_good or not self._line.keyed():
            raise CredentialsError("the key was revoked")

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """The offers, whatever was asked for."""
        self._check()
        device = Device(need.device, need.count, 80)
        return self._line.call("quote", until, lambda now: self._cloud.offers(now, device))

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """A key, free, named by the nonce."""
        return (self._line.call("prepare", until, lambda now: self._cloud.make_key(order), effect=True),)

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """One create call; its answer may be lost on the way."""
        f, cloud = self._cloud.faults, self._cloud
        self._check()

        def arrive(now: float) -> Created | Refused | None:
            if f.create in ("dropped", "limited") and cloud.random.random() < 0.7:
                return None
            if f.create == "slow" and cloud.random.random() < 0.7:
                # a request that left in time may be accepted when its sender has given up
                cloud.pending.append((now + cloud.random.uniform(1, ACCEPT_S), order, self._line.name, until))
                return None
            return cloud.create(order, now, self._line.name, until)

        answer = self._line.call("provision", until, arrive, effect=True)
        once = "lost" in cloud.next_create or "error" in cloud.next_create
        cloud.next_create = [c for c in cloud.next_create if c not in ("lost", "error")]
        if answer is None or ((f.create in ("lost", "error") or once) and isinstance(answer, Created)):
            if f.create == "limited":
                raise RateLimited("429: too many requests")
            raise ProviderError("500: internal error" if f.create == "error" else "no answer")
        return answer

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """A fresh look by id."""
        self._check()
        if ref.account != ACCOUNT:
            raise ProviderError(f"{ref} lies on account {ref.account}: this one's answer proves nothing")
        return self._line.call("inspect", until, lambda now: self._cloud.look(ref, now))

    def terminate(self, ref: Ref, until: Time) -> None:
        """A request to end it."""
        self._check()
        self._line.call(
            "terminate", until, lambda now: self._cloud.terminate(ref, now, self._line.name, until), effect=True
        )

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """What is on the account."""
        self._check()
        return self._line.call("list", until, lambda now: self._cloud.listing(scope, now))

    def charges(self, start: Time, end: Time, until: Time) -> tuple[Charge, ...]:
        """What was charged."""
        self._check()
        return self._line.call("charges", until, lambda now: self._cloud.charges(start, end))

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Rewrite the limit in the mark and read it back."""
        self._check()

        def move(now: float) -> None:
            machine = self._cloud.find(ref)
            if machine is not None and machine.mark is not None:
                machine.mark = dataclasses.replace(machine.mark, limit_at=limit_at)
                machine.name = mark_name(machine.mark)

        self._line.call("set_mark", until, move, effect=True)
        found = self._line.call("list", until, lambda now: self._cloud.find(ref))
        if found is None or found.mark is None:
            raise ProviderError(f"{ref} has no mark to move")
        return found.mark.limit_at


class TimedProvider(SimulatedProvider):
    """The same cloud with a timer per rental that can be moved."""

    def set_end(self, ref: Ref, at: Time, until: Time) -> Time:
        """Move the timer and read it back."""
        self._check()

        def move(now: float) -> None:
            machine = self._cloud.find(ref)
            if machine is not None and machine.ended_at > now:
                machine.ends_at = at
                self._cloud.set_timer(machine)

        self._line.call("set_end", until, move, effect=True)
        seen = self._line.call("inspect", until, lambda now: self._cloud.find(ref))
        if seen is None:
            raise ProviderError(f"{ref} does not exist")
        return seen.ends_at


def connect(cloud: Cloud, line: Line) -> SimulatedProvider:
    """The provider as this cloud offers it: with or without a timer that moves."""
    return SimulatedProvider(cloud, line) if cloud.faults.timer == "none" else TimedProvider(cloud, line)
