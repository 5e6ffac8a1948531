"""Bringing a generation here: byte ranges on several channels of one connection, resumed by range.

The list decides everything: which names are written, how long each is, which bytes are asked for. The host fills them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from gpuops import argv, names
from gpuops.errors import CopyError, GpuopsError, HostError, Unreachable
from gpuops.ports import Clock, Progress
from gpuops.remote import AGENT_COMMAND, Connection, end_group, new_token, script
from gpuops.values import Endpoint, Generation, Time

CHUNK_BYTES = 8 << 20
BATCH_BYTES = 64 << 20
BATCH_RANGES = 2000
FAR_CHANNELS = 6
"""One channel is held by its window to about 36 MiB/s at 50 ms; sshd allows ten sessions and others need some."""
NEAR_S = 0.005
MAX_BARREN_ROUNDS = 3
MAX_PREAMBLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """A piece of the file with this index in the generation's list."""

    file: int
    offset: int
    length: int


class Attempt:
    """An attempt directory with the record of the ranges that are on disk in it."""

    def __init__(self, directory: str, generation: Generation) -> None:
        self.directory, self.generation = directory, generation
        self.header = json.dumps({"content": names.content_digest(generation)})
        self.record = os.path.join(directory, names.RANGES_FILE)
        self.done: set[Range] = set()
        self.lock = threading.Lock()

    def open(self) -> None:
        """Make every file in its full length and read which ranges are there already."""
        recorded = self._recorded()
        whole = set()
        for index, file in enumerate(self.generation.files):
            path = self.path(index)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(fd).st_size == file.size:
                    whole.add(index)
                os.ftruncate(fd, file.size)
            finally:
                os.close(fd)
        self.done = {r for r in recorded if r.file in whole}
        with open(self.record, "w") as out:
            out.write(
                "\n".join(
                    [self.header, *[json.dumps([r.file, r.offset, r.length]) for r in sorted(self.done, key=_key)]]
                )
            )
            out.write("\n")

    def missing(self) -> list[Range]:
        """The ranges that are still to come, in the order of the list."""
        wanted = (
            Range(index, offset, min(CHUNK_BYTES, file.size - offset))
            for index, file in enumerate(self.generation.files)
            for offset in range(0, file.size, CHUNK_BYTES)
        )
        return [r for r in wanted if r not in self.done]

    def path(self, index: int) -> str:
        """Where the file with this index is written."""
        return os.path.join(self.directory, self.generation.files[index].path)

    def keep(self, ranges: list[Range]) -> None:
        """Make ranges durable, the bytes before the record of them."""
        if not ranges:
            return
        for index in {r.file for r in ranges}:
            fd = os.open(self.path(index), os.O_WRONLY | os.O_NOFOLLOW)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        with self.lock, open(self.record, "a") as out:
            out.write("".join(json.dumps([r.file, r.offset, r.length]) + "\n" for r in ranges))
            out.flush()
            os.fsync(out.fileno())
            self.done.update(ranges)

    def _recorded(self) -> set[Range]:
        try:
            with open(self.record) as source:
                lines = source.read().split("\n")
        except OSError:
            return set()
        if lines[0] != self.header:
            return set()
        found = set()
        for line in lines[1:]:
            try:
                file, offset, length = json.loads(line)
                found.add(Range(int(file), int(offset), int(length)))
            except (ValueError, TypeError):
                continue  # a torn last line: that range is fetched again
        return found


