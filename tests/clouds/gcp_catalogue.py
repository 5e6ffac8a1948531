"""What the fake cloud has to offer: places, machine types, accelerators, images. Names are real; which zone has what is invented.

Names: https://cloud.google.com/compute/docs/gpus and .../docs/regions-zones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .gcp_state import SITE, Account, Settings

REGIONS = (
    "us-central1 europe-west4 us-east1 us-west1 us-east4 us-west4 us-south1 europe-west1 europe-west2 europe-west3 asia-east1 "
    "asia-northeast1 asia-southeast1 asia-south1 australia-southeast1 southamerica-east1 me-west1 northamerica-northeast1 "
    "europe-north1 africa-south1"
).split()
ODD_LETTERS = {"us-east1": "bcd", "europe-west1": "bcd"}
"""Zones are not always a, b, c."""
COMPUTE_SERVICE = "6F81-5844-456A"


@dataclass(frozen=True)
class Machine:
    """A machine type; `gpus` come with it."""

    name: str
    cpus: int
    memory_gb: int
    gpu: str = ""
    gpus: int = 0
    local_ssds: int = 0


MACHINES = (
    Machine("e2-medium", 2, 4),
    Machine("n1-standard-8", 8, 30),
    Machine("g2-standard-4", 4, 16, "nvidia-l4", 1),
    Machine("g2-standard-24", 24, 96, "nvidia-l4", 2),
    Machine("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1),
    Machine("a2-highgpu-2g", 24, 170, "nvidia-tesla-a100", 2),
    Machine("a2-ultragpu-1g", 12, 170, "nvidia-a100-80gb", 1),
    Machine("a3-highgpu-8g", 208, 1872, "nvidia-h100-80gb", 8, 16),
)
ACCELERATORS = {
    "nvidia-l4": ("NVIDIA L4", 8),
    "nvidia-tesla-t4": ("NVIDIA T4", 4),
    "nvidia-tesla-a100": ("NVIDIA A100 40GB", 16),
    "nvidia-a100-80gb": ("NVIDIA A100 80GB", 8),
    "nvidia-h100-80gb": ("NVIDIA H100 80GB", 8),
}
QUOTAS = {
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
}
WITHOUT_QUOTA = ("nvidia-h100-80gb",)
"""The vendor's document has a preemptible and a committed quota for these, and no plain one."""
DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")
IMAGES = {
    "deeplearning-platform-release": (
        ("common-cu128-ubuntu-2204-nvidia-570-v20260801", "common-cu128-ubuntu-2204-nvidia-570", "50"),
        ("common-cu128-ubuntu-2204-nvidia-570-v20261015", "common-cu128-ubuntu-2204-nvidia-570", "50"),
    ),
    "ubuntu-os-accelerator-images": (
        (
            "ubuntu-accelerator-2404-amd64-with-nvidia-580-v20261015",
            "ubuntu-accelerator-2404-amd64-with-nvidia-580",
            "20",
        ),
    ),
    "ubuntu-os-cloud": (("ubuntu-2204-jammy-v20261101", "ubuntu-2204-lts", "10"),),
}
"""Project, then name, family and size; the newest of a family comes last."""


