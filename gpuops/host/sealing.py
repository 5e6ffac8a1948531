"""The end of a run on the host: stop training, see that nothing writes, then hash what is complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any

from gpuops.host import facts as host_facts
from gpuops.host import generations
from gpuops.host.files import RefusedError, atomic_write, hash_file, parts_of, read_json
from gpuops.host.generations import Found

TELEMETRY = ("train.log.1", "train.log", "status.json", "run.json", "before.json")


def read_status(state: str) -> dict[str, Any] | None:
    """The supervisor's last word; read again when a slot was being rewritten at that moment."""
    for _ in range(5):
        found = read_json(os.path.join(state, "status.json"))
        if isinstance(found, dict) and "phase" in found and "boot_id" in found:
            return found
        if not os.path.exists(os.path.join(state, "status.json")):
            return None
        time.sleep(0.01)
    return None


def read_before(state: str, outputs: str, run: str) -> dict[str, Any]:
    """What lay in the output directory before launch; the copy beside the outputs serves when the home was lost."""
    for path in (os.path.join(state, "before.json"), os.path.join(outputs, f".gpuops-{run}.before.json")):
        found = read_json(path)
        if isinstance(found, dict):
            return found
    return {}


def ending(status: dict[str, Any]) -> dict[str, Any]:
    """The status as it is to be told: a supervisor that says `running` and is no more has ended."""
    keys = ("phase", "outcome", "exit_code", "signal", "reason", "started_at", "ended_at", "deadline")
    told = {k: status.get(k) for k in keys}
    if told["phase"] != "ended" and not host_facts.alive(*_supervisor(status)):
        reason = "the supervisor was ended from outside; training has no exit code"
        told.update(phase="ended", outcome="aborted", reason=reason)
    return told


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """Ask the supervisor to end training, wait for `wait_s`; what lives on without a supervisor is ended directly."""
    run, state = request["run"], host_facts.find_state(request["run"])
    if state is None:
        return {"ended": not _end_leftovers(run, 1.0)}
    boot, status = host_facts.boot_id(), read_status(state)
    if status and status["boot_id"] == boot and status["phase"] != "ended":
        path = os.path.join(state, "stop.json")
        if not os.path.exists(path):
            atomic_write(path, json.dumps({"run": run, "boot_id": boot, "why": request["why"]}).encode())
        end = time.monotonic() + float(request["wait_s"])
        while host_facts.alive(*_supervisor(status)):
            if time.monotonic() > end:
                return {"ended": False}
            time.sleep(0.05)
    return {"ended": not _end_leftovers(run, float(request.get("grace_s", 5.0)))}


def seal(request: dict[str, Any]) -> dict[str, Any]:
    """The true outcome, the newest complete generations with their hashes, and telemetry. Training must have ended."""
    run, outputs = request["run"], request["outputs"]
    state = host_facts.find_state(run)
    if state is None:
        state = host_facts.make_state(run, [outputs])
    before = read_before(state, outputs, run)
    told = _outcome(state, before)
    notes = [] if generations.quiesce(outputs, before) else ["something still writes into the output directory"]
    memory = read_json(os.path.join(state, "sealed.json")) or {"cache": {}, "generations": {}, "loads": {}}
    chosen, refused = _choose(request, outputs, before, memory, state)
    notes += refused
    if told["outcome"] in ("ended", "completed"):
        told["outcome"] = "completed" if chosen else "ended"
        if not chosen:
            notes.append("no complete new generation")
    memory["generations"] = {**{g["id"]: g for g in chosen}, **memory["generations"]}
    _remember(state, memory)
    telemetry = _telemetry(state, outputs)
    _remove_secrets(state)
    reason = "; ".join(filter(None, [told["reason"], *notes]))
    return {
        "outcome": told["outcome"], "exit_code": told["exit_code"], "reason": reason, "generations": chosen,
        "telemetry": telemetry,
    }  # fmt: skip


