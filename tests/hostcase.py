"""A pinned host behind a real sshd, with a source tree, a spec and short words for bounded calls."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from sshd import Sshd

from gpuops.spec import Checks, Outputs, Spec, Teardown, Train, Transfer
from gpuops.ssh import SshHost
from gpuops.values import Endpoint, FileHash, Generation, Money, Need

# its own in each process: on a host without a PID namespace, leftovers of a run are found by its id
RUN = f"demo-{os.getpid()}"
CANARY = "canary-93b1"
TRAIN = """
import hashlib, json, os, signal, sys, time
out, stop = os.environ["GPUOPS_OUTPUT_DIR"], []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
assert os.environ["TOKEN"]
print("training", os.environ["GPUOPS_RUN_ID"], flush=True)
for step in range(1, 1000):
    temporary = os.path.join(out, ".tmp-%d" % step)
    os.mkdir(temporary)
    data = os.urandom(1000)
    open(temporary + "/w.bin", "wb").write(data)
    files = [{"path": "w.bin", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    json.dump({"step": step, "files": files}, open(temporary + "/MANIFEST.json", "w"))
    os.rename(temporary, os.path.join(out, "gen-%04d" % step))
    with open(out + "/heartbeat.jsonl", "a") as beats:
        beats.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    if stop or step == int(os.environ.get("STEPS", "999")):
        sys.exit(0)
    time.sleep(0.1)
"""


class RealClock:
    def now(self) -> float:
        return time.time()

    def wall(self) -> float:
        return time.time()

    def learn(self, provider_time: float) -> None: ...

    def heard(self) -> bool:
        return True

    def sleep_until(self, at: float) -> None: ...


class Case:
    """A pinned host with a source tree, a spec, and short words for bounded calls."""

    def __init__(self, directory: Path, ssh: SshHost, host: Sshd) -> None:
        self.directory, self.ssh, self.host = directory, ssh, host
        self.endpoint = Endpoint(host.host, host.port, host.user)
        self.source = directory / "src"
        self.source.mkdir()
        (self.source / "train.py").write_text(TRAIN)
        self.workdir, self.outputs = directory / "h" / "w" / "code", directory / "h" / "w" / "out"
        self.spec = Spec(
            name="demo", owner="me", provider="local", need=Need("A100"), image="", disk_gb=1, volumes=(),
            checks=Checks(device="A100", memory_gb=80, driver="535.1"),
            transfers=(Transfer(str(self.source), str(self.workdir)),), max_total_bytes=1 << 30, inputs_sha256="",
            env=(), secrets=("TOKEN",),
            train=Train((sys.executable, "train.py"), str(self.workdir), grace_s=5),
            outputs=Outputs(str(self.outputs), str(directory / "copies")), cap=Money(Decimal(1)), deadline_s=60,
            deadline_at=0, hold_s=60, setup_s=60, teardown=Teardown(),
        )  # fmt: skip

    def until(self, seconds: float = 30) -> float:
        return time.time() + seconds

    def send(self) -> tuple[int, int]:
        approved = self.ssh.preview(RUN, self.endpoint, self.spec, self.until())
        return self.ssh.send(RUN, self.endpoint, self.spec, approved, self.until())

    def launch(self, **env: str) -> str:
        spec = replace(self.spec, env=tuple(env.items()))
        return self.ssh.launch(RUN, self.endpoint, spec, {"TOKEN": CANARY}, self.until(60), "", self.until()).boot_id

    def wait_for(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not done():
            assert time.monotonic() < end
            time.sleep(0.1)

    def on_host(self, *blobs: bytes) -> Generation:
        """A generation that lies on the host, without any training."""
        directory = self.outputs / "gen-1"
        directory.mkdir(parents=True)
        files = []
        for number, blob in enumerate(blobs):
            (directory / f"f{number}").write_bytes(blob)
            files.append(FileHash(f"f{number}", len(blob), hashlib.sha256(blob).hexdigest()))
        return Generation("gen-1", 1, tuple(files))
