"""Many small files as one stream: rsync reads its list byte by byte and opens every file several times, which doubles the time.

A stream cannot be gone on with, so it is for little data only, and whatever is wrong with it is left to rsync.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

from gpuops import argv
from gpuops.errors import HostError
from gpuops.ports import Clock
from gpuops.remote import Connection, end_group, run_child
from gpuops.spec import Transfer
from gpuops.values import SendFile, Time

LEAST_FILES = 500
MOST_BYTES = 256_000_000
MOST_MEAN_BYTES = 64_000


def worth(transfer: Transfer, files: tuple[SendFile, ...]) -> bool:
    """Whether these are many small files. What links point to is carried by rsync alone."""
    size = sum(f.size for f in files if f.kind == "file")
    return not transfer.follow and len(files) >= LEAST_FILES and size <= min(MOST_BYTES, len(files) * MOST_MEAN_BYTES)


def stream(
    transfer: Transfer, destination: str, files: tuple[SendFile, ...], connection: Connection, clock: Clock, until: Time
) -> bool:
    """Send exactly these files; False when anything went wrong. What arrived is verified by somebody else."""
    connection.ensure(until)
    with tempfile.NamedTemporaryFile(prefix="gpuops-") as listing:
        listing.write(b"".join(b"./" + os.fsencode(f.path) + b"\0" for f in files))
        listing.flush()
        try:
            packing = subprocess.Popen(
                argv.pack(transfer.source, listing.name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError:
            return False
        try:
            done = run_child(argv.unpack(connection.login, destination), clock, until, packing.stdout)
            if packing.stdout is not None:
                packing.stdout.close()  # so that it does not write to nobody
            return done.code == 0 and packing.wait(max(0.1, until - clock.now())) == 0
        except (HostError, subprocess.TimeoutExpired):
            return False
        finally:
            end_group(packing)