def hash_one(request: dict[str, Any]) -> dict[str, Any]:
    """Hash one complete generation while training runs."""
    state = host_facts.find_state(request["run"])
    if state is None:
        raise RefusedError("training was never launched on this host")
    before = read_before(state, request["outputs"], request["run"])
    for found in generations.find(request["outputs"], before):
        if found.id == request["generation"]:
            if not found.listed and time.time() - found.changed_at < generations.QUIET_S:
                raise RefusedError(f"{found.id} was written a moment ago")
            _give_metric(found, request, before)
            return generations.hashed(found, {})
    raise RefusedError(f"there is no generation {request['generation']!r}")


def root_of(request: dict[str, Any]) -> str:
    """The directory to which the names of a generation are relative."""
    outputs, ident = request["outputs"], request["generation"]
    if ident == "telemetry":
        # a launch that was refused leaves no run.json, and is sealed all the same
        state = host_facts.find_state(request["run"]) or host_facts.find_state(request["run"], "telemetry.for")
        return os.path.join(state or "/nonexistent", "telemetry")
    path = os.path.join(outputs, *parts_of(ident))
    return path if os.path.isdir(path) and not os.path.islink(path) else str(outputs)


def _choose(
    request: dict[str, Any], outputs: str, before: dict[str, Any], memory: dict[str, Any], state: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """The newest `keep_last` sound generations, newest first, and the best one; and why others were passed over.

    The newest whole one is always among them, behind the sound ones when it is doubtful: the host and all that was not
    sealed will be gone. After some doubtful ones no more are tried: the load command itself may be what is wrong.
    """
    found = generations.find(outputs, before)
    notes: list[str] = []
    sound: list[dict[str, Any]] = []
    doubtful: list[dict[str, Any]] = []
    keep = max(1, int(request["keep_last"]))
    # with keep_last = 1 there must still be a look behind a doubtful newest one
    most_doubtful = max(2, keep)
    newest = ""
    for item in found:
        _give_metric(item, request, before)
    measured = [f for f in found if f.metric is not None and not f.problem]
    best = min(measured, key=lambda f: f.metric or 0.0).id if request.get("best") and measured else ""
    for item in reversed(found):
        looking = len(sound) < keep and len(doubtful) < most_doubtful
        wanted = looking or item.id in (best, generations.LOOSE)
        if not wanted:
            continue
        try:
            generation = generations.hashed(item, memory["cache"])
        except RefusedError as error:
            notes.append(f"passed over {error}")
            continue
        newest = newest or item.id
        earlier = memory["generations"].get(item.id)
        changed = bool(earlier) and earlier["files"] != generation["files"]
        problem = "changed after it was sealed" if changed else _load_check(request, item, memory, state)
        if problem:
            notes.append(f"{item.id}: {problem}")
        (doubtful if problem else sound).append(generation)
        # whoever is cut off here goes on behind this one the next time
        _remember(state, memory)
    # better a doubtful checkpoint than none: the reason says what is wrong with it
    if not sound:
        return doubtful[:keep], notes
    return sound + [g for g in doubtful if g["id"] == newest], notes


def _give_metric(found: Found, request: dict[str, Any], before: dict[str, Any]) -> None:
    """The metric of the heartbeat at the generation's step, where the manifest names one."""
    name = request.get("best")
    if not name:
        return
    path = os.path.join(request["outputs"], "heartbeat.jsonl")
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
            source.seek(before.get("heartbeat_offset", 0))
            lines = source.read(64 << 20).split(b"\n")[:-1]
    except OSError:
        return
    for line in reversed(lines):
        try:
            beat = json.loads(line)
            if beat.get("step") == found.step:
                value = beat.get(name, (beat.get("eval") or {}).get(name))
                if isinstance(value, (int, float)) and value == value:
                    found.metric = float(value)
                    return
        except (ValueError, AttributeError, RecursionError):
            continue


def _load_check(request: dict[str, Any], found: Found, memory: dict[str, Any], state: str) -> str:
    """Run the manifest's load command on a generation, once; the reason when it did not like it."""
    if not request.get("load_check"):
        return ""
    if found.id in memory["loads"]:
        return str(memory["loads"][found.id])
    plan = read_json(os.path.join(state, "run.json")) or {}
    path = os.path.join(request["outputs"], found.id) if found.root != request["outputs"] else found.root
    argv = [a.replace("{generation}", path) for a in request["load_check"]]
    if argv == request["load_check"]:
        argv.append(path)
    environment = {**host_facts.image_environment(), **plan.get("env", {}), "GPUOPS_OUTPUT_DIR": request["outputs"]}
    try:
        done = subprocess.run(
            argv, cwd=request["workdir"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=float(request.get("load_s", 120)),
        )  # fmt: skip
        last = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        problem = f"the load command ended with {done.returncode}: {' '.join(last)[:200]}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = "the load command did not end in time"
    except OSError as error:
        problem = f"the load command cannot start: {error}"
    memory["loads"][found.id] = problem
    return problem


def _outcome(state: str, before: dict[str, Any]) -> dict[str, Any]:
    status = read_status(state)
    if status is None:
        reason = "training was never launched on this host" if not before else "the host lost what the supervisor wrote"
        return {"outcome": "aborted", "exit_code": None, "reason": reason}
    told = ending(status)
    if told["phase"] == "ended" and status["phase"] != "ended" and status["boot_id"] != host_facts.boot_id():
        told.update(outcome="interrupted", reason="the host was started anew")
    if told["phase"] != "ended":
        raise RefusedError("training still runs: stop it first")
    return told


def _telemetry(state: str, outputs: str) -> dict[str, Any]:
    """Copy log, heartbeat and records to a quiet place, once per end, and hash the copies."""
    quiet = os.path.join(state, "telemetry")
    status = read_status(state) or {}
    stamp = json.dumps([status.get("boot_id"), status.get("ended_at"), status.get("phase")])
    marker = os.path.join(state, "telemetry.for")
    if not os.path.isdir(quiet) or read_json(marker) != stamp:
        shutil.rmtree(quiet, ignore_errors=True)
        os.mkdir(quiet, 0o700)
        sources = [os.path.join(state, n) for n in TELEMETRY] + [os.path.join(outputs, "heartbeat.jsonl")]
        for source in sources:
            if os.path.isfile(source) and not os.path.islink(source):
                _quiet_copy(source, os.path.join(quiet, os.path.basename(source)))
        try:
            atomic_write(marker, json.dumps(stamp).encode())
        except OSError:
            pass
    listed = []
    for name in sorted(os.listdir(quiet)):
        size, digest = hash_file(quiet, name)
        listed.append({"path": name, "size": size, "sha256": digest})
    return {"id": "telemetry", "step": 0, "files": listed, "metric": None, "left_behind": []}


def _quiet_copy(source: str, target: str) -> None:
    """A copy, or on a full disk a second link to the same file, which nothing writes any more."""
    try:
        shutil.copyfile(source, target, follow_symlinks=False)
    except OSError:
        try:
            if os.path.lexists(target):
                os.unlink(target)
            os.link(source, target, follow_symlinks=False)
        except OSError:
            pass


def _remember(state: str, memory: dict[str, Any]) -> None:
    """What was sealed, for the next time; a full disk only costs the time to hash again."""
    try:
        atomic_write(os.path.join(state, "sealed.json"), json.dumps(memory).encode())
    except OSError:
        pass


def _remove_secrets(state: str) -> None:
    plan = read_json(os.path.join(state, "run.json")) or {}
    if plan.get("secrets_file"):
        shutil.rmtree(os.path.dirname(plan["secrets_file"]), ignore_errors=True)


def _end_leftovers(run: str, grace_s: float) -> list[int]:
    """End every process that carries this run's id: SIGTERM, grace, SIGKILL. Returns what could not be ended."""
    begun, sent = time.monotonic(), False
    while True:
        left = host_facts.processes_of(run)
        if not left or time.monotonic() > begun + grace_s + 10:
            return left
        number = signal.SIGKILL if time.monotonic() > begun + grace_s else signal.SIGTERM
        for pid in left if number == signal.SIGKILL or not sent else ():
            try:
                os.kill(pid, number)
            except OSError:
                pass
        sent = True
        time.sleep(0.05)


def _supervisor(status: dict[str, Any]) -> tuple[int, str]:
    try:
        pid, started = status["supervisor"]
        return int(pid), str(started)
    except (KeyError, TypeError, ValueError):
        return 0, ""
