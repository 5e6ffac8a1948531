"""Fills the account with resources of somebody else, for measuring how long a reconcile takes."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from . import gcp_catalogue as catalogue
from .gcp_state import Account

SHARES = {"instances": 0.3, "disks": 0.4, "snapshots": 0.15, "addresses": 0.15}


def fill(account: Account, resources: int) -> dict[str, int]:
    """Make this many resources, spread over all regions and zones; says how many of which kind."""
    zones = catalogue.places(account.settings, "zones")
    regions = catalogue.places(account.settings, "regions")
    counts = {kind: int(resources * share) for kind, share in SHARES.items()}
    counts["disks"] += resources - sum(counts.values())
    for number, zone in enumerate(islice(cycle(zones), counts["instances"])):
        account.add("instances", f"zones/{zone}", "instance", _instance(account, zone, f"filler-{number:05d}"))
    for number, zone in enumerate(islice(cycle(zones), counts["disks"])):
        body = {"name": f"filler-disk-{number:05d}", "sizeGb": "100", "status": "READY", "labels": {"team": "somebody"}}
        body["type"] = account.link("diskTypes", f"zones/{zone}", "pd-balanced")
        account.add("disks", f"zones/{zone}", "disk", body)
    for number in range(counts["snapshots"]):
        body = {
            "name": f"filler-snapshot-{number:05d}",
            "diskSizeGb": "100",
            "storageBytes": "1000000000",
            "status": "READY",
        }
        account.add("snapshots", "global", "snapshot", body)
    for number, region in enumerate(islice(cycle(regions), counts["addresses"])):
        address = f"198.51.{number // 250 % 250}.{number % 250 + 1}"
        body = {
            "name": f"filler-address-{number:05d}",
            "address": address,
            "status": "RESERVED",
            "addressType": "EXTERNAL",
        }
        account.add("addresses", f"regions/{region}", "address", body)
    return counts


def _instance(account: Account, zone: str, name: str) -> dict[str, Any]:
    scope = f"zones/{zone}"
    return {
        "name": name,
        "status": "RUNNING",
        "machineType": account.link("machineTypes", scope, "e2-medium"),
        "labels": {"team": "somebody"},
        "labelFingerprint": account.fingerprint(),
        "fingerprint": account.fingerprint(),
        "lastStartTimestamp": account.stamp(),
        "disks": [],
        "scheduling": {"provisioningModel": "STANDARD", "automaticRestart": True, "onHostMaintenance": "MIGRATE"},
        "metadata": {"kind": "compute#metadata", "fingerprint": account.fingerprint()},
        "tags": {"fingerprint": account.fingerprint()},
        "networkInterfaces": [{"name": "nic0", "network": account.link("networks", "global", "default")}],
        "deletionProtection": False,
    }
