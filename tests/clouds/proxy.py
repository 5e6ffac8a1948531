"""A reverse proxy that counts calls and can hold one, so that a test may kill whoever made it exactly there.

    with CountingProxy(cloud.url) as proxy:
        proxy.hold(3, "after")               # the third call has been done, its answer is held back
        client = subprocess.Popen(…, env={…: proxy.url})
        held = proxy.wait_held(30)
        client.kill(); proxy.drop()

Counting first and holding each number in turn visits every call that a command makes, whatever those are: no list of
calls is kept anywhere. Plain HTTP, standard library only.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

UPSTREAM_S = 120.0
HELD_S = 300.0
"""Nobody is held for longer: a test that has failed must not leave a thread behind."""
NOT_PASSED_ON = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "proxy-connection"})
Moment = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Counted:
    """One call with its number, from 1; `status` is empty while the upstream has not answered."""

    number: int
    name: str
    status: int | None = None


def by_path(request: Request) -> str:
    """The name of a call: method and path, without the query."""
    return f"{request.method} {urlsplit(request.path).path}"


class CountingProxy:
    """In front of `upstream`. Calls for which `counts` is false pass uncounted and are never held."""

    def __init__(
        self,
        upstream: str,
        name: Callable[[Request], str] = by_path,
        counts: Callable[[Request], bool] = lambda request: True,
    ) -> None:
        self._upstream = urlsplit(upstream)
        self._name, self._counts = name, counts
        self._lock = threading.Lock()
        self._calls: list[Counted] = []
        self._held_at: tuple[int, Moment] | None = None
        self._held = threading.Event()
        self._go, self._deliver = threading.Event(), True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> CountingProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def calls(self) -> tuple[Counted, ...]:
        """What was counted, in order of arrival."""
        with self._lock:
            return tuple(self._calls)

    def restart(self) -> None:
        """Count from 1 again and hold nothing."""
        with self._lock:
            self._calls.clear()
            self._held_at = None
            self._held, self._go, self._deliver = threading.Event(), threading.Event(), True

    def hold(self, number: int, when: Moment) -> None:
        """Hold call `number`: `before` the upstream sees it, or `after` it has answered."""
        with self._lock:
            self._held_at = (number, when)

    def wait_held(self, patience_s: float) -> Counted | None:
        """Wait until the call is held; None when it did not come."""
        with self._lock:
            held = self._held
        if not held.wait(patience_s):
            return None
        with self._lock:
            assert self._held_at is not None
            return self._calls[self._held_at[0] - 1]

    def drop(self) -> None:
        """End the held call without an answer; one held `before` never reaches the upstream."""
        self._let_go(deliver=False)

    def release(self) -> None:
        """Let the held call go on as if nothing had been."""
        self._let_go(deliver=True)

    def close(self) -> None:
        """Stop; whoever is held is dropped."""
        self._let_go(deliver=False)
        self._server.shutdown()
        self._server.server_close()

    def pass_on(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """Carry one call; None when its connection has to end without an answer."""
        number = self._count(request)
        if number and not self._stand(number, "before"):
            return None
        answer = self._ask(request)
        if number:
            with self._lock:
                if number <= len(self._calls):
                    self._calls[number - 1] = Counted(number, self._calls[number - 1].name, answer[0])
            if not self._stand(number, "after"):
                return None
        return answer

    def _count(self, request: Request) -> int:
        if not self._counts(request):
            return 0
        with self._lock:
            self._calls.append(Counted(len(self._calls) + 1, self._name(request)))
            return len(self._calls)

    def _stand(self, number: int, when: Moment) -> bool:
        """Wait here if this is the place; False when the call is dropped."""
        with self._lock:
            if self._held_at != (number, when):
                return True
            held, go = self._held, self._go
        held.set()
        go.wait(HELD_S)
        return self._deliver and go.is_set()

    def _let_go(self, deliver: bool) -> None:
        with self._lock:
            self._deliver = deliver
            self._go.set()

    def _ask(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=UPSTREAM_S)
        try:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in NOT_PASSED_ON}
            connection.request(request.method, request.path, request.body, {**headers, "Connection": "close"})
            answer = connection.getresponse()
            body = answer.read()
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in NOT_PASSED_ON]
            return answer.status, kept, body
        finally:
            connection.close()


def _handler(proxy: CountingProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            """Read a call, carry it, write what came back."""
            request = Request(self.command, self.path, dict(self.headers.items()), self._body())
            try:
                carried = proxy.pass_on(request)
            except (OSError, http.client.HTTPException):
                # what cuts the line behind us cuts it before us
                carried = None
            if carried is None:
                self.close_connection = True
                return
            status, headers, body = carried
            # without the date and the name that this server would add
            self.send_response_only(status)
            for key, value in headers:
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def log_message(self, *given: Any) -> None:
            """Nothing."""

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler
