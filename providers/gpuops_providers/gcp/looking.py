"""A fresh look at one billable. Gone is only what an authenticated answer says is not found; 403 is never gone.

While an insert runs the machine itself is "not found", so the operation is asked then: it is found again by the request id, which
follows from the nonce in the name. An insert that failed (no capacity, quota) is a late refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuops.marks import parse_name
from gpuops.values import Endpoint, Observation, Ref, Time

from . import failures, filestore, marks, places, times, words
from .api import Api
from .failures import Failure
from .kinds import FILESTORE, KINDS, NAT, RENTAL

SSH = 22
NEWEST_FIRST = "creationTimestamp desc"
RECENT = 500
"""Operations that are looked through where the vendor does not take the filter."""
ENDING = ("DELETING",)


def look(api: Api, ref: Ref, until: Time) -> Observation:
    """What the vendor says about `ref` now."""
    if ref.kind == FILESTORE:
        return filestore.seen(api, ref, until)
    try:
        item = read(api, ref, until)
    except Failure as error:
        if not error.absent:
            raise
        return _missing(api, ref, until)
    if ref.kind == RENTAL:
        return _machine(api, ref, item)
    return _thing(api, ref, item)


def read(api: Api, ref: Ref, until: Time) -> Any:
    """The vendor's own item. Raises `Failure` with status 404 when it is not there."""
    kind = KINDS[ref.kind]
    where = places.path(ref.account, ref.region)
    name = ref.id.partition("/")[0] if ref.kind == NAT else ref.id
    return api.call(kind.client(ref.region), "get", until, {**where, kind.resource: name})


def _machine(api: Api, ref: Ref, item: Any) -> Observation:
    state = words.STATES.get(item.status, "unknown")
    status = item.resource_status.scheduling if item.resource_status else None
    ends_at = times.parse(status.termination_timestamp) if status else None
    endpoint = _endpoint(api, item) if state == "running" else None
    return Observation(
        ref,
        state,
        words.BILLS.get(state, ("compute",)),
        reason="; ".join(_remarks(item)),
        endpoint=endpoint,
        created_at=times.parse(item.creation_timestamp),
        # set when it begins to run, cleared when it stops: then nothing ends it any more
        ends_at=ends_at,
        provider_time=api.provider_time,
        raw_state=item.status,
    )


def _endpoint(api: Api, item: Any) -> Endpoint | None:
    for interface in item.network_interfaces:
        if api.settings.address == "internal":
            return Endpoint(interface.network_i_p, SSH, api.settings.user) if interface.network_i_p else None
        for access in interface.access_configs:
            if access.nat_i_p:
                return Endpoint(access.nat_i_p, SSH, api.settings.user)
    return None


def _remarks(item: Any) -> Iterator[str]:
    """What a person should know about a machine that is otherwise as it should be."""
    if item.status_message:
        yield str(item.status_message)
    for disk in lost_with(item):
        yield f"disk {disk} would be deleted with it"
    for disk in left_by(item):
        yield f"its boot disk {disk} would outlive it and bill on"
    if item.deletion_protection:
        yield "somebody has protected it against deletion"
    creator = next((entry.value for entry in item.metadata.items if entry.key == "created-by"), "")
    if "instanceGroupManagers" in creator:
        yield f"the instance group {places.last(creator)} makes it again after a deletion"


def lost_with(item: Any) -> list[str]:
    """Attached disks that were not made for this machine and would be deleted with it."""
    return [disk.device_name for disk in item.disks if disk.source and not _own(item, disk) and disk.auto_delete]


def left_by(item: Any) -> list[str]:
    """Disks that were made for this machine and would stay behind."""
    return [disk.device_name for disk in item.disks if disk.source and _own(item, disk) and not disk.auto_delete]


def _own(item: Any, disk: Any) -> bool:
    """The boot disk of a rental has the rental's name; a disk that existed before has another."""
    return bool(parse_name(item.name)) and places.last(disk.source) == item.name


def _thing(api: Api, ref: Ref, item: Any) -> Observation:
    kind = KINDS[ref.kind]
    if ref.kind == NAT and ref.id.partition("/")[2] not in [nat.name for nat in item.nats]:
        return Observation(ref, "absent", (), provider_time=api.provider_time, raw_state="not on its router")
    fields = type(item).meta.fields
    word = item.status if "status" in fields and isinstance(item.status, str) else ""
    return Observation(
        ref,
        "ending" if word in ENDING else "running",
        kind.bills(item),
        created_at=times.parse(item.creation_timestamp),
        provider_time=api.provider_time,
        raw_state=word,
    )


def _missing(api: Api, ref: Ref, until: Time) -> Observation:
    """What a 404 means: still being made, refused, or gone."""
    api.require_project(until)
    operation = insert_of(api, ref, until) if ref.kind == RENTAL else None
    if operation is not None and operation.status.name != "DONE":
        word = f"insert {operation.status.name}"
        created = times.parse(operation.insert_time)
        return Observation(
            ref, "starting", ("compute",), created_at=created, provider_time=api.provider_time, raw_state=word,
            request_id=operation.name,
        )  # fmt: skip
    failure = failures.of_operation(operation) if operation is not None else None
    if operation is not None and failure is not None:
        return Observation(
            ref, "refused", (), reason=str(failure), refusal=failure.refusal, provider_time=api.provider_time,
            raw_state=" ".join(failure.codes) or "insert failed", request_id=operation.name,
        )  # fmt: skip
    return Observation(ref, "absent", (), provider_time=api.provider_time, raw_state="404")


def insert_of(api: Api, ref: Ref, until: Time) -> Any:
    """The insert operation of a rental of ours, found by the request id that its nonce gives; None when there is none."""
    parsed = parse_name(ref.id)
    if parsed is None or not places.is_zone(ref.region):
        return None
    wanted = marks.request_id(parsed.nonce)
    request = {"project": ref.account, "zone": ref.region}
    try:
        page = _page(api, until, {**request, "filter": f'clientOperationId = "{wanted}"'})
    except Failure as error:
        if error.kind != "invalid":
            raise
        # a filter that the vendor does not take must not stand in the way of a proof
        page = _page(api, until, {**request, "order_by": NEWEST_FIRST, "max_results": RECENT})
    inserts = [o for o in page.items if o.client_operation_id == wanted and o.operation_type == "insert"]
    return max(inserts, key=lambda operation: times.parse(operation.insert_time) or 0.0, default=None)


def _page(api: Api, until: Time, request: dict[str, Any]) -> Any:
    return next(iter(api.call("ZoneOperations", "list", until, request).pages))
