"""The ports: everything that touches the world, as protocols. The same engine runs on real ports and on simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from gpuops.provider import Provider
from gpuops.spec import Input, Spec
from gpuops.values import (
    Check,
    Copied,
    Endpoint,
    Event,
    Generation,
    HostKey,
    HostStatus,
    InputsSeen,
    Probed,
    Record,
    RunId,
    Sealed,
    SendList,
    Surroundings,
    Time,
)

LOG_PIECE = 256 << 10
"""Bytes of the training log in one answer of `Host.log`."""


class Clock(Protocol):
    """Money time: the provider's time, carried on by a clock that counts suspend."""

    def now(self) -> Time:
        """Seconds since 1970 by the provider's clock, as well as it is known."""
        ...

    def wall(self) -> Time:
        """This computer's own idea of the time."""
        ...

    def learn(self, provider_time: Time) -> None:
        """Correct money time by a time that a provider's answer carried."""
        ...

    def heard(self) -> bool:
        """An answer has told this clock the provider's time; until then it is this computer's own."""
        ...

    def sleep_until(self, at: Time) -> None:
        """Sleep until money time `at`."""
        ...


class Journal(Protocol):
    """The append-only record; the key is (run, seq)."""

    def append(self, run: RunId, event: Event, *, expected: int, at: Time, wall: Time) -> Record:
        """Append a decision made on version `expected` (the last seq seen). Raises `Stale` when the run moved on."""
        ...

    def append_facts(self, run: RunId, events: tuple[Event, ...], *, at: Time, wall: Time) -> tuple[Record, ...]:
        """Append facts in one transaction; never refused for being late."""
        ...

    def records(self, run: RunId, after: int = 0) -> tuple[Record, ...]:
        """The records of a run with seq greater than `after`, in order."""
        ...

    def runs(self, *, open_only: bool = False) -> tuple[RunId, ...]:
        """Run ids, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the first login finds. `checks` compares the manifest's expectations with it."""

    boot_id: str
    host_time: Time
    checks: tuple[Check, ...]
    facts: dict[str, str] = field(default_factory=dict)
    """Human-readable facts worth recording: device, driver, isolation, python, tools."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The answer of `Host.launch`."""

    boot_id: str
    how: str = ""
    """In what training runs: tmux, or a detached session of its own. Empty where it was started before."""


Progress = Callable[[str, float, float], None]
"""(what, done, total): called from bulk effects; total 0 when unknown."""


