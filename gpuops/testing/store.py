"""The simulated store: copies on a disk that fills, verified and published as the real one does."""

from __future__ import annotations

import math

from gpuops.errors import CopyError
from gpuops.names import content_digest
from gpuops.testing.faults import START
from gpuops.testing.host import Hosts, Wire
from gpuops.values import Copied, Generation, RunId


class SimulatedStore:
    """`ports.Store`: an attempt counts only after it was verified and published."""

    def __init__(self, hosts: Hosts, wire: Wire) -> None:
        self._hosts, self._wire = hosts, wire

    def find(self, run: RunId, destination: str, generation: Generation) -> Copied | None:
        """A published copy with this content."""
        for path, content in self._hosts.published.items():
            if content.id == generation.id and content.files == generation.files:
                return Copied(generation.id, path, generation.bytes, content_digest(generation))
        return None

    def attempt(self, run: RunId, destination: str, generation: Generation) -> str:
        """A directory of its own for this content."""

        def make(now: float) -> str:
            if any(START + a <= now < START + b for a, b in self._hosts.faults.disk_full):
                raise CopyError("no space left on device")
            return f"{destination}/.incoming/{generation.id}.{content_digest(generation)}"

        return self._wire.call("attempt", math.inf, make)

    def publish(self, run: RunId, destination: str, generation: Generation, attempt: str) -> Copied:
        """Verify, then publish under a name that nothing else has."""
        hosts = self._hosts

        def publish(now: float) -> Copied:
            if attempt in hosts.spoiled:
                raise CopyError(f"weights.bin differs from what was sealed in {attempt}")
            path = f"{destination}/{generation.id}"
            if path in hosts.published and hosts.published[path].files != generation.files:
                path = f"{path}.{content_digest(generation)}"
            hosts.published.setdefault(path, generation)
            hosts.verified.setdefault(path, generation)
            hosts.attempts.pop(attempt, None)
            return Copied(generation.id, path, generation.bytes, content_digest(generation))

        return self._wire.call("publish", math.inf, publish, effect=True)

    def load(self, copy: Copied) -> Generation:
        """A copy that is still published."""
        found = self._hosts.published.get(copy.path)
        if found is None or content_digest(found) != copy.digest:
            raise CopyError(f"{copy.path} is not the copy that was verified")
        return found

    def discard(self, attempt: str) -> None:
        """Remove a spoiled attempt."""
        self._hosts.attempts.pop(attempt, None)
        self._hosts.spoiled.discard(attempt)

    def prune(self, run: RunId, destination: str, keep_last: int, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Remove old copies beyond the last n."""
        names = sorted({g.id for g in self._hosts.published.values()} - {"telemetry"})
        gone = [n for n in names[:-keep_last] if n not in keep]
        self._hosts.published = {p: g for p, g in self._hosts.published.items() if g.id not in gone}
        return tuple(gone)

    def free_bytes(self, destination: str) -> int:
        """Plenty, unless the disk is full."""
        return 10**13
