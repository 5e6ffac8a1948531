"""Which regions the fake's partition shows, and the images that AWS offers in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clouds import aws_figures as figures
from moto.ec2.models import instance_types
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend


class Regions:
    """The list of regions, which moto keeps for all accounts at once."""

    def __init__(self) -> None:
        self._all = list(RegionsAndZonesBackend.regions)

    def enable(self, names: tuple[str, ...]) -> None:
        """These are enabled; one more is shown that is not."""
        shown = [region for region in self._all if region.name in names]
        other = next(r for r in self._all if r.name not in names and r.opt_in_status == "not-opted-in")
        RegionsAndZonesBackend.regions = [*shown, other]

    def offer_images(self, backend: Any, region: str) -> None:
        """AWS's own images. moto would count their snapshots as ours."""
        for architecture, ident in figures.IMAGES.items():
            image = OfferedImage(backend, ident, architecture, region)
            backend.snapshots.pop(image.ebs_snapshot.id, None)
            backend.amis[ident] = image


def keep_types(names: Iterable[str]) -> None:
    """Leave only these instance types, and the other ones with a GPU: moto takes seconds to write all of them down."""
    every = instance_types.INSTANCE_TYPES
    kept = {name for name, entry in every.items() if name in set(names) or entry.get("GpuInfo")}
    for name in set(every) - kept:
        del every[name]
    for places in instance_types.INSTANCE_TYPE_OFFERINGS.values():
        for place, offered in places.items():
            places[place] = [entry for entry in offered if entry["InstanceType"] in kept]


class OfferedImage(Ami):  # type: ignore[misc]
    """An image of AWS with one disk."""

    # moto files its models by the name of their module
    __module__ = Ami.__module__

    def __init__(self, backend: Any, ident: str, architecture: str, region: str) -> None:
        name = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04), invented for tests"
        super().__init__(
            backend, ident, name=name, owner_id=figures.IMAGE_OWNER, owner_alias="amazon", public=True,
            virtualization_type="hvm", architecture=architecture, root_device_type="ebs", hypervisor="xen",
            root_device_name="/dev/sda1", region_name=f"{region}a", image_location=f"amazon/{name}",
        )  # fmt: skip

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The root disk."""
        disk = {"SnapshotId": self.ebs_snapshot.id, "VolumeSize": figures.IMAGE_GB, "VolumeType": "gp2"}
        return [{"DeviceName": self.root_device_name, "Ebs": {**disk, "DeleteOnTermination": True}}]
