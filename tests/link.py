"""A slow or lossy link to a port of this machine, as TCP shows it: every piece arrives late, some much later, none is lost."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from queue import Queue

RESENT_AFTER_S = 0.2
"""The least time after which TCP sends a lost packet again (RFC 6298 says 1 s; Linux uses 0.2 s)."""


class Link:
    """Listens on `port` and carries bytes to `target`, each way `delay_s` late; a part of the pieces seems lost at first."""

    def __init__(self, target: tuple[str, int], delay_s: float, lossy: float, seed: int = 1) -> None:
        self.target, self.delay_s, self.lossy, self.random = target, delay_s, lossy, random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(self.target)
            for one, other in ((near, far), (far, near)):
                pieces: Queue[tuple[float, bytes]] = Queue()
                threading.Thread(target=self._read, args=(one, pieces), daemon=True).start()
                threading.Thread(target=self._write, args=(other, pieces), daemon=True).start()

    def _read(self, source: socket.socket, pieces: Queue[tuple[float, bytes]]) -> None:
        data = b"x"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            late = self.delay_s + (RESENT_AFTER_S if self.random.random() < self.lossy else 0.0)
            pieces.put((time.monotonic() + late, data))

    def _write(self, target: socket.socket, pieces: Queue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError), target:
            while True:
                at, data = pieces.get()  # in order: what comes behind a lost piece waits for it
                time.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)


@contextlib.contextmanager
def link(target: tuple[str, int], *, delay_s: float = 0.0, lossy: float = 0.0) -> Iterator[Link]:
    """A `Link` that is closed at the end of the block."""
    opened = Link(target, delay_s, lossy)
    try:
        yield opened
    finally:
        opened.close()
