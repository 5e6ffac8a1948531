"""The life of an instance: PROVISIONING, STAGING, RUNNING, and how it ends: by a call, by its own deadline, or by nobody.

A deadline (`maxRunDuration` or `terminationTime`) is pending from RUNNING until the instance is stopped; its moment stands in
`resourceStatus.scheduling.terminationTimestamp` meanwhile (cloud.google.com/compute/docs/instances/limit-vm-runtime). An instance
of a managed group is made again after it was deleted.
"""

from __future__ import annotations

import base64
import copy
from typing import Any, Protocol

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from . import gcp_disks as disks
from .gcp_state import Account, Resource, parse_time, tail

ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
ENDING = ("STOPPING", "SUSPENDING", "DEPROVISIONING")


class Machines(Protocol):
    """Real hosts behind the instances."""

    def start(self, account: Account, instance: Resource) -> None:
        """Start the host of an instance; `came_up` is called when it answers. Returns at once."""
        ...

    def end(self, link: str, wipe: bool) -> None:
        """End the host, if there is one; `wipe` takes its boot disk away too."""
        ...

    def attach(self, instance: Resource, shown: dict[str, Any]) -> None:
        """A disk appears in a host that runs."""
        ...

    def detach(self, instance: Resource, shown: dict[str, Any]) -> None:
        """A disk disappears from a host that runs."""
        ...

    def console(self, link: str) -> str:
        """What the host has printed so far."""
        ...

    def names(self) -> tuple[str, ...]:
        """Hosts that run."""
        ...


class NoMachines:
    """Instances are records only; the addresses are those that documentation may use."""

    def start(self, account: Account, instance: Resource) -> None:
        number = int(instance.body["id"]) % 250 + 1
        private = ed25519.Ed25519PrivateKey.generate().public_key()
        words = (
            private.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode().split()
        )
        came_up(account, self, instance, f"203.0.113.{number}", {words[0]: words[1]})

    def end(self, link: str, wipe: bool) -> None:
        return None

    def attach(self, instance: Resource, shown: dict[str, Any]) -> None:
        return None

    def detach(self, instance: Resource, shown: dict[str, Any]) -> None:
        return None

    def console(self, link: str) -> str:
        return ""

    def names(self) -> tuple[str, ...]:
        return ()


def begin(account: Account, machines: Machines, instance: Resource) -> None:
    """The insert (or a start) is done: the machine is on its way."""
    queued = instance.body["scheduling"].get("provisioningModel") == "FLEX_START"
    if queued and instance.body["status"] == "PENDING":
        account.later(account.settings.queue_s, lambda: _provision(account, machines, instance))
    else:
        _provision(account, machines, instance)


def _provision(account: Account, machines: Machines, instance: Resource) -> None:
    if not _exists(account, instance) or instance.body["status"] in ENDING:
        return
    instance.body["status"] = "PROVISIONING"
    account.later(account.settings.staging_s, lambda: _stage(account, machines, instance))


def _stage(account: Account, machines: Machines, instance: Resource) -> None:
    if _exists(account, instance) and instance.body["status"] == "PROVISIONING":
        instance.body["status"] = "STAGING"
        account.later(account.settings.staging_s, lambda: _start_host(account, machines, instance))


def _start_host(account: Account, machines: Machines, instance: Resource) -> None:
    if _exists(account, instance) and instance.body["status"] == "STAGING":
        machines.start(account, instance)


def came_up(account: Account, machines: Machines, instance: Resource, address: str, host_keys: dict[str, str]) -> None:
    """The host has an address and runs. `host_keys`: type word to base64, as its own files have them."""
    with account.lock:
        if not _exists(account, instance) or instance.body["status"] != "STAGING":
            machines.end(instance.body["selfLink"], wipe=not _exists(account, instance))
            return
        for interface in instance.body["networkInterfaces"]:
            for access in interface.get("accessConfigs", ()):
                access["natIP"] = address
        instance.body |= {
            "status": "RUNNING",
            "lastStartTimestamp": account.stamp(),
            "cpuPlatform": "Intel Cascade Lake",
        }
        account.console[instance.body["selfLink"]] = _console(instance, host_keys)
        arm(account, machines, instance)
        if metadata(instance).get("enable-guest-attributes", "").upper() == "TRUE":
            link = instance.body["selfLink"]
            account.later(account.settings.guest_s, lambda: _publish(account, instance, link, host_keys))


def _publish(account: Account, instance: Resource, link: str, host_keys: dict[str, str]) -> None:
    """What the guest's agent does on the first boot: keys are the type words, values lack them."""
    if _exists(account, instance):
        account.guest.setdefault(link, {}).setdefault("hostkeys", {}).update(host_keys)


