"""The spec: a manifest, checked and made absolute. Sizes are bytes unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
class GitSource:
    """A commit of a checkout on this computer. What it is exactly is found out when the run is planned."""

    repository: str
    revision: str = "HEAD"
    dirty: Literal["refuse", "patch"] = "refuse"
    commit: str = ""
    """The full hash; empty before the plan."""
    patch_sha256: str = ""
    """Of the changes beside the commit that are sent, too; empty: none."""
    notes: tuple[str, ...] = ()
    """What the commit does not hold: submodules, contents that lie in LFS, files that git does not know."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tree that goes to the host; `source` is absolute, `destination` absolute on the host.

    With `git` the tree is made from a commit, and `source` is empty until then.
    """

    source: str
    destination: str
    exclude: tuple[str, ...] = ()
    follow: bool = False
    include_ignored: bool = False
    """Send files that git ignores, too: for generated inputs inside a work tree."""
    git: GitSource | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """Data that must lie at `to` on the host before training starts.

    `source` is an https address, an absolute path here (path) or on the host (volume); empty for a command.
    """

    to: str
    kind: Literal["https", "path", "volume", "command"]
    source: str = ""
    argv: tuple[str, ...] = ()
    sha256: str = ""
    """Empty only for a path, whose hash is taken here."""
    bytes: int = 0
    """0: not known."""
    ca: str = ""
    """Path on the host of the certificates that are accepted instead of the usual ones."""
    data: tuple[tuple[str, str], ...] = ()
    """What a person wants recorded: revision, licence and so on."""


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
class Timeouts:
    """How long each step on the way to training may take, in seconds; 0: whoever says this does not say."""

    allocate_s: float = 0
    """From the create call to a host that answers at an address, or to the fetching of its image."""
    image_s: float = 0
    """Fetching the image, as far as the provider tells that it does."""
    ssh_s: float = 0
    """From the address to a host that was reached and checked."""
    checks_s: float = 0
    """One look at the host."""
    environment_s: float = 0
    """Making the environment of training."""
    first_update_s: float = 0
    """From the start of training to its first sign: an update, a generation."""


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
    inputs: tuple[Input, ...] = ()
    allow_from: tuple[str, ...] = ()
    """Networks from which SSH is let in, where the rental has a firewall of its own; empty: this computer's address alone."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """What the manifest says; the provider's and then the policy's stand where it is silent."""


def unpinned(spec: Spec) -> Spec:
    """The spec as the manifest says it, without what the plan found out."""

    def plain(transfer: Transfer) -> Transfer:
        git = transfer.git and replace(transfer.git, commit="", patch_sha256="", notes=())
        return replace(transfer, git=git)

    return replace(spec, transfers=tuple(plain(t) for t in spec.transfers))


def remarks(spec: Spec) -> tuple[str, ...]:
    """What a person should know before approving: which commits, what they do not hold, what the host brings itself."""
    found = []
    for git in [t.git for t in spec.transfers if t.git]:
        found.append(f"{git.repository}: commit {git.commit}")
        if git.patch_sha256:
            found.append(f"{git.repository}: with its uncommitted changes, patch sha256 {git.patch_sha256}")
        found += git.notes
    found += [_told(item) for item in spec.inputs if item.kind != "path"]
    made = spec.environment
    if made is not None and (made.lock or made.command):
        found.append(
            f"the environment of training is made on the host first, from {made.lock or ' '.join(made.command)}"
        )
    if probe := spec.train.probe:
        found.append(f"{probe.updates} updates are measured first; what does not fit is not launched")
    return tuple(found)


def _told(item: Input) -> str:
    size = f", {item.bytes:,} bytes" if item.bytes else ""
    what = {
        "https": f"the host fetches {item.source}",
        "volume": f"the volume must hold {item.source}",
        "command": f"the host makes it with {' '.join(item.argv)}",
    }
    return f"input {item.to}: {what[item.kind]}{size}, sha256 {item.sha256}"
