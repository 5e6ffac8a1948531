"""Heartbeats for a training program: copy this file beside yours; it needs nothing but Python.

    beat = Heartbeat()
    beat(step=step, tokens=tokens, state="training", loss=loss, lr=lr)

One JSON line per call goes to $GPUOPS_OUTPUT_DIR/heartbeat.jsonl. States: starting, training, evaluating,
checkpointing, done (all that was planned), failed. A heartbeat that cannot be written never stops the training.
"""

import json
import math
import os
import time


class Heartbeat:
    """Appends lines; after a restart the sequence numbers go on where the file ends."""

    def __init__(self, directory: str = "", run: str = "") -> None:
        directory = directory or os.environ.get("GPUOPS_OUTPUT_DIR", ".")
        self.run = run or os.environ.get("GPUOPS_RUN_ID", "")
        self.path = os.path.join(directory, "heartbeat.jsonl")
        self.seq = self._last_seq() + 1

    def __call__(self, *, step: int, tokens: int, state: str, **fields: object) -> bool:
        """Write one line; returns False when it could not be written."""
        line: dict[str, object] = {"v": 1, "run": self.run, "seq": self.seq, "t": round(time.time(), 3)}
        line |= {"mono": round(time.monotonic(), 3), "step": step, "tokens": tokens, "state": state}
        line |= {name: _plain(value) for name, value in fields.items()}
        try:
            # One write of one whole line: readers see it completely or, after a crash, as a torn last line.
            with open(self.path, "ab", buffering=0) as file:
                file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError:
            return False
        self.seq += 1
        return True

    def _last_seq(self) -> int:
        try:
            with open(self.path, "rb+") as file:
                file.seek(max(0, os.path.getsize(self.path) - 65536))
                lines = file.read().split(b"\n")
                # A torn last line must not swallow our first one.
                file.write(b"\n" if lines[-1] else b"")
        except OSError:
            return -1
        for line in reversed(lines):
            try:
                return int(json.loads(line)["seq"])
            except (ValueError, KeyError, TypeError):
                pass
        return -1


def _plain(value: object) -> object:
    """NaN and infinity are no JSON: they travel as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
