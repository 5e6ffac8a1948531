"""What the fake cloud answers: JSON, the vendor's form of an error, HTML of a front end, or nothing at all.

Form of an error: https://cloud.google.com/apis/design/errors and what `google.api_core.exceptions.from_http_response` reads.
The words of the messages are ours; a client must read codes and reasons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_STATUS_WORDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: bytes
    kind: str = "application/json; charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    """Bytes that the length promises and that never come."""


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer that carries `value`."""
    return Answer(status, json.dumps(value).encode(), headers=headers or {})


def html_answer(status: int) -> Answer:
    """What a front end says that knows nothing of the interface behind it."""
    page = f"<!DOCTYPE html><html lang=en><title>Error {status}</title><p><b>{status}.</b> <ins>That's an error.</ins></html>"
    return Answer(status, page.encode(), "text/html; charset=UTF-8")


class Refusal(Exception):
    """A call was refused; nothing was done."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: list[dict[str, Any]] | None = None,
        domain: str = "global",
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details, self.domain = (
            status,
            reason,
            message,
            details or [],
            domain,
        )

    def answer(self, headers: Mapping[str, str] | None = None) -> Answer:
        """The HTTP answer of this refusal."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
        }
        if self.details:
            error["details"] = self.details
        if self.details or self.status in (401, 403, 503):
            error["status"] = _STATUS_WORDS.get(self.status, "UNKNOWN")
        return json_answer({"error": error}, self.status, headers)


def not_found(link: str) -> Refusal:
    """The resource does not exist."""
    return Refusal(404, "notFound", f"The resource '{link}' was not found")


def invalid(where: str, why: str) -> Refusal:
    """A value is not allowed."""
    return Refusal(400, "invalid", f"Invalid value for field '{where}': {why}")


def required(where: str) -> Refusal:
    """A value is missing."""
    return Refusal(400, "required", f"Required field '{where}' not specified")


def already_exists(link: str) -> Refusal:
    """The name is taken."""
    return Refusal(409, "alreadyExists", f"The resource '{link}' already exists")


def in_use(link: str, user: str) -> Refusal:
    """Another resource holds it."""
    return Refusal(400, "resourceInUseByAnotherResource", f"The resource '{link}' is already being used by '{user}'")


def not_modelled(what: str) -> Refusal:
    """This fake says so where the real cloud would do something."""
    return Refusal(501, "notModelledByThisFake", f"this fake does not model {what}")


def bad_fields(violations: list[tuple[str, str]]) -> Refusal:
    """Unknown names and values of a wrong type, as the vendor's front end reports them."""
    message = "; ".join(f"Invalid JSON payload received at '{at}': {text}" for at, text in violations)
    found = [{"field": at, "description": text} for at, text in violations]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": found}
    return Refusal(400, "invalid", message, [detail])


def error_info(reason: str, **metadata: str) -> dict[str, Any]:
    """The machine-readable part of a refusal."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }
