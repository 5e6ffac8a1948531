"""Requests and answers as AWS writes them: the Query protocol of EC2 and STS, JSON with a target header, REST with JSON."""

from __future__ import annotations

import io
import json
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

from clouds.proxy import Request

EC2_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_SCOPE = re.compile(r"Credential=([^/]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")
_REST = {
    ("scheduler", "POST", "schedules"): "CreateSchedule",
    ("scheduler", "PUT", "schedules"): "UpdateSchedule",
    ("scheduler", "DELETE", "schedules"): "DeleteSchedule",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request; `form` is the Query protocol's, empty for the others."""

    service: str
    action: str
    region: str
    body: bytes
    form: dict[str, str] = field(default_factory=dict)

    @property
    def dry_run(self) -> bool:
        """Whether only the permission is asked for."""
        return self.form.get("DryRun", "").lower() == "true"

    def listed(self, name: str) -> list[str]:
        """The values of `Name.1`, `Name.2` and so on."""
        found = [
            (int(key.rpartition(".")[2]), value)
            for key, value in self.form.items()
            if re.fullmatch(rf"{name}\.\d+", key)
        ]
        return [value for _, value in sorted(found)]

    def with_form(self, form: dict[str, str]) -> Call:
        """The same call with other parameters."""
        return replace(self, form=form, body=urlencode(form).encode())


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def read_call(environ: dict[str, Any]) -> Call:
    """What a request asks for. Service and region come from its signature, as they do for AWS."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length) if length else b""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    region, service = (scope[2], scope[3]) if scope else ("", "")
    form: dict[str, str] = {}
    if "x-www-form-urlencoded" in environ.get("CONTENT_TYPE", ""):
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    action = form.get("Action") or target or _rest(service, environ["REQUEST_METHOD"], environ["PATH_INFO"])
    return Call(service, action, region, body, form)


def action_of(request: Request) -> str:
    """The name of a call for the counting proxy."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    environ = {
        "REQUEST_METHOD": request.method, "PATH_INFO": request.path.partition("?")[0], "wsgi.input": io.BytesIO(request.body),
        "CONTENT_LENGTH": str(len(request.body)), "CONTENT_TYPE": headers.get("content-type", ""),
        "HTTP_AUTHORIZATION": headers.get("authorization", ""), "HTTP_X_AMZ_TARGET": headers.get("x-amz-target", ""),
    }  # fmt: skip
    return read_call(environ).action


def _rest(service: str, method: str, path: str) -> str:
    parts = [part for part in path.split("/") if part]
    kind = parts[0] if parts else ""
    if service == "scheduler" and method == "GET" and kind == "schedules":
        return "GetSchedule" if len(parts) > 1 else "ListSchedules"
    return _REST.get((service, method, kind), f"{method} {path}")


def send_on(environ: dict[str, Any], call: Call) -> dict[str, Any]:
    """The environment in which the next application reads `call`."""
    return {**environ, "wsgi.input": io.BytesIO(call.body), "CONTENT_LENGTH": str(len(call.body))}


def ec2(action: str, inner: str) -> Answer:
    """A successful answer of EC2."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{EC2_NAMESPACE}">'
    text += f"<requestId>{uuid.uuid4()}</requestId>{inner}</{action}Response>"
    return Answer(200, text.encode(), {"Content-Type": "text/xml;charset=UTF-8"})


def as_json(value: Any) -> Answer:
    """A successful answer in JSON."""
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def error(call: Call, status: int, code: str, message: str) -> Answer:
    """An error as the service of `call` writes it."""
    request = str(uuid.uuid4())
    if call.service == "ec2":
        text = f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        return Answer(
            status, f"{text}<RequestID>{request}</RequestID></Response>".encode(), {"Content-Type": "text/xml"}
        )
    if call.form:
        text = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        )
        return Answer(
            status, f"{text}<RequestId>{request}</RequestId></ErrorResponse>".encode(), {"Content-Type": "text/xml"}
        )
    body = json.dumps({"__type": code, "message": message, "Message": message}).encode()
    return Answer(status, body, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code})
