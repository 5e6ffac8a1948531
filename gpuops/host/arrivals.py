"""What has arrived of an input, kept beside its place; and the call that brings it, which ends by itself and tells progress."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from gpuops.host.files import RefusedError, atomic_write, read_json

MOST_FAILED = 3
TELL_S = 0.5


class LaterError(Exception):
    """Something that a later call may mend."""


class TimeOverError(Exception):
    """The seconds of this call are over; nothing is wrong."""


class LieError(Exception):
    """What a server says about lengths does not fit together, or not with the manifest."""


class Call:
    """One call: when it ends, and whom it tells how far it is."""

    def __init__(self, seconds: float, total: int, write: Callable[[bytes], Any], token: str) -> None:
        self.end = time.monotonic() + seconds
        self.total, self.before, self.told_at = total, 0, 0.0
        self.write, self.token = write, token

    def check(self) -> None:
        """Raise `TimeOverError` when the call must end."""
        if time.monotonic() >= self.end:
            raise TimeOverError

    def tell(self, what: str, done: int, of: int) -> None:
        """Say now and then how many bytes there are, of this input `done` out of `of`.

        A connection that is gone ends the process here.
        """
        now = time.monotonic()
        if now - self.told_at >= TELL_S:
            self.told_at = now
            line = json.dumps([what, self.before + done, max(self.total, self.before + max(done, of))])
            self.write(f"\n{self.token} {line}\n".encode())


class Record:
    """What has arrived of one input, beside its partial file."""

    def __init__(self, part: str, item: dict[str, Any]) -> None:
        self.part, self.file = part, part + ".json"
        key = [item["kind"], item["source"], item["argv"], item["sha256"]]
        found = read_json(self.file)
        self.value: dict[str, Any] = {"key": key, "total": None, "ranges": True, "pieces": []}
        self.value.update(etag="", wrong=[], lies=[], failed=0)
        if isinstance(found, dict) and found.get("key") == key and found.keys() == self.value.keys():
            self.value = found
        if self.value is not found or not os.path.exists(part):
            self.clean()

    def save(self) -> None:
        """Write what has arrived."""
        atomic_write(self.file, json.dumps(self.value).encode())

    def clean(self) -> None:
        """Begin anew; what went wrong is remembered."""
        self.value.update(total=None, ranges=True, pieces=[], etag="")
        remove(self.part)
        self.save()

    def forget(self) -> None:
        """Forget everything, also the partial file and its lock."""
        for path in (self.part, self.file, self.part + ".lock"):
            remove(path)

    def failed(self, what: str) -> Exception:
        """One more failure of a command: to be tried again, or the end."""
        self.value["failed"] += 1
        self.save()
        if self.value["failed"] < MOST_FAILED:
            return LaterError(what)
        self.forget()
        return RefusedError(f"{what}; tried {MOST_FAILED} times")


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
