"""The simulated host and store: training with generations in virtual time, and copies that are slow, broken or corrupt."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gpuops.errors import HostError, Unreachable
from gpuops.ports import HostFacts, Launched, Progress
from gpuops.spec import Input, Spec
from gpuops.testing.cloud import Cloud, Machine
from gpuops.testing.faults import START, Faults
from gpuops.values import (
    Check,
    Endpoint,
    FileHash,
    Generation,
    HostKey,
    HostStatus,
    InputsSeen,
    InputThere,
    Probed,
    RunId,
    Sealed,
    SendList,
    Surroundings,
    Time,
)

T = TypeVar("T")


class Wire(Protocol):
    """How a program reaches a host or its own disk."""

    name: str

    def call(self, what: str, until: Time, do: Callable[[float], T], *, effect: bool = False) -> T:
        """Carry one call; `do` gets the true time at which it arrives."""
        ...

    def transfer(self, seconds: float, until: Time) -> float:
        """Let a long transfer run for at most `seconds` and no longer than `until`; returns how long it ran."""
        ...


@dataclass
class Training:
    """What runs on one machine, as it really is."""

    faults: Faults
    boot_id: str
    started_at: float
    deadline: float
    stopped_at: float = math.inf
    sealed: bool = False
    first: int = 0
    """Number of the first generation: training that goes on counts on."""

    def ended_at(self) -> float:
        """When it ends, or ended, without a seal."""
        own = self.started_at + (60.0 if self.faults.outcome == "failed" else self.faults.train_s)
        stop = math.inf if self.faults.ignores_stop else self.deadline
        return min(own, stop, self.stopped_at)

    def outcome(self) -> str:
        """How it ended."""
        own = self.started_at + (60.0 if self.faults.outcome == "failed" else self.faults.train_s)
        return self.faults.outcome if own <= min(self.deadline, self.stopped_at) else "interrupted"

    def generations(self, now: float) -> tuple[Generation, ...]:
        """Complete generations, oldest first; the last one is saved when training is stopped at an update boundary."""
        if self.stopped_at <= self.started_at:
            return ()  # sealed before it was ever started
        end, f = min(self.ended_at(), now), self.faults
        number = int(max(end - self.started_at, 0) // f.publish_every_s)
        if now >= self.ended_at() and self.outcome() != "failed":
            number += 1
        return tuple(_generation(f, self.boot_id, self.first + n) for n in range(max(number - 2, 0), number))


def _generation(f: Faults, boot_id: str, number: int) -> Generation:
    sha = hashlib.sha256(f"{f.seed}/{boot_id}/{number}".encode()).hexdigest()
    return Generation(f"g{number:05d}", number, (FileHash("weights.bin", f.generation_bytes, sha),), 1.0 / (number + 1))


@dataclass
class Hosts:
    """All machines' insides and everything that was copied: the truth behind the host and store ports."""

    cloud: Cloud
    faults: Faults
    random: random.Random
    training: dict[str, Training] = field(default_factory=dict)
    attempts: dict[str, float] = field(default_factory=dict)
    """Attempt directory → bytes that have arrived."""
    spoiled: set[str] = field(default_factory=set)
    published: dict[str, Generation] = field(default_factory=dict)
    """Path → content of every published copy."""
    verified: dict[str, Generation] = field(default_factory=dict)
    """Path → content of every copy that was ever published; pruning removes only from `published`."""
    restored: dict[str, Generation] = field(default_factory=dict)
    """Machine id and path → content that was sent back to it."""
    damaged: list[str] = field(default_factory=list)
    """Published copies that were written to afterwards: must stay empty."""

    def machine(self, endpoint: Endpoint, now: float) -> Machine:
        """The machine behind an address, if it answers at all. Raises `Unreachable`."""
        machine = next((m for m in self.cloud.machines if m.ref.id == endpoint.host), None)
        f = self.faults
        if machine is None or now >= machine.ended_at or now < machine.created_at + machine.boot_s:
            raise Unreachable("connection refused")
        if f.vanish_s and machine.created_at < START + f.vanish_s <= now:
            raise Unreachable("no route to host")
        if any(START + a <= now < START + b for a, b in f.unreachable):
            raise Unreachable("timed out")
        return machine

    def boot_id(self, machine: Machine, now: float) -> str:
        """Changes with a reboot."""
        rebooted = self.faults.reboot_s and machine.created_at < START + self.faults.reboot_s <= now
        return f"{machine.ref.id}-{2 if rebooted else 1}"

    def running(self, machine: Machine, now: float) -> Training | None:
        """The training that was started on this machine, stopped by a reboot where there was one."""
        training = self.training.get(machine.ref.id)
        if training is not None and training.boot_id != self.boot_id(machine, now):
            training.stopped_at = min(training.stopped_at, START + self.faults.reboot_s)
        return training

    def newest(self, machine: Machine, now: float) -> Generation | None:
        """The newest complete generation that exists on the machine."""
        training = self.running(machine, now)
        found = training.generations(now) if training else ()
        return found[-1] if found else None

    def holds(self, generation: Generation) -> bool:
        """Whether a published copy has exactly this content."""
        return generation.files in [g.files for g in self.published.values()]


