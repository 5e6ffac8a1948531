"""A world for end-to-end tests: an own home, an own local cloud, a small manifest, and the real command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from gpuops_providers import local

from gpuops.values import Scope

# Numbers for lives of a few seconds; the code is the same.
POLICY = """
[policy]
ssh_every_s = 0.3
status_every_s = 0.7
inspect_every_s = 2
mirror_every_s = 1
send_window_s = 4
accept_s = 1
search_fast_every_s = 1
proof_gap_s = 1
proof_every_s = [0.5, 1, 2]
close_every_s = [0.5, 1, 2]
resend_every_s = [2, 4, 8]
backoff_s = [0.5, 1, 2, 4]
copy_margin_s = 3
seal_extra_s = 10
bulk_slice_s = 5
wake_s = 0.3

[providers.local]
create_s = "0.2"
terminate_s = "0.3"
shown_s = "1"
"""

# Publishes generations of 3 files by rename, hash list last; honours SIGTERM and resume; needs nothing but Python.
TRAIN = """
import hashlib, json, os, signal, sys, time
out = os.environ["GPUOPS_OUTPUT_DIR"]; stop = []
signal.signal(signal.SIGTERM, lambda *a: stop.append(1))
updates, pause, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
os.makedirs(out, exist_ok=True)
first = 0
if os.environ.get("GPUOPS_RESUME"):
    first = json.load(open(os.path.join(os.environ["GPUOPS_RESUME"], "state.json")))["step"]
def save(step):
    tmp, final = os.path.join(out, f".tmp-{step}"), os.path.join(out, f"step-{step:06d}")
    os.makedirs(tmp, exist_ok=True)
    parts = {"weights.bin": hashlib.sha256(str(step).encode()).digest() * 4096, "optimizer.bin": b"o" * 5000,
             "state.json": json.dumps({"step": step}).encode()}
    for name, data in parts.items():
        with open(os.path.join(tmp, name), "wb") as f:
            f.write(data); f.flush(); os.fsync(f.fileno())
    files = [{"path": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts.items()]
    with open(os.path.join(tmp, "MANIFEST.json"), "w") as f:
        json.dump({"files": files, "step": step, "metric": 10.0 / (step + 1)}, f); f.flush(); os.fsync(f.fileno())
    if not os.path.exists(final): os.rename(tmp, final)
beat = open(os.path.join(out, "heartbeat.jsonl"), "a", buffering=1)
for step in range(first + 1, first + updates + 1):
    time.sleep(pause)
    beat.write(json.dumps({"v": 1, "run": os.environ["GPUOPS_RUN_ID"], "seq": step, "t": time.time(),
                           "mono": time.monotonic(), "step": step, "tokens": step * 100, "loss": 10.0 / step, "tps": 1000.0,
                           "state": "training"}) + "\\n")
    print("step", step, flush=True)
    if step % every == 0 or stop: save(step)
    if stop: break
"""


@dataclass
class World:
    """One user's computer and one cloud."""

    root: Path
    home: Path
    cloud: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment of every command."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith("GPUOPS")}
        return keep | {
            "GPUOPS_HOME": str(self.home), "GPUOPS_LOCAL_CLOUD": str(self.cloud), "OMP_NUM_THREADS": "1",
            "XDG_RUNTIME_DIR": "", "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", **self.extra,
        }  # fmt: skip

    def configure(self, text: str = POLICY) -> None:
        """Write config.toml."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def manifest(self, *, train: list[str] | None = None, code: str = TRAIN, **changes: Any) -> Path:
        """Write a manifest of a short life; `changes` replaces top-level keys, None removes one."""
        source = self.root / "code"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(textwrap.dedent(code))
        document: dict[str, Any] = {
            "name": "small",
            "provider": "local",
            "resources": {"device": "A100", "count": 1},
            "checks": {"free": "10MB"},
            "transfers": [{"source": "code", "to": "/workspace/code"}],
            "train": {
                "argv": train or ["python3", "train.py", "6", "0.3", "3"], "workdir": "/workspace/code",
                "resume_argument": "--resume", "grace": "4s",
            },
            "outputs": {"directory": "/workspace/out", "copy_to": "results", "keep_last": 2},
            "budget": {"cap": "0.50"},
            "deadline": "4m",
            "hold": "1m",
            "setup": "2m",
        }  # fmt: skip
        document.update(changes)
        path = self.root / "manifest.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}, sort_keys=False))
        return path

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start gpuops in its own session, as a terminal would."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpuops", *arguments], env=self.env, cwd=self.root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **options,
        )  # fmt: skip

    def run(self, *arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Run gpuops to its end."""
        process = self.start(*arguments)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            raise AssertionError(f"gpuops {' '.join(arguments)} did not end in {timeout} s:\n{out}") from None
        return subprocess.CompletedProcess(arguments, process.returncode, out, "")

    def json(self, *arguments: str) -> Any:
        """Run gpuops with --json and parse stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", *arguments, "--json"], env=self.env, cwd=self.root, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return json.loads(done.stdout)

    def status(self) -> list[dict[str, Any]]:
        """The runs, closed ones too."""
        document = self.json("status", "--all")
        assert "runs" in document, document
        runs: list[dict[str, Any]] = document["runs"]
        return runs

    def wait(self, what: str, condition: Any, timeout: float = 60) -> Any:
        """Wait until `condition()` is true, and return what it returned."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {timeout} s: {what}\n{self.diagnosis()}")

    def closed(self, timeout: float = 60) -> dict[str, Any]:
        """Wait until the newest run is closed by whoever does it."""

        def newest() -> dict[str, Any] | None:
            runs = self.status()
            return runs[-1] if runs and runs[-1]["phase"] == "closed" else None

        found: dict[str, Any] = self.wait("the run is closed", newest, timeout)
        return found

    def rentals(self) -> list[dict[str, Any]]:
        """What the cloud itself lists as billing rentals: no journal of ours is involved."""
        cloud = local.provider({"directory": str(self.cloud)}, lambda name: None)
        inventory = cloud.list_billable(Scope(("rental",)), time.time() + 30)
        assert not inventory.gaps, inventory.gaps
        return [{"kind": i.ref.kind, "id": i.ref.id, "rate": str(i.rate)} for i in inventory.items if i.bills]

    def creates(self) -> int:
        """How many rentals the cloud ever made."""
        return len(list((self.cloud / "default" / "rentals").glob("r-*")))

    def generations(self) -> list[Path]:
        """Verified copies, oldest first, without telemetry."""
        return sorted(p for p in (self.root / "results").glob("*/step-*") if p.is_dir())

    def diagnosis(self) -> str:
        """What a failed test should show."""
        log = self.home / "guard.log"
        return json.dumps(self.status(), indent=1) + "\n" + (log.read_text()[-2000:] if log.exists() else "")

    def end(self) -> None:
        """Leave nothing: guard, rentals, ssh masters."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self.cloud.exists():
            return
        subprocess.run(
            [sys.executable, "-m", "gpuops_providers.local", "terminate-all", "--directory", str(self.cloud)],
            env=self.env, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, word: str = "") -> list[int]:
        """Processes of this world's home on this machine (by their environment), optionally with `word` in argv."""
        return [pid for pid in _pids() if _belongs(pid, str(self.home), word)]


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _belongs(pid: int, home: str, word: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return f"GPUOPS_HOME={home}\0".encode() in environ and word.encode() in command