def arm(account: Account, machines: Machines, instance: Resource) -> None:
    """The deadline, if there is one, is pending from now on."""
    scheduling = instance.body["scheduling"]
    if "maxRunDuration" in scheduling:
        at = account.now() + float(scheduling["maxRunDuration"].get("seconds", 0))
    elif "terminationTime" in scheduling:
        at = parse_time(scheduling["terminationTime"])
    else:
        return
    text = account.stamp(at)
    instance.body.setdefault("resourceStatus", {})["scheduling"] = {"terminationTimestamp": text}
    account.later(max(0.0, at - account.now()), lambda: _fire(account, machines, instance, text))


def disarm(instance: Resource) -> None:
    """A stopped instance has no pending deadline."""
    instance.body.get("resourceStatus", {}).pop("scheduling", None)


def _fire(account: Account, machines: Machines, instance: Resource, text: str) -> None:
    pending = instance.body.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
    if not _exists(account, instance) or pending != text or instance.body["status"] in ENDING:
        return
    terminate(account, machines, instance)


def terminate(account: Account, machines: Machines, instance: Resource) -> None:
    """The termination action, at the deadline or when the vendor takes a spot machine back; STOP where nothing else was said."""
    if instance.body["scheduling"].get("instanceTerminationAction") == "DELETE":
        instance.body["status"] = "STOPPING"
        account.later(account.settings.stop_s, lambda: vanish(account, machines, instance))
    else:
        halt(account, machines, instance, "STOPPING", "TERMINATED")


def halt(account: Account, machines: Machines, instance: Resource, way: str, rest: str) -> None:
    """Stop or suspend; the disks stay, and so does the bill for them."""
    disarm(instance)
    instance.body["status"] = way
    account.later(account.settings.stop_s, lambda: _halted(account, machines, instance, way, rest))


def _halted(account: Account, machines: Machines, instance: Resource, way: str, rest: str) -> None:
    if _exists(account, instance) and instance.body["status"] == way:
        instance.body |= {"status": rest, "lastStopTimestamp": account.stamp()}
        for interface in instance.body["networkInterfaces"]:
            for access in interface.get("accessConfigs", ()):
                access.pop("natIP", None)  # an ephemeral address goes with the stop
        machines.end(instance.body["selfLink"], wipe=False)


def vanish(account: Account, machines: Machines, instance: Resource) -> None:
    """The instance exists no more; its group, if it has one, makes another."""
    if not _exists(account, instance):
        return
    machines.end(instance.body["selfLink"], wipe=True)
    disks.release(account, instance)
    account.remove(instance)
    creator = metadata(instance).get("created-by", "")
    group = ("instanceGroupManagers", instance.scope, tail(creator))
    if "instanceGroupManagers" in creator and group in account.resources:
        account.later(account.settings.replace_s, lambda: _replace(account, machines, instance))


def _replace(account: Account, machines: Machines, old: Resource) -> None:
    if old.key in account.resources:
        return
    body = copy.deepcopy(old.body)
    for key in ("id", "resourceStatus", "lastStartTimestamp", "lastStopTimestamp"):
        body.pop(key, None)
    new_disks = []
    for shown in body["disks"]:
        if shown["autoDelete"] and "source" in shown:
            name = tail(shown["source"])
            made = {"name": name, "sizeGb": shown["diskSizeGb"], "status": "READY", "users": [body["selfLink"]]}
            made["type"] = account.link("diskTypes", old.scope, "pd-standard")
            account.add("disks", old.scope, "disk", made)
            new_disks.append(shown)
    body |= {"status": "PROVISIONING", "disks": new_disks}
    begin(account, machines, account.add("instances", old.scope, "instance", body))


def metadata(instance: Resource) -> dict[str, str]:
    """The metadata of an instance as a mapping."""
    return {item["key"]: item.get("value", "") for item in instance.body.get("metadata", {}).get("items", ())}


def _exists(account: Account, instance: Resource) -> bool:
    return account.resources.get(instance.key) is instance


def _console(instance: Resource, host_keys: dict[str, str]) -> str:
    lines = [f"{instance.name} booting", "-----BEGIN SSH HOST KEY KEYS-----"]
    lines += [f"{kind} {value} root@{instance.name}" for kind, value in host_keys.items() if base64.b64decode(value)]
    return "\r\n".join([*lines, "-----END SSH HOST KEY KEYS-----", f"{instance.name} login: ", ""])
