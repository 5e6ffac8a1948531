"""Pond, a made-up cloud over HTTP: machines, volumes and keys in two regions, and every fault that the conformance kit asks for.

The standard library alone. Its time is this computer's, pushed forward by `advance`. Every answer is JSON; an error is
`{"error": {"code", "message"}}`. Lists have pages of two. A deleted machine is shown as "dry" for a while, then forgotten.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ACCOUNT = "acct-frog"
TOKEN = "pond-token-of-a-frog"
REGIONS = ("lake", "river")
SIZES = (
    {"id": "moss", "device": "NVIDIA L4", "count": 1, "memory_gb": 24, "cents_per_hour": 95, "regions": ["lake"]},
    {"id": "reed", "device": "NVIDIA L4", "count": 1, "memory_gb": 24, "cents_per_hour": 75, "regions": ["lake"]},
    {"id": "lily", "device": "NVIDIA A100", "count": 1, "memory_gb": 80, "cents_per_hour": 150, "regions": ["river", "lake"]},
    {"id": "oak", "device": "NVIDIA L4", "count": 1, "memory_gb": 24, "cents_per_hour": 72.5, "regions": ["river"]},
)  # fmt: skip
PAGE = 2
FILLS_S, DRAINS_S, SHOWN_S = 5.0, 5.0, 60.0
LATE_S = 7.0
"""A late answer comes after this time: longer than anybody waits, and bounded, because a test waits for nothing for ever."""

ERROR_PAGE = b"<html><body><h1>Something is in the way</h1></body></html>"


@dataclass
class Thing:
    """One machine, volume or key."""

    kind: str
    id: str
    name: str
    region: str
    labels: dict[str, str]
    made_at: float
    size: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    """The create call as it came."""
    deleted_at: float | None = None
    fails: str = ""
    word: str = ""
    ignores: int = 0

    def state(self, now: float) -> str:
        """The cloud's word for it; empty once it is forgotten."""
        if self.deleted_at is not None:
            if self.kind != "machines" or now > self.deleted_at + DRAINS_S + SHOWN_S:
                return ""
            return "draining" if now < self.deleted_at + DRAINS_S else "dry"
        if self.word or self.kind != "machines":
            return self.word or "kept"
        if now < self.made_at + FILLS_S:
            return "filling"
        return "failed" if self.fails else "full"


