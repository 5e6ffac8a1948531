"""The hosts behind the instances: real OpenSSH, made from each instance's own metadata.

What Google's image does at boot: logins and their keys come from `ssh-keys` (unless OS Login is on, which ignores them), the
startup script runs at every boot, host keys are made on the host at the first one and published by the guest's agent, and a disk
is found at /dev/disk/by-id/google-NAME (cloud.google.com/compute/docs/instances/ssh, .../startup-scripts/linux).
"""

from __future__ import annotations

import base64
import itertools
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import gcp_lives as lives
from .gcp_state import Account, Resource, place_of, tail
from .hosts import Device, Disk, FirstBoot, HostError, HostKeeper, Machine

if TYPE_CHECKING:
    from .gcp_cloud import Cloud

DEVICES = {
    "nvidia-l4": ("NVIDIA L4", 23034),
    "nvidia-tesla-t4": ("Tesla T4", 15360),
    "nvidia-tesla-a100": ("NVIDIA A100-SXM4-40GB", 40960),
    "nvidia-a100-80gb": ("NVIDIA A100-SXM4-80GB", 81920),
    "nvidia-h100-80gb": ("NVIDIA H100 80GB HBM3", 81559),
}
SCRIPT = "/var/tmp/startup-script"
LOG = "/var/log/startup-script.log"


class Hosts:
    """The hosts of the cloud; an instance's host is named by the instance's number."""

    def __init__(self, cloud: Cloud, directory: Path) -> None:
        self._cloud = cloud
        self._directory = directory
        self._keeper = HostKeeper(directory, self._ended)
        self._names: dict[str, str] = {}
        self._addresses = itertools.count(2)

    def start(self, account: Account, instance: Resource) -> None:
        """Boot the host of an instance beside everything else."""
        number = next(self._addresses)
        interface = instance.body["networkInterfaces"][0]
        public = f"203.0.{113 + number // 250}.{number % 250 + 1}"
        address = public if interface.get("accessConfigs") else interface["networkIP"]
        machine = machine_of(account, instance, address)
        self._names[instance.body["selfLink"]] = machine.name
        threading.Thread(target=self._boot, args=(account, instance, machine), daemon=True).start()

    def _boot(self, account: Account, instance: Resource, machine: Machine) -> None:
        # bubblewrap before 0.9 makes its links (/lib and the like) anew and refuses those of an earlier boot
        for link in (self._directory / machine.name / "root").glob("*"):
            if link.is_symlink():
                link.unlink()
        try:
            self._keeper.start(machine)
        except HostError:
            with account.lock:
                if account.resources.get(instance.key) is instance and instance.body["status"] == "STAGING":
                    self._cloud.bugs.append(traceback.format_exc())
            return
        lives.came_up(account, self, instance, machine.address, self._keeper.host_keys(machine.name))

    def end(self, link: str, wipe: bool) -> None:
        """Every process of the host is gone when this returns."""
        if name := self._names.get(link):
            (self._keeper.wipe if wipe else self._keeper.stop)(name)

    def attach(self, instance: Resource, shown: dict[str, Any]) -> None:
        """A disk appears in a host that runs."""
        self._keeper.attach(self._names[instance.body["selfLink"]], disk_of(self._cloud.account, instance, shown))

    def detach(self, instance: Resource, shown: dict[str, Any]) -> None:
        """A disk disappears from a host that runs."""
        self._keeper.detach(self._names[instance.body["selfLink"]], disk_of(self._cloud.account, instance, shown))

    def console(self, link: str) -> str:
        """What the host has printed."""
        return self._keeper.console(self._names[link]) if link in self._names else ""

    def names(self) -> tuple[str, ...]:
        """Hosts that run."""
        return self._keeper.names()

    def _ended(self, name: str, why: str) -> None:
        """A host that powers itself off leaves its instance stopped, and its disks billing."""
        account = self._cloud.account
        with account.lock:
            for resource in list(account.resources.values()):
                if resource.plural == "instances" and _name(resource) == name and resource.body["status"] == "RUNNING":
                    lives.halt(account, self, resource, "STOPPING", "TERMINATED")

    def close(self) -> None:
        """End every host."""
        self._keeper.close()


def machine_of(account: Account, instance: Resource, address: str) -> Machine:
    """The host that the metadata of an instance asks for."""
    metadata = lives.metadata(instance)
    script = metadata.get("startup-script", "")
    early = (("/bin/bash", "-c", _launcher(script)),) if script else ()
    logins = {} if metadata.get("enable-oslogin", "").upper() == "TRUE" else logins_of(metadata.get("ssh-keys", ""))
    boot = FirstBoot(accounts=logins, early=early)
    disks = [disk_of(account, instance, shown) for shown in instance.body["disks"] if not shown["boot"]]
    return Machine(_name(instance), address, boot, _device(instance), tuple(disks))


def logins_of(text: str) -> dict[str, tuple[str, ...]]:
    """Login names with their keys, from lines `user:ssh-ed25519 AAAA… comment`; other lines say nothing."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        user, colon, key = line.strip().partition(":")
        if colon and user and " " not in user and key.startswith(("ssh-", "ecdsa-")):
            found[user] = (*found.get(user, ()), key)
    return found


def disk_of(account: Account, instance: Resource, shown: dict[str, Any]) -> Disk:
    """An attachment as the host sees it; one of an existing disk keeps that disk's files, and a new one of its name does not."""
    letter = "abcdefghijklmnop"[shown["index"]]
    if "source" not in shown:
        return Disk(f"{_name(instance)}-{letter}", f"/dev/nvme0n{shown['index']}", (f"google-{shown['deviceName']}",))
    source = account.resources["disks", place_of(shown["source"], instance.scope), tail(shown["source"])]
    return Disk(f"disk-{source.body['id']}", f"/dev/sd{letter}", (f"google-{shown['deviceName']}",))


def _launcher(script: str) -> str:
    """Write the script and run it beside the SSH daemon, as the agent does."""
    coded = base64.b64encode(script.encode()).decode()
    first = script.split("\n", 1)[0]
    way = SCRIPT if first.startswith("#!") else f"/bin/bash {SCRIPT}"
    return f"echo {coded} | base64 -d >{SCRIPT} && chmod 700 {SCRIPT} && (setsid {way} >>{LOG} 2>&1 </dev/null &)"


def _device(instance: Resource) -> Device | None:
    for item in instance.body.get("guestAccelerators", ()):
        name, memory_mib = DEVICES[tail(item["acceleratorType"])]
        return Device(name, memory_mib, item["acceleratorCount"])
    return None


def _name(instance: Resource) -> str:
    return f"vm-{instance.body['id']}"
