"""What can go wrong on the way to EC2 and inside it, as values; the server of the fake cloud carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FOR_EVER = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens to calls of `action` (`RunInstances`, or `*`) in `region` (or `*`).

    `skip` calls pass first, then `times` are hit. `after`: the cloud does what it was asked, and only the answer suffers.
    """

    code: str = ""
    """The error's code; empty: the true answer is given, if any is."""
    status: int = 400
    message: str = ""
    action: str = "*"
    region: str = "*"
    times: int = 1
    skip: int = 0
    after: bool = False
    late_s: float = 0.0
    """The answer comes so much later."""
    body: Literal["vendor", "html", "none"] = "vendor"
    """How the error is written; `none`: the connection is cut without an answer."""
    retry_after_s: int | None = None
    dry_run: bool = False
    """Hits dry runs as well."""


def no_capacity(action: str = "RunInstances", region: str = "*", times: int = 1) -> Fault:
    """EC2 has no such machine now: an HTTP 500, although nothing is broken (EC2 API reference, "Server error codes")."""
    message = "We currently do not have sufficient capacity in the Availability Zone you requested. (fault)"
    return Fault("InsufficientInstanceCapacity", 500, message, action, region, times)


def over_quota(action: str = "RunInstances", region: str = "*", times: int = 1) -> Fault:
    """The account may not have so many."""
    message = "You have requested more vCPU capacity than your current vCPU limit of 0 allows. (fault)"
    return Fault("VcpuLimitExceeded", 400, message, action, region, times)


def throttled(
    action: str = "*", region: str = "*", times: int = FOR_EVER, skip: int = 0, retry_after_s: int | None = None
) -> Fault:
    """Too many calls."""
    message = "Request limit exceeded. (fault)"
    return Fault(
        "RequestLimitExceeded", 503, message, action, region, times, skip, retry_after_s=retry_after_s, dry_run=True
    )


def broken_after(action: str, region: str = "*", times: int = 1) -> Fault:
    """Done, and answered by a server error."""
    return Fault("InternalError", 500, "An internal error has occurred. (fault)", action, region, times, after=True)


def cut_before(action: str, region: str = "*", times: int = 1) -> Fault:
    """The connection ends before the cloud has seen the call."""
    return Fault(action=action, region=region, times=times, body="none")


def cut_after(action: str, region: str = "*", times: int = 1) -> Fault:
    """The connection ends after the cloud has done it."""
    return Fault(action=action, region=region, times=times, body="none", after=True)


def late(action: str, late_s: float, region: str = "*", times: int = 1) -> Fault:
    """Done at once, answered later than anybody waits."""
    return Fault(action=action, region=region, times=times, after=True, late_s=late_s)


def html(action: str, status: int = 502, region: str = "*", times: int = 1, after: bool = False) -> Fault:
    """What a proxy or a load balancer writes."""
    return Fault("Bad Gateway", status, "", action, region, times, after=after, body="html")


def unauthorized(action: str = "*", region: str = "*", times: int = FOR_EVER) -> Fault:
    """The credentials are good; the policy does not allow this."""
    message = "You are not authorized to perform this operation. (fault)"
    return Fault("UnauthorizedOperation", 403, message, action, region, times, dry_run=True)


def expired(
    code: Literal["ExpiredToken", "RequestExpired", "AuthFailure", "InvalidClientTokenId"] = "ExpiredToken",
) -> Fault:
    """The credentials are good no more, for anything."""
    status = 401 if code == "AuthFailure" else 403 if code == "InvalidClientTokenId" else 400
    return Fault(
        code, status, "The security token included in the request is expired (fault)", times=FOR_EVER, dry_run=True
    )


@dataclass(frozen=True, slots=True)
class Switches:
    """How the cloud behaves. Times in seconds of its own clock."""

    regions: tuple[str, ...] = ("us-east-1", "eu-central-1")
    """Those that are enabled; the rest of the partition is not opted in."""
    visible_after_s: float = 0.0
    """New instances cannot be described before."""
    pending_s: float = 0.0
    shutting_down_s: float = 0.0
    forget_terminated_s: float = 3600.0
    """Terminated instances are shown for so long."""
    refuse_late: int = 0
    """So many new instances never run: they end by themselves, for lack of capacity."""
    reservations: tuple[str, ...] = ()
    """Capacity reservations and blocks that are there: REGION/cr-… or REGION/cb-…."""
    ignore_terminates: int = 0
    """So many TerminateInstances calls are accepted, and nothing happens."""
    schedules_fire: bool = True
    schedule_delay_s: float = 0.0
    """EventBridge fires within the minute that was named (EventBridge Scheduler guide, "Schedule types")."""
    page_size: int = 0
    """EC2 listings have no more entries on a page than this, whatever was asked for; 0: as many as were asked for."""
    vcpu_quota: float = 64.0
    """What Service Quotas tells of every quota."""
    caller: str = "198.51.100.7"
    """What the check-ip page answers."""
