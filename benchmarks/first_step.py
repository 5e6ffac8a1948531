"""Reachable → first training step: gpuops against the same steps typed by hand. `python benchmarks/first_step.py [RUNS]`.

Both rent from the local cloud, and both clocks start when the rental's sshd listens. By hand: a look at the device and the disk,
rsync, tmux, over one OpenSSH connection. gpuops: `run --yes` with default numbers. The clock stops at the time in the first
heartbeat. Bound: the median of gpuops is at most 1.5 s above the median by hand; exits 1 when it is not.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from e2e.world import TRAIN, World  # noqa: E402
from localcloud import FAST, LocalCloud  # noqa: E402

BOUND_S = 1.5
# The cloud is as fast for gpuops as it is by hand; all numbers of gpuops are the default ones.
ONLY_THE_CLOUD = "[providers.local]\n" + "".join(f'{name} = "{value}"\n' for name, value in FAST.items())


def when_listening(find: Callable[[], Path | None], found: list[float]) -> threading.Thread:
    """Note the moment at which the log that `find` finds says that sshd listens."""

    def watch() -> None:
        end = time.time() + 60
        while time.time() < end and not found:
            log = find()
            if log and "Server listening" in log.read_text(errors="replace"):
                found.append(time.time())
            time.sleep(0.01)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def newest_log(directory: Path) -> Path | None:
    """The sshd log of the only rental."""
    return next(iter(directory.glob("*/rentals/r-*/sshd.log")), None)


def with_gpuops() -> float:
    """Seconds from reachable to the first heartbeat, by `gpuops run`."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        world = World(Path(folder), Path(folder) / "home", Path(folder) / "cloud")
        world.configure(ONLY_THE_CLOUD)
        manifest = world.manifest(train=["python3", "train.py", "2", "0.01", "1"])
        listening: list[float] = []
        watching = when_listening(lambda: newest_log(world.cloud), listening)
        try:
            done = world.run("run", str(manifest), "--yes")
            assert done.returncode == 0, done.stdout
            watching.join(5)
            beats = next((world.root / "results").glob("*/telemetry/heartbeat.jsonl")).read_text()
            return float(json.loads(beats.splitlines()[0])["t"]) - listening[0]
        finally:
            world.end()


def by_hand() -> float:
    """The same, as a person would type it who has the commands ready."""
    cloud = LocalCloud()
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        code = Path(folder) / "code"
        code.mkdir()
        (code / "train.py").write_text(TRAIN)
        listening: list[float] = []
        when_listening(lambda: newest_log(cloud.directory), listening)
        try:
            ref = cloud.provision()
            while not listening:
                time.sleep(0.005)
            end = time.time() + 30
            endpoint = None
            while endpoint is None and time.time() < end:
                endpoint = cloud.provider.inspect(ref, time.time() + 5).endpoint
            assert endpoint is not None
            host = f"[{endpoint.host}]:{endpoint.port} {cloud.host_key.with_suffix('.pub').read_text()}"
            (Path(folder) / "known").write_text(host)
            ssh = [
                "ssh", "-F", "none", "-i", str(cloud.client_key), "-p", str(endpoint.port), "-o", "BatchMode=yes",
                "-o", f"UserKnownHostsFile={folder}/known", "-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/c",
                "-o", "ControlPersist=20",
            ]  # fmt: skip
            target = f"{endpoint.user}@{endpoint.host}"
            call = lambda *words: subprocess.run(words, check=True, capture_output=True)  # noqa: E731
            call(*ssh, target, "nvidia-smi >/dev/null; df -h /workspace; mkdir -p /workspace/out")
            call("rsync", "-a", "-e", " ".join(ssh), f"{code}/", f"{target}:/workspace/code/")
            train = "cd /workspace/code && GPUOPS_RUN_ID=x GPUOPS_OUTPUT_DIR=/workspace/out python3 train.py 2 0.01 1"
            call(*ssh, target, f"tmux new-session -d -s train '{train}; sleep 5'")
            while time.time() < end:
                seen = subprocess.run(
                    [*ssh, target, "head -1 /workspace/out/heartbeat.jsonl"], capture_output=True, text=True
                )
                if seen.stdout.strip():
                    return float(json.loads(seen.stdout)["t"]) - listening[0]
            raise AssertionError("no heartbeat")
        finally:
            cloud.close()


def main() -> int:
    """Measure both in turn and compare medians."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    hand, ours = [], []
    for _ in range(runs):
        hand.append(by_hand())
        ours.append(with_gpuops())
    more = statistics.median(ours) - statistics.median(hand)
    print(f"by hand median {statistics.median(hand):.2f} s ({min(hand):.2f} to {max(hand):.2f})")
    print(f"gpuops  median {statistics.median(ours):.2f} s ({min(ours):.2f} to {max(ours):.2f})")
    print(f"gpuops - by hand: {more:.2f} s, bound {BOUND_S}")
    return int(more > BOUND_S)


if __name__ == "__main__":
    sys.exit(main())
