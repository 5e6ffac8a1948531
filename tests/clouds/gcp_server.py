"""The fake Compute Engine as a process of its own: `python -m clouds.gcp_server DIRECTORY`.

It prints its address on one line, and ends, with all its hosts, when its standard input is closed: whatever happens to the test,
nothing is left.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .gcp_answers import Answer, json_answer
from .gcp_cloud import Cloud
from .gcp_control import Control
from .gcp_lives import Machines

TICK_S = 0.02


def handler(cloud: Cloud, control: Control) -> type[BaseHTTPRequestHandler]:
    """The class that the HTTP server makes one of for each connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def log_message(self, format: str, *args: object) -> None: ...

        def version_string(self) -> str:
            return "ESF"

        def date_time_string(self, timestamp: float | None = None) -> str:
            return email.utils.formatdate(cloud.account.now(), usegmt=True)

        def serve(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            path = urlsplit(self.path).path
            if path.startswith("/_control/"):
                self.send(_controlled(control, path.removeprefix("/_control/"), text))
                return
            answer = cloud.respond(self.command, self.path, text, self.headers)
            if answer is None:
                self.close_connection = True
            else:
                self.send(answer)

        def send(self, answer: Answer) -> None:
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body) + answer.missing))
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(answer.body)
                self.wfile.flush()
            self.close_connection = self.close_connection or answer.missing > 0

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = serve  # noqa: N815

    return Handler


def _controlled(control: Control, name: str, text: str) -> Answer:
    try:
        return json_answer(control.answer(name, json.loads(text or "{}")))
    except (KeyError, ValueError, TypeError) as error:
        return json_answer({"error": f"{type(error).__name__}: {error}"}, 400)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None: ...


def main(directory: Path) -> None:
    """Serve until standard input ends."""
    made: list[Any] = []

    def machines(cloud: Cloud) -> Machines:
        if not made:
            from .gcp_hosts import Hosts  # only a cloud with hosts needs root, bubblewrap and a network of its own

            made.append(Hosts(cloud, directory / "hosts"))
        return made[0]  # type: ignore[no-any-return]

    cloud = Cloud(machines)
    server = Server(("127.0.0.1", 0), handler(cloud, Control(cloud)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    stop = threading.Event()

    def ticking() -> None:
        while not stop.wait(TICK_S):
            cloud.tick()

    threading.Thread(target=ticking, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    os.read(0, 1)
    stop.set()
    for hosts in made:
        hosts.close()
    server.shutdown()
    os._exit(0)  # nothing is left to do; taking the client library apart would take seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
