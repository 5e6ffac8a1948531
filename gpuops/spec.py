"""The spec: a manifest, checked and made absolute. Sizes are bytes unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuops.values import Money, Need, Time, VolumeUse


@dataclass(frozen=True, slots=True)
class Checks:
    """What the host must show before anything is transferred."""

    device: str = ""
    count: int = 1
    memory_gb: float = 0
    driver: str = ""
    """Lowest accepted driver version, dotted numbers."""
    free_gb: float = 1
    clock_skew_s: float = 30
    ports: tuple[int, ...] = (22,)
    """The ports that the rental may publish, exactly."""
    on_failure: Literal["down", "hold"] = "down"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tree that goes to the host; `source` is absolute, `destination` absolute on the host."""

    source: str
    destination: str
    exclude: tuple[str, ...] = ()
    follow: bool = False
    include_ignored: bool = False
    """Send files that git ignores, too: for generated inputs inside a work tree."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What training runs in: the image as it is, or built on the host from `lock` or by `command`; and what it must hold."""

    lock: str = ""
    """A hashed lock file on the host, in pip's requirements form."""
    command: tuple[str, ...] = ()
    """Run in the working directory; beside a lock, inside of what was built from it."""
    directory: str = ""
    """Where environments are built on the host, and wheels are kept. On a volume both are used again."""
    python: str = ""
    """Expected versions are prefixes at dots: 2.13 accepts 2.13.0+cu130. Empty: anything, also that it is not there."""
    torch: str = ""
    cuda: str = ""
    devices: int = 0
    """How many devices torch must see; 0: it is not asked."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A few updates of training before the real ones, to measure time, memory and the size of a generation."""

    argv: tuple[str, ...]
    updates: int = 3
    timeout_s: float = 600


@dataclass(frozen=True, slots=True)
class Train:
    """The command to run. `resume_argument` is put before the path of a generation when resuming."""

    argv: tuple[str, ...]
    workdir: str
    resume_argument: str = ""
    wall_clock_s: float = 0
    """0 means: until the deadline."""
    grace_s: float = 30
    max_updates: int = 0
    max_tokens: int = 0
    resume: int = 0
    """How many lost rentals may be replaced, each going on from the newest verified copy."""
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where generations are published and copied to. `best` names a heartbeat metric; lower is better."""

    directory: str
    destination: str
    keep_last: int = 2
    best: str = ""
    mirror: bool = True
    load_check: tuple[str, ...] = ()
    expected_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Teardown:
    """When teardown begins by itself."""

    when: Literal["ended", "manual"] = "ended"
    keep_failed_s: float = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """A manifest, checked and made absolute: the only form that anything but `manifest` reads."""

    name: str
    owner: str
    provider: str
    need: Need
    image: str
    disk_gb: float
    volumes: tuple[VolumeUse, ...]
    checks: Checks
    transfers: tuple[Transfer, ...]
    max_total_bytes: int
    inputs_sha256: str
    """Absolute path on the host of a list in sha256sum form; its paths start at its own folder. Empty: none."""
    env: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    train: Train
    outputs: Outputs
    cap: Money
    deadline_s: float
    """Seconds from approval to the deadline; 0 when `deadline_at` is set."""
    deadline_at: Time
    hold_s: float
    setup_s: float
    """A run that is ready but not launched goes down after this long."""
    teardown: Teardown
    accept_first_use: bool = False
    """The manifest accepts trust on first use of the host key, in so many words."""
    manifest_path: str = ""
    environment: Environment | None = None
    """None: the image as it is, and nobody looks at it before training starts."""
    host_tools: Literal["refuse", "install"] = "refuse"
    """Whether rsync and tmux are installed where they are missing; otherwise something else stands in for them."""
