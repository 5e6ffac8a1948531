"""What can go wrong in the fake cloud on request. One table; each row is a switch with what it does when nothing else is said.

A switch is set by name: a number says how often it strikes, an object changes fields of its row. Fields that say where:

    call    pattern of the method, as `instances.insert`; tokens are `oauth.token`, others `file.list`, `billing.skus`
    where   pattern of the scope, as `zones/us-central1-a`; the name of a region stands for the region and its zones
    name    pattern of the resource's name
    times   how often; null: until the switches are set again

`kind` says who asks: `answer`, `cut`, `slow`, `html`, `body` belong to the transport (`after`: the call was carried out first),
`fail` and `ignore` to operations, `hide`, `pages`, `gap`, `warn`, `unreachable`, `word` and `progress` to what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

from .gcp_answers import Answer, Refusal, error_info, html_answer
from .gcp_operations import Failure
from .gcp_requests import Call

FOREVER = None


@dataclass(frozen=True)
class Fault:
    """One switch that is set."""

    kind: str
    call: str = "*"
    where: str = "*"
    name: str = "*"
    times: int | None = 1
    after: bool = False
    status: int = 503
    reason: str = "backendError"
    code: str = ""
    message: str = "a fault switch is set"
    seconds: float = 1.0
    retry_after: str = ""
    word: str = ""
    service: str = "any"
    """`any`, `apis` (all but the token endpoint), or one of `compute file tpu storage billing oauth`."""


SWITCHES: Mapping[str, Fault] = {
    # in the operation, minutes after the call was accepted
    "stockout": Fault("fail", "instances.insert", status=503, code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                      message="The zone does not have enough resources available to fulfill the request."),
    "stockout_plain": Fault("fail", "instances.insert", status=503, code="ZONE_RESOURCE_POOL_EXHAUSTED",
                            message="The zone does not have enough resources available to fulfill the request."),
    "quota": Fault("fail", "instances.insert", status=403, code="QUOTA_EXCEEDED",
                   message="Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
    "failed_change": Fault("fail", "instances.set*", status=503, code="INTERNAL_ERROR"),
    "failed_delete": Fault("fail", "instances.delete", status=503, code="INTERNAL_ERROR"),
    # at once; nothing was done
    "refused_invalid": Fault("answer", "*.insert", status=400, reason="invalid"),
    "refused_quota": Fault("answer", "*.insert", status=403, reason="quotaExceeded"),
    "refused_forbidden": Fault("answer", "*.insert", status=403, reason="forbidden"),
    "error": Fault("answer", status=503),
    "too_many": Fault("answer", status=429, reason="rateLimitExceeded"),
    "too_many_wait": Fault("answer", status=429, reason="rateLimitExceeded", retry_after="1"),
    "rate_limit": Fault("answer", status=403, reason="rateLimitExceeded"),
    "html": Fault("html", status=502),
    "cut": Fault("cut"),
    "slow": Fault("slow"),
    # the call was carried out, and the answer does not say so
    "lose_answer": Fault("cut", "*.insert", after=True),
    "error_after": Fault("answer", "*.insert", after=True, status=503),
    "html_after": Fault("html", "*.insert", after=True, status=502),
    "slow_answer": Fault("slow", "*.insert", after=True),
    # 200, and not what it should be
    "torn": Fault("body", after=True, word="torn"),
    "garbled": Fault("body", after=True, word="html"),
    "empty": Fault("body", after=True, word="empty"),
    # operations that say DONE and do nothing
    "ignore_delete": Fault("ignore", "instances.delete"),
    "ignore_change": Fault("ignore", "instances.set*"),
    # what is shown
    "hide_new": Fault("hide", times=FOREVER, seconds=5.0),
    "gap": Fault("gap", times=FOREVER),
    "later_pages": Fault("pages", times=FOREVER),
    "warning": Fault("warn", times=FOREVER, word="PARTIAL_SUCCESS"),
    "unreachable": Fault("unreachable", times=FOREVER),
    "operation_status": Fault("progress", times=FOREVER, word="PAUSED"),
    "status": Fault("word", times=FOREVER, word="HIBERNATING"),
    # the account
    "credentials": Fault("answer", times=FOREVER, service="apis", status=401, reason="authError"),
    "token_refused": Fault("answer", "oauth.token", times=FOREVER, status=400, reason="invalid_grant"),
    "forbidden": Fault("answer", times=FOREVER, service="apis", status=403, reason="forbidden"),
    "hidden_account": Fault("answer", times=FOREVER, service="apis", status=404, reason="notFound"),
    "api_disabled": Fault("answer", times=FOREVER, status=403, reason="accessNotConfigured",
                          service="compute"),
    "billing_disabled": Fault("answer", "*.insert", times=FOREVER, status=403, reason="billingNotEnabled"),
    "region_down": Fault("answer", times=FOREVER, status=503),
}  # fmt: skip


@dataclass
class Faults:
    """The switches that are set now. Use under the account's lock."""

    rows: list[Fault] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)

    def set(self, wanted: Mapping[str, Any]) -> None:
        """Set exactly these switches. A list of objects sets one switch several times."""
        rows, names = [], {f.name for f in Fault.__dataclass_fields__.values()}
        for name, values in wanted.items():
            for value in values if isinstance(values, list) else [values]:
                changes = {"times": value} if isinstance(value, int) and not isinstance(value, bool) else value
                changes = {} if changes is True else changes
                if unknown := set(changes) - names:
                    raise ValueError(f"switch {name}: no such fields: {', '.join(sorted(unknown))}")
                rows.append(replace(SWITCHES[name], **changes))
        self.rows = rows
        self.struck = {}

    def take(self, kind: str, call: str, where: str = "global", name: str = "", after: bool = False) -> Fault | None:
        """The fault of that kind which strikes now, if one does; counts it down."""
        for number, fault in enumerate(self.rows):
            if fault.kind == kind and fault.after == after and fault.times != 0 and _meets(fault, call, where, name):
                if fault.times is not None:
                    self.rows[number] = replace(fault, times=fault.times - 1)
                self.struck[kind] = self.struck.get(kind, 0) + 1
                return fault
        return None

    def standing(self, kind: str, where: str = "global", name: str = "", call: str = "") -> Iterator[Fault]:
        """Faults in what is shown; they wear off by no use."""
        return (f for f in self.rows if f.kind == kind and _meets(f, call or f.call, where, name))

    def hidden_for(self, plural: str, scope: str, name: str) -> float:
        """Seconds until lists show something new."""
        return sum(f.seconds for f in self.standing("hide", scope, name, f"{plural}.list"))

    def blind(self, where: str) -> bool:
        """Whether lists cannot read a scope: a gap, or a place that is down altogether."""
        down = (f for f in self.rows if f.kind == "answer" and f.where != "*" and f.times is None and f.status >= 500)
        gaps = (f for f in self.rows if f.kind == "gap")
        return where != "global" and any(_meets(f, f.call, where, "") for f in (*down, *gaps))

    def failure(self, call: Call) -> Failure | None:
        """What the operation of a call comes to."""
        name = str(call.body.get("name", "")) or call.target
        fault = self.take("fail", call.method.id, call.scope, name)
        return _failure(fault, call) if fault else None

    def ignored(self, call: Call) -> bool:
        """Whether the operation of a call does nothing."""
        return self.take("ignore", call.method.id, call.scope, call.target) is not None

    def strike(self, call: str, where: str, name: str, after: bool) -> tuple[float, Answer | None, bool]:
        """What the transport does to a call: seconds to wait, an answer of its own, and whether the line is cut."""
        slow = self.take("slow", call, where, name, after)
        wait_s = slow.seconds if slow else 0.0
        if self.take("cut", call, where, name, after):
            return wait_s, None, True
        if html := self.take("html", call, where, name, after):
            return wait_s, html_answer(html.status), False
        if fault := self.take("answer", call, where, name, after):
            return wait_s, _refusal(fault, call), False
        return wait_s, None, False

    def spoiled(self, answer: Answer, call: str, where: str, name: str) -> Answer:
        """A good answer with another body: half of it, a page of somebody in between, or nothing at all."""
        fault = self.take("body", call, where, name, after=True) if answer.status < 400 else None
        if fault is None:
            return answer
        if fault.word == "torn":
            return replace(
                answer, body=answer.body[: len(answer.body) // 2], missing=len(answer.body) - len(answer.body) // 2
            )
        return replace(html_answer(200)) if fault.word == "html" else replace(answer, body=b"{}")


def _meets(fault: Fault, call: str, where: str, name: str) -> bool:
    places = {where, re.sub(r"^zones/(.*)-[a-z]$", r"\1", where), where.removeprefix("regions/")}
    service = service_of(call)
    if fault.service != "any" and fault.service != service and (fault.service != "apis" or service == "oauth"):
        return False
    return fnmatch(call, fault.call) and any(fnmatch(p, fault.where) for p in places) and fnmatch(name, fault.name)


def service_of(call: str) -> str:
    """Whose call it is."""
    first = call.partition(".")[0]
    return first if first in ("file", "tpu", "storage", "billing", "oauth") else "compute"


def _refusal(fault: Fault, call: str) -> Answer:
    if call == "oauth.token":
        body = f'{{"error": "{fault.reason}", "error_description": "{fault.message}"}}'
        return Answer(fault.status, body.encode())
    details = []
    if fault.reason == "accessNotConfigured":
        service = f"{fault.service}.googleapis.com"
        details = [error_info("SERVICE_DISABLED", service=service, consumer="projects/424242424242")]
    if fault.reason == "authError":
        details = [error_info("ACCESS_TOKEN_TYPE_UNSUPPORTED", service="compute.googleapis.com")]
    domain = (
        "usageLimits" if fault.reason in ("rateLimitExceeded", "accessNotConfigured", "quotaExceeded") else "global"
    )
    headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
    return Refusal(fault.status, fault.reason, fault.message, details, domain).answer(headers)


def _failure(fault: Fault, call: Call) -> Failure:
    details: list[dict[str, Any]] = []
    if fault.code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED_"):
        found = {"zonesAvailable": "", "zone": call.names.get("zone", ""), "reason": "resource_availability"}
        details = [
            {"errorInfo": {"reason": "resource_availability", "domain": "compute.googleapis.com", "metadatas": found}}
        ]
    if fault.code == "QUOTA_EXCEEDED":
        info = {"metricName": "compute.googleapis.com/gpus_all_regions", "limitName": "GPUS-ALL-REGIONS-per-project"}
        details = [{"quotaInfo": {**info, "limit": 0.0, "dimensions": {"global": "global"}}}]
    return Failure(fault.code, fault.status, fault.message, details)
