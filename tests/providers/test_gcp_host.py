"""A rental made by the adapter, reached over real SSH: login, host key, volume, and the end of it all."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import netns
from clouds.gcp import GcpCloud
from gcpcase import ZONE, adapter, bought, later, offered, order, volume

from gpuops.values import Endpoint

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-")]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpCloud]:
    """A cloud with hosts, in a network that leads nowhere."""
    pytest.importorskip("google.cloud.compute_v1")
    with netns.own_network():
        made = GcpCloud(tmp_path_factory.mktemp("gcp"), hosts=True)
        yield made
        made.close()


def says(folder: Path, endpoint: Endpoint, script: str) -> str:
    """The output of a script on the host, as the login of the endpoint."""
    options = {"UserKnownHostsFile": folder / "known", "GlobalKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "yes",
               "BatchMode": "yes", "IdentitiesOnly": "yes", "ConnectTimeout": "5"}  # fmt: skip
    argv = ["ssh", "-F", "none", "-i", str(folder / "key"), "-p", str(endpoint.port)]
    argv += [part for option, value in options.items() for part in ("-o", f"{option}={value}")]
    done = subprocess.run(
        [*argv, f"{endpoint.user}@{endpoint.host}", "bash -s"], input=script, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_rental_is_reached_by_its_key_and_has_its_volume_and_its_device(cloud: GcpCloud, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(tmp_path / "key")], check=True)
    gcp = adapter(cloud)
    key = (tmp_path / "key.pub").read_text().strip()
    wanted = order(cloud, offered(cloud, gcp), ssh_public_keys=(key,), volumes=(volume(cloud),))
    ref = bought(cloud, gcp, wanted)
    cloud.wait(lambda: gcp.host_key(ref, later(cloud)) is not None, "the host key")
    endpoint = gcp.inspect(ref, later(cloud)).endpoint
    assert endpoint is not None
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", "-p", str(endpoint.port), endpoint.host],
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout
    (tmp_path / "known").write_text(scanned)
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "known")], capture_output=True, text=True, check=True
    )
    assert gcp.host_key(ref, later(cloud)) in shown.stdout, "the host presents the key that the provider told"
    assert says(tmp_path, endpoint, "id -un") == "gpuops"
    assert "NVIDIA L4" in says(tmp_path, endpoint, "nvidia-smi --query-gpu=name --format=csv,noheader")
    cloud.wait(lambda: "/data" in says(tmp_path, endpoint, "grep -o ' /data ' /proc/self/mounts || true"), "the mount")
    assert says(tmp_path, endpoint, "echo kept > /data/file && cat /data/file") == "kept"
    gcp.terminate(ref, later(cloud))
    cloud.wait(lambda: gcp.inspect(ref, later(cloud)).state == "absent", "the end")
    assert list(cloud.there("disks")) == ["datasets"]
    assert ZONE in ref.region
