"""What this host is: device, driver, space, mounts, tools, boot, and the environment in which training runs."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from gpuops.host.files import RefusedError, read_json

TOOLS = ("rsync", "tmux", "tar", "openssl", "nvidia-smi", "findmnt", "git", "uv", "conda")
IMAGE_VARIABLES = re.compile(
    r"^(PATH|LD_LIBRARY_PATH|LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CONDA_[A-Z_]+|CUDA[A-Z0-9_]*"
    r"|NVIDIA_[A-Z0-9_]+|NCCL_[A-Z0-9_]+|TORCH_[A-Z0-9_]+|LANG|LC_[A-Z]+|TZ)$"
)
PUBLISHED_PORT = re.compile(r"^[A-Z]+_TCP_PORT_(\d+)$")


def told() -> dict[str, Any]:
    """What the provider wrote: `published_ports`, `isolation`, `boot`, `volumes` (id, mount), `state_directory`."""
    value = read_json(os.environ.get("GPUOPS_HOST_JSON") or "/etc/gpuops-host.json")
    return value if isinstance(value, dict) else {}


def boot_id() -> str:
    """One id per start of this host; a container that is started again on the same kernel gets a new one."""
    said = told().get("boot")
    first = stat_fields(1)
    parts = [_read("/proc/sys/kernel/random/boot_id").strip(), first[19] if len(first) > 19 else "", str(said or "")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def process_start(pid: int) -> str:
    """The start time of a process in clock ticks, empty when there is none; with the pid it names one process."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def alive(pid: int, started: str) -> bool:
    """True while exactly this process runs (a zombie does not)."""
    fields = stat_fields(pid)
    return len(fields) > 19 and fields[19] == started and fields[0] not in ("Z", "X")


def image_environment() -> dict[str, str]:
    """Allow-listed variables of PID 1, over those of this login: sshd drops what the image set."""
    own = ("HOME", "USER", "SHELL", "LOGNAME")
    result = {k: v for k, v in os.environ.items() if IMAGE_VARIABLES.match(k) or k in own}
    own_path = result.get("PATH", os.defpath)
    if _read("/proc/1/comm").strip() not in ("systemd", "init", ""):
        for key, value in _environ(1).items():
            if IMAGE_VARIABLES.match(key):
                result[key] = value
    # last the folder of the python that runs this: it may lie where no PATH leads, and training may ask for python3, too
    path = [*result.get("PATH", "").split(":"), *own_path.split(":"), os.path.dirname(sys.executable)]
    result["PATH"] = ":".join(dict.fromkeys(p for p in path if p))
    return result


