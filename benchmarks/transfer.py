"""Sending, hashed on both ends, against plain rsync: `python benchmarks/transfer.py [PAIRS] [small|big]`.

Both go to the same real sshd on this computer over a shared connection that is open already. By hand: `rsync -a`. gpuops: the dry
run against the host, the same list again before it is sent, rsync, and sha256 of every file here and there. Bounds, as the median
of the ratios of pairs: 20,000 small files 2.0, 2 GB in 200 files 1.3; prints the figures and exits 1 beyond a bound.
"""

from __future__ import annotations

import base64
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from hostcase import RUN, Case, RealClock  # noqa: E402
from sshd import sshd  # noqa: E402

from gpuops import argv  # noqa: E402
from gpuops.spec import Transfer  # noqa: E402
from gpuops.ssh import SshHost  # noqa: E402

BOUNDS = {"small": 2.0, "big": 1.3}
SMALL_FILES, SMALL_PER_FOLDER = 20_000, 100
BIG_FILES, BIG_BYTES = 200, 10_000_000
LONGEST_S = 300.0


def small_tree(source: Path) -> None:
    """20,000 files of 1 to 7 kB, text as in a code tree: bytes without letters would be scanned for tokens faster."""
    chance = random.Random(1)
    words = [base64.b32encode(chance.randbytes(chance.randrange(1, 7))).decode().strip("=").lower() for _ in range(999)]
    text = " ".join(chance.choices(words, k=50_000)).encode()
    for number in range(SMALL_FILES):
        folder = source / f"d{number // SMALL_PER_FOLDER:03d}"
        folder.mkdir(exist_ok=True)
        begin = chance.randrange(len(text) - 7000)
        (folder / f"f{number:05d}.txt").write_bytes(text[begin : begin + chance.randrange(1000, 7000)])


def big_tree(source: Path) -> None:
    """2 GB in 200 files."""
    chance = random.Random(2)
    for number in range(BIG_FILES):
        (source / f"shard-{number:03d}.bin").write_bytes(chance.randbytes(BIG_BYTES))


TREES: dict[str, Callable[[Path], None]] = {"small": small_tree, "big": big_tree}


@contextmanager
def a_host() -> Iterator[Case]:
    """A pinned host with an open connection, and an empty source tree."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="gpuops-bench-", dir=memory) as folder,
        tempfile.TemporaryDirectory(prefix="g-") as short,
    ):
        directory = Path(folder)
        ssh = SshHost(directory / "runs", Path(os.path.realpath(short)), RealClock())
        public, host_key = ssh.keys(RUN)
        with sshd(directory / "h", public, host_key.private) as host:
            case = Case(directory, ssh, host)
            ssh.pin(RUN, case.endpoint, host_key.public)
            yield case
            ssh.close(RUN)


def by_hand(case: Case, target: Path) -> float:
    """Seconds of plain rsync over the open connection."""
    connection = case.ssh._connection(RUN, case.endpoint)
    connection.ensure(time.time() + 30)
    to = argv.rsync_target(case.endpoint, f"{target}/")
    command = ["rsync", "-a", "--mkpath", "-e", argv.remote_shell(connection.login), f"{case.source}/", to]
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
    return time.monotonic() - begun


def with_gpuops(case: Case, target: Path) -> float:
    """Seconds from the dry run to the last hash."""
    spec = replace(case.spec, transfers=(Transfer(str(case.source), str(target)),), max_total_bytes=1 << 40)
    until = time.time() + LONGEST_S
    begun = time.monotonic()
    approved = case.ssh.preview(RUN, case.endpoint, spec, until)
    files, _ = case.ssh.send(RUN, case.endpoint, spec, approved, until)
    took = time.monotonic() - begun
    assert files == len([f for f in approved.trees[0][1] if f.kind == "file"])
    return took


def measure(kind: str, pairs: int) -> bool:
    """Print the medians of one tree; True when the ratio is beyond its bound."""
    hand, ours = [], []
    with a_host() as case:
        (case.source / "train.py").unlink()
        TREES[kind](case.source)
        for number in range(pairs + 1):
            # the first pair warms the caches; who goes first changes
            turns = [(hand, by_hand), (ours, with_gpuops)]
            for seconds, work in turns if number % 2 else turns[::-1]:
                target = case.directory / "h" / f"{work.__name__}-{number}"
                seconds.append(work(case, target))
                subprocess.run(["rm", "-r", str(target)], check=True)
    del hand[0], ours[0]
    ratios = [b / a for a, b in zip(hand, ours, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"{kind:5}  rsync -a {statistics.median(hand):6.2f} s   gpuops {statistics.median(ours):6.2f} s   "
        f"ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), bound {BOUNDS[kind]}, {pairs} pairs",
        flush=True,
    )
    return ratio > BOUNDS[kind]


def main() -> int:
    """Measure both trees."""
    words = sys.argv[1:]
    pairs = next((int(word) for word in words if word.isdigit()), 3)
    kinds = [word for word in words if word in TREES] or list(TREES)
    beyond = [kind for kind in kinds if measure(kind, pairs)]
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
