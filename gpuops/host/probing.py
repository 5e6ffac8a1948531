"""A few updates of training before the real ones: what they take in time and memory, and how large a generation is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
import time
from typing import Any

from gpuops.host import agent, environments
from gpuops.host import facts as host_facts

FOLDER = ".gpuops-probe"
"""In the output directory, so that the volume is measured on which generations will be written."""
TICK_S = 0.05
DEVICE_EVERY_S = 1.0
GRACE_S = 10.0
LOG_TAIL_BYTES = 2000


class Watch:
    """What is seen of the probe from outside while it runs."""

    def __init__(self, group: int, folder: str, environment: dict[str, str]) -> None:
        self.group, self.folder, self.environment = group, folder, environment
        self.memory_bytes = self.device_bytes = self.generation_bytes = 0
        self.write_s = 0.0
        self._sizes: dict[str, int] = {}
        self._began: dict[str, float] = {}

    def look(self) -> None:
        """Memory of its processes, and what appears in its folder."""
        self.memory_bytes = max(self.memory_bytes, _memory(self.group))
        now = time.monotonic()
        for name, size in _sizes(self.folder).items():
            if size != self._sizes.get(name):
                self._sizes[name] = size
                self._began.setdefault(name, now)
                if size >= self.generation_bytes:
                    self.generation_bytes, self.write_s = size, now - self._began[name]

    def devices(self, ended: threading.Event) -> None:
        """Memory of the devices, as long as the probe runs."""
        while not ended.is_set():
            self.device_bytes = max(self.device_bytes, *_devices(self.environment, "memory.used"), 0)
            ended.wait(DEVICE_EVERY_S)


def measure(plan: dict[str, Any], secrets: dict[str, str], log: str) -> dict[str, Any]:
    """Run the probe to its end, or end it when its time is over; returns figures, and removes what it wrote."""
    folder = os.path.join(plan["outputs"], FOLDER)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    deadline = log + ".deadline"
    with open(deadline, "w") as out:
        out.write(f"{time.time() + plan['timeout_s']:.3f}\n")
    environment = {
        **environments.variables(plan), **secrets, "GPUOPS_RUN_ID": plan["run"] + "-probe", "GPUOPS_OUTPUT_DIR": folder,
        "GPUOPS_DEADLINE_FILE": deadline, "GPUOPS_MAX_UPDATES": str(plan["updates"]),
    }  # fmt: skip
    begun = time.monotonic()
    try:
        with open(log, "ab") as out:
            child = subprocess.Popen(
                plan["argv"], cwd=plan["workdir"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        watch, timed_out = _follow(child, folder, environment, plan["timeout_s"])
        seconds = time.monotonic() - begun
        beats = _beats(os.path.join(folder, "heartbeat.jsonl"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = min(_devices(environment, "memory.total"), default=0)
    used = [
        b["gpu_mem"] for b in beats if isinstance(b.get("gpu_mem"), (int, float)) and not isinstance(b["gpu_mem"], bool)
    ]
    return {
        "exit_code": child.returncode, "timed_out": timed_out, "seconds": seconds, **_pace(beats),
        "memory_bytes": watch.memory_bytes, "device_bytes": int(max([watch.device_bytes, *used])), "device_total_bytes": total,
        "generation_bytes": watch.generation_bytes, "write_s": watch.write_s,
        "free_bytes": shutil.disk_usage(plan["outputs"]).free, "log_tail": agent.tail(log)[-LOG_TAIL_BYTES:],
    }  # fmt: skip


def _follow(
    child: subprocess.Popen[bytes], folder: str, environment: dict[str, str], timeout_s: float
) -> tuple[Watch, bool]:
    """Watch the probe until it ends; returns what was seen, and whether its time was over."""
    watch, ended = Watch(child.pid, folder, environment), threading.Event()
    looking = threading.Thread(target=watch.devices, args=(ended,), daemon=True)
    looking.start()
    end = time.monotonic() + timeout_s
    timed_out = False
    while child.poll() is None:
        watch.look()
        if time.monotonic() >= end:
            number = signal.SIGKILL if timed_out else signal.SIGTERM
            timed_out, end = True, time.monotonic() + GRACE_S
            _signal(child.pid, number)
        time.sleep(TICK_S)
    watch.look()
    _signal(child.pid, signal.SIGKILL)  # nothing of it may go on beside training
    ended.set()
    looking.join(DEVICE_EVERY_S * 2 + 25)
    return watch, timed_out


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass


def _pace(beats: list[dict[str, Any]]) -> dict[str, Any]:
    """Updates, seconds for each, tokens per second; the first interval is left out, since a program warms up in it."""
    seconds: list[float] = []
    tokens: list[float] = []
    last: dict[str, Any] = {}
    for beat in beats:
        if not (_number(beat.get("step")) and _number(beat.get("mono"))):
            continue
        updates = beat["step"] - last["step"] if last else 0
        if updates > 0 and beat["mono"] > last["mono"]:
            seconds.append((beat["mono"] - last["mono"]) / updates)
            if _number(beat.get("tokens")) and _number(last.get("tokens")):
                tokens.append((beat["tokens"] - last["tokens"]) / updates)
        last = beat
    step_s = statistics.median(seconds[1:] or seconds) if seconds else 0.0
    per_update = statistics.median(tokens) if tokens else 0.0
    return {
        "updates": int(last["step"]) if last else 0, "step_s": step_s,
        "tokens_per_s": per_update / step_s if step_s > 0 else 0.0,
    }  # fmt: skip


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def _beats(path: str) -> list[dict[str, Any]]:
    """All whole lines of the heartbeat file; a probe is short."""
    try:
        with open(path, "rb") as source:
            lines = source.read(8 << 20).split(b"\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            beat = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(beat, dict):
            found.append(beat)
    return found


def _sizes(folder: str) -> dict[str, int]:
    """Bytes of each entry of the probe's folder that could be a generation, or becomes one."""
    found: dict[str, int] = {}
    try:
        for entry in os.scandir(folder):
            if entry.name == "heartbeat.jsonl" or entry.is_symlink():
                continue
            name = entry.name.lstrip(".").split(".tmp")[0]
            size = entry.stat().st_size if entry.is_file() else _tree_bytes(entry.path)
            found[name] = max(size, found.get(name, 0))
    except OSError:
        pass
    return found


def _tree_bytes(folder: str) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
    return total


def _memory(session: int) -> int:
    """Resident bytes of all processes of a session."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = host_facts.stat_fields(int(name))
        if len(fields) > 21 and fields[3] == str(session):
            total += int(fields[21]) * page
    return total


def _devices(environment: dict[str, str], field: str) -> list[int]:
    """A memory field of every device in bytes; none where nvidia-smi tells nothing."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, env=environment, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [int(line) << 20 for line in done.stdout.decode("ascii", "replace").split() if line.isdigit()]