@dataclass
class Faults:
    """What goes wrong from now on."""

    next_create: list[str] = field(default_factory=list)
    """For each create call to come: lost, error, cut, silent, drip, no_capacity, fails."""
    blind: set[str] = field(default_factory=set)
    hidden_s: float = 0.0
    broken_pages: bool = False
    broken_looks: bool = False
    page_status: int = 0
    throttled: bool = False
    retry_after_s: float | None = None
    forbidden: bool = False
    bad_token: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Reply:
    """One answer, and how it travels."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    travels: str = ""


class Pond:
    """The cloud without its wire."""

    def __init__(self) -> None:
        self.things: dict[str, Thing] = {}
        self.faults = Faults()
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._ahead_s = 0.0
        self._numbers = itertools.count(1000)

    def now(self) -> float:
        """The cloud's time."""
        return time.time() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead_s += seconds

    def make(self, kind: str, name: str, region: str, labels: dict[str, str], **more: Any) -> Thing:
        """Make a thing, whoever asks."""
        thing = Thing(kind, f"{kind[0]}-{next(self._numbers)}", name, region, labels, self.now(), **more)
        self.things[thing.id] = thing
        return thing

    def answer(self, method: str, target: str, token: str, body: Any) -> Reply:
        """What the cloud does and says."""
        faults, parts = self.faults, urlsplit(target)
        path = tuple(parts.path.removeprefix("/v1/").split("/"))
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if faults.page_status:
            return Reply(faults.page_status, ERROR_PAGE, {"Content-Type": "text/html"})
        if faults.throttled:
            wait = {} if faults.retry_after_s is None else {"Retry-After": f"{faults.retry_after_s:g}"}
            return Reply(429, b"slow down", {"Content-Type": "text/plain", **wait})
        if faults.bad_token or token != f"Bearer {TOKEN}":
            return _error(404, "not_found") if faults.masked and len(path) == 2 else _error(401, "bad_token")
        if faults.forbidden:
            return _error(403, "no_right")
        with self.lock:
            return self._route(method, path, query, body)

    def _route(self, method: str, path: tuple[str, ...], query: dict[str, str], body: Any) -> Reply:
        match (method, path):
            case ("GET", ("account",)):
                return Reply(200, {"id": ACCOUNT})
            case ("GET", ("regions",)):
                return Reply(200, {"items": [{"id": region} for region in REGIONS], "next": None})
            case ("GET", ("sizes",)):
                return Reply(200, {"items": list(SIZES), "next": None})
            case ("POST", ("machines",)):
                return self._create(body)
            case ("PUT", ("keys", name)):
                found = [t for t in self._there("keys") if t.name == name]
                key = found[0] if found else self.make("keys", name, body["region"], body["labels"])
                return Reply(200, self._shown(key))
            case ("PUT", ("machines", id)) if id in self.things:
                self.things[id].name = body["name"]
                self.things[id].labels |= body.get("labels", {})
                return Reply(200, self._shown(self.things[id]))
            case ("GET", ("machines" | "volumes" | "keys" as kind,)):
                return self._list(kind, query)
            case ("GET" | "DELETE", ("machines" | "volumes" | "keys" as kind, id)):
                thing = next((t for t in self._there(kind) if t.id == id), None)
                if thing is None:
                    return _error(404, "not_found")
                if method == "DELETE":
                    return self._delete(thing)
                if self.faults.broken_looks:
                    return _error(500, "internal")
                return Reply(200, self._shown(thing))
        return _error(404, "no_such_route")

    def _create(self, body: dict[str, Any]) -> Reply:
        fault = self.faults.next_create.pop(0) if self.faults.next_create else ""
        size = next((s for s in SIZES if s["id"] == body["size"] and body["region"] in s["regions"]), None)  # type: ignore[operator]
        if size is None or body["key"] not in [key.name for key in self._there("keys")]:
            return _error(422, "invalid")
        if fault == "no_capacity":
            return _error(409, "no_capacity")
        made = self.make("machines", body["name"], body["region"], body["labels"], size=body["size"], asked=body)
        if fault == "fails":
            made.fails = "no_capacity"
        if fault == "error":
            return _error(500, "no_capacity")  # the word that tempts most: the machine is there
        if fault == "lost":
            return Reply(504, ERROR_PAGE, {"Content-Type": "text/html"})
        return Reply(201, self._shown(made), travels=fault)

    def _list(self, kind: str, query: dict[str, str]) -> Reply:
        if query["region"] in self.faults.blind:
            return _error(503, "region_down")
        start = int(query.get("after", 0))
        if start and self.faults.broken_pages:
            return _error(500, "internal")
        hidden_from = self.now() - self.faults.hidden_s
        there = [t for t in self._there(kind) if t.region == query["region"] and t.made_at <= hidden_from]
        follows = start + PAGE if len(there) > start + PAGE else None
        return Reply(200, {"items": [self._shown(t) for t in there[start : start + PAGE]], "next": follows})

    def _delete(self, thing: Thing) -> Reply:
        if thing.ignores:
            thing.ignores -= 1
        elif thing.deleted_at is None:
            thing.deleted_at = self.now()
        return Reply(202, {})

    def _there(self, kind: str) -> list[Thing]:
        return [t for t in self.things.values() if t.kind == kind and t.state(self.now())]

    def _shown(self, thing: Thing) -> dict[str, Any]:
        state = thing.state(self.now())
        row = {
            "id": thing.id, "name": thing.name, "region": thing.region, "labels": thing.labels, "state": state,
            "created": datetime.fromtimestamp(thing.made_at, UTC).isoformat(),
            "cents_per_hour": {"machines": 0.0, "volumes": 1.2, "keys": 0.0}[thing.kind],
        }  # fmt: skip
        if thing.kind == "machines":
            row["cents_per_hour"] = next(s["cents_per_hour"] for s in SIZES if s["id"] == thing.size)
            row["failure"] = thing.fails if state == "failed" else None
            row["ssh"] = {"host": f"{thing.id}.pond.example", "port": 22, "user": "root"} if state == "full" else None
        return row


def _error(status: int, code: str) -> Reply:
    return Reply(status, {"error": {"code": code, "message": f"pond says {code.replace('_', ' ')}"}})


class _Handler(BaseHTTPRequestHandler):
    """The wire: one request in, one reply out, or less than that."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    pond: Pond

    def _serve(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token = self.headers.get("Authorization", "")
        reply = self.pond.answer(self.command, self.path, token, json.loads(sent) if sent else None)
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if reply.travels == "silent":
            self.pond.closing.wait(LATE_S)
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if reply.travels == "cut":
            self._cut(content)
        elif reply.travels == "drip":
            self._drip(content)
        else:
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _cut(self, content: bytes) -> None:
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _drip(self, content: bytes) -> None:
        for piece in range(len(content)):
            self.wfile.write(content[piece : piece + 1])
            self.wfile.flush()
            if self.pond.closing.wait(LATE_S / len(content)):
                return

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.pond.now() if timestamp is None else timestamp, usegmt=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hung up has heard enough."""


@contextlib.contextmanager
def served(pond: Pond) -> Iterator[str]:
    """The address at which the cloud answers, until the block ends."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"pond": pond}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        pond.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
