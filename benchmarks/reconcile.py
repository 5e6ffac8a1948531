"""`reconcile` over a large account against the same number of resources in one region. `python benchmarks/reconcile.py [RUNS]`.

Both accounts are fake Google Clouds with 10,000 resources of somebody else's and 100 ms per call: one spreads them over 20
regions, the other has one region. The same code looks at both: list, classify, draw. Importing the vendor's library and
connecting are measured apart, since they cost the same whatever an account holds. Each run is a process of its own, so that
its peak of memory is its own. Bounds: the median over 20 regions is at most 1.5 times that of one region, and no run takes 300 MB
of memory; exits 1 when one is missed. The fake AWS cannot be filled, so Google Cloud stands alone here.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from clouds.gcp import GcpCloud  # noqa: E402
from gcpcase import adapter  # noqa: E402

from gpuops.inventory import classify  # noqa: E402
from gpuops.policy import Policy  # noqa: E402
from gpuops.render import reconcile_lines  # noqa: E402
from gpuops.values import Scope  # noqa: E402

RESOURCES, REGIONS, CALL_S = 10_000, 20, 0.1
RATIO, MOST_MB, LONGEST_S = 1.5, 300, 300.0


class Asked:
    """What the adapter needs to know of a cloud whose process somebody else started."""

    def __init__(self, told: dict[str, str]) -> None:
        self.project, self.address = told["project"], told["address"]
        self.key_file, self.api_key = Path(told["key_file"]), told["api_key"]


def looked(told: dict[str, str]) -> dict[str, Any]:
    """One look in this process: seconds of each part, and the peak of memory."""
    begun = time.monotonic()
    made = adapter(Asked(told), now=time.time)  # type: ignore[arg-type]
    made.preload().join()
    imported = time.monotonic()
    made.account()
    connected, used = time.monotonic(), time.process_time()
    inventory = made.list_billable(Scope(), time.time() + LONGEST_S)
    lines = list(reconcile_lines(list(classify(inventory.items, (), time.time(), Policy())), []))
    ended = time.monotonic()
    return {
        "imports_s": imported - begun, "connecting_s": connected - imported, "reconcile_s": ended - connected,
        "reconcile_cpu_s": time.process_time() - used, "items": len(inventory.items), "gaps": len(inventory.gaps),
        "lines": len(lines), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def measured(cloud: GcpCloud, regions: int) -> dict[str, Any]:
    """One look at an account with so many regions, by a process of its own."""
    cloud.reset(regions=regions)
    cloud.fill(RESOURCES)
    cloud.settings(call_s=CALL_S)
    told = {
        "project": cloud.project, "address": cloud.address, "key_file": str(cloud.key_file), "api_key": cloud.api_key
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, "--look", json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=True,
    )
    calls = [entry for entry in cloud.log() if not entry["call"].startswith("oauth")]
    return {**json.loads(done.stdout), "calls": len(calls)}


def shown(name: str, looks: list[dict[str, Any]]) -> str:
    """Medians of what was measured."""
    middle = {key: statistics.median(look[key] for look in looks) for key in looks[0]}
    return (
        f"{name}: reconcile {middle['reconcile_s']:.2f} s ({middle['reconcile_cpu_s']:.2f} s CPU, {middle['calls']:.0f} calls, "
        f"{middle['items']:.0f} items, {middle['gaps']:.0f} gaps), imports {middle['imports_s']:.2f} s, "
        f"connecting {middle['connecting_s']:.2f} s, peak {max(look['peak_mb'] for look in looks):.0f} MB"
    )


def main(runs: int) -> int:
    """Alternate between both accounts, and compare."""
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as folder:
        cloud = GcpCloud(Path(folder) / "gcp")
        looks: dict[int, list[dict[str, Any]]] = {1: [], REGIONS: []}
        try:
            for _ in range(runs):
                for regions in looks:
                    looks[regions].append(measured(cloud, regions))
        finally:
            cloud.close()
    print(shown("1 region", looks[1]))
    print(shown(f"{REGIONS} regions", looks[REGIONS]))
    many, one = (statistics.median(look["reconcile_s"] for look in looks[n]) for n in (REGIONS, 1))
    peak = max(look["peak_mb"] for found in looks.values() for look in found)
    print(
        f"ratio {many / one:.2f} (at most {RATIO}), peak {peak:.0f} MB (at most {MOST_MB}), load {os.getloadavg()[0]:.1f}"
    )
    return 0 if many / one <= RATIO and peak < MOST_MB else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--look"]:
        print(json.dumps(looked(json.loads(sys.argv[2]))))
    else:
        sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 3))
