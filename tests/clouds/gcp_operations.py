"""Operations: what a changing call answers at once, and what becomes of it later.

PENDING, RUNNING, DONE; errors stand inside the DONE operation with code and HTTP status. The same request id gets the same
operation again, whatever else the second request says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .gcp_requests import Call
from .gcp_state import SITE, Account, Resource


@dataclass(frozen=True)
class Failure:
    """Why an operation came to nothing."""

    code: str
    status: int
    message: str
    details: list[dict[str, Any]] = field(default_factory=list)


def again(account: Account, call: Call) -> dict[str, Any] | None:
    """The operation that was begun under the same request id, if one was."""
    name = account.request_ids.get((call.method.id, call.query.get("requestId", "")))
    found = account.resources.get(("operations", call.scope, name)) if name else None
    return found.body if found else None


def begin(
    account: Account,
    call: Call,
    target: Resource | None,
    takes_s: float,
    done: Callable[[], None],
    failure: Failure | None = None,
    failed: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Accept a call: the operation runs for `takes_s`, then `done` is called, or `failed` and the failure stands in it."""
    name = f"operation-{int(account.now() * 1000)}-{account.new_id()[:13]}"
    request_id = call.query.get("requestId", "")
    body: dict[str, Any] = {
        "name": name,
        "operationType": call.method.name if call.method.name != "aggregatedList" else "list",
        "status": "PENDING",
        "progress": 0,
        "insertTime": account.stamp(),
        "user": f"tester@{account.settings.project}.iam.gserviceaccount.com",
    }
    if target is not None:
        body |= {"targetId": target.body["id"], "targetLink": target.body["selfLink"]}
    if request_id:
        body["clientOperationId"] = request_id
        account.request_ids[(call.method.id, request_id)] = name
    operation = account.add("operations", call.scope, "operation", body)
    account.usage.pop(operation.key)  # operations cost nothing
    body.pop("creationTimestamp")
    body["selfLink"] = f"{SITE}projects/{account.settings.project}/{call.scope}/operations/{name}"

    def run() -> None:
        body.update(status="RUNNING", startTime=account.stamp())

    def end() -> None:
        if failure is None:
            done()
        else:
            failed()
            error: dict[str, Any] = {"code": failure.code, "message": failure.message}
            if failure.details:
                error["errorDetails"] = failure.details
            body["error"] = {"errors": [error]}
            body.update(httpErrorStatusCode=failure.status, httpErrorMessage=_WORDS.get(failure.status, "ERROR"))
        body.setdefault("startTime", account.stamp())
        body.update(status="DONE", progress=100, endTime=account.stamp())

    account.later(min(account.settings.pending_s, takes_s), run)
    account.later(max(account.settings.pending_s, takes_s), end)
    return body


_WORDS = {403: "FORBIDDEN", 404: "NOT FOUND", 400: "BAD REQUEST", 409: "CONFLICT", 503: "SERVICE UNAVAILABLE"}
