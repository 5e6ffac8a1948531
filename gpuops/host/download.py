"""Fetching one file over HTTPS into its partial file: pieces in parallel, gone on with where a connection broke.

Nothing that a server says about lengths is believed before it fits with the manifest and with what it said before. Whether the
bytes are right is not decided here.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from gpuops.host.arrivals import TELL_S, Call, LaterError, LieError, Record, TimeOverError
from gpuops.host.files import RefusedError

PIECE_BYTES = 32 << 20
CHANNELS = 4
READ_BYTES = 1 << 20
SILENT_S = 20.0
"""A server that sends nothing for so long counts as a broken connection."""
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0)
BARREN = len(BACKOFF_S)
"""So many failures in a row, without one byte between them, end a call; a later one goes on."""
MOST_LIES = 2
LEAVE_S = 1.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PASSING = (408, 425, 429)


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.lower().startswith("https://"):
            raise RefusedError("the server redirects to an address that is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Download:
    """The pieces of one file that are being fetched, several at a time."""

    def __init__(self, item: dict[str, Any], record: Record, call: Call) -> None:
        self.item, self.record, self.call = item, record, call
        try:
            context = ssl.create_default_context(cafile=item["ca"] or None)
        except OSError as error:
            raise RefusedError(f"the CA file {item['ca']} cannot be read: {error}") from error
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _OnlyHttps())
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.barren = 0
        self.error: BaseException | None = None
        self.workers: list[threading.Thread] = []
        self.fd = os.open(record.part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def probe(self) -> None:
        """Ask for the first byte: how long is it all, and can the server send pieces?"""
        value, wanted = self.record.value, int(self.item["bytes"])
        try:
            with self.open(0, 1) as answer:
                if answer.status == 206:
                    begin, end, total = _content_range(answer)
                    if (begin, end) != (0, 0):
                        raise LieError(f"asked for the first byte the server sent {begin} to {end}")
                    value["total"], value["etag"] = total, answer.headers.get("ETag", "")
                    value["ranges"] = total is not None
                else:
                    length = answer.headers.get("Content-Length", "")
                    value.update(ranges=False, total=int(length) if length.isdigit() else None)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not (error.headers.get("Content-Range") or "").endswith("/0"):
                raise
            value["total"] = 0
        if value["total"] is None and wanted:
            value["total"] = wanted
        elif wanted and value["total"] != wanted:
            raise LieError(f"the server says that it has {value['total']:,} bytes, the manifest says {wanted:,}")
        self._room(value["total"] or 0)
        size = PIECE_BYTES if value["ranges"] else max(value["total"] or 0, 1)
        value["pieces"] = [0] * max(1, -(-(value["total"] or 0) // size))
        self.record.save()

    def open(self, begin: int, end: int | None) -> Any:
        """One request, for bytes from `begin` up to `end`; None asks for all."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "gpuops"}
        if end is not None:
            headers["Range"] = f"bytes={begin}-{end - 1}"
        left = max(0.1, min(SILENT_S, self.call.end - time.monotonic()))
        return self.opener.open(urllib.request.Request(self.item["source"], headers=headers), timeout=left)

    def run(self) -> None:
        """Fetch what is missing. Raises what a worker could not mend, `TimeOverError` when time came first."""
        value = self.record.value
        waiting = [i for i in range(len(value["pieces"])) if not self._complete(i)]
        if value["total"] == 0:
            return
        waiting.reverse()
        # daemons: one that waits for a silent server must not keep this process beyond its time
        workers = [
            threading.Thread(target=self._work, args=(waiting,), daemon=True)
            for _ in range(min(CHANNELS, len(waiting)))
        ]
        self.workers = workers
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                workers[0].join(0.1)
                time.sleep(0.05)
                if time.monotonic() >= self.call.end:
                    self.stop.set()
                if time.monotonic() - self.call.told_at >= TELL_S:
                    self.record.save()
                    self.call.tell("fetching", sum(value["pieces"]), value["total"] or 0)
        finally:
            self.stop.set()
            for worker in workers:
                worker.join(LEAVE_S)
            self.record.save()
        if self.error is not None:
            raise self.error
        if not all(self._complete(i) for i in range(len(value["pieces"]))):
            raise TimeOverError

    def close(self) -> None:
        """Close the partial file, unless a worker that waits for a silent server may still write to it."""
        if not any(worker.is_alive() for worker in self.workers):
            os.close(self.fd)

    def _bounds(self, index: int) -> tuple[int, int | None]:
        total = self.record.value["total"]
        if not self.record.value["ranges"]:
            return 0, total
        return index * PIECE_BYTES, min((index + 1) * PIECE_BYTES, total)

    def _complete(self, index: int) -> bool:
        begin, end = self._bounds(index)
        have = self.record.value["pieces"][index]
        return have < 0 if end is None else bool(begin + have >= end)

    def _work(self, waiting: list[int]) -> None:
        """Take pieces until there are none; a broken connection is tried again where it broke."""
        while not self.stop.is_set():
            with self.lock:
                if not waiting:
                    return
                index = waiting.pop()
            try:
                self._piece(index)
            except (OSError, http.client.HTTPException) as error:
                self._failed(error)
            except BaseException as error:
                self._end(error)
            if not self._complete(index):
                with self.lock:
                    waiting.append(index)

    def _failed(self, error: Exception) -> None:
        with self.lock:
            gap = BACKOFF_S[min(self.barren, BARREN - 1)]
            self.barren += 1
            barren = self.barren
        judged = _judge(error)
        if not isinstance(judged, LaterError) or barren >= BARREN:
            self._end(judged)
        self.stop.wait(gap)

    def _end(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error
        self.stop.set()

    def _piece(self, index: int) -> None:
        value = self.record.value
        begin, end = self._bounds(index)
        if not value["ranges"]:
            value["pieces"][index] = 0  # such a server sends everything or nothing
        offset = begin + value["pieces"][index]
        with self.open(offset, end if value["ranges"] else None) as answer:
            if value["ranges"]:
                self._agrees(answer, offset, end or 0)
            while end is None or offset < end:
                if self.stop.is_set():
                    return
                data = answer.read(READ_BYTES if end is None else min(READ_BYTES, end - offset))
                if not data:
                    break
                self._write(data, offset)
                offset += len(data)
                value["pieces"][index] = offset - begin
                self.barren = 0
        if end is None:
            value["total"], value["pieces"][index] = offset, -1
        elif offset < end:
            raise ConnectionError("the connection broke in the middle")

    def _agrees(self, answer: Any, offset: int, end: int) -> None:
        """What the server says about this piece must fit with what it said before."""
        value = self.record.value
        if answer.status != 206:
            raise LieError("the server sent pieces at first and now sends the whole")
        begin, last, total = _content_range(answer)
        if (begin, last) != (offset, end - 1):
            raise LieError(f"asked for bytes {offset} to {end - 1} the server says that it sends {begin} to {last}")
        if total is not None and total != value["total"]:
            raise LieError(f"the server says that the file has {total:,} bytes; before it said {value['total']:,}")
        length = answer.headers.get("Content-Length")
        if length is not None and length.strip() != str(end - offset):
            raise LieError(f"the server announces {length[:20]} bytes for a piece of {end - offset}")
        if answer.headers.get("ETag", "") != value["etag"]:
            raise LieError("the file changed on the server while it was fetched")

    def _write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self.fd, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise RefusedError(f"cannot be written: {error.strerror}") from error

    def _room(self, total: int) -> None:
        folder = os.path.dirname(self.record.part)
        free = shutil.disk_usage(folder).free
        if total > free:
            raise RefusedError(f"no space at {folder}: {free:,} bytes free, {total:,} needed")


def fetch(item: dict[str, Any], record: Record, call: Call) -> None:
    """Fetch a file into the partial file. A server that lies about lengths is heard once more, from the start."""
    while True:
        download = Download(item, record, call)
        try:
            if not record.value["pieces"]:
                _patiently(download.probe, call)
            download.run()
            return
        except LieError as error:
            record.value["lies"].append(f"{error}")
            lies = record.value["lies"]
            record.clean()
            if len(lies) >= MOST_LIES:
                record.forget()
                raise RefusedError(f"the server lies about lengths: {'; '.join(lies)}") from error
        finally:
            download.close()


def _patiently(ask: Callable[[], None], call: Call) -> None:
    for gap in (*BACKOFF_S, None):
        call.check()
        try:
            return ask()
        except (OSError, http.client.HTTPException) as error:
            judged = _judge(error)
            if gap is None or not isinstance(judged, LaterError):
                raise judged from error
            time.sleep(max(0.0, min(gap, call.end - time.monotonic())))
    return None


def _judge(error: Exception) -> Exception:
    """What may pass by itself, and what may not, in words for a person. Addresses stay out: a query may hold a key."""
    if isinstance(error, urllib.error.HTTPError):
        text = f"the server answers {error.code} {error.reason}"
        error.close()
        return LaterError(text) if error.code >= 500 or error.code in _PASSING else RefusedError(text)
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RefusedError(f"the server's certificate is not accepted: {reason.verify_message}")
    return LaterError(f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__)


def _content_range(answer: Any) -> tuple[int, int, int | None]:
    match = _RANGE.fullmatch((answer.headers.get("Content-Range") or "").strip())
    if not match:
        raise LieError("the server sends a piece without saying which")
    return int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])
