"""Ask for the end of anything. Returning means requested: the delete operation may fail or do nothing, and only a look tells."""

from __future__ import annotations

from typing import Any

from gpuops.errors import ProviderError
from gpuops.values import Ref, Time

from . import failures, filestore, looking, places
from .api import Api
from .failures import Failure, Forbidden
from .kinds import FILESTORE, KINDS, NAT, RENTAL


def end(api: Api, ref: Ref, until: Time) -> None:
    """Send the delete call for `ref`; safe to repeat, and no error for what is not there."""
    if ref.kind == FILESTORE:
        filestore.delete(api, ref, until)
        return
    kind = KINDS[ref.kind]
    if not kind.deletable:
        raise ProviderError(f"{ref} cannot be ended before its term: Google Cloud has no call for it")
    try:
        if ref.kind == RENTAL:
            _save_disks(api, ref, until)
        if ref.kind == NAT:
            _without_nat(api, ref, until)
            return
        where = places.path(ref.account, ref.region)
        api.call(kind.client(ref.region), "delete_unary", until, {**where, kind.resource: ref.id})
    except Failure as error:
        if not error.absent:
            raise
        api.require_project(until)


def _save_disks(api: Api, ref: Ref, until: Time) -> None:
    """Before a machine goes: what was there before it stays, what was made for it goes with it.

    We ordered it so; somebody may have changed it since. Without the right to look the order stands.
    """
    try:
        item = looking.read(api, ref, until)
    except Forbidden:
        return
    if item.deletion_protection:
        protected = ProviderError(f"{ref} is protected against deletion, by somebody else, and bills on")
        protected.next_command = (
            f"gcloud compute instances update {ref.id} --zone {ref.region} --no-deletion-protection"
        )
        raise protected
    for device in looking.lost_with(item):
        _auto_delete(api, ref, device, False, until)
    for device in looking.left_by(item):
        _auto_delete(api, ref, device, True, until)


def _auto_delete(api: Api, ref: Ref, device: str, wanted: bool, until: Time) -> None:
    """Change a disk's fate, and wait until the vendor says that it is changed: the delete call goes out right after."""
    request = {"instance": ref.id, "device_name": device, "auto_delete": wanted}
    finish(api, ref, "set_disk_auto_delete_unary", request, until)


def _without_nat(api: Api, ref: Ref, until: Time) -> None:
    """Take one address translation off its router; the router itself costs nothing."""
    name, _, nat = ref.id.partition("/")
    item: Any = looking.read(api, ref, until)
    kept = [each for each in item.nats if each.name != nat]
    if len(kept) == len(item.nats):
        return
    item.nats = kept
    where = places.path(ref.account, ref.region)
    # the whole router by PUT: an empty list is left out of a PATCH and would change nothing
    api.call("Routers", "update_unary", until, {**where, "router": name, "router_resource": item})


def finish(api: Api, ref: Ref, method: str, request: dict[str, Any], until: Time, service: str = "Instances") -> None:
    """One changing call on what lies in a zone, then one wait at the vendor's side until it is done. Raises when it is not."""
    where = places.path(ref.account, ref.region)
    operation = api.call(service, method, until, {**where, **request})
    if operation.status.name != "DONE":
        operation = api.call("ZoneOperations", "wait", until, {**where, "operation": operation.name})
    failure = failures.of_operation(operation)
    if failure is not None:
        raise failure
    if operation.status.name != "DONE":
        raise ProviderError(f"{method} on {ref} is not done yet")
