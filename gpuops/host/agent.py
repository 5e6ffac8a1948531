"""One request in, one answer out: what gpuops asks a host to do. Sent over SSH stdin, it leaves no program behind."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from gpuops.host import facts as host_facts
from gpuops.host import files, generations, guest, progress, sealing, tools
from gpuops.host.files import RefusedError, atomic_write, read_json

START_S = 15.0
TAIL_BYTES = 4096
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Python keeps back what it prints into a file: a log that stays empty for hours shows no progress and helps nobody."""
BEAT_BYTES = 65536


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Make workdir, outputs and state, and record once what lies in the output directory before the first launch."""
    plan = request["plan"]
    for path in (plan["workdir"], plan["outputs"]):
        os.makedirs(path, exist_ok=True)
    state = host_facts.make_state(plan["run"], [*request.get("avoid", []), plan["outputs"]])
    if not os.path.exists(os.path.join(state, "before.json")):
        record_before(plan, state)
    return {"state": state}


def record_before(plan: dict[str, Any], state: str) -> None:
    """What lies in the output directory now belongs to no generation of this run."""
    before = generations.list_before(plan["outputs"])
    atomic_write(os.path.join(state, "before.json"), json.dumps(before).encode())
    _beside_outputs(plan["outputs"], f".gpuops-{plan['run']}.before.json", before)


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start the supervisor in tmux, unless this run was started on this boot; answer when training runs."""
    plan = dict(request["plan"])
    state = prepare(request)["state"]
    lock = os.open(os.path.join(state, "launch.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        boot = host_facts.boot_id()
        status = sealing.read_status(state)
        if status and status["boot_id"] == boot:
            return {"boot_id": boot, "state": state, "already": True}
        if plan.get("resume") and not os.path.exists(plan["resume"]):
            raise RefusedError(f"there is no generation to resume from at {plan['resume']}")
        # where the environment was made, if one was: the same in which it was looked at
        made = read_json(os.path.join(state, "environment.done.json")) or {}
        place = str((made.get("found") or {}).get("place") or "")
        environment = host_facts.within({**UNBUFFERED, **host_facts.image_environment(), **plan["env"]}, place)
        plan.update(boot_id=boot, state=state, env=environment)
        for stale in ("status.json", "stop.json", "sealed.json"):
            if os.path.exists(os.path.join(state, stale)):
                os.unlink(os.path.join(state, stale))
        _write_deadline(state, plan["run"], boot, float(request["deadline"]))
        atomic_write(os.path.join(state, "supervisor.py"), request["supervisor"].encode())
        if request.get("secrets"):
            plan["secrets_file"] = _write_secrets(plan["run"], state, request["secrets"])
        atomic_write(os.path.join(state, "run.json"), json.dumps(plan).encode())
        _beside_outputs(plan["outputs"], f".gpuops-{plan['run']}.json", {**plan, "env": {}})
        how = _spawn(plan["run"], state, plan["env"]["PATH"])
        _await_status(state, boot)
        return {"boot_id": boot, "state": state, "already": False, "how": how}
    finally:
        os.close(lock)


def recall(request: dict[str, Any]) -> dict[str, Any]:
    """What was planned for this run, from its record on this host; for somebody who lost the journal."""
    state = host_facts.find_state(request["run"])
    if state is None:
        return {"launched": False, "spec": None}
    plan = read_json(os.path.join(state, "run.json"))
    if not isinstance(plan, dict) or not isinstance(plan.get("spec"), dict):
        raise RefusedError("this run was launched here, but its record cannot be read")
    return {"launched": True, "spec": plan["spec"]}


def status(request: dict[str, Any]) -> dict[str, Any]:
    """What the supervisor and the output directory say; cheap enough to be asked every few seconds."""
    state = host_facts.find_state(request["run"])
    answer: dict[str, Any] = {"boot_id": host_facts.boot_id(), "time": time.time(), "phase": "missing"}
    if state is None:
        return answer
    outputs = request["outputs"]
    before = sealing.read_before(state, outputs, request["run"])
    answer["generations"] = generations.complete_ids(outputs, before, time.time())
    answer["log_tail"] = tail(os.path.join(state, "train.log"))
    beat = last_beat(os.path.join(outputs, "heartbeat.jsonl"), before.get("heartbeat_offset", 0))
    answer["beat"] = beat or progress.from_log(answer["log_tail"])
    found = sealing.read_status(state)
    if found and found["boot_id"] == answer["boot_id"]:
        answer.update(sealing.ending(found))
        if answer["outcome"] == "ended" and answer["generations"]:
            answer["outcome"] = "completed"
    return answer


def deadline(request: dict[str, Any]) -> dict[str, Any]:
    """Rewrite the deadline file and read it back."""
    state = host_facts.find_state(request["run"])
    if state is None:
        raise RefusedError("training was never launched on this host")
    _write_deadline(state, request["run"], host_facts.boot_id(), float(request["deadline"]))
    found = read_json(os.path.join(state, "deadline.json"))
    return {"deadline": found["deadline"] if found else None}


def sums(request: dict[str, Any]) -> dict[str, Any]:
    """The text of a file of checksums that lies on this host."""
    with open(request["file"], "rb") as source:
        return {"text": source.read(64 << 20).decode("utf-8", "replace")}


def which(request: dict[str, Any]) -> dict[str, Any]:
    """Where this login's PATH finds a program; null when nowhere."""
    return {"path": shutil.which(request["name"])}


def receive(request: dict[str, Any]) -> dict[str, Any]:
    """Take the files that follow on stdin, as a tar stream."""
    return files.receive(request["root"], sys.stdin.buffer)


def bring_inputs(request: dict[str, Any]) -> dict[str, Any]:
    """Bring input data to this host."""
    from gpuops.host import inputs  # here: it is sent with this operation alone

    return inputs.bring(request)


def log(request: dict[str, Any]) -> dict[str, Any]:
    """At most `most` bytes of the log from byte `offset` on, and the next offset: `train.log.1`, then `train.log`.

    After a rotation the part before the last one is gone, and offsets point behind the end. Each such part had at most
    `part` bytes: going back by that much may tell a little twice and leaves nothing out.
    """
    state, offset = host_facts.find_state(request["run"]), int(request["offset"])
    if state is None:
        return {"text": "", "next": offset}
    parts = _open_parts(os.path.join(state, "train.log"))
    try:
        sizes = [os.fstat(part).st_size for part in parts]
        while offset > sum(sizes):
            offset = max(0, offset - max(1, int(request["part"])))
        data, at = b"", offset
        for part, size in zip(parts, sizes, strict=True):
            left = int(request["most"]) - len(data)
            if at < size and left > 0:
                data += os.pread(part, min(left, size - at), at)
            at = max(0, at - size)
    finally:
        for part in parts:
            os.close(part)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    # a character that is not whole yet belongs to the next piece
    return {"text": text, "next": offset + len(data) - len(decoder.getstate()[0])}


def _open_parts(path: str) -> list[int]:
    """The rotated part and the one being written; opened again when a rotation came in between."""
    for last in (False, False, True):
        parts = []
        for name in (path + ".1", path):
            try:
                parts.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
            except OSError:
                continue
        try:
            if last or not parts or os.path.samestat(os.stat(path), os.fstat(parts[-1])):
                break
        except OSError:
            pass
        for part in parts:
            os.close(part)
    return parts


def last_beat(path: str, offset: int) -> dict[str, Any]:
    """The last complete line of a heartbeat file behind `offset`; a torn or foreign line is passed over."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
            size = os.fstat(source.fileno()).st_size
            source.seek(max(offset if size >= offset else 0, size - BEAT_BYTES))
            lines = source.read(BEAT_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            beat = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(beat, dict):
            return beat
    return {}


def tail(path: str) -> str:
    """The end of a log as text, whatever bytes it holds."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - TAIL_BYTES))
            return source.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _write_deadline(state: str, run: str, boot: str, at: float) -> None:
    value = {"run": run, "boot_id": boot, "deadline": at}
    atomic_write(os.path.join(state, "deadline.json"), json.dumps(value).encode())


def _write_secrets(run: str, state: str, secrets: dict[str, str]) -> str:
    """Into a 0600 file in memory; only without a tmpfs into the state directory, until training has started."""
    base = state
    for place in ("/dev/shm", f"/run/user/{os.getuid()}", "/run"):
        if os.path.isdir(place) and os.access(place, os.W_OK) and host_facts.filesystem(place) == "tmpfs":
            base = place
            break
    directory = os.path.join(base, f".gpuops-{os.getuid()}-{run}")
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory, 0o700)
    path = os.path.join(directory, "env")
    atomic_write(path, json.dumps(secrets).encode())
    return path


def _beside_outputs(outputs: str, name: str, value: Any) -> None:
    """A second record with the outputs, for a host whose home is lost; a full volume must not prevent the launch."""
    try:
        atomic_write(os.path.join(outputs, name), json.dumps(value).encode())
    except OSError:
        pass


def _spawn(run: str, state: str, path: str) -> str:
    command = [
        sys.executable or "python3",
        "-I",
        "-S",
        os.path.join(state, "supervisor.py"),
        os.path.join(state, "run.json"),
    ]
    tmux = shutil.which("tmux", path=path)
    error = os.path.join(state, "supervisor.err")
    if tmux:
        line = f"exec {shlex.join(command)} 2>{shlex.quote(error)}"
        server = [tmux, "-L", f"gpuops-{run}", "-f", "/dev/null"]
        argv = [*server, "new-session", "-d", "-x", "200", "-y", "50", "-s", run, line]
        environment = {**os.environ, "PATH": path, "SHELL": "/bin/sh"}
        done = subprocess.run(argv, capture_output=True, timeout=20, env=environment, stdin=subprocess.DEVNULL)
        if not done.returncode:
            return "tmux"
    with open(error, "wb") as err:
        nothing = subprocess.DEVNULL
        subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=err, start_new_session=True)
    return "detached"


