"""A server on 127.0.0.1 that answers AWS calls with whatever a test writes down, and remembers what was asked.

boto3 itself speaks to it (AWS_ENDPOINT_URL), so its parsers, its retries and its timeouts are the real ones. Answers are
looked up by the name of the call; one that nobody wrote down is an error 501, which no test takes for success.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from gpuops_providers.aws import provider
from gpuops_providers.aws.adapter import AwsProvider

from gpuops.values import Device, HostKey, Mark, Money, Offer, Order

ACCOUNT = "123456789012"
REGION = "us-east-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/gpuops-ends-instances"
NONCE = "abcdefghijkl"
XMLNS = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
REST = {"/schedules": "ListSchedules", "/2015-02-01/file-systems": "EfsDescribeFileSystems"}


@dataclass(frozen=True)
class Reply:
    """One answer: the body as it goes over the wire. `hangs_s`: accepted, and answered only so much later."""

    body: str
    status: int = 200
    hangs_s: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One call as it arrived: `given` are its parameters, flat for EC2, JSON for the others."""

    action: str
    region: str
    given: Mapping[str, Any]
    key: str = ""
    """By whose credentials."""


Answer = Reply | Callable[[Asked], Reply]


@dataclass
class Wire:
    """What is answered, by the name of the call; a list is used up from the front, its last entry stays."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def on(self, action: str, *answers: Answer) -> None:
        """Answer `action` so from now on."""
        self.answers[action] = list(answers)

    def calls(self, action: str) -> list[Asked]:
        """Every call of this name so far."""
        return [asked for asked in self.asked if asked.action == action]

    def reply(self, asked: Asked) -> Reply:
        """Take the next answer."""
        self.asked.append(asked)
        prepared = self.answers.get(asked.action)
        if not prepared:
            return error(f"TestWroteNothingFor{asked.action}", status=501)
        answer = prepared.pop(0) if len(prepared) > 1 else prepared[0]
        return answer if isinstance(answer, Reply) else answer(asked)


def xml(action: str, inside: str) -> Reply:
    """An answer of EC2."""
    return Reply(f"<{action}Response {XMLNS}><requestId>r-1</requestId>{inside}</{action}Response>")


def error(code: str, text: str = "as the test wants it", status: int = 400) -> Reply:
    """An error as EC2 words it."""
    inside = f"<Errors><Error><Code>{code}</Code><Message>{text}</Message></Error></Errors><RequestID>r-1</RequestID>"
    return Reply(f"<Response>{inside}</Response>", status)


def plain_error(code: str, text: str = "as the test wants it", status: int = 400) -> Reply:
    """An error as the JSON services word it."""
    return Reply(json.dumps({"__type": code, "Code": code, "message": text}), status)


def whole(value: Any) -> Reply:
    """An answer of a JSON service."""
    return Reply(json.dumps(value))


def identity() -> Reply:
    """Whose credentials these are."""
    inside = f"<Arn>arn:aws:iam::{ACCOUNT}:user/ada</Arn><UserId>A</UserId><Account>{ACCOUNT}</Account>"
    result = f"<GetCallerIdentityResult>{inside}</GetCallerIdentityResult>"
    return Reply(
        f'<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">{result}</GetCallerIdentityResponse>'
    )


def regions(**statuses: str) -> Reply:
    """The regions of an account; a keyword is a region with _ for -."""
    known = statuses or {"us_east_1": "opt-in-not-required"}
    items = "".join(
        f"<item><regionName>{name.replace('_', '-')}</regionName><optInStatus>{status}</optInStatus></item>"
        for name, status in known.items()
    )
    return xml("DescribeRegions", f"<regionInfo>{items}</regionInfo>")


def tag_set(tags: Mapping[str, str]) -> str:
    """Tags as EC2 words them."""
    return "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in tags.items())


def instance(
    ident: str = "i-0123456789abcdef0", state: str = "running", code: int = 16, more: str = "", **tags: str
) -> str:
    """One instance, inside an answer of DescribeInstances or RunInstances."""
    return (
        f"<item><instanceId>{ident}</instanceId><instanceState><code>{code}</code><name>{state}</name></instanceState>"
        f"<launchTime>2026-11-30T10:00:00.000Z</launchTime><tagSet>{tag_set(tags)}</tagSet>{more}</item>"
    )


def instances(*items: str) -> Reply:
    """An answer of DescribeInstances."""
    inside = f"<item><reservationId>r-1</reservationId><instancesSet>{''.join(items)}</instancesSet></item>"
    return xml("DescribeInstances", f"<reservationSet>{inside if items else ''}</reservationSet>")


def image(ident: str = "ami-0123456789abcdef0", root: str = "/dev/sda1", **disks: int) -> Reply:
    """An answer of DescribeImages; a keyword is a device below /dev with its size."""
    mapped = "".join(
        f"<item><deviceName>/dev/{name}</deviceName><ebs><snapshotId>snap-1</snapshotId><volumeSize>{size}</volumeSize>"
        "</ebs></item>"
        for name, size in (disks or {"sda1": 35}).items()
    )
    inside = f"<imageId>{ident}</imageId><rootDeviceName>{root}</rootDeviceName><imageState>available</imageState>"
    inside += f"<blockDeviceMapping>{mapped}</blockDeviceMapping>"
    return xml("DescribeImages", f"<imagesSet><item>{inside}</item></imagesSet>")


def security_groups(ident: str = "sg-0123456789abcdef0", *networks: str) -> Reply:
    """An answer of DescribeSecurityGroups with one group that lets SSH in; an empty id: there is none."""
    ranges = "".join(f"<item><cidrIp>{network}</cidrIp></item>" for network in networks)
    rule = f"<item><ipProtocol>tcp</ipProtocol><fromPort>22</fromPort><toPort>22</toPort><ipRanges>{ranges}</ipRanges></item>"
    inside = f"<item><groupId>{ident}</groupId><ipPermissions>{rule if networks else ''}</ipPermissions></item>"
    return xml("DescribeSecurityGroups", f"<securityGroupInfo>{inside if ident else ''}</securityGroupInfo>")


def empty_account(wire: Wire) -> None:
    """Every listing answers, and there is nothing."""
    wire.on("GetCallerIdentity", identity())
    wire.on("DescribeRegions", regions())
    listings = {
        "DescribeInstances": "reservationSet", "DescribeVolumes": "volumeSet", "DescribeSnapshots": "snapshotSet",
        "DescribeImages": "imagesSet", "DescribeAddresses": "addressesSet", "DescribeNetworkInterfaces": "networkInterfaceSet",
        "DescribeNatGateways": "natGatewaySet", "DescribeSpotInstanceRequests": "spotInstanceRequestSet",
        "DescribeFleets": "fleetSet", "DescribeSpotFleetRequests": "spotFleetRequestConfigSet",
        "DescribeCapacityReservations": "capacityReservationSet", "DescribeCapacityBlocks": "capacityBlockSet",
        "DescribeSecurityGroups": "securityGroupInfo",
    }  # fmt: skip
    for action, key in listings.items():
        wire.on(action, xml(action, f"<{key}/>"))
    wire.on("EfsDescribeFileSystems", whole({"FileSystems": []}))
    wire.on("DescribeFileSystems", whole({"FileSystems": []}))
    wire.on("ListSchedules", whole({"Schedules": []}))


def order(**changes: Any) -> Order:
    """An order for one g5.xlarge."""
    now = time.time()
    terms = {"market": "on-demand", "zones": "us-east-1a", "disk_gb": "100", "image": "ami-0123456789abcdef0"}
    rate = Money(Decimal("1.0330"))
    offer = Offer(
        f"g5.xlarge/{REGION}/on-demand", "aws", ACCOUNT, REGION, "g5.xlarge", Device("NVIDIA A10G", 1, 22.4), rate, 60, now,
        "test", terms,
    )  # fmt: skip
    given: dict[str, Any] = {
        "mark": Mark("run-1", NONCE, "ada@example.org", float(int(now) + 3600), "SHA256:key"), "member": 0, "offer": offer,
        "image": "", "disk_gb": 0, "volumes": (), "ssh_public_keys": ("ssh-ed25519 AAAA ada",),
        "host_key": HostKey("PRIVATE", "ssh-ed25519 BBBB", "SHA256:key"), "startup": "", "ends_at": float(int(now) + 3600),
        "allow_from": ("198.51.100.7/32",),
    }  # fmt: skip
    return Order(**(given | changes))


def soon(seconds: float = 20.0) -> float:
    """An `until`."""
    return time.time() + seconds


def made(**settings: str) -> AwsProvider:
    """The adapter."""
    found = provider({"region": REGION, **settings}, lambda name: None, time.time)
    assert isinstance(found, AwsProvider)
    return found


@contextmanager
def wired(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A server, and an environment in which boto3 finds it and nothing of this computer's user."""
    wire = Wire()
    handler = type("Bound", (_Handler,), {"wire": wire})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    wire.url = f"http://127.0.0.1:{server.server_port}"
    alone(monkeypatch, wire.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        server.server_close()


def alone(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Credentials that nobody has, the endpoint at `url`, and no file of the user's."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials", "AWS_MAX_ATTEMPTS": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


class _Handler(BaseHTTPRequestHandler):
    """Finds the name of the call in the protocol's own place: Action, X-Amz-Target, or the path."""

    protocol_version = "HTTP/1.1"
    wire: Wire

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        target = self.headers.get("X-Amz-Target", "")
        if target:
            self._answer(target.rpartition(".")[2], json.loads(text or "{}"))
        elif self.path.startswith("/schedules/"):
            self._answer("CreateSchedule", {"Name": self.path[11:], **json.loads(text)})
        else:
            form = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
            self._answer(form.pop("Action", self.path), form)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        action = REST.get(path, "GetSchedule" if path.startswith("/schedules/") else path)
        self._answer(action, {"path": path, **dict(urllib.parse.parse_qsl(query))})

    def do_PUT(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self._answer("UpdateSchedule", {"Name": self.path[11:], **json.loads(text)})

    def do_DELETE(self) -> None:
        self._answer(f"DELETE {self.path.partition('?')[0]}", {})

    def _answer(self, action: str, given: Mapping[str, Any]) -> None:
        signed = self.headers.get("Authorization", "").partition("Credential=")[2].split("/")
        reply = self.wire.reply(Asked(action, signed[2] if len(signed) > 2 else "", given, signed[0]))
        if reply.hangs_s:
            time.sleep(reply.hangs_s)
        body = reply.body.encode()
        try:
            self.send_response(reply.status)
            kind = "text/xml" if reply.body.startswith("<") else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # it was not waited for

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""
