"""A rate limit that all gpuops processes of this computer share, as a wrapper with the interface of the adapter inside.

Vendors count calls per account, not per process: the command line, the guard and its children draw from one file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.errors import RateLimited
from gpuops.ports import Clock
from gpuops.provider import Provider
from gpuops.values import Created, Inventory, Need, Observation, Offer, Order, Ref, Refused, Scope, Time

_LOCK_WAIT_S = 1.0
_LOCK_EVERY_S = 0.02
_ACCOUNT_S = 30.0
# The optional protocols of the contract; the wrapper has exactly those that the adapter has.
_OPTIONAL = ("set_end", "set_mark", "host_key", "attach", "caller", "admit", "charges", "needs")


@dataclass(frozen=True)
class Limit:
    """At most `calls` in any `per_s` seconds; `reserve` of them are kept for ending things."""

    path: Path
    calls: int
    per_s: float
    clock: Clock
    reserve: int = 0

    def take(self, until: Time, *, urgent: bool = False) -> None:
        """Wait for a slot. Raises `RateLimited` at once when none comes free before money time `until`.

        A file that cannot be locked or written limits nobody: ending a rental must never depend on it.
        """
        wait_s = self._claim(until - self.clock.now(), self.calls if urgent else max(1, self.calls - self.reserve))
        if wait_s > 0:
            self.clock.sleep_until(self.clock.now() + wait_s)

    def _claim(self, patience_s: float, calls: int) -> float:
        """Write down the next free slot and return how far away it is."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return 0.0
        try:
            if not self._lock(handle):
                return 0.0
            now = self.clock.wall()
            taken = [t for t in _read(handle) if now - self.per_s < t <= now + 10 * self.per_s]
            slot = max(now, taken[-calls] + self.per_s) if len(taken) >= calls else now
            if slot - now > max(0.0, patience_s):
                raise RateLimited(f"the shared limit of {self.calls} calls in {self.per_s:g} s is used up", slot - now)
            _write(handle, sorted([*taken, slot]))
            return slot - now
        except OSError:
            return 0.0
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> bool:
        """Bounded: a process that was stopped while it held the lock must not block everybody else."""
        for _ in range(int(_LOCK_WAIT_S / _LOCK_EVERY_S)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                self.clock.sleep_until(self.clock.now() + _LOCK_EVERY_S)
        return False


def _read(handle: int) -> list[float]:
    """The slots in the file, oldest first; a file that was torn by a crash counts as empty."""
    try:
        return sorted(float(t) for t in json.loads(os.pread(handle, 1_000_000, 0)))
    except (ValueError, TypeError):
        return []


def _write(handle: int, slots: list[float]) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(slots).encode(), 0)


class Limited:
    """A provider whose calls wait for a slot first."""

    def __init__(self, provider: Provider, limit: Limit) -> None:
        self._provider = provider
        self._limit = limit
        self.name = provider.name
        self.traits = provider.traits
        # As attributes of the instance, because that is where `isinstance` with a protocol looks for them.
        for method in _OPTIONAL:
            if hasattr(provider, method):
                setattr(self, method, self._waiting(getattr(provider, method), urgent=method == "set_end"))

    def account(self) -> str:
        """As the adapter, after at most half a minute."""
        self._limit.take(self._limit.clock.now() + _ACCOUNT_S)
        return self._provider.account()

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """As the adapter."""
        self._limit.take(until)
        return self._provider.quote(need, until)

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """As the adapter."""
        self._limit.take(until)
        return self._provider.prepare(order, until)

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """As the adapter; without a slot in time nothing was sent, which is a refusal and not an unknown outcome."""
        try:
            self._limit.take(until)
        except RateLimited as error:
            return Refused(f"nothing was sent: {error}", "quota")
        return self._provider.provision(order, until)

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """As the adapter."""
        self._limit.take(until)
        return self._provider.inspect(ref, until)

    def terminate(self, ref: Ref, until: Time) -> None:
        """As the adapter; may use the reserve."""
        self._limit.take(until, urgent=True)
        self._provider.terminate(ref, until)

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """As the adapter."""
        self._limit.take(until)
        return self._provider.list_billable(scope, until)

    def _waiting(self, call: Callable[..., Any], *, urgent: bool) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            # `until` is the last argument of every call of the contract.
            self._limit.take(kwargs["until"] if "until" in kwargs else args[-1], urgent=urgent)
            return call(*args, **kwargs)

        return limited
