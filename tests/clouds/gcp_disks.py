"""Disks: made from `initializeParams`, or attached as they are; who keeps them when the instance goes.

autoDelete belongs to the attachment, is false unless it is asked for, and is lost on detach (discovery document, AttachedDisk).
Labels of an instance are not copied to its disks.
"""

from __future__ import annotations

import re
from typing import Any

from . import gcp_catalogue as catalogue
from .gcp_answers import Refusal, in_use, invalid, not_found, required
from .gcp_state import Account, Resource, place_of, tail

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def check_name(name: str, where: str = "resource.name") -> str:
    """A name must be one of RFC 1035, at most 63 characters."""
    if not name:
        raise required(where)
    if not NAME.fullmatch(name):
        raise invalid(where, f"'{name}' must be lower-case letters, digits and dashes, at most 63")
    return name


def check_labels(labels: dict[str, str], where: str = "resource.labels") -> dict[str, str]:
    """Labels have small letters, and no colons."""
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(where, f"label {key!r}={value!r} must match [a-z0-9_-] and be at most 63 long")
    if len(labels) > 64:
        raise invalid(where, "more than 64 labels")
    return dict(labels)


def attach_all(account: Account, zone: str, instance: str, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attachments of a new instance; its new disks exist from now on, hidden until the insert is done."""
    if not wanted:
        raise required("resource.disks")
    if [d for d in wanted if d.get("boot")] != wanted[:1]:
        raise invalid("resource.disks", "the first disk, and no other, must be the boot disk")
    plans = [_plan(account, zone, instance, number, disk) for number, disk in enumerate(wanted)]
    names = [plan["disk"]["name"] for plan in plans if "disk" in plan]
    if len(set(names)) != len(names):
        raise invalid("resource.disks", "two disks of one name")
    return [_carry_out(account, zone, instance, plan) for plan in plans]


def _plan(account: Account, zone: str, instance: str, number: int, disk: dict[str, Any]) -> dict[str, Any]:
    """What one attachment means. Raises before anything is made."""
    where = f"resource.disks[{number}]"
    shown = {
        "kind": "compute#attachedDisk",
        "type": disk.get("type", "PERSISTENT"),
        "mode": disk.get("mode", "READ_WRITE"),
        "deviceName": disk.get("deviceName") or f"persistent-disk-{number}",
        "index": number,
        "boot": bool(disk.get("boot")),
        "autoDelete": bool(disk.get("autoDelete")),
        "interface": disk.get("interface", "SCSI"),
    }
    if shown["type"] == "SCRATCH":
        return {"shown": {**shown, "autoDelete": True, "diskSizeGb": "375"}}
    if "source" in disk:
        return {"shown": shown, "source": _free_disk(account, zone, disk["source"], shown["mode"])}
    params = disk.get("initializeParams")
    if params is None:
        raise invalid(where, "neither source nor initializeParams")
    name = check_name(
        params.get("diskName") or (instance if not number else f"{instance}-{number}"), f"{where}.diskName"
    )
    account.require_free("disks", f"zones/{zone}", name)
    image = params.get("sourceImage", "")
    size = str(params.get("diskSizeGb") or (_image(image)["diskSizeGb"] if image else "10"))
    if image and int(size) < int(_image(image)["diskSizeGb"]):
        raise invalid(f"{where}.initializeParams.diskSizeGb", f"'{size}' is smaller than the image")
    if shown["boot"] and not image and not params.get("sourceSnapshot"):
        raise invalid(f"{where}.initializeParams", "a boot disk needs an image")
    kind = tail(params.get("diskType") or "pd-standard")
    account.get("diskTypes", f"zones/{zone}", kind)
    body: dict[str, Any] = {"name": name, "sizeGb": size, "status": "CREATING"}
    body["type"] = account.link("diskTypes", f"zones/{zone}", kind)
    if image:
        body["sourceImage"] = _image(image)["selfLink"]
    if labels := check_labels(params.get("labels", {}), f"{where}.initializeParams.labels"):
        body |= {"labels": labels, "labelFingerprint": account.fingerprint()}
    return {"shown": shown, "disk": body}


def _carry_out(account: Account, zone: str, instance: str, plan: dict[str, Any]) -> dict[str, Any]:
    shown = dict(plan["shown"])
    scope = f"zones/{zone}"
    user = account.link("instances", scope, instance)
    if "disk" in plan:
        made = account.add("disks", scope, "disk", {**plan["disk"], "users": [user]}, hidden=True)
        shown |= {"source": made.body["selfLink"], "diskSizeGb": made.body["sizeGb"]}
    elif "source" in plan:
        hold(account, plan["source"], user)
        shown |= {"source": plan["source"].body["selfLink"], "diskSizeGb": plan["source"].body["sizeGb"]}
    return shown


def hold(account: Account, disk: Resource, user: str) -> None:
    """The disk belongs to an instance from now on."""
    disk.body["users"] = [*disk.body.get("users", []), user]
    disk.body["lastAttachTimestamp"] = account.stamp()


def _free_disk(account: Account, zone: str, source: str, mode: str) -> Resource:
    scope = place_of(source, f"zones/{zone}")
    if scope.startswith("zones/") and scope != f"zones/{zone}":
        raise invalid("resource.disks.source", f"'{source}' is not in zone {zone}")
    disk = account.get("disks", scope, tail(source))
    if disk.body.get("users") and mode == "READ_WRITE":
        raise in_use(disk.body["selfLink"], disk.body["users"][0])
    return disk


def _image(reference: str) -> dict[str, Any]:
    parts = reference.split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else ""
    rows = catalogue.IMAGES.get(project, ())
    if "family" in parts[:-1]:
        found = [row for row in rows if row[1] == parts[-1]]
    else:
        found = [row for row in rows if row[0] == parts[-1]]
    if not found:
        raise not_found(reference)
    return catalogue.image_body(project, *found[-1])


def of_instance(account: Account, instance: Resource) -> list[tuple[dict[str, Any], Resource]]:
    """The attachments of an instance with their disks; local disks have none."""
    found = []
    for shown in instance.body["disks"]:
        if "source" in shown:
            key = ("disks", place_of(shown["source"], instance.scope), tail(shown["source"]))
            if key in account.resources:
                found.append((shown, account.resources[key]))
    return found


def reveal(account: Account, instance: Resource) -> None:
    """The insert is done: its new disks can be read."""
    for _, disk in of_instance(account, instance):
        disk.hidden = False
        disk.body["status"] = "READY"


def release(account: Account, instance: Resource) -> None:
    """The instance is gone: disks go with it where their attachment says so, and the others stay, and bill on."""
    for shown, disk in of_instance(account, instance):
        if shown["autoDelete"]:
            account.remove(disk)
        else:
            let_go(account, disk, instance.body["selfLink"])


def let_go(account: Account, disk: Resource, user: str) -> None:
    """Nobody of that name holds the disk any longer."""
    disk.body["users"] = [u for u in disk.body.get("users", []) if u != user]
    if not disk.body["users"]:
        disk.body.pop("users")
    disk.body["lastDetachTimestamp"] = account.stamp()


def attachment(instance: Resource, device: str) -> dict[str, Any]:
    """The attachment of that device name; what is changed in it is changed in the instance."""
    attached: list[dict[str, Any]] = instance.body["disks"]
    for shown in attached:
        if shown["deviceName"] == device:
            return shown
    raise Refusal(400, "invalid", f"No attached disk found with device name '{device}'")


def require_unused(disk: Resource) -> None:
    """A disk with users cannot be deleted."""
    if users := disk.body.get("users"):
        raise in_use(disk.body["selfLink"], users[0])
