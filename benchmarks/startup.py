"""CPU seconds of starting gpuops, as medians of whole processes: `python benchmarks/startup.py [RUNS]`.

Bounds (2 cores): `--help` 0.15 s, `status` on an empty journal 0.20 s. Prints and exits 1 when a median is above its bound.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

BOUNDS_S = {("--help",): 0.15, ("status",): 0.20}


def cpu_s(arguments: tuple[str, ...], home: str) -> float:
    """User and system seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "gpuops", *arguments], env={**os.environ, "GPUOPS_HOME": home}, stdout=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure and compare."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    slow = False
    with tempfile.TemporaryDirectory() as home:
        for arguments, bound_s in BOUNDS_S.items():
            cpu_s(arguments, home)  # warm the file cache
            times = [cpu_s(arguments, home) for _ in range(runs)]
            median = statistics.median(times)
            slow |= median > bound_s
            print(
                f"gpuops {' '.join(arguments):8} median {median:.3f} s CPU, {min(times):.3f} to {max(times):.3f}, bound {bound_s}"
            )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
