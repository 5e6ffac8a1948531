"""The vendor's errors in our classes, by their code and never by the type of a Python exception or the words of a message.

A stockout comes as HTTP 503 and looks like something to repeat; only its code tells. HTTP answers carry codes in camel case,
operations in capitals: one table serves both. Source: the error tables at cloud.google.com/compute/docs/troubleshooting and
cloud.google.com/compute/docs/reference/rest/v1/zoneOperations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, RateLimited, Unreadable

FailureKind = Literal["capacity", "quota", "rate", "exists", "busy", "account", "not found", "invalid", "unknown"]

CODES: dict[str, FailureKind] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": "capacity",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": "capacity",
    "REGION_RESOURCE_POOL_EXHAUSTED": "capacity",
    "QUOTA_EXCEEDED": "quota",
    "LIMIT_EXCEEDED": "quota",
    "RATE_LIMIT_EXCEEDED": "rate",
    "USER_RATE_LIMIT_EXCEEDED": "rate",
    "ALREADY_EXISTS": "exists",
    "RESOURCE_ALREADY_EXISTS": "exists",
    "RESOURCE_NOT_READY": "busy",
    "RESOURCE_IN_USE": "busy",
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": "busy",
    "RESOURCE_OPERATION_RATE_EXCEEDED": "rate",
    "ACCESS_NOT_CONFIGURED": "account",
    "SERVICE_DISABLED": "account",
    "BILLING_DISABLED": "account",
    "FORBIDDEN": "account",
    "PERMISSION_DENIED": "account",
    "PERMISSIONS_ERROR": "account",
    "IAM_PERMISSION_DENIED": "account",
    "AUTH_ERROR": "account",
    "NOT_FOUND": "not found",
    "RESOURCE_NOT_FOUND": "not found",
    "INVALID": "invalid",
    "INVALID_USAGE": "invalid",
    "INVALID_PARAMETER": "invalid",
    "BAD_REQUEST": "invalid",
    "REQUIRED": "invalid",
    "CONDITION_NOT_MET": "invalid",
    "UNSUPPORTED_OPERATION": "invalid",
    "INTERNAL_ERROR": "unknown",
    "BACKEND_ERROR": "unknown",
}
"""What the vendor says, in capitals → what it means. Any other code is judged by its HTTP status."""

Refusal = Literal["capacity", "quota", "invalid", "account"]
_REFUSALS: dict[FailureKind, Refusal] = {
    "capacity": "capacity", "quota": "quota", "account": "account", "rate": "quota",
}  # fmt: skip
_BY_STATUS: dict[int, FailureKind] = {401: "account", 403: "account", 404: "not found", 409: "busy", 429: "rate"}


class Failure(ProviderError):
    """The vendor answered with an error. `codes` are its own words, `kind` is ours, `status` that of HTTP."""

    def __init__(self, message: str, status: int, codes: tuple[str, ...], kind: FailureKind) -> None:
        super().__init__(message)
        self.status, self.codes, self.kind = status, codes, kind

    @property
    def absent(self) -> bool:
        """Whether the vendor itself says that there is no such thing; a bare 404 may come from anybody in between."""
        return self.status == 404 and self.kind == "not found" and bool(self.codes)

    @property
    def refusal(self) -> Refusal:
        """Why, in the contract's words for a refusal."""
        return _REFUSALS.get(self.kind, "invalid")

    @property
    def certain(self) -> bool:
        """Whether the vendor certainly did nothing: it refused the request itself, or names what it lacks."""
        if self.kind in ("capacity", "quota"):
            return True
        return (
            400 <= self.status < 500 and self.status not in (408, 409) and self.kind != "unknown" and bool(self.codes)
        )


class Forbidden(CredentialsError):
    """The credentials are good and lack a right here, or the API is off. What was asked for may well exist."""

    def __init__(self, message: str, codes: tuple[str, ...], next_command: str = "") -> None:
        super().__init__(message, next_command=next_command)
        self.codes = codes


def code(word: str) -> str:
    """A code in capitals: `quotaExceeded` and `QUOTA_EXCEEDED` are one."""
    if word.isupper():
        return word
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).upper()


def kind_of(words: Iterable[str], status: int) -> FailureKind:
    """What an error with these codes means; the first code that the table knows counts."""
    for word in words:
        if found := CODES.get(code(word)):
            return found
    return _BY_STATUS.get(status, "invalid" if 400 <= status < 500 else "unknown")


def of_operation(operation: Any) -> Failure | None:
    """The failure inside a finished operation, or None."""
    errors = list(operation.error.errors) if operation.error else []
    status = int(operation.http_error_status_code or 0)
    if not errors and status < 400:
        return None
    codes = tuple(code(error.code) for error in errors if error.code)
    said = "; ".join(f"{error.code}: {error.message}" for error in errors) or operation.http_error_message
    return Failure(said + _zones(errors), status, codes, kind_of(codes, status))


def translate(
    status: int, message: str, codes: tuple[str, ...], project: str, service: str = "", retry_after_s: float = 0.0
) -> GpuopsError:
    """The error for one HTTP answer; `service` is the interface that it is about, where the vendor says so.

    The vendor's own errors carry a code. Without one, 401 and 403 are a page of somebody on the way, who knows nothing of our
    credentials.
    """
    kind = kind_of(codes, status)
    said = f"Google Cloud answered {status}{' ' + ', '.join(codes) if codes else ''}: {message}"
    if status in (401, 403) and not codes:
        return Failure(said, status, codes, "unknown")
    if status == 401:
        return CredentialsError(said, next_command="gcloud auth application-default login")
    if kind == "rate":
        return RateLimited(said, retry_after_s)
    if kind == "account":
        return Forbidden(said, codes, _enable(codes, service, project))
    return Failure(said, status, codes, kind)


def unreadable(error: Exception) -> Unreadable:
    """An answer that the library could not read, such as a page of a proxy."""
    return Unreadable(f"an answer of Google Cloud cannot be read: {type(error).__name__}: {error}")


def _enable(codes: Iterable[str], service: str, project: str) -> str:
    """The command that mends what a 403 is about."""
    words = {code(word) for word in codes}
    if words & {"SERVICE_DISABLED", "ACCESS_NOT_CONFIGURED"}:
        return f"gcloud services enable {service or 'compute.googleapis.com'} --project {project}"
    if "BILLING_DISABLED" in words:
        return f"gcloud billing projects link {project} --billing-account ACCOUNT"
    return f"gcloud projects get-iam-policy {project}"


def _zones(errors: Iterable[Any]) -> str:
    """Where the vendor says that there is room, if it does: `errorDetails[].errorInfo.metadatas.zonesAvailable`."""
    found = [
        detail.error_info.metadatas["zonesAvailable"]
        for error in errors
        for detail in error.error_details
        if detail.error_info and detail.error_info.metadatas.get("zonesAvailable")
    ]
    return f" (the vendor names zones with room: {', '.join(found)})" if found else ""
