"""What bills on an account, kind by kind: which calls list it, how an entry is read, and which call ends it.

Words and calls: the vendor's API references for EC2, EFS, FSx and EventBridge Scheduler. A word that is not in a table here is
unknown, which counts as billing.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuops.values import Mark, ObservedState, Time

from . import tags
from .api import Api

Raw = Mapping[str, Any]
SCHEDULE_NAME = re.compile(r"gpuops-([a-z2-7]{12})")

WORDS: dict[str, dict[str, ObservedState]] = {
    "rental": {
        "pending": "starting", "running": "running", "stopping": "stopped", "stopped": "stopped",
        "shutting-down": "ending", "terminated": "terminal",
    },
    "volume": {
        "creating": "starting", "available": "running", "in-use": "running", "error": "running", "deleting": "ending",
        "deleted": "terminal",
    },
    "snapshot": {
        "pending": "starting", "completed": "running", "error": "running", "recoverable": "running",
        "recovering": "starting",
    },
    "image": {
        "pending": "starting", "available": "running", "transient": "running", "disabled": "running", "error": "running",
        "invalid": "running", "failed": "running", "deregistered": "terminal",
    },
    "nat-gateway": {
        "pending": "starting", "available": "running", "deleting": "ending", "deleted": "terminal", "failed": "terminal",
    },
    "spot-request": {
        "open": "starting", "active": "running", "disabled": "running", "closed": "terminal", "cancelled": "terminal",
        "failed": "terminal",
    },
    "fleet": {
        "submitted": "starting", "active": "running", "modifying": "running", "deleted_running": "running",
        "cancelled_running": "running", "deleted_terminating": "ending", "cancelled_terminating": "ending",
        "deleted": "terminal", "cancelled": "terminal", "failed": "terminal",
    },
    "capacity-reservation": {
        "pending": "starting", "scheduled": "starting", "assessing": "starting", "delayed": "running", "active": "running",
        "payment-pending": "running", "unavailable": "running", "cancelling": "ending", "unsupported": "terminal",
        "expired": "terminal", "cancelled": "terminal", "failed": "terminal", "payment-failed": "terminal",
    },
    "capacity-block": {
        "scheduled": "starting", "active": "running", "payment-pending": "running", "unavailable": "running",
        "expired": "terminal", "cancelled": "terminal", "failed": "terminal", "payment-failed": "terminal",
    },
    "file-system": {
        "creating": "starting", "available": "running", "updating": "running", "error": "running", "misconfigured": "running",
        "misconfigured_unavailable": "running", "failed": "running", "deleting": "ending", "deleted": "terminal",
    },
}  # fmt: skip

BILLS: dict[str, tuple[str, ...]] = {
    "rental": ("compute", "storage", "address"),
    "volume": ("storage",),
    "snapshot": ("storage",),
    "image": ("snapshots",),
    "address": ("address",),
    "nat-gateway": ("gateway",),
    "spot-request": ("instances that it starts",),
    "fleet": ("instances that it starts",),
    "capacity-reservation": ("reserved compute",),
    "capacity-block": ("reserved compute",),
    "file-system": ("storage",),
    "schedule": (),
    "security-group": (),
}
STOPPED_BILLS = ("storage",)


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a listing, in our words. `raw` is the whole entry as the vendor sent it."""

    kind: str
    id: str
    word: str
    state: ObservedState
    bills: tuple[str, ...]
    since: Time | None
    carried: tags.Carried
    parent: str = ""
    raw: Raw = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """One way to list a kind. `one` makes the parameters that ask for a single id; `own`: only ours are of interest."""

    kind: str
    service: str
    method: str
    entries: Callable[[Raw], Iterable[Raw]]
    read: Callable[[Raw], Found | None]
    one: Callable[[str], dict[str, Any]]
    every: Mapping[str, Any] = field(default_factory=dict)
    looks: Callable[[str], bool] = lambda _: True
    """Whether an id can be one of this source, where a kind has two."""

    def found(self, api: Api, region: str, until: Time, ident: str | None = None) -> list[Found]:
        """Every entry, or only the one called `ident`. Raises `Missing` where the vendor says that there is none."""
        asked = dict(self.every) if ident is None else self.one(ident)
        pages = api.pages(self.service, region, self.method, until, **asked)
        read = (self.read(entry) for page in pages for entry in self.entries(page))
        return [found for found in read if found is not None]


def _instances(page: Raw) -> Iterable[Raw]:
    return (instance for reservation in page["Reservations"] for instance in reservation["Instances"])


def _listed(key: str) -> Callable[[Raw], Iterable[Raw]]:
    return lambda page: page[key]


def _ids(key: str) -> Callable[[str], dict[str, Any]]:
    return lambda ident: {key: [ident]}


def _reader(kind: str, ident: str, word: str, since: str, labels: str = "Tags", prefix: str = "") -> Any:
    """A reader for entries whose facts stand in fields of their own; lower case words everywhere."""

    def read(entry: Raw) -> Found:
        said = str(entry[word] if word else "available").lower()
        began = entry.get(since)
        return _found(kind, prefix + entry[ident], said, began, entry.get(labels) or (), entry)

    return read