def zones(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The zones of each region; three in all when there are two regions."""
    found: dict[str, tuple[str, ...]] = {}
    for number, region in enumerate(REGIONS[: settings.regions]):
        letters = ODD_LETTERS.get(region, "abc")
        count = 3 if settings.regions > 2 else 2 - number
        found[region] = tuple(f"{region}-{letter}" for letter in letters[:count])
    return found


def places(settings: Settings, plural: str) -> tuple[str, ...]:
    """The names of all `zones` or `regions`."""
    found = zones(settings)
    return tuple(found) if plural == "regions" else tuple(zone for names in found.values() for zone in names)


def furnish(account: Account) -> None:
    """Put everything that exists in every project into the account; none of it costs anything."""
    for region, names in zones(account.settings).items():
        for zone in names:
            _furnish_zone(account, region, zone)
        account.add(
            "subnetworks", f"regions/{region}", "subnetwork", {"name": "default", "ipCidrRange": "10.128.0.0/20"}
        )
    account.add("networks", "global", "network", {"name": "default", "autoCreateSubnetworks": True})
    rule = {
        "name": "default-allow-ssh",
        "network": account.link("networks", "global", "default"),
        "direction": "INGRESS",
    }
    rule |= {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": ["0.0.0.0/0"], "priority": 65534}
    account.add("firewalls", "global", "firewall", rule)
    account.usage.clear()


def _furnish_zone(account: Account, region: str, zone: str) -> None:
    scope = f"zones/{zone}"
    for machine in machines_in(zone):
        body: dict[str, Any] = {"name": machine.name, "guestCpus": machine.cpus, "memoryMb": machine.memory_gb * 1024}
        if machine.gpu:
            body["accelerators"] = [{"guestAcceleratorType": machine.gpu, "guestAcceleratorCount": machine.gpus}]
        if machine.local_ssds:
            body["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": machine.local_ssds}
        account.add("machineTypes", scope, "machineType", body)
    for name, (words, most) in ACCELERATORS.items():
        body = {"name": name, "description": words, "maximumCardsPerInstance": most}
        account.add("acceleratorTypes", scope, "acceleratorType", body)
    for name in DISK_TYPES:
        account.add("diskTypes", scope, "diskType", {"name": name, "defaultDiskSizeGb": "10"})


def machines_in(zone: str) -> Iterator[Machine]:
    """Not everything is everywhere: the largest machines stand in zones that end with b or c."""
    return (m for m in MACHINES if not m.name.startswith("a3-") or zone[-1] in "bc")


def machine(name: str) -> Machine:
    """A machine type that is known to exist."""
    return next(m for m in MACHINES if m.name == name)


def region_body(account: Account, region: str) -> dict[str, Any]:
    """What regions.get shows."""
    links = [f"{SITE}projects/{account.settings.project}/zones/{zone}" for zone in zones(account.settings)[region]]
    live = gpus(account, region)
    quotas = []
    for gpu, metric in QUOTAS.items():
        if gpu not in WITHOUT_QUOTA:
            quotas.append({"metric": metric, "limit": 8.0, "usage": float(live.get(gpu, 0))})
        quotas.append({"metric": f"PREEMPTIBLE_{metric}", "limit": 8.0, "usage": 0.0})
    quotas.append({"metric": "SSD_TOTAL_GB", "limit": 4096.0, "usage": 0.0})
    link = f"{SITE}projects/{account.settings.project}/regions/{region}"
    body = {"kind": "compute#region", "id": str(1000 + REGIONS.index(region)), "name": region, "status": "UP"}
    return {**body, "zones": links, "quotas": quotas, "selfLink": link}


def zone_body(account: Account, zone: str) -> dict[str, Any]:
    """What zones.get shows."""
    base = f"{SITE}projects/{account.settings.project}"
    region = f"{base}/regions/{zone.rpartition('-')[0]}"
    number = str(2000 + sum(ord(letter) for letter in zone))
    body = {"kind": "compute#zone", "id": number, "name": zone, "status": "UP"}
    return {**body, "region": region, "selfLink": f"{base}/zones/{zone}"}


def project_body(account: Account) -> dict[str, Any]:
    """What projects.get shows."""
    settings = account.settings
    used = float(sum(gpus(account).values()))
    return {
        "kind": "compute#project",
        "id": settings.project_number,
        "name": settings.project,
        "quotas": [
            {"metric": "GPUS_ALL_REGIONS", "limit": settings.gpus_all_regions, "usage": used},
            {"metric": "SNAPSHOTS", "limit": 5000.0, "usage": 0.0},
        ],
        "selfLink": f"{SITE}projects/{settings.project}",
    }


def gpus(account: Account, region: str = "") -> dict[str, int]:
    """How many accelerators of each kind the instances hold, an insert that runs included."""
    found: dict[str, int] = {}
    for (plural, scope, _), resource in account.resources.items():
        if plural == "instances" and scope.startswith(f"zones/{region}") and resource.body["status"] != "TERMINATED":
            for item in resource.body.get("guestAccelerators", ()):
                kind = item["acceleratorType"].rpartition("/")[2]
                found[kind] = found.get(kind, 0) + item["acceleratorCount"]
    return found


def image_body(project: str, name: str, family: str, size_gb: str) -> dict[str, Any]:
    """What images.get shows of an image that everybody may use."""
    body = {
        "kind": "compute#image",
        "id": str(10**9 + zlib.crc32(f"{project}/{name}".encode())),
        "name": name,
        "family": family,
    }
    link = f"{SITE}projects/{project}/global/images/{name}"
    return {**body, "status": "READY", "diskSizeGb": size_gb, "selfLink": link}