class SimulatedHost:
    """`ports.Host` over a wire."""

    def __init__(self, hosts: Hosts, wire: Wire) -> None:
        self._hosts, self._wire = hosts, wire

    def keys(self, run: RunId) -> tuple[str, HostKey]:
        """Keys that open nothing."""
        return "ssh-ed25519 simulated", HostKey("private", "ssh-ed25519 host", "SHA256:simulated")

    def pin(self, run: RunId, endpoint: Endpoint, public_key: str) -> str:
        """The fingerprint of the one key."""
        return "SHA256:simulated"

    def scan(self, run: RunId, endpoint: Endpoint, until: Time) -> str:
        """The one key."""
        return "ssh-ed25519 host"

    def check(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostFacts:
        """Everything is as ordered."""

        def look(now: float) -> HostFacts:
            machine = self._hosts.machine(endpoint, now)
            return HostFacts(self._hosts.boot_id(machine, now), now, (Check("device", "any", "any", True),))

        return self._wire.call("check", until, look)

    def preview(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> SendList:
        """An empty list."""

        def look(now: float) -> SendList:
            self._hosts.machine(endpoint, now)
            return SendList((), (), (), 0, "nothing-to-send")

        return self._wire.call("preview", until, look)

    def send(self, run: RunId, endpoint: Endpoint, spec: Spec, approved: SendList, until: Time) -> tuple[int, int]:
        """Nothing has to go over."""

        def send(now: float) -> tuple[int, int]:
            self._hosts.machine(endpoint, now)
            return 0, 0

        return self._wire.call("send", until, send, effect=True)

    def environment(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Surroundings | str:
        """The image as it is."""

        def look(now: float) -> Surroundings:
            self._hosts.machine(endpoint, now)
            return Surroundings("image", False, 0.0, "3.12.0")

        return self._wire.call("environment", until, look, effect=True)

    def probe(
        self, run: RunId, endpoint: Endpoint, spec: Spec, secrets: Mapping[str, str], until: Time
    ) -> Probed | str:
        """A quick one, of which nothing is known but that it ended well."""

        def run_it(now: float) -> Probed:
            self._hosts.machine(endpoint, now)
            return Probed(0, False, 1.0)

        return self._wire.call("probe", until, run_it, effect=True)

    def bring(
        self, run: RunId, endpoint: Endpoint, spec: Spec, missing: tuple[Input, ...], until: Time, progress: Progress
    ) -> InputsSeen:
        """Everything is there already."""

        def look(now: float) -> InputsSeen:
            self._hosts.machine(endpoint, now)
            return InputsSeen(tuple(InputThere(i.to, "there already", i.bytes, i.sha256, 0) for i in missing))

        return self._wire.call("bring", until, look, effect=True)

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
        """Start training, or find it started. A sealed host starts nothing again."""
        hosts = self._hosts

        def start(now: float) -> Launched:
            machine = hosts.machine(endpoint, now)
            training = hosts.training.get(machine.ref.id)
            if training is None:
                resumed = hosts.restored.get(f"{machine.ref.id}:{resume}")
                if resume and resumed is None:
                    raise HostError(f"there is no generation to resume from at {resume}")
                first = resumed.step + 1 if resumed else 0
                training = Training(hosts.faults, hosts.boot_id(machine, now), now, deadline, first=first)
                hosts.training[machine.ref.id] = training
            return Launched(training.boot_id, "tmux")

        return self._wire.call("launch", until, start, effect=True)

    def restore(
        self, run: RunId, endpoint: Endpoint, spec: Spec, generation: Generation, source: str, until: Time
    ) -> str:
        """Send a copy that is still published."""
        hosts = self._hosts

        def send(now: float) -> str:
            machine = hosts.machine(endpoint, now)
            if hosts.published.get(source) != generation:
                raise HostError(f"{source} is not the copy that was verified")
            hosts.restored[f"{machine.ref.id}:/resumed/{generation.id}"] = generation
            return f"/resumed/{generation.id}"

        seconds = generation.bytes / hosts.faults.copy_bytes_per_s
        self._wire.call("reach", until, lambda now: hosts.machine(endpoint, now))
        if self._wire.transfer(seconds, until) + 1e-6 < seconds:
            raise Unreachable("rsync did not end in time")
        return self._wire.call("restore", until, send, effect=True)

    def recall(self, run: RunId, endpoint: Endpoint, until: Time) -> Spec | None:
        """Nothing is kept here."""
        return None

    def shell(self, run: RunId, endpoint: Endpoint) -> list[str]:
        """No shell."""
        return ["true"]

    def status(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> HostStatus:
        """What the supervisor would say."""
        hosts = self._hosts

        def look(now: float) -> HostStatus:
            machine = hosts.machine(endpoint, now)
            boot_id, training = hosts.boot_id(machine, now), hosts.running(machine, now)
            if training is None or training.boot_id != boot_id:
                return HostStatus("missing", boot_id, now)
            names = tuple(g.id for g in training.generations(now))
            if now >= training.ended_at():
                return HostStatus("ended", boot_id, now, training.outcome(), 0, "", generations=names)
            return HostStatus("running", boot_id, now, beat={"step": len(names)}, generations=names)

        return self._wire.call("status", until, look)

    def log(self, run: RunId, endpoint: Endpoint, spec: Spec, offset: int, until: Time) -> tuple[str, int]:
        """Simulated training prints nothing."""

        def look(now: float) -> tuple[str, int]:
            self._hosts.machine(endpoint, now)
            return "", offset

        return self._wire.call("log", until, look)

    def set_deadline(self, run: RunId, endpoint: Endpoint, deadline: Time, until: Time) -> Time:
        """Rewrite the deadline file."""
        hosts = self._hosts

        def move(now: float) -> Time:
            training = hosts.running(hosts.machine(endpoint, now), now)
            if training is None:
                raise HostError("nothing was started here")
            if now < training.ended_at():
                training.deadline = deadline
            return training.deadline

        return self._wire.call("set_deadline", until, move, effect=True)

    def set_guest_end(self, run: RunId, endpoint: Endpoint, at: Time, until: Time) -> Time:
        """Machines here have no timer of their own."""
        raise HostError("this machine has no timer of its own")

    def seal(self, run: RunId, endpoint: Endpoint, spec: Spec, until: Time) -> Sealed:
        """Stop training, hash what is complete."""
        hosts = self._hosts

        def stop(now: float) -> Sealed:
            machine = hosts.machine(endpoint, now)
            training = hosts.running(machine, now)
            telemetry = Generation("telemetry", 0, (FileHash("train.log", 1000, "0" * 64),))
            if training is None:
                # nothing may start after a seal: the launch that is still under way finds this
                training = Training(hosts.faults, hosts.boot_id(machine, now), now, now, stopped_at=now, sealed=True)
                hosts.training[machine.ref.id] = training
                return Sealed("interrupted", None, "never started", (), telemetry)
            training.stopped_at = min(training.stopped_at, now)
            training.sealed = True
            newest_first = tuple(reversed(training.generations(now)))
            return Sealed(training.outcome(), 0, "", newest_first, telemetry)

        return self._wire.call("seal", until, stop, effect=True)

    def hash_generation(self, run: RunId, endpoint: Endpoint, spec: Spec, generation: str, until: Time) -> Generation:
        """Hash one generation that is still there."""
        hosts = self._hosts

        def look(now: float) -> Generation:
            training = hosts.running(hosts.machine(endpoint, now), now)
            for found in training.generations(now) if training else ():
                if found.id == generation:
                    return found
            raise HostError(f"{generation} is not there")

        return self._wire.call("hash", until, look)

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
        """Bring bytes into an attempt directory, on from where it stands."""
        hosts = self._hosts
        self._wire.call("fetch", until, lambda now: hosts.machine(endpoint, now), effect=True)
        if into in hosts.published:
            hosts.damaged.append(f"{into} was written to")
            del hosts.published[into]
        have = hosts.attempts.get(into, 0.0)
        left = (generation.bytes - have) / hosts.faults.copy_bytes_per_s
        broken = hosts.random.random() < hosts.faults.broken_part
        ran = self._wire.transfer(left * hosts.random.random() if broken else left, until)
        hosts.attempts[into] = min(have + ran * hosts.faults.copy_bytes_per_s, float(generation.bytes))
        self._wire.call("fetched", until, lambda now: hosts.machine(endpoint, now))
        if broken:
            raise Unreachable("the connection broke")
        if ran + 1e-6 < left:
            return False
        hosts.attempts[into] = float(generation.bytes)
        if hosts.random.random() < hosts.faults.corrupt_part or (hosts.faults.rotten and generation.step % 4 == 3):
            hosts.spoiled.add(into)
        return True

    def close(self, run: RunId) -> None:
        """Nothing is open."""
