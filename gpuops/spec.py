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
    host_tools: Literal["refuse", "install"] = "refuse"
    """Whether rsync and tmux are installed where they are missing; otherwise something else stands in for them."""
