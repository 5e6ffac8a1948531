"""Volumes that existed before the rental: attached by a call of their own, and kept when it ends."""

from __future__ import annotations

from typing import Any

from gpuops.errors import ProviderError
from gpuops.values import Ref, Time, VolumeUse

from ..cloudinit import Disk
from . import tags
from .api import Api
from .errors import Missing, Unfit

DEVICE_LETTERS = "fghijklmnop"
"""/dev/sdf to /dev/sdp are for volumes (EC2 User Guide, "Device names for volumes")."""


def disk(volume: VolumeUse) -> Disk:
    """Where a volume appears on an instance of the Nitro system: NVMe, with the volume's id as serial, without its dash."""
    serial = volume.id.replace("-", "")
    return Disk(volume.id, (f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}",), volume.mount)


def attach(api: Api, instance: dict[str, Any], ref: Ref, volume: VolumeUse, until: Time) -> None:
    """Attach `volume` and read back that it is there and kept. Raises while it is not."""
    attachment = _attachment(api, ref.region, volume.id, until)
    if attachment is None:
        used = {str(mapping["DeviceName"]) for mapping in instance.get("BlockDeviceMappings", ())}
        free = next((d for d in (f"/dev/sd{c}" for c in DEVICE_LETTERS) if d not in used), None)
        if free is None:
            raise ProviderError(f"{ref} has no device name left for {volume.id}")
        api.call("ec2", ref.region, "attach_volume", until, VolumeId=volume.id, InstanceId=ref.id, Device=free)
        attachment = _attachment(api, ref.region, volume.id, until)
    if attachment is None or attachment.get("InstanceId") != ref.id:
        where = attachment.get("InstanceId") if attachment else "nothing yet"
        raise ProviderError(f"{volume.id} is attached to {where}, not to {ref}")
    if attachment.get("State") != "attached":
        raise ProviderError(f"{volume.id} is {attachment.get('State')}, not yet attached to {ref}")
    keep(api, ref, volume.id, str(attachment["Device"]), until)


def keep(api: Api, ref: Ref, volume: str, device: str, until: Time) -> None:
    """See to it that the end of the instance leaves the volume alone, and read that back."""
    if _kept(api, ref, volume, until):
        return
    change = [{"DeviceName": device, "Ebs": {"DeleteOnTermination": False}}]
    api.call("ec2", ref.region, "modify_instance_attribute", until, InstanceId=ref.id, BlockDeviceMappings=change)
    if not _kept(api, ref, volume, until):
        raise ProviderError(f"the end of {ref} would delete {volume}, and that could not be changed")


def lost_with(api: Api, instance: dict[str, Any], ref: Ref, nonce: str, until: Time) -> tuple[str, ...]:
    """Volumes that the end of the instance would delete although its create call did not make them."""
    doomed = [str(v["VolumeId"]) for v in _mapped(instance) if v.get("DeleteOnTermination") is not False]
    if not doomed:
        return ()
    pages = api.pages("ec2", ref.region, "describe_volumes", until, VolumeIds=doomed)
    found = {str(v["VolumeId"]): tags.carried(v.get("Tags") or ()) for page in pages for v in page["Volumes"]}
    return tuple(ident for ident in doomed if ident not in found or found[ident].nonce != nonce)


def zone(api: Api, region: str, volumes: tuple[VolumeUse, ...], until: Time) -> str:
    """The one zone in which all the volumes are; empty when there are none. Raises `Unfit` when no instance could have them."""
    if not volumes:
        return ""
    pages = api.pages("ec2", region, "describe_volumes", until, VolumeIds=[v.id for v in volumes])
    try:
        found = {str(v["VolumeId"]): v for page in pages for v in page["Volumes"]}
    except Missing as error:
        raise Unfit(error.message) from error
    if missing := [v.id for v in volumes if v.id not in found]:
        raise Unfit(f"no volume {', '.join(missing)} in {region}")
    if busy := [v.id for v in volumes if found[v.id]["State"] != "available"]:
        raise Unfit(f"{', '.join(busy)} is not available: detach it first")
    zones = sorted({str(v["AvailabilityZone"]) for v in found.values()})
    if len(zones) > 1:
        raise Unfit(f"the volumes are in different zones ({', '.join(zones)}): no instance can have them all")
    return zones[0]


def _attachment(api: Api, region: str, volume: str, until: Time) -> dict[str, Any] | None:
    answer = api.call("ec2", region, "describe_volumes", until, VolumeIds=[volume])
    found: list[dict[str, Any]] = answer["Volumes"][0].get("Attachments") or []
    return next((a for a in found if a.get("State") != "detached"), None)


def _mapped(instance: dict[str, Any]) -> list[dict[str, Any]]:
    return [mapping["Ebs"] for mapping in instance.get("BlockDeviceMappings", ()) if mapping.get("Ebs")]


def _kept(api: Api, ref: Ref, volume: str, until: Time) -> bool:
    answer = api.call("ec2", ref.region, "describe_instances", until, InstanceIds=[ref.id])
    instance = answer["Reservations"][0]["Instances"][0]
    return any(v["VolumeId"] == volume and v.get("DeleteOnTermination") is False for v in _mapped(instance))