class Host(Protocol):
    """The rented host of one run, reached over SSH. All calls are bounded by `until` (money time).

    Raises `Unreachable` for anything that a later attempt may mend, `HostKeyMismatch` for a wrong host (never retried),
    `HostError` for everything that the host itself says is wrong.
    """

    def keys(self, run: RunId) -> tuple[str, HostKey]:
        """The run's own SSH client public key and host key, made once and kept under the run directory with mode 0600."""
        ...

    def pin(self, run: RunId, endpoint: Endpoint, public_key: str) -> str:
        """Write the run's known_hosts (one line) and return the fingerprint. Touches no network."""
        ...

    def scan(self, run: RunId, endpoint: Endpoint, until: Time) -> str:
        """The public key that the host presents, unauthenticated: only for trust on first use or to compare a fingerprint."""
        ...

    def check(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostFacts:
        """Log in once, look at device, driver, memory, volumes, space, clock and ports, and compare with the spec."""
        ...

    def preview(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> SendList:
        """rsync dry run: what would be sent, nothing sent."""
        ...

    def send(self, run: RunId, endpoint: Endpoint, spec: Spec, approved: SendList, until: Time) -> tuple[int, int]:
        """Send the approved list and verify sha256 of every file on the host; returns (files, bytes) verified.

        Raises `HostError` when a source changed since the list was approved or a hash differs.
        """
        ...

    def environment(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Surroundings | str:
        """Make what training runs in, and look at it in exactly that. Goes on without us: a text says how far it is.

        Safe to repeat. Raises `HostError` when it cannot be made.
        """
        ...

    def probe(
        self, run: RunId, endpoint: Endpoint, spec: Spec, secrets: Mapping[str, str], until: Time
    ) -> Probed | str:
        """Try a few updates and measure them. Goes on without us: a text says how far it is. Safe to repeat."""
        ...

    def bring(
        self, run: RunId, endpoint: Endpoint, spec: Spec, missing: tuple[Input, ...], until: Time, progress: Progress
    ) -> InputsSeen:
        """Bring inputs to the host, on from where an earlier call stopped, and verify each by sha256 before it gets its name.

        What could not be brought is told in the answer, with what was. Raises `Unreachable` when there is no answer.
        """
        ...

    def launch(
        self,
        run: RunId,
        endpoint: Endpoint,
        spec: Spec,
        secrets: Mapping[str, str],
        deadline: Time,
        resume: str,
        until: Time,
    ) -> Launched:
        """Record what lies in the output directory and start the supervisor, in tmux where there is one.

        Safe to repeat: a supervisor of this run that was started before is found, not started twice.
        """
        ...

    def restore(
        self, run: RunId, endpoint: Endpoint, spec: Spec, generation: Generation, source: str, until: Time
    ) -> str:
        """Send a verified copy, directory `source` here, and verify it on the host; returns where it lies there.

        It goes beside the published generations and is none of them. Safe to repeat.
        """
        ...

    def recall(self, run: RunId, endpoint: Endpoint, until: Time) -> Spec | None:
        """The spec that `launch` left on the host; None when nothing of this run was ever launched there.

        Raises `HostError` when something was launched and its record cannot be read: it may hold work.
        """
        ...

    def shell(self, run: RunId, endpoint: Endpoint) -> list[str]:
        """The command that gives a person a shell on the host. Touches no network."""
        ...

    def status(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostStatus:
        """What the supervisor says; `missing` when none of this run was ever started on this boot."""
        ...

    def log(self, run: RunId, endpoint: Endpoint, spec: Spec, offset: int, until: Time) -> tuple[str, int]:
        """What training printed from byte `offset` on, at most `LOG_PIECE` bytes, and the offset to go on from.

        Control characters are escaped, newlines and tabs kept. At the end of the log the offset stays as it is.
        """
        ...

    def set_deadline(self, run: RunId, endpoint: Endpoint, deadline: Time, until: Time) -> Time:
        """Rewrite the host's deadline file and return what it says afterwards."""
        ...

    def set_guest_end(self, run: RunId, endpoint: Endpoint, at: Time, until: Time) -> Time:
        """Move the timer inside the machine that powers it off, and return what it says afterwards."""
        ...

    def seal(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Sealed:
        """Stop training at an update boundary, leave nothing writing, hash the newest complete generations and telemetry.

        Safe to repeat; a second seal of the same end gives the same generations.
        """
        ...

    def hash_generation(self, run: RunId, endpoint: Endpoint, spec: Spec, generation: str, until: Time) -> Generation:
        """Hash one complete generation on the host (for mirroring while training runs)."""
        ...

    def fetch(
        self,
        run: RunId,
        endpoint: Endpoint,
        spec: Spec,
        generation: Generation,
        into: str,
        until: Time,
        progress: Progress,
    ) -> bool:
        """Bring the generation's files into directory `into`, resuming what is there; True when all bytes are there.

        Returns False when `until` came first. Only regular files named in `generation` are written.
        """
        ...

    def close(self, run: RunId) -> None:
        """Close connections; touches nothing on the host."""
        ...


class Store(Protocol):
    """Independent storage for copies. A verified generation is never written over."""

    def find(self, run: RunId, destination: str, generation: Generation) -> Copied | None:
        """A published copy with exactly this content, read again from disk; None when there is none."""
        ...

    def attempt(self, run: RunId, destination: str, generation: Generation) -> str:
        """A private directory for this attempt; an unfinished attempt of the same content is reused."""
        ...

    def publish(self, run: RunId, destination: str, generation: Generation, attempt: str) -> Copied:
        """Hash the attempt from disk, compare, write the hash list, publish by one rename. Raises `CopyError`."""
        ...

    def load(self, copy: Copied) -> Generation:
        """The hash list of a published copy, after every file was read again from disk. Raises `CopyError`."""
        ...

    def discard(self, attempt: str) -> None:
        """Remove a spoiled attempt."""
        ...

    def prune(self, run: RunId, destination: str, keep_last: int, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Remove old published generations beyond the last n, never one named in `keep`; returns what was removed."""
        ...

    def free_bytes(self, destination: str) -> int:
        """Free space at the destination, where something was written just now. Raises `CopyError` when nothing can be."""
        ...


class Notify(Protocol):
    """Tells a person."""

    def __call__(self, run: RunId, level: str, message: str) -> None:
        """`level` is info, warning or alarm."""
        ...


class Locks(Protocol):
    """Advisory locks of this computer."""

    def bulk(self, run: RunId) -> AbstractContextManager[bool]:
        """Yields True when this process may do bulk work for the run, False when another one does."""
        ...


@dataclass(frozen=True)
class Ports:
    """All ports of one driver."""

    clock: Clock
    journal: Journal
    providers: Callable[[str], Provider]
    host: Host
    store: Store
    notify: Notify
    locks: Locks
    secret: Callable[[str], str | None]
    random_bytes: Callable[[int], bytes]
    progress: Progress
    authorized_keys: tuple[str, ...] = ()
    """Further SSH public keys that every rental accepts (config.ssh.authorized_keys)."""
    bug: Callable[[str, BaseException], None] = lambda what, error: None
    """Writes a traceback of an unexpected exception to a file."""
    clean: Callable[[str], str] = str
    """Takes secrets out of a text that came from elsewhere, before it is recorded."""
    shield: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    """Holds back an interruption by the user while the named effect must not be torn from its record."""


def no_progress(what: str, done: float, total: float) -> None:
    """A `Progress` that shows nothing."""