class Fetch:
    """One fetch: its attempt, its bound and its progress."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        until: Time,
        where: dict[str, str],
        attempt: Attempt,
        progress: Progress,
    ) -> None:
        self.connection, self.clock, self.until = connection, clock, until
        self.where, self.attempt, self.progress = where, attempt, progress
        self.here = sum(r.length for r in attempt.done)
        self.total = float(attempt.generation.bytes)
        self.lock = threading.Lock()
        self.stopped = False
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self, channels: int) -> bool:
        """Fetch what is missing; False when time came first. Raises `Unreachable` after rounds that brought nothing."""
        barren = 0
        while missing := self.attempt.missing():
            if self.clock.now() >= self.until:
                return False
            self.connection.ensure(self.until)
            before = len(missing)
            problems = self._round(missing, channels)
            for problem in problems:
                if not isinstance(problem, Unreachable):
                    raise problem
            barren = 0 if len(self.attempt.missing()) < before else barren + 1
            if problems and self.clock.now() < self.until:
                if barren >= MAX_BARREN_ROUNDS:
                    raise problems[0]
                self.connection.drop()
        return True

    def _round(self, missing: list[Range], channels: int) -> list[GpuopsError]:
        """One pass over what is missing. An interrupt ends every channel at once instead of waiting for the queue."""
        pool = ThreadPoolExecutor(max_workers=channels)
        try:
            return [p for p in pool.map(self._batch, _batches(missing, channels)) if p is not None]
        except BaseException:
            self.stopped = True
            with self.lock:
                running = list(self.running)
            for child in running:
                end_group(child)
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _batch(self, ranges: list[Range]) -> GpuopsError | None:
        """Fetch some ranges on one channel; what arrived stays when it fails. The failure is returned, not raised."""
        seconds = self.until - self.clock.now()
        if seconds <= 0 or self.stopped:
            return None
        arrived: list[Range] = []
        token = new_token()
        listed = self.attempt.generation.files
        request = {**self.where, "ranges": [(listed[r.file].path, r.offset, r.length) for r in ranges]}
        child = subprocess.Popen(
            argv.execute(self.connection.login, AGENT_COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        with self.lock:
            self.running.add(child)
        watchdog = threading.Timer(seconds, end_group, [child])
        watchdog.daemon = True
        watchdog.start()
        problem: GpuopsError | None = None
        try:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(script("stream", request, token))
            child.stdin.close()
            _skip_to(child.stdout, token)
            for piece in ranges:
                self._receive(piece, child.stdout)
                arrived.append(piece)
        except GpuopsError as error:
            problem = error
        except (OSError, ValueError) as error:
            problem = local_problem(error, self.attempt, self.total)
        finally:
            watchdog.cancel()
            end_group(child)
            with self.lock:
                self.running.discard(child)
        try:
            self.attempt.keep(arrived)
        except OSError as error:
            problem = local_problem(error, self.attempt, self.total)
        return problem

    def _receive(self, piece: Range, source: IO[bytes]) -> None:
        if int.from_bytes(_exactly(source, 8), "big") != piece.length:
            name = names.escape(self.attempt.generation.files[piece.file].path)
            raise HostError(f"the host no longer has {name} as it was sealed")
        fd = os.open(self.attempt.path(piece.file), os.O_WRONLY | os.O_NOFOLLOW)
        try:
            offset, left = piece.offset, piece.length
            while left:
                data = _exactly(source, min(1 << 20, left))
                written = 0
                while written < len(data):
                    written += os.pwrite(fd, data[written:], offset + written)
                offset, left = offset + len(data), left - len(data)
        finally:
            os.close(fd)
        with self.lock:
            self.here += piece.length
            self.progress(f"copying {self.attempt.generation.id}", float(self.here), self.total)


def channels_for(endpoint: Endpoint, total_bytes: int) -> int:
    """How many channels pay: one for a near host or little data, else several."""
    if total_bytes <= CHUNK_BYTES:
        return 1
    begun = time.monotonic()
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=2).close()
    except OSError:
        return FAR_CHANNELS
    return 1 if time.monotonic() - begun < NEAR_S else FAR_CHANNELS


def _batches(ranges: list[Range], channels: int) -> Iterator[list[Range]]:
    """Runs of ranges for one channel each: enough to be worth a request, small enough to share the work."""
    most = BATCH_BYTES if channels > 1 else BATCH_BYTES * 8
    batch: list[Range] = []
    size = 0
    for piece in ranges:
        batch.append(piece)
        size += piece.length
        if size >= most or len(batch) >= BATCH_RANGES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _skip_to(source: IO[bytes], token: str) -> None:
    """Pass over what a login shell printed before the answer."""
    seen, wanted = 0, token.encode() + b"\n"
    while seen < MAX_PREAMBLE_BYTES:
        line = source.readline(1 << 16)
        if line == wanted:
            return
        if not line:
            raise Unreachable("the connection broke before the first byte")
        seen += len(line)
    raise HostError("the host's login shell prints without end")


def _exactly(source: IO[bytes], length: int) -> bytes:
    data = source.read(length)
    if len(data) != length:
        raise Unreachable("the connection broke in the middle of a file")
    return data


def local_problem(error: Exception, attempt: Attempt, total: float) -> GpuopsError:
    """A full disk here is no fault of the connection; a closed pipe is."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(attempt.directory).free
        return CopyError(
            f"no space at {attempt.directory}: {free:,} bytes free, {total:,.0f} needed for this generation"
        )
    if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EBADF, None):
        return CopyError(f"cannot write to {attempt.directory}: {error}")
    return Unreachable("the connection broke")


def _key(piece: Range) -> tuple[int, int]:
    return (piece.file, piece.offset)
