"""A host of a fake cloud as it was ordered: values, and nothing of any vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """What nvidia-smi shows."""

    name: str
    memory_mib: int
    count: int = 1
    driver: str = "580.95.05"


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume: `device` is its node (`/dev/nvme1n1`), `names` those below /dev/disk/by-id. It outlives hosts."""

    id: str
    device: str
    names: tuple[str, ...] = ()
    size_mb: int = 64


@dataclass(frozen=True, slots=True)
class File:
    """A file that the first boot writes."""

    path: str
    content: bytes
    mode: int = 0o644
    append: bool = False


@dataclass(frozen=True, slots=True)
class FirstBoot:
    """What a machine does when it starts for the first time, in this order."""

    accounts: Mapping[str, tuple[str, ...]]
    """Login names with the public keys that they accept; an `authorized_keys` line may carry options."""
    host_keys: Mapping[str, str] = field(default_factory=dict)
    """Private host keys by type (`ed25519`); without any the host makes its own."""
    early: tuple[tuple[str, ...], ...] = ()
    """Commands before anything else, as argument lists."""
    files: tuple[File, ...] = ()
    mounts: tuple[tuple[str, ...], ...] = ()
    """Lines of fstab; what is not there yet is mounted when somebody asks for it."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands at the end, beside the SSH daemon."""
    ignored: tuple[str, ...] = ()
    """What was asked for and is not simulated."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One host as it was ordered."""

    name: str
    address: str
    boot: FirstBoot
    device: Device | None = None
    disks: tuple[Disk, ...] = ()
    port: int = 22
