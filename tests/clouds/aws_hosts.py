"""The hosts behind EC2's public addresses: each is made from the user-data of its own RunInstances call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clouds.cloudconfig import first_boot
from clouds.hosts import Device, Disk, HostError, HostKeeper, Machine
from moto.ec2.models.instance_types import INSTANCE_TYPES

LOGIN = "ubuntu"
"""The default user of the fake's image."""


class AwsHosts:
    """A `HostKeeper` that knows what an instance and a volume of EC2 are."""

    def __init__(self, directory: Path, on_end: Callable[[str, str], None]) -> None:
        self.keeper = HostKeeper(directory, on_end)
        self._disks: dict[str, Disk] = {}

    def start(self, instance: Any, backend: Any, region: str) -> None:
        """Boot the host of an instance; one without a public address has none."""
        address = instance.public_ip
        if not address or instance.id in self.keeper.names():
            return
        pair = backend.key_pairs.get(instance.key_name) if instance.key_name else None
        keys = (pair.public_key.strip(),) if pair is not None else ()
        boot = first_boot(_text(instance.user_data), LOGIN, keys)
        self.keeper.start(Machine(instance.id, address, boot, device_of(instance.instance_type)))
        for device, held in list(instance.block_device_mapping.items()):
            if device != instance.root_device_name:
                self.attach(instance.id, held.volume_id)

    def stop(self, ident: str) -> None:
        """The host of an instance ends now; safe to repeat."""
        self.keeper.stop(ident)

    def attach(self, ident: str, volume: str) -> None:
        """Let a volume appear in a host, where there is one."""
        disk = self._disks.setdefault(volume, nitro_disk(volume, len(self._disks) + 1))
        with contextlib.suppress(HostError):
            self.keeper.attach(ident, disk)

    def detach(self, ident: str, volume: str) -> None:
        """Take it away."""
        if volume in self._disks:
            with contextlib.suppress(HostError):
                self.keeper.detach(ident, self._disks[volume])

    def console(self, ident: str) -> str:
        """What the host has printed, SSH host keys among it."""
        return self.keeper.console(ident)

    def clear(self) -> None:
        """Every host ends."""
        for name in self.keeper.names():
            self.keeper.stop(name)


def nitro_disk(volume: str, number: int) -> Disk:
    """A volume on an instance of the Nitro system: NVMe, its id without the dash as serial (EC2 user guide, "NVMe EBS")."""
    serial = volume.replace("-", "")
    return Disk(volume, f"/dev/nvme{number}n1", (f"nvme-Amazon_Elastic_Block_Store_{serial}",))


def device_of(kind: str) -> Device | None:
    """What nvidia-smi shows on an instance type, by the description that DescribeInstanceTypes gives."""
    gpus = (INSTANCE_TYPES.get(kind, {}).get("GpuInfo") or {}).get("Gpus") or []
    if not gpus or gpus[0].get("Manufacturer") != "NVIDIA":
        return None
    return Device(f"NVIDIA {gpus[0]['Name']}", int(gpus[0]["MemoryInfo"]["SizeInMiB"]), int(gpus[0]["Count"]))


def _text(user_data: Any) -> str:
    """moto keeps it as it was sent, in base64."""
    if not user_data:
        return ""
    return str(user_data.decode())