def _found(kind: str, ident: str, word: str, began: Any, labels: Iterable[Raw], entry: Raw, parent: str = "") -> Found:
    state = WORDS[kind].get(word, "unknown") if kind in WORDS else "running"
    bills = () if state == "terminal" else STOPPED_BILLS if state == "stopped" and word == "stopped" else BILLS[kind]
    since = _seconds(began)
    return Found(kind, ident, word, state, bills, since, tags.carried(labels), parent, entry)


def _seconds(began: Any) -> Time | None:
    return float(began.timestamp()) if isinstance(began, datetime.datetime) else None


def _instance(entry: Raw) -> Found:
    word = str(entry["State"]["Name"])
    return _found("rental", entry["InstanceId"], word, entry.get("LaunchTime"), entry.get("Tags") or (), entry)


def _volume(entry: Raw) -> Found:
    parent = next((a["InstanceId"] for a in entry.get("Attachments", ()) if a.get("InstanceId")), "")
    labels, began = entry.get("Tags") or (), entry.get("CreateTime")
    return _found("volume", entry["VolumeId"], str(entry["State"]), began, labels, entry, parent)


def _elastic(entry: Raw) -> Found:
    # addresses of before VPCs have no allocation
    ident, parent = entry.get("AllocationId") or entry["PublicIp"], str(entry.get("InstanceId") or "")
    return _found("address", ident, "allocated", None, entry.get("Tags") or (), entry, parent)


def _interface(entry: Raw) -> Found | None:
    """A public address that nobody allocated: it lives and ends with its network interface."""
    public = entry.get("Association") or {}
    if not public.get("PublicIp") or public.get("AllocationId"):
        return None
    attached = entry.get("Attachment") or {}
    labels, ident = entry.get("TagSet") or (), entry["NetworkInterfaceId"]
    parent = str(attached.get("InstanceId") or "")
    return _found("address", ident, str(entry["Status"]), attached.get("AttachTime"), labels, entry, parent)


def _spot_request(entry: Raw) -> Found:
    word, labels, parent = str(entry["State"]), entry.get("Tags") or (), str(entry.get("InstanceId") or "")
    found = _found("spot-request", entry["SpotInstanceRequestId"], word, entry.get("CreateTime"), labels, entry, parent)
    if entry.get("Type") == "one-time" and word == "active":
        # its instance is there and bills under its own name; it starts no other
        return Found(found.kind, found.id, word, found.state, (), found.since, found.carried, parent, entry)
    return found


def _group(entry: Raw) -> Found | None:
    found = _found("security-group", entry["GroupId"], "available", None, entry.get("Tags") or (), entry)
    return found if found.carried.nonce else None


def schedule_found(entry: Raw) -> Found | None:
    """A schedule of ours by its name; what the name has no room for stands in its description."""
    match = SCHEDULE_NAME.fullmatch(str(entry["Name"]))
    if match is None:
        return None
    try:
        said = json.loads(entry.get("Description") or "{}")
        mark = Mark(said["run"], match[1], said["owner"], float(said["limit"]), said.get("host_key", ""))
    except (ValueError, KeyError, TypeError):
        mark = None
    carried = tags.Carried(str(entry["Name"]), mark, match[1])
    word, began = str(entry.get("State", "")), entry.get("CreationDate")
    since = _seconds(began)
    return Found("schedule", entry["Name"], word, "running", (), since, carried, raw=entry)


@dataclass(frozen=True, slots=True)
class Schedules(Source):
    """Listed by name only: each description is a call of its own."""

    def found(self, api: Api, region: str, until: Time, ident: str | None = None) -> list[Found]:
        """See `Source`."""
        if ident is None:
            pages = api.pages(self.service, region, self.method, until, **self.every)
            names = [str(entry["Name"]) for page in pages for entry in page["Schedules"]]
        else:
            names = [ident]
        ours = [name for name in names if SCHEDULE_NAME.fullmatch(name)]
        read = (schedule_found(api.call("scheduler", region, "get_schedule", until, Name=name)) for name in ours)
        return [found for found in read if found is not None]


_PAGE = {"MaxResults": 500}

