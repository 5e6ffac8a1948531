"""The one create call: the parameters of RunInstances for an order, everything that has to hold from birth inside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.values import Order

from .. import cloudinit
from . import tags
from .errors import Unfit
from .volumes import disk

TAGGED_AT_BIRTH = ("instance", "volume", "network-interface")
USER_DATA_BYTES = 16_384
"""EC2 User Guide, "Run commands when you launch an EC2 instance with user data input": before it is base64-encoded."""
OPEN_ENUMS = ("InstanceType",)
"""The service knows newer instance types than a botocore that is a month old; DescribeInstanceTypes has shown them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What an offer's id names: `g5.xlarge/us-east-1/on-demand`."""

    type: str
    region: str
    market: str

    def __str__(self) -> str:
        return f"{self.type}/{self.region}/{self.market}"


@dataclass(frozen=True, slots=True)
class Image:
    """A machine image: its root device, and every disk that it starts with as (device, size)."""

    id: str
    root: str
    disks: tuple[tuple[str, int], ...]

    @property
    def total_gb(self) -> int:
        """What the image's disks need together."""
        return sum(size for _, size in self.disks)


def choice(offer_id: str) -> Choice | None:
    """Read an offer's id; None when it is not one of this provider's."""
    parts = offer_id.split("/")
    return Choice(*parts) if len(parts) == 3 and all(parts) and parts[2] in ("on-demand", "spot") else None


def token(order: Order) -> str:
    """The ClientToken (64 ASCII characters at most): the same for every sending of one order, never for two orders."""
    return f"gpuops-{order.mark.nonce}-{order.member}"


def read_image(entry: Mapping[str, Any]) -> Image:
    """An image as DescribeImages shows it."""
    mapped = [m for m in entry.get("BlockDeviceMappings", ()) if m.get("Ebs")]
    disks = tuple((str(m["DeviceName"]), int(m["Ebs"].get("VolumeSize") or 0)) for m in mapped)
    return Image(str(entry["ImageId"]), str(entry["RootDeviceName"]), disks)


def parameters(order: Order, image: Image, group: str, zone: str, subnet: str) -> dict[str, Any]:
    """Everything that RunInstances is sent. Raises `Unfit` for an order that it cannot carry."""
    what = choice(order.offer.id)
    if what is None:
        raise Unfit(f"{order.offer.id} is no offer of this provider")
    spot = what.market == "spot"
    labels = tags.tags(order.mark, order.offer.rate)
    interface = {
        "DeviceIndex": 0, "AssociatePublicIpAddress": True, "DeleteOnTermination": True, "Groups": [group],
        **({"SubnetId": subnet} if subnet else {}),
    }  # fmt: skip
    found: dict[str, Any] = {
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token(order),
        "ImageId": image.id,
        "InstanceType": what.type,
        "UserData": _user_data(order),
        "BlockDeviceMappings": _disks(order, image),
        "NetworkInterfaces": [interface],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": labels} for kind in (*TAGGED_AT_BIRTH, *(("spot-instances-request",) * spot))
        ],
        # what ends the system ends the bill; without it a machine that powers off would be kept, and its disks billed
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        # `open` would quietly use up a reservation that somebody else holds for something else
        "CapacityReservationSpecification": {"CapacityReservationPreference": "none"},
    }
    if zone:
        found["Placement"] = {"AvailabilityZone": zone}
    if spot:
        # the price that was approved is the most that is paid: the cap counts on it
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        most = {"MaxPrice": order.offer.terms["spot_price"]} if "spot_price" in order.offer.terms else {}
        found["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {**options, **most}}
    return found


def unknown_words(given: Any, shape: Any, path: str = "") -> Iterator[str]:
    """Values that the service's own model does not list; botocore sends them as they are."""
    if shape.type_name == "structure":
        for name, value in given.items():
            if name in shape.members and name not in OPEN_ENUMS:
                yield from unknown_words(value, shape.members[name], f"{path}.{name}".lstrip("."))
    elif shape.type_name == "list":
        for value in given:
            yield from unknown_words(value, shape.member, path)
    elif shape.type_name == "string" and getattr(shape, "enum", None) and given not in shape.enum:
        yield f"{path} is {given!r}, not {', '.join(shape.enum)}"


def _user_data(order: Order) -> str:
    mounts = tuple(disk(volume) for volume in order.volumes)
    text = cloudinit.cloud_config(order, disks=mounts, powers_off=True, isolation="virtual machine")
    if len(text.encode()) > USER_DATA_BYTES:
        raise Unfit(f"user-data of {len(text.encode())} bytes: EC2 takes {USER_DATA_BYTES}")
    return text


def _disks(order: Order, image: Image) -> list[dict[str, Any]]:
    """The image's disks, the first one as large as was priced, and each one deleted with the instance."""
    priced = int(order.offer.terms.get("disk_gb") or math.ceil(order.disk_gb))
    others = [(device, size) for device, size in image.disks if device != image.root]
    root_gb = priced - sum(size for _, size in others)
    smallest = next((size for device, size in image.disks if device == image.root), 0)
    if root_gb < max(smallest, 1):
        needed = f"write disk: {image.total_gb}GB under resources"
        raise Unfit(f"the disks of {image.id} take {image.total_gb} GB, the offer has {priced}: {needed}")
    gone = {"DeleteOnTermination": True}
    return [
        {"DeviceName": image.root, "Ebs": {"VolumeSize": root_gb, "VolumeType": "gp3", **gone}},
        *({"DeviceName": device, "Ebs": {"VolumeSize": size, **gone}} for device, size in others),
    ]
