"""User-data for machines that run cloud-init: the host key, who may log in, the end of the machine, and its volumes.

The text is a cloud-config (docs.cloudinit.io, "Module reference": ssh, write_files, runcmd). JSON is YAML, so it is written
as JSON. What it does on the host, in this order:

    ssh_keys            the order's own host key, instead of those that the machine would make (`ssh_deletekeys`)
    ssh_authorized_keys the order's keys, for the image's own user and, with `disable_root: false`, for root
    write_files         /etc/gpuops/deadline       epoch seconds; rewritten by rename to move the end
                        /etc/gpuops-host.json      what the provider says of the host (docs/reference/host-facts.md)
                        /usr/local/sbin/gpuops-end, and its unit: powers off at the deadline
                        /etc/gpuops/volumes.json, /usr/local/sbin/gpuops-mount, and its unit: only with volumes
    runcmd              systemctl enable --now gpuops-end.service gpuops-mount.service
                        sh /etc/gpuops/startup     only with a start-up script

Whoever may read a machine's user-data through the provider's API, and every process on it that reaches the metadata service,
can read the private half of the host key. It is made for one run and proves one thing: that the machine is the one which that
create call configured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpuops.values import Order

DEADLINE_FILE = "/etc/gpuops/deadline"
HOST_FACTS_FILE = "/etc/gpuops-host.json"
VOLUMES_FILE = "/etc/gpuops/volumes.json"
STARTUP_FILE = "/etc/gpuops/startup"
END_PROGRAM = "/usr/local/sbin/gpuops-end"
MOUNT_PROGRAM = "/usr/local/sbin/gpuops-mount"
ROOT_LOGIN_FILE = "/etc/ssh/sshd_config.d/00-gpuops.conf"


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume that joins the machine once it runs: under one of `devices`, to be mounted at `mount`."""

    id: str
    devices: tuple[str, ...]
    mount: str


def cloud_config(order: Order, *, disks: tuple[Disk, ...] = (), powers_off: bool = True, isolation: str = "") -> str:
    """The user-data for `order`. `powers_off`: the machine powers off at `order.ends_at`, where that ends its bill."""
    files = [_file(ROOT_LOGIN_FILE, "PermitRootLogin prohibit-password\n")]
    facts = {"published_ports": [22], **({"isolation": isolation} if isolation else {})}
    files.append(_file(HOST_FACTS_FILE, json.dumps(facts) + "\n"))
    services: list[str] = []
    if powers_off:
        files += [
            _file(DEADLINE_FILE, f"{int(order.ends_at)}\n"),
            _file(END_PROGRAM, _END.replace("@DEADLINE@", str(int(order.ends_at))), "0755"),
            _unit("gpuops-end", "Power off at the deadline", END_PROGRAM),
        ]
        services.append("gpuops-end.service")
    if disks:
        wanted = [{"id": disk.id, "devices": list(disk.devices), "mount": disk.mount} for disk in disks]
        files += [
            _file(VOLUMES_FILE, json.dumps(wanted, indent=1) + "\n"),
            _file(MOUNT_PROGRAM, _MOUNT, "0755"),
            _unit("gpuops-mount", "Mount attached volumes", MOUNT_PROGRAM),
        ]
        services.append("gpuops-mount.service")
    commands: list[list[str]] = []
    if services:
        commands += [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", *services]]
    if order.startup:
        files.append(_file(STARTUP_FILE, order.startup, "0700"))
        commands.append(["sh", STARTUP_FILE])
    config: dict[str, Any] = {
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_authorized_keys": [key.strip() for key in order.ssh_public_keys],
        **_host_key(order),
        "write_files": files,
        "runcmd": commands,
    }
    return "#cloud-config\n" + json.dumps(config, indent=1) + "\n"


def _host_key(order: Order) -> dict[str, Any]:
    if order.host_key is None:
        return {}
    keys = {"ed25519_private": order.host_key.private, "ed25519_public": order.host_key.public}
    return {"ssh_deletekeys": True, "ssh_keys": keys}


def _file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    return {"path": path, "content": content, "permissions": permissions, "owner": "root:root"}


def _unit(name: str, description: str, program: str) -> dict[str, str]:
    text = (
        f"[Unit]\nDescription={description} (gpuops)\n\n[Service]\nExecStart={program}\nRestart=always\nRestartSec=5\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    return _file(f"/etc/systemd/system/{name}.service", text)


_END = f"""\
#!/bin/sh
# Powers this machine off at the moment in {DEADLINE_FILE} (seconds since 1970 UTC). Move it by writing a new file beside
# it and renaming that. A file that is not ten digits changes nothing: the last good value stays.
at=@DEADLINE@
while :; do
    read -r said < {DEADLINE_FILE} || said=
    case "$said" in *[!0-9]*) ;; ??????????) at=$said ;; esac
    if [ "$(date +%s)" -ge "$at" ]; then
        sync
        shutdown -P now || poweroff
        sleep 60
        poweroff -f
    fi
    sleep 5
done
"""

_MOUNT = f"""\
#!/usr/bin/env python3
# Mounts each volume of {VOLUMES_FILE} once its device is there, and says so in {HOST_FACTS_FILE}. Nothing is ever
# formatted: a volume without a file system stays unmounted, and the first look at the host names it.
import json, os, subprocess, time

def device_of(volume):
    for name in volume["devices"]:
        for path in (name, name + "-part1"):
            if os.path.exists(path) and subprocess.run(["blkid", path], stdout=subprocess.DEVNULL).returncode == 0:
                return path
    return None

def mounted(volume):
    if os.path.ismount(volume["mount"]):
        return True
    device = device_of(volume)
    if device is None:
        return False
    os.makedirs(volume["mount"], exist_ok=True)
    return subprocess.run(["mount", device, volume["mount"]]).returncode == 0

def tell(volumes):
    with open({HOST_FACTS_FILE!r}) as source:
        facts = json.load(source)
    facts["volumes"] = [{{"id": v["id"], "mount": v["mount"].rstrip("/") or "/"}} for v in volumes]
    with open({HOST_FACTS_FILE + ".new"!r}, "w") as target:
        json.dump(facts, target)
    os.replace({HOST_FACTS_FILE + ".new"!r}, {HOST_FACTS_FILE!r})

with open({VOLUMES_FILE!r}) as source:
    wanted = json.load(source)
there = None
while True:
    now = [volume for volume in wanted if mounted(volume)]
    if now != there:
        tell(now)
        there = now
    time.sleep(2)
"""
