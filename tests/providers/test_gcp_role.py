"""The role in docs/how-to/gcp-role.yaml is what a whole life of a rental needs, and no more."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from clouds.gcp import GcpCloud
from gcpcase import ZONE, adapter, bought, cloud, later, offered, order, server, volume

from gpuops.values import Ref, Scope

__all__ = ["cloud", "server"]

ROLE = Path(__file__).parents[2] / "docs" / "how-to" / "gcp-role.yaml"

VERBS = {"insert": "create", "aggregatedList": "list", "wait": "get", "setDiskAutoDelete": "update"}
"""Method → permission, where they differ (cloud.google.com/compute/docs/reference/rest/v1, IAM permissions of each method)."""
COLLECTIONS = {"regionDisks": "disks", "regionCommitments": "commitments"}
NO_PERMISSION = ("oauth.token", "billing.skus")
IMPLIED = {
    "compute.disks.create",
    "compute.disks.use",
    "compute.images.useReadOnly",
    "compute.instances.setMetadata",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
}
"""What instances.insert asks for beside itself, for what is in our request."""


def permission(call: str) -> str:
    """What a call needs."""
    if call.startswith("file."):
        return f"file.instances.{call.removeprefix('file.')}"
    collection, _, method = call.partition(".")
    return f"compute.{COLLECTIONS.get(collection, collection)}.{VERBS.get(method, method)}"


def live(cloud: GcpCloud) -> set[str]:
    """A whole life, with what goes wrong in one; returns the calls that it took."""
    gcp = adapter(cloud)
    gcp.account()
    gcp.needs(later(cloud))
    wanted = order(cloud, offered(cloud, gcp), volumes=(volume(cloud),))
    ref = bought(cloud, gcp, wanted)
    gcp.host_key(ref, later(cloud))
    gcp.set_mark(ref, wanted.mark.limit_at + 60, later(cloud))
    gcp.inspect(dataclasses.replace(ref, id=ref.id + "x"), later(cloud))
    gcp.list_billable(Scope(), later(cloud))
    cloud.client("InstancesClient").set_disk_auto_delete_unary(
        project=cloud.project, zone=ZONE, instance=ref.id, device_name="boot", auto_delete=False
    )
    cloud.advance(1)
    gcp.terminate(ref, later(cloud))
    cloud.advance(5)
    disk = Ref("gcp", cloud.project, ZONE, "volume", "left-over")
    cloud.put("disks", f"zones/{ZONE}", name=disk.id, sizeGb="10")
    gcp.inspect(disk, later(cloud))
    gcp.terminate(disk, later(cloud))
    return {entry["call"] for entry in cloud.log()} - set(NO_PERMISSION)


def test_the_role_holds_what_a_life_needs_and_nothing_else(cloud: GcpCloud) -> None:
    granted = yaml.safe_load(ROLE.read_text())["includedPermissions"]
    assert len(granted) == len(set(granted))
    needed = {permission(call) for call in live(cloud)} | IMPLIED
    assert set(granted) == needed


@pytest.mark.parametrize("word", ["setIamPolicy", "actAs", "setServiceAccount", "firewalls.create", "stop", "reset"])
def test_the_role_gives_no_power_that_nobody_needs(word: str) -> None:
    assert word not in ROLE.read_text()
