"""Filestore: network file systems, which bill by their size whether anybody mounts them or not.

They have an interface of their own (file.googleapis.com, v1), called over plain HTTP with the same credentials. Where it is
switched off in the project nothing can be listed, and the listing says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from gpuops.errors import ProviderError, Unreadable
from gpuops.values import Billable, Money, Observation, ObservedState, Ref, Time

from . import marks, times
from .api import MOST_PAGES, Api
from .failures import Failure
from .kinds import FILESTORE
from .places import last

STATES: dict[str, ObservedState] = {
    "CREATING": "starting",
    "READY": "running",
    "REPAIRING": "running",
    "RESTORING": "running",
    "REVERTING": "running",
    "RESUMING": "running",
    "PROMOTING": "running",
    "SUSPENDED": "stopped",
    "SUSPENDING": "ending",
    "DELETING": "ending",
}
"""Any other word is unknown, which counts as billing; every state bills for its storage."""


def listed(api: Api, until: Time) -> tuple[list[Billable], list[str]]:
    """Everything in every location, and the locations that could not be read."""
    items: list[Billable] = []
    missing: list[str] = []
    token = ""
    for _ in range(MOST_PAGES):
        query = {"pageSize": "500", **({"pageToken": token} if token else {})}
        page = api.plain("GET", f"{_base(api)}/-/instances", until, query)
        try:
            items += [_billable(api.project(), row) for row in page.get("instances", ())]
            missing += [_place(name) for name in page.get("unreachable", ())]
        except (KeyError, TypeError, AttributeError) as error:
            raise Unreadable(f"the list of Filestore cannot be read: {error!r}") from error
        token = str(page.get("nextPageToken") or "")
        if not token:
            return items, missing
    raise ProviderError(f"the list of Filestore did not end after {MOST_PAGES} pages")


def seen(api: Api, ref: Ref, until: Time) -> Observation:
    """A fresh look at one."""
    try:
        row = api.plain("GET", f"{_base(api)}/{ref.region}/instances/{ref.id}", until)
    except Failure as error:
        if not error.absent:
            raise
        api.require_project(until)
        return Observation(ref, "absent", (), provider_time=api.provider_time, raw_state="404")
    word = str(row.get("state", ""))
    return Observation(
        ref, STATES.get(word, "unknown"), ("storage",), created_at=times.parse(str(row.get("createTime", ""))),
        provider_time=api.provider_time, raw_state=word,
    )  # fmt: skip


def delete(api: Api, ref: Ref, until: Time) -> None:
    """Ask for its end; one that is not there is at its end already."""
    try:
        api.plain("DELETE", f"{_base(api)}/{ref.region}/instances/{ref.id}", until)
    except Failure as error:
        if not error.absent:
            raise
        api.require_project(until)


def _base(api: Api) -> str:
    return f"{api.settings.filestore_endpoint}/v1/projects/{api.project()}/locations"


def _billable(project: str, row: Mapping[str, Any]) -> Billable:
    name = last(str(row["name"]))
    mark, nonce, damaged = marks.read({str(k): str(v) for k, v in (row.get("labels") or {}).items()}, name)
    return Billable(
        Ref("gcp", project, _place(str(row["name"])), FILESTORE, name), name, mark, ("storage",),
        times.parse(str(row.get("createTime", ""))), Money(Decimal(0)), nonce=nonce, damaged=damaged,
    )  # fmt: skip


def _place(name: str) -> str:
    """The location in `projects/P/locations/L/…`, or in its own name alone."""
    parts = name.split("/")
    return parts[parts.index("locations") + 1] if "locations" in parts[:-1] else last(name)
