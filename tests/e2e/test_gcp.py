"""A whole life on a fake Google Cloud, typed at the command line: real HTTP, real SSH, and nothing left that bills."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import netns
from clouds.gcp import GcpCloud
from e2e.world import POLICY, World
from gcpcase import IMAGE_FAMILY, ZONE

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-")]

LIFE_S = 200


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[GcpCloud]:
    """A cloud with hosts, in a network that leads nowhere."""
    pytest.importorskip("google.cloud.compute_v1")
    with netns.own_network():
        made = GcpCloud(tmp_path / "gcp", hosts=True)
        yield made
        made.close()


@pytest.fixture
def world(tmp_path: Path, cloud: GcpCloud) -> Iterator[World]:
    """A user with a key file, an API key for prices and a config.toml."""
    entry = tmp_path / "site" / "gpuops_gcp_test-0.dist-info"
    entry.mkdir(parents=True)
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-gcp-test\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[gpuops.providers]\ngcp = gpuops_providers.gcp:provider\n")
    lines = {
        "project": cloud.project, "credentials_file": cloud.key_file, "image": IMAGE_FAMILY,
        **{f"{name}_endpoint": cloud.address for name in ("api", "billing", "filestore")},
    }  # fmt: skip
    table = "\n[providers.gcp]\n" + "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    with tempfile.TemporaryDirectory(prefix="gpuops-e2e-") as short:
        path = os.pathsep.join([str(entry.parent), os.environ.get("PYTHONPATH", "")])
        extra = {"PYTHONPATH": path, "GPUOPS_GCP_BILLING_API_KEY": cloud.api_key}
        made = World(tmp_path, Path(short) / "home", Path(short) / "none", extra)
        # importing the vendor's library takes seconds, in every process; no vendor text bounds how late a machine is listed, so
        # a life this short needs an early look at the list for its proof
        policy = POLICY.replace("send_window_s = 4", "send_window_s = 30\nsurvey_first_s = 1")
        made.configure(policy + table)
        try:
            yield made
        finally:
            made.end()


def manifest(world: World) -> Path:
    """A small training on one L4, below the home of a login that is not root."""
    path = world.manifest(
        provider="gcp",
        resources={"device": "L4", "region": ZONE},
        transfers=[{"source": "code", "to": "/home/gpuops/code"}],
        outputs={"directory": "/home/gpuops/out", "copy_to": "results", "keep_last": 2},
        budget={"cap": "2.00"},
        deadline="20m",
        hold="2m",
        setup="10m",
    )
    path.write_text(path.read_text().replace("workdir: /workspace/code", "workdir: /home/gpuops/code"))
    return path


@pytest.mark.slow
@pytest.mark.timeout(LIFE_S + 60)
def test_a_whole_life_ends_with_copies_and_without_a_bill(world: World, cloud: GcpCloud) -> None:
    done = world.run("run", str(manifest(world)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0, done.stdout
    assert "gcp's own timer cannot be moved" in " ".join(done.stdout.split())
    assert "Proof of termination, round 2 of 2" in done.stdout
    assert [path.name for path in world.generations()] == ["step-000003", "step-000006"]
    assert len(cloud.log("instances.insert")) == 1
    assert not cloud.there() and not cloud.there("disks")
    assert all(line["end"] is not None for line in cloud.usage())


@pytest.mark.slow
@pytest.mark.timeout(LIFE_S + 60)
def test_a_machine_that_fails_for_lack_of_capacity_ends_in_a_refusal_and_no_bill(world: World, cloud: GcpCloud) -> None:
    cloud.faults(stockout=1)
    done = world.run("run", str(manifest(world)), "--yes", timeout=LIFE_S)
    assert done.returncode == 4, done.stdout
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in done.stdout
    assert not cloud.there() and not cloud.there("disks")


@pytest.mark.slow
@pytest.mark.timeout(LIFE_S + 60)
def test_an_answer_that_is_lost_is_found_again_and_no_second_machine_is_made(world: World, cloud: GcpCloud) -> None:
    cloud.faults(lose_answer={"call": "instances.insert"})
    done = world.run("run", str(manifest(world)), "--yes", timeout=LIFE_S)
    assert done.returncode == 0, done.stdout
    assert len(cloud.log("instances.insert")) == 1
    assert [path.name for path in world.generations()] == ["step-000003", "step-000006"]
    assert not cloud.there() and not cloud.there("disks")
