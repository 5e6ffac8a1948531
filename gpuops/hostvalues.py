"""What the host says, as frozen values: checks, files and generations, how training goes and what it left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gpuops.records import Time


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of expected against seen."""

    name: str
    expected: str
    seen: str
    ok: bool


@dataclass(frozen=True, slots=True)
class FileHash:
    """A regular file: path relative to its generation (or tree), size, sha256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete published checkpoint with its hash list, or the pseudo generation `telemetry`."""

    id: str
    step: int
    files: tuple[FileHash, ...]
    metric: float | None = None
    left_behind: tuple[str, ...] = ()
    """Links and special files, which are not carried back."""

    @property
    def bytes(self) -> int:
        """Total size."""
        return sum(f.size for f in self.files)


@dataclass(frozen=True, slots=True)
class SendFile:
    """One line of a transfer list; `kind` is file, directory or link."""

    path: str
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class SendList:
    """The answer of a dry run, per transfer, with what a person should look at before approving."""

    trees: tuple[tuple[str, tuple[SendFile, ...]], ...]
    """(destination, files) in the order of the spec's transfers."""
    excluded: tuple[str, ...]
    suspicious: tuple[str, ...]
    total_bytes: int
    digest: str
    excluded_count: int = 0
    """How many there are in all, where `excluded` names only the first ones."""
    streamed: str = ""
    """Why the files go as a tar stream; empty when rsync carries them."""
    notes: tuple[str, ...] = ()
    """What else a person should know before approving: what is fetched on the host, what a commit does not hold."""


@dataclass(frozen=True, slots=True)
class InputThere:
    """One input that lies verified on the host."""

    to: str
    how: str
    """fetched, made, sent, there already, found on the volume."""
    bytes: int
    sha256: str
    seconds: float
    notes: tuple[str, ...] = ()
    """What was wrong on the way and was mended."""


@dataclass(frozen=True, slots=True)
class InputsSeen:
    """What one call brought. `problem` is empty when only time was missing; `final`: no further call can mend it."""

    done: tuple[InputThere, ...]
    problem: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What the supervisor and the output directory say now."""

    phase: Literal["missing", "starting", "running", "ended"]
    boot_id: str
    host_time: Time
    outcome: str = ""
    exit_code: int | None = None
    reason: str = ""
    started_at: Time | None = None
    ended_at: Time | None = None
    beat: dict[str, Any] = field(default_factory=dict)
    """The last complete line of heartbeat.jsonl."""
    generations: tuple[str, ...] = ()
    """Ids of complete generations, oldest first."""
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of training as it was made and found on the host."""

    how: str
    """image, lock or command."""
    reused: bool
    seconds: float
    python: str
    torch: str = ""
    cuda: str = ""
    """The CUDA version that torch was built for; empty for a build without it."""
    available: bool = False
    devices: int = 0
    packages: tuple[str, ...] = ()
    """`name==version` of everything that is installed there."""
    problem: str = ""
    """Why torch, although it is there, cannot be imported."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a few updates took. Sizes in bytes; 0 where nothing was told or seen."""

    exit_code: int | None
    timed_out: bool
    seconds: float
    updates: int = 0
    step_s: float = 0.0
    tokens_per_s: float = 0.0
    memory_bytes: int = 0
    device_bytes: int = 0
    device_total_bytes: int = 0
    generation_bytes: int = 0
    write_s: float = 0.0
    free_bytes: int = 0
    """Free where generations are written, on the host."""
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The end of training as the host shows it. `generations` newest first; empty when none was published."""

    outcome: str
    exit_code: int | None
    reason: str
    generations: tuple[Generation, ...]
    telemetry: Generation
    hashed_with: str = "hashlib"


@dataclass(frozen=True, slots=True)
class Copied:
    """A verified copy, published under `path`."""

    generation: str
    path: str
    bytes: int
    digest: str
