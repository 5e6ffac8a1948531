"""What lives on the fake Google Cloud share: an account with hosts, a user of it, and looks behind gpuops's back."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clouds import netns
from clouds.gcp import GcpCloud
from e2e.world import POLICY, World
from gcpcase import IMAGE_FAMILY, ZONE

from gpuops.marks import parse_name

ENTRY = "[gpuops.providers]\ngcp = gpuops_providers.gcp:provider\n"


@contextlib.contextmanager
def account(directory: Path) -> Iterator[GcpCloud]:
    """A cloud with hosts, in a network that leads nowhere."""
    with netns.own_network():
        made = GcpCloud(directory, hosts=True)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def user(root: Path, cloud: GcpCloud, address: str = "") -> Iterator[World]:
    """A user with a key file, an API key for prices and a config.toml; `address` stands before that of the cloud."""
    entry = root / "site" / "gpuops_gcp_test-0.dist-info"
    entry.mkdir(parents=True)
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-gcp-test\nVersion: 0\n")
    (entry / "entry_points.txt").write_text(ENTRY)
    lines = {
        "project": cloud.project, "image": IMAGE_FAMILY,
        **{f"{name}_endpoint": address or cloud.address for name in ("api", "billing", "filestore")},
    }  # fmt: skip
    table = "\n[providers.gcp]\n" + "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    with tempfile.TemporaryDirectory(prefix="gpuops-gcp-") as short:
        extra = {
            "PYTHONPATH": os.pathsep.join([str(entry.parent), os.environ.get("PYTHONPATH", "")]), "HOME": short,
            "GPUOPS_GCP_BILLING_API_KEY": cloud.api_key, "GOOGLE_APPLICATION_CREDENTIALS": str(cloud.key_file),
        }  # fmt: skip
        made = World(root, Path(short) / "home", Path(short) / "none", extra)
        # importing the vendor's library takes seconds, in every process; no vendor text bounds how late a machine is listed, so
        # a life this short needs an early look at the list for its proof
        policy = POLICY.replace("send_window_s = 4", "send_window_s = 30\nsurvey_first_s = 1")
        made.configure(policy + table)
        try:
            yield made
        finally:
            made.end()


def manifest(world: World, **changes: Any) -> Path:
    """A small training on one L4, below the home of a login that is not root."""
    path = world.manifest(**{
        "provider": "gcp",
        "resources": {"device": "L4", "region": ZONE},
        "transfers": [{"source": "code", "to": "/home/gpuops/code"}],
        "outputs": {"directory": "/home/gpuops/out", "copy_to": "results", "keep_last": 2},
        "budget": {"cap": "2.00"},
        "deadline": "20m",
        "hold": "2m",
        "setup": "10m",
        **changes,
    })  # fmt: skip
    path.write_text(path.read_text().replace("workdir: /workspace/code", "workdir: /home/gpuops/code"))
    return path


def ours(cloud: GcpCloud) -> list[str]:
    """What of ours there is, by the cloud's own word."""
    there = [name for plural in ("instances", "disks") for name in cloud.there(plural)]
    return [name for name in there if parse_name(name) is not None]


def running_bills(cloud: GcpCloud) -> list[str]:
    """What of ours still costs money, by the cloud's own books."""
    return [line["name"] for line in cloud.usage() if line["end"] is None and parse_name(line["name"]) is not None]
