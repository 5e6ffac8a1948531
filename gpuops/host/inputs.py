"""Bringing input data to the host: fetched by ranges, made by a command or found there, and kept only with the right sha256.

What has not been verified lies beside its place under a hidden name, with a record of what has arrived; the final name is given
by one rename. A call ends by itself after the seconds that it was given and goes on where the last one was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpuops.host import facts as host_facts
from gpuops.host.arrivals import Call, LaterError, Record, TimeOverError, remove
from gpuops.host.download import fetch
from gpuops.host.files import RefusedError, hash_open, signature, sync_directory

MOST_WRONG = 2
"""Whole files with the wrong sha256, after each of which everything is fetched anew, until the input is refused."""
LOCK_S = 10.0


def bring(request: dict[str, Any]) -> dict[str, Any]:
    """Bring every input of the request as far as time allows; what is wrong with one is told and does not stop the others."""
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        out.write(data)
        out.flush()

    items = request["inputs"]
    call = Call(float(request["seconds"]), sum(int(item["bytes"]) for item in items), write, request["token"])
    done: list[dict[str, Any]] = []
    problem, final = "", False
    for item in items:
        begun = time.monotonic()
        notes: list[str] = []
        try:
            call.check()
            how, size, digest = _one(item, request, call, notes)
        except TimeOverError:
            break
        except LaterError as error:
            problem = problem or f"{item['to']}: {error}"
            continue
        except (RefusedError, OSError) as error:
            problem, final = f"{item['to']}: {error}", True
            break
        call.before += size
        seconds = round(time.monotonic() - begun, 3)
        done.append({"to": item["to"], "how": how, "bytes": size, "sha256": digest, "seconds": seconds, "notes": notes})
    return {"done": done, "problem": problem, "final": final}


def _one(item: dict[str, Any], request: dict[str, Any], call: Call, notes: list[str]) -> tuple[str, int, str]:
    """Bring one input; returns (how, bytes, sha256). An existing file counts by its hash and by nothing else."""
    kind, to = item["kind"], item["to"]
    if kind == "path" and os.path.isdir(to):
        return "sent", 0, ""
    if kind == "volume":
        size, digest = _proved(item, item["source"], call, "is not on the volume")
        _link(item["source"], to)
        return "found on the volume", size, digest
    if kind == "path":
        return ("sent", *_proved(item, to, call, "was not sent"))
    seen = _hash(to, call, item)
    if seen is not None and _fits(item, *seen):
        return ("there already", *seen)
    folder = os.path.dirname(to)
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, f".gpuops-{hashlib.sha256(os.fsencode(to)).hexdigest()[:16]}.part")
    lock = os.open(part + ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _lock(lock)
        record = Record(part, item)
        make = fetch if kind == "https" else partial(_run, request)
        size, digest = _until_right(item, record, call, lambda: make(item, record, call))
        notes += record.value["lies"] + [f"one had sha256 {wrong}" for wrong in record.value["wrong"]]
        _place(part, to)
        record.forget()
        return ("fetched" if kind == "https" else "made"), size, digest
    finally:
        os.close(lock)


def _until_right(item: dict[str, Any], record: Record, call: Call, make: Callable[[], None]) -> tuple[int, str]:
    """Make the partial file until its hash is the wanted one: one clean repetition, then a refusal."""
    while True:
        make()
        seen = _hash(record.part, call, None)
        if seen is None:
            raise LaterError("what was made is gone")
        if _fits(item, *seen):
            return seen
        record.value["wrong"].append(seen[1])
        wrong = record.value["wrong"]
        record.clean()
        if len(wrong) >= MOST_WRONG:
            record.forget()
            size = f", {seen[0]:,} bytes" + (f" instead of {item['bytes']:,}" if item["bytes"] else "")
            raise RefusedError(
                f"its sha256 is {seen[1]}{size}, the manifest says {item['sha256']}; it was brought {len(wrong)} times"
            )


# --- by a command ----------------------------------------------------------------------------------------------------


def _run(request: dict[str, Any], item: dict[str, Any], record: Record, call: Call) -> None:
    """Let a command make the partial file; it sees the image's environment and no secrets."""
    record.clean()
    argv = [word.replace("{to}", record.part) for word in item["argv"]]
    if argv == item["argv"]:
        argv.append(record.part)
    workdir = request["workdir"] if os.path.isdir(request["workdir"]) else os.path.dirname(record.part)
    environment = {**host_facts.image_environment(), **request["env"]}
    said = record.part + ".log"
    try:
        with open(os.open(said, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "r+b") as log:
            try:
                child = subprocess.Popen(
                    argv, cwd=workdir, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise RefusedError(f"the command cannot be started: {error}") from error
            for _ in _while_alive(child, call):
                call.tell("making", os.path.getsize(record.part) if os.path.exists(record.part) else 0, item["bytes"])
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
            last = log.read().decode("utf-8", "replace").strip()
    finally:
        remove(said)
    if child.returncode:
        raise record.failed(f"the command ended with {child.returncode}: {last}")
    if not os.path.isfile(record.part) or os.path.islink(record.part):
        raise record.failed("the command ended well and made no file")


def _while_alive(child: subprocess.Popen[bytes], call: Call) -> Iterator[None]:
    """Yields every tenth of a second until a command ended. One that does not end in time is ended with its children."""
    try:
        while child.poll() is None:
            if time.monotonic() >= call.end:
                raise LaterError("the command did not end in time")
            yield
            time.sleep(0.1)
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        child.wait()


# --- files -----------------------------------------------------------------------------------------------------------


def _hash(path: str, call: Call, item: dict[str, Any] | None) -> tuple[int, str] | None:
    """Size and sha256 of a regular file; None when there is none. With `item`, a size that cannot fit is not hashed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (item and item["bytes"] and info.st_size != item["bytes"]):
            return None
        done = [0]

        def tell(count: int) -> None:
            done[0] += count
            call.check()
            call.tell("verifying", done[0], info.st_size)

        return info.st_size, hash_open(fd, path, signature(info), tell)
    finally:
        os.close(fd)


def _proved(item: dict[str, Any], path: str, call: Call, missing: str) -> tuple[int, str]:
    seen = _hash(path, call, None)
    if seen is None:
        raise RefusedError(f"{path} {missing}")
    if not _fits(item, *seen):
        raise RefusedError(f"{path} has sha256 {seen[1]} and {seen[0]:,} bytes, the manifest says {item['sha256']}")
    return seen


def _fits(item: dict[str, Any], size: int, digest: str) -> bool:
    return item["sha256"] in ("", digest) and item["bytes"] in (0, size)


def _link(path: str, to: str) -> None:
    """A name for a file that stays where it is; whatever else has that name is left alone."""
    if to == path or (os.path.islink(to) and os.readlink(to) == path):
        return
    if os.path.lexists(to) and not os.path.islink(to):
        raise RefusedError("something else is there already")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    new = f"{to}.new.{os.getpid()}"
    os.symlink(path, new)
    os.rename(new, to)


def _place(part: str, to: str) -> None:
    """Give a verified file its name, durably."""
    fd = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, to)
    sync_directory(os.path.dirname(to))


def _lock(fd: int) -> None:
    end = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= end:
                raise LaterError("another process of this host brings it") from error
            time.sleep(0.1)
