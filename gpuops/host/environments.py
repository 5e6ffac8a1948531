"""The environment of training: made once on the host from a lock or by a command, and looked at from inside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any

from gpuops.host import facts as host_facts
from gpuops.host.files import RefusedError, atomic_write, read_json

STAMP = ".gpuops-environment.json"
LOOK_S = 180.0
TAIL_BYTES = 2000
_LOOK = """
import importlib.util, json, platform, sys
found = {"python": platform.python_version(), "executable": sys.executable}
try:
    from importlib import metadata
    found["packages"] = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions() if d.metadata["Name"]})
except Exception as error:
    found["packages_error"] = f"{type(error).__name__}: {error}"
if importlib.util.find_spec("torch"):
    try:
        import torch
        found["torch"], found["cuda"] = torch.__version__, torch.version.cuda or ""
        found["available"], found["devices"] = torch.cuda.is_available(), torch.cuda.device_count()
    except Exception as error:
        found["torch_error"] = f"{type(error).__name__}: {error}"
print("\\n@TOKEN@" + json.dumps(found))
"""


def variables(plan: dict[str, Any]) -> dict[str, str]:
    """The variables in which training, its probe and the look at its environment run, without the secrets."""
    return host_facts.within({**host_facts.image_environment(), **plan["env"]}, place_of(plan))


def place_of(plan: dict[str, Any]) -> str:
    """Where the environment of this plan lies or will lie; empty for the image as it is. Another lock is another place."""
    environment = plan.get("environment") or {}
    if environment.get("lock"):
        return os.path.join(environment["directory"], _key(environment)[:16])
    return environment.get("directory", "") if environment.get("command") else ""


def build(plan: dict[str, Any], log: str) -> dict[str, Any]:
    """Make the environment unless it is there; a place without its stamp is half of one and is made anew."""
    environment, place = plan.get("environment") or {}, place_of(plan)
    begun, stamp = time.monotonic(), os.path.join(place, STAMP)
    if not place:
        return {"how": "image", "reused": False, "seconds": 0.0}
    if environment.get("lock"):
        if isinstance(read_json(stamp), dict):
            return {"how": "lock", "reused": True, "seconds": 0.0}
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(environment["directory"], exist_ok=True)
        _from_lock(plan, place, log)
    if environment.get("command"):
        _run(list(environment["command"]), plan["workdir"], variables(plan), log)
    if environment.get("lock"):
        atomic_write(stamp, json.dumps({"made": place}).encode())
    how = "lock" if environment.get("lock") else "command"
    return {"how": how, "reused": False, "seconds": time.monotonic() - begun}


def look(plan: dict[str, Any]) -> dict[str, Any]:
    """Interpreter, packages, torch and what torch sees, as the interpreter of training itself tells them."""
    found, token = variables(plan), hashlib.sha256(os.urandom(16)).hexdigest()
    name = os.path.basename(plan["argv"][0])
    program = plan["argv"][0] if name.startswith("python") else "python3"
    interpreter = shutil.which(program, path=found["PATH"])
    if "/" in program:
        interpreter = os.path.normpath(os.path.join(plan["workdir"], program))
    if not interpreter or not os.access(interpreter, os.X_OK):
        raise RefusedError(f"the program {program} is not in the environment of training")
    done = subprocess.run(
        [interpreter, "-c", _LOOK.replace("@TOKEN@", token)], cwd=plan["workdir"], env=found, capture_output=True,
        timeout=LOOK_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    text = done.stdout.decode("utf-8", "replace").rpartition(token)[2]
    try:
        told = json.loads(text)
    except ValueError:
        raise RefusedError(f"{interpreter} does not run: {_last(done.stderr + done.stdout)}") from None
    return told if isinstance(told, dict) else {}


def _from_lock(plan: dict[str, Any], place: str, log: str) -> None:
    """A virtual environment with exactly what the lock names; wheels are kept beside it."""
    environment = plan["environment"]
    found = {**host_facts.image_environment(), **plan["env"]}
    cache = os.path.join(environment["directory"], "cache")
    found.update(
        UV_CACHE_DIR=os.path.join(cache, "uv"),
        PIP_CACHE_DIR=os.path.join(cache, "pip"),
        PIP_DISABLE_PIP_VERSION_CHECK="1",
    )
    base = shutil.which("python3", path=found["PATH"]) or sys.executable
    uv = _uv(base, found)
    if uv:
        _run([*uv, "venv", "--python", base, place], plan["workdir"], found, log)
        install = [*uv, "pip", "install", "--python", os.path.join(place, "bin", "python")]
    else:
        install = _with_pip(base, place, plan["workdir"], found, log)
    _run([*install, "--require-hashes", "-r", environment["lock"]], plan["workdir"], found, log)


def _uv(base: str, found: dict[str, str]) -> list[str]:
    """The command that is uv: the program, or the module of this interpreter; empty where there is neither."""
    program = shutil.which("uv", path=found["PATH"])
    if program:
        return [program]
    done = subprocess.run([base, "-m", "uv", "--version"], env=found, capture_output=True, stdin=subprocess.DEVNULL)
    return [] if done.returncode else [base, "-m", "uv"]


def _with_pip(base: str, place: str, workdir: str, found: dict[str, str], log: str) -> list[str]:
    """A virtual environment by the interpreter's own module, and the command that installs into it.

    A pip that can install from outside (22.3 and later) saves half a minute of unpacking another one, and Debian's python3
    cannot do that at all: it has no ensurepip.
    """
    python = os.path.join(place, "bin", "python")
    asked = [base, "-m", "pip", "--python", base, "--version"]
    if not subprocess.run(asked, env=found, capture_output=True, stdin=subprocess.DEVNULL).returncode:
        _run([base, "-m", "venv", "--without-pip", place], workdir, found, log)
        return [base, "-m", "pip", "--python", python, "install"]
    try:
        _run([base, "-m", "venv", place], workdir, found, log)
    except RefusedError as error:
        advice = "use an image that has uv or pip, or `environment.command`"
        raise RefusedError(f"this host has neither uv nor a pip: {advice} ({error})") from None
    return [python, "-m", "pip", "install"]


def _run(command: list[str], workdir: str, found: dict[str, str], log: str) -> None:
    """Run one command to its end; what it prints goes to the log. Raises `RefusedError` with its last lines."""
    with open(log, "ab") as out:
        out.write(("$ " + " ".join(command) + "\n").encode("utf-8", "replace"))
        out.flush()
        begin = out.tell()
        try:
            code = subprocess.call(command, cwd=workdir, env=found, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        except OSError as error:
            raise RefusedError(f"{command[0]} cannot be run: {error}") from error
    if code:
        with open(log, "rb") as source:
            source.seek(max(begin, os.path.getsize(log) - TAIL_BYTES))
            raise RefusedError(f"{os.path.basename(command[0])} ended with {code}: {_last(source.read())}")


def _last(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").strip().splitlines() if line.strip()]
    return " | ".join(lines[-8:])[-1000:] or "it says nothing"


def _key(environment: dict[str, Any]) -> str:
    """What an environment from a lock depends on: the lock, the command after it, the interpreter and the machine."""
    lock = environment["lock"]
    try:
        with open(lock, "rb") as source:
            content = source.read(16 << 20) + json.dumps(environment["command"]).encode()
    except OSError as error:
        raise RefusedError(f"the lock {lock} cannot be read: {error}") from error
    base = os.path.realpath(shutil.which("python3", path=host_facts.image_environment()["PATH"]) or sys.executable)
    parts = [hashlib.sha256(content).hexdigest(), base, sys.version.split()[0], os.uname().machine]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()
