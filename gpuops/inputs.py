"""Having a host bring its input data, and hearing how far it is. What the host says is held against what was asked for."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import IO, Any

from gpuops import argv, names
from gpuops.errors import HostError, Unreachable
from gpuops.ports import Clock, Progress
from gpuops.remote import (
    AGENT_COMMAND,
    MAX_ANSWER_BYTES,
    Connection,
    Finished,
    end_group,
    judge,
    new_token,
    read_answer,
    script,
)
from gpuops.spec import Input, Spec
from gpuops.values import InputsSeen, InputThere, Time

ANSWER_S = 3.0
"""The host stops so long before the call ends, so that what it says still arrives."""
MAX_LINE_BYTES = 1 << 20
WORDS = ("fetched", "made", "sent", "there already", "found on the volume")


def bring(
    spec: Spec, missing: tuple[Input, ...], connection: Connection, clock: Clock, until: Time, progress: Progress
) -> InputsSeen:
    """Ask the host once and listen until it has answered. Raises `Unreachable` when the connection broke or time came first."""
    connection.ensure(until)
    seconds = until - clock.now()
    if seconds <= ANSWER_S:
        raise Unreachable("no time left to bring inputs")
    token = new_token()
    request = {
        "inputs": [
            {
                "to": i.to, "kind": i.kind, "source": i.source, "argv": list(i.argv), "sha256": i.sha256, "bytes": i.bytes,
                "ca": i.ca,
            }
            for i in missing
        ],
        "seconds": seconds - ANSWER_S, "workdir": spec.train.workdir, "env": dict(spec.env),
    }  # fmt: skip
    child = subprocess.Popen(
        argv.execute(connection.login, AGENT_COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    watchdog = threading.Timer(seconds, end_group, [child])
    watchdog.daemon = True
    watchdog.start()
    try:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(script("inputs", request, token))
        child.stdin.close()
        out = _listen(child.stdout, token.encode(), progress)
        error = names.escape(child.stderr.read(4096).decode("utf-8", "replace").strip(), "\n")
        judge(Finished(child.wait(), b"", error))
    except Unreachable:
        connection.drop()
        raise
    except (OSError, ValueError) as failure:
        connection.drop()
        raise Unreachable("the connection broke while inputs were brought") from failure
    finally:
        watchdog.cancel()
        end_group(child)
    return _understood(read_answer(out, token, error), missing)


def _listen(source: IO[bytes], token: bytes, progress: Progress) -> bytes:
    """What the host says, without the lines that only tell how far it is: those are handed on."""
    kept: list[bytes] = []
    size = 0
    while line := source.readline(MAX_LINE_BYTES):
        if line.startswith(token + b" "):
            _tell(line[len(token) :], progress)
            continue
        kept.append(line)
        size += len(line)
        if size > MAX_ANSWER_BYTES:
            raise HostError("the host talks without end")
    return b"".join(kept)


def _tell(line: bytes, progress: Progress) -> None:
    try:
        what, done, total = json.loads(line)
        progress(f"{names.escape(str(what))[:20]} inputs", float(done), float(total))
    except (ValueError, TypeError, RecursionError):
        return  # a line that cannot be understood shows nothing


def _understood(answer: dict[str, Any], missing: tuple[Input, ...]) -> InputsSeen:
    """The host's answer as values. Raises `HostError` for anything that was not asked for."""
    asked = {i.to: i for i in missing}
    done = []
    try:
        for there in answer["done"]:
            wanted = asked.pop(there["to"])
            seen = InputThere(
                wanted.to, str(there["how"]), int(there["bytes"]), str(there["sha256"]), float(there["seconds"]),
                tuple(names.escape(str(note))[:500] for note in there["notes"]),
            )  # fmt: skip
            if seen.how not in WORDS or (wanted.sha256 and seen.sha256 != wanted.sha256):
                raise ValueError("another file than the one asked for")
            done.append(seen)
        return InputsSeen(tuple(done), names.escape(str(answer["problem"]))[:2000], bool(answer["final"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HostError("what the host says of its inputs cannot be understood") from error
