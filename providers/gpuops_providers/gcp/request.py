"""The one create call: an order as the vendor's `Instance`, with mark, deadline and every disk's fate in it.

Source: instances.insert in the discovery document compute.v1 (rev. 20261106).
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from gpuops.marks import mark_name
from gpuops.values import Order, VolumeUse

from . import marks, offers, times, words
from .offers import Product
from .settings import IMAGE, PROVISIONING, Settings

_VOLUME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def name(order: Order) -> str:
    """The machine's name, which is its id; unique in project and zone, so that the same order cannot be filled twice there."""
    return mark_name(order.mark)


def image(order: Order) -> str:
    """The concrete image: the manifest's, else the one that the family meant when the plan was made, which the offer keeps."""
    return order.image or order.offer.terms.get(offers.IMAGE_TERM, "")


def problem(order: Order) -> str:
    """Why this order cannot be sent as it is; empty when it can."""
    what = offers.product(order.offer.id)
    if what is None or what.zone != order.offer.region:
        return f"{order.offer.id!r} is not an offer of this provider in {order.offer.region}"
    if not re.fullmatch(IMAGE, image(order)):
        return f"the image {image(order)!r} does not name one concrete image"
    if strange := [v.id for v in order.volumes if not _VOLUME.fullmatch(v.id)]:
        return f"{', '.join(strange)} cannot be the name of a disk"
    if clash := [v.mount for v in order.volumes if not v.mount.startswith("/")]:
        return f"{', '.join(clash)} is not an absolute path"
    return ""


def instance(order: Order, what: Product, project: str, settings: Settings) -> dict[str, Any]:
    """The body of the create call."""
    zone = f"zones/{what.zone}"
    labels = marks.labels(order.mark)
    body: dict[str, Any] = {
        "name": name(order),
        "machine_type": f"{zone}/machineTypes/{what.machine_type}",
        "labels": marks.labels(order.mark, order.offer.rate),
        "disks": [_boot(order, what, labels, settings), *(_attached(v, project, what.zone) for v in order.volumes)],
        "network_interfaces": [_network(settings)],
        "scheduling": _scheduling(order, what),
        "metadata": {"items": _metadata(order, settings)},
    }
    if what.accelerators:
        kind = f"{zone}/acceleratorTypes/{what.accelerator}"
        body["guest_accelerators"] = [{"accelerator_type": kind, "accelerator_count": what.accelerators}]
    if settings.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        body["service_accounts"] = [{"email": settings.service_account, "scopes": [scope]}]
    return body


def _boot(order: Order, what: Product, labels: dict[str, str], settings: Settings) -> dict[str, Any]:
    """A disk that goes with the machine. It has labels of its own: those of the machine are not copied to it."""
    kind = settings.boot_disk_type or words.boot_disk_type(what.machine_type)
    return {
        "boot": True,
        "auto_delete": True,
        "device_name": "boot",
        "mode": words.sent("mode", "READ_WRITE"),
        "initialize_params": {
            "disk_name": name(order),
            "source_image": image(order),
            "disk_size_gb": offers.disk_gb(order.disk_gb, settings),
            "disk_type": f"zones/{what.zone}/diskTypes/{kind}",
            "labels": labels,
        },
    }


def _attached(volume: VolumeUse, project: str, zone: str) -> dict[str, Any]:
    """A disk that exists already and outlives the machine."""
    return {
        "source": f"projects/{project}/zones/{zone}/disks/{volume.id}",
        "device_name": volume.id,
        "auto_delete": False,
        "mode": words.sent("mode", "READ_WRITE"),
    }


def _network(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = (
        {"subnetwork": settings.subnetwork} if settings.subnetwork else {"network": settings.network}
    )
    if settings.address == "external":
        # ephemeral: it goes with the machine; a static one would bill on
        found["access_configs"] = [{"name": "External NAT", "type_": words.sent("type", "ONE_TO_ONE_NAT")}]
    return found


def _scheduling(order: Order, what: Product) -> dict[str, Any]:
    """The provider's own deadline, absolute: a run duration would begin anew at every start."""
    return {
        "provisioning_model": words.sent("provisioningModel", PROVISIONING[what.model]),
        "termination_time": times.write(order.ends_at),
        "instance_termination_action": words.sent("instanceTerminationAction", "DELETE"),
        "on_host_maintenance": words.sent("onHostMaintenance", "TERMINATE"),
        "automatic_restart": False,
    }


def _metadata(order: Order, settings: Settings) -> list[dict[str, str]]:
    keys = "\n".join(f"{settings.user}:{key.strip()}" for key in order.ssh_public_keys)
    values = {
        "ssh-keys": keys,
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        "enable-guest-attributes": "TRUE",
        "startup-script": startup(order, settings.user),
    }
    return [{"key": key, "value": value} for key, value in values.items()]


def startup(order: Order, user: str) -> str:
    """Runs as root at every boot: mounts the volumes where the order wants them. It never makes a file system.

    The login gets the top folder of a volume when that still belongs to root; what lies in it is left alone.
    """
    lines = ["#!/bin/bash", f"user={shlex.quote(user)}", _FUNCTIONS]
    lines += [f"attach {shlex.quote(v.id)} {shlex.quote(v.mount)}" for v in order.volumes]
    return "\n".join([*lines, *([order.startup] if order.startup else [])]) + "\n"


_FUNCTIONS = r"""id -u "$user" >/dev/null 2>&1 || useradd -m -s /bin/bash "$user"
attach() { # DEVICE MOUNT
  local disk=/dev/disk/by-id/google-$1 tries=0
  until [ -e "$disk" ] || [ $tries -ge 60 ]; do tries=$((tries + 1)); sleep 1; done
  [ -e "$disk-part1" ] && disk=$disk-part1
  mkdir -p "$2"
  mountpoint -q "$2" || mount -o discard,defaults "$disk" "$2" || { echo "gpuops: $1 has no file system to mount"; return; }
  [ "$(stat -c %u "$2")" != 0 ] || chown "$user:" "$2"
}"""