def _await_status(state: str, boot: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        found = sealing.read_status(state)
        if found and found["boot_id"] == boot and found["phase"] != "starting":
            return
        time.sleep(0.02)
    raise RefusedError(
        f"the supervisor did not start: {tail(os.path.join(state, 'supervisor.err')) or 'it says nothing'}"
    )


OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "facts": host_facts.facts,
    "install": tools.install,
    "which": which,
    "verify": files.verify,
    "receive": receive,
    "sums": sums,
    "inputs": bring_inputs,
    "prepare": prepare,
    "start": start,
    "recall": recall,
    "status": status,
    "log": log,
    "deadline": deadline,
    "guest_end": guest.move_end,
    "stop": sealing.stop,
    "seal": sealing.seal,
    "hash": sealing.hash_one,
}


def main(
    request: dict[str, Any], operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = OPERATIONS
) -> None:
    """Answer one request between two lines that carry its token: what a login shell prints does no harm."""
    out, token = sys.stdout.buffer, request["token"].encode()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if request["operation"] == "stream":
        out.write(b"\n" + token + b"\n")
        files.stream(sealing.root_of(request), request["ranges"], out.write)
        out.flush()
        return
    answer: dict[str, Any]
    try:
        answer = {"ok": operations[request["operation"]](request)}
    except RefusedError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": f"{error}"}
    except Exception as error:
        import traceback  # here: a request that ends well does not wait for it

        answer = {"bug": "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=8))}
    out.write(b"\n" + token + b"\n" + json.dumps(answer).encode() + b"\n" + token + b"\n")
    out.flush()