def within(environment: dict[str, str], place: str) -> dict[str, str]:
    """These variables as they are inside the virtual environment at `place`; unchanged where there is none."""
    programs = os.path.join(place, "bin")
    if not place or not os.path.isdir(programs):
        return environment
    return {**environment, "VIRTUAL_ENV": place, "PATH": f"{programs}:{environment['PATH']}"}


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that the first login wants to know, in one answer."""
    provider = told()
    environment = image_environment()
    ports = provider.get("published_ports")
    if ports is None:
        named = [PUBLISHED_PORT.match(k) for k in _environ(1)]
        ports = sorted(int(m[1]) for m in named if m) or None
    return {
        "boot_id": boot_id(),
        "time": time.time(),
        "gpus": _gpus(environment),
        "free": {p: _free(p) for p in request.get("free", [])},
        "closed": {p: closed(p) for p in request.get("write", [])},
        "mounts": _mounts(),
        "labels": _labels(),
        "markers": {m: _read(os.path.join(m, ".gpuops-volume")).strip()[:200] for m in request.get("mounts", [])},
        "exists": {p: os.path.isdir(p) for p in request.get("mounts", [])},
        "told": provider,
        "ports": ports,
        "isolation": str(provider.get("isolation") or _isolation()),
        "python": sys.version.split()[0],
        "tools": {t: bool(shutil.which(t, path=environment["PATH"])) for t in TOOLS},
        "rsync": _first_line(["rsync", "--version"], environment),
        "home": os.path.expanduser("~"),
        "user": _user(),
        "host": os.uname().nodename,
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
    }


def _gpus(environment: dict[str, str]) -> dict[str, Any]:
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, env=environment, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return {"error": "nvidia-smi is not on this host", "devices": []}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error), "devices": []}
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        return {"error": (text + done.stderr.decode("utf-8", "replace")).strip()[:500], "devices": []}
    rows = [[c.strip() for c in line.rsplit(",", 2)] for line in text.splitlines() if line.strip()]
    return {"error": "" if rows else "nvidia-smi lists no device", "devices": [r for r in rows if len(r) == 3]}


def _free(path: str) -> int | None:
    """Free bytes where `path` is or will be; None when no parent can be read."""
    while path and path != "/" and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path or "/").free
    except OSError:
        return None


def closed(path: str) -> str:
    """Why this user cannot write at `path`, or make it; empty when nothing stands in the way."""
    while not os.path.lexists(path or "/"):
        path = os.path.dirname(path)
    path = path or "/"
    try:
        info = os.stat(path)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} is read-only"
    except OSError as error:
        return str(error)
    if not os.path.isdir(path):
        return f"{path} is no directory"
    if os.access(path, os.W_OK | os.X_OK):
        return ""
    return f"{path} is closed to this user (mode {info.st_mode & 0o777:o})"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _mounts() -> dict[str, list[str]]:
    """Mount point to [root within the filesystem, type, source], the last mount on a point wins."""
    result = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) > 4 and len(rest) > 1:
            result[_unescape(fields[4])] = [_unescape(fields[3]), rest[0], _unescape(rest[1])]
    return result


def _labels() -> dict[str, list[str]]:
    """Block device to its names by id, label and uuid."""
    result: dict[str, list[str]] = {}
    for kind in ("by-id", "by-label", "by-uuid"):
        directory = f"/dev/disk/{kind}"
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            result.setdefault(os.path.realpath(os.path.join(directory, name)), []).append(name)
    return result


def _isolation() -> str:
    if os.path.exists("/.dockerenv") or "container" in _environ(1):
        return "container"
    return "unknown"


def _first_line(command: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, env=environment, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").split("\n", 1)[0]


def _environ(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            pairs = source.read(1 << 20).split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(p).split("=", 1) for p in pairs if b"=" in p)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name: 0 is the state, 1 the parent, 19 the start time."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as source:
            return source.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def processes_of(run: str) -> list[int]:
    """Every process whose environment names this run, ours excepted: nobody escapes by a new session."""
    found = []
    needle = b"GPUOPS_RUN_ID=" + run.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as source:
                if needle in source.read(1 << 20).split(b"\0") and stat_fields(int(name))[:1] not in (["Z"], ["X"]):
                    found.append(int(name))
        except OSError:
            continue
    return found


def state_candidates() -> list[str]:
    """Where a run's state may lie, the best place first."""
    uid = os.getuid()
    said = told().get("state_directory")
    home = os.path.expanduser("~")
    return [*([str(said)] if said else []), f"{home}/.gpuops", f"/var/tmp/gpuops-{uid}", f"/dev/shm/gpuops-{uid}"]


def find_state(run: str, record: str = "run.json") -> str | None:
    """The state directory of a run on this host that holds `record`; None when there is none."""
    for base in state_candidates():
        path = os.path.join(base, run)
        if os.path.isfile(os.path.join(path, record)) and _private(base) and _private(path):
            return path
    return None


def make_state(run: str, avoid: list[str]) -> str:
    """Make the state directory outside every path of `avoid`, so that a full volume does not silence the supervisor.

    Raises `RefusedError` when there is no place at all.
    """
    kept = find_state(run)
    if kept:
        return kept
    real = [os.path.realpath(p).rstrip("/") + "/" for p in avoid]
    places = state_candidates()
    outside = [p for p in places if not any((os.path.realpath(p) + "/").startswith(r) for r in real)]
    problem = ""
    for base in [*outside, *places]:
        path = os.path.join(base, run)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            problem = str(error)
            continue
        if _private(base) and _private(path) and os.access(path, os.W_OK):
            os.chmod(path, 0o700)
            return path
        problem = f"{path} belongs to somebody else"
    raise RefusedError(f"no place for the state of this run: {problem}")


def _private(path: str) -> bool:
    """True for a directory of ours that nobody else may write to: /var/tmp and /dev/shm are open to all."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return os.path.isdir(path) and not os.path.islink(path) and info.st_uid == os.getuid() and not info.st_mode & 0o022


def filesystem(path: str) -> str:
    """The type of the filesystem that `path` lies on."""
    mounts = _mounts()
    real = os.path.realpath(path)
    while real not in mounts and real != "/":
        real = os.path.dirname(real)
    return mounts.get(real, ["", "", ""])[1]