SOURCES: tuple[Source, ...] = (
    Source("rental", "ec2", "describe_instances", _instances, _instance, _ids("InstanceIds"), _PAGE),
    Source("volume", "ec2", "describe_volumes", _listed("Volumes"), _volume, _ids("VolumeIds"), _PAGE),
    Source(
        "snapshot", "ec2", "describe_snapshots", _listed("Snapshots"),
        _reader("snapshot", "SnapshotId", "State", "StartTime"), _ids("SnapshotIds"), {"OwnerIds": ["self"], **_PAGE},
    ),
    Source(
        "image", "ec2", "describe_images", _listed("Images"), _reader("image", "ImageId", "State", ""), _ids("ImageIds"),
        {"Owners": ["self"], **_PAGE},
    ),
    Source(
        "address", "ec2", "describe_addresses", _listed("Addresses"), _elastic, _ids("AllocationIds"),
        looks=lambda ident: ident.startswith("eipalloc-"),
    ),
    Source(
        "address", "ec2", "describe_network_interfaces", _listed("NetworkInterfaces"), _interface,
        _ids("NetworkInterfaceIds"), _PAGE, looks=lambda ident: ident.startswith("eni-"),
    ),
    Source(
        "nat-gateway", "ec2", "describe_nat_gateways", _listed("NatGateways"),
        _reader("nat-gateway", "NatGatewayId", "State", "CreateTime"), _ids("NatGatewayIds"), _PAGE,
    ),
    Source(
        "spot-request", "ec2", "describe_spot_instance_requests", _listed("SpotInstanceRequests"), _spot_request,
        _ids("SpotInstanceRequestIds"), _PAGE,
    ),
    Source(
        "fleet", "ec2", "describe_fleets", _listed("Fleets"), _reader("fleet", "FleetId", "FleetState", "CreateTime"),
        _ids("FleetIds"), looks=lambda ident: ident.startswith("fleet-"),
    ),
    Source(
        "fleet", "ec2", "describe_spot_fleet_requests", _listed("SpotFleetRequestConfigs"),
        _reader("fleet", "SpotFleetRequestId", "SpotFleetRequestState", "CreateTime"), _ids("SpotFleetRequestIds"),
        looks=lambda ident: ident.startswith("sfr-"),
    ),
    Source(
        "capacity-reservation", "ec2", "describe_capacity_reservations", _listed("CapacityReservations"),
        _reader("capacity-reservation", "CapacityReservationId", "State", "CreateDate"), _ids("CapacityReservationIds"),
    ),
    Source(
        "capacity-block", "ec2", "describe_capacity_blocks", _listed("CapacityBlocks"),
        _reader("capacity-block", "CapacityBlockId", "State", "CreateDate"), _ids("CapacityBlockIds"),
    ),
    Source(
        "file-system", "efs", "describe_file_systems", _listed("FileSystems"),
        _reader("file-system", "FileSystemId", "LifeCycleState", "CreationTime", prefix="efs/"),
        lambda ident: {"FileSystemId": ident.removeprefix("efs/")}, looks=lambda ident: ident.startswith("efs/"),
    ),
    Source(
        "file-system", "fsx", "describe_file_systems", _listed("FileSystems"),
        _reader("file-system", "FileSystemId", "Lifecycle", "CreationTime", prefix="fsx/"),
        lambda ident: {"FileSystemIds": [ident.removeprefix("fsx/")]}, looks=lambda ident: ident.startswith("fsx/"),
    ),
    Schedules(
        "schedule", "scheduler", "list_schedules", _listed("Schedules"), schedule_found, lambda ident: {"Name": ident},
        {"NamePrefix": "gpuops-"},
    ),
    Source(
        "security-group", "ec2", "describe_security_groups", _listed("SecurityGroups"), _group, _ids("GroupIds"),
        {"Filters": [{"Name": "tag-key", "Values": [tags.NONCE]}], **_PAGE},
    ),
)  # fmt: skip
KINDS = tuple(dict.fromkeys(source.kind for source in SOURCES))

ENDS: dict[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
    "i": ("ec2", "terminate_instances", _ids("InstanceIds")),
    "vol": ("ec2", "delete_volume", lambda ident: {"VolumeId": ident}),
    "snap": ("ec2", "delete_snapshot", lambda ident: {"SnapshotId": ident}),
    "ami": ("ec2", "deregister_image", lambda ident: {"ImageId": ident}),
    "eipalloc": ("ec2", "release_address", lambda ident: {"AllocationId": ident}),
    "eni": ("ec2", "delete_network_interface", lambda ident: {"NetworkInterfaceId": ident}),
    "nat": ("ec2", "delete_nat_gateway", lambda ident: {"NatGatewayId": ident}),
    "sir": ("ec2", "cancel_spot_instance_requests", _ids("SpotInstanceRequestIds")),
    "fleet": ("ec2", "delete_fleets", lambda ident: {"FleetIds": [ident], "TerminateInstances": True}),
    "sfr": (
        "ec2", "cancel_spot_fleet_requests", lambda ident: {"SpotFleetRequestIds": [ident], "TerminateInstances": True},
    ),
    "cr": ("ec2", "cancel_capacity_reservation", lambda ident: {"CapacityReservationId": ident}),
    "efs/fs": ("efs", "delete_file_system", lambda ident: {"FileSystemId": ident.removeprefix("efs/")}),
    "fsx/fs": ("fsx", "delete_file_system", lambda ident: {"FileSystemId": ident.removeprefix("fsx/")}),
    "gpuops": ("scheduler", "delete_schedule", lambda ident: {"Name": ident}),
    "sg": ("ec2", "delete_security_group", lambda ident: {"GroupId": ident}),
}  # fmt: skip
"""The beginning of an id → the call that asks for its end. A capacity block is prepaid and cannot be ended."""
