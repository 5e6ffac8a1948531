"""A PyTorch script that knows nothing of gpuops, from its own manifest: environment, progress, checkpoint, load check, closed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from e2e.world import World

from gpuops.journal import SqliteJournal

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]


def registry() -> dict[str, str]:
    """How this computer reaches its package registry; a rental that is a part of it has to be told."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k.startswith(("UV_", "PIP_")) or k in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    }
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    if not done.returncode and done.stdout.strip():
        kept |= {"PIP_INDEX_URL": done.stdout.strip(), "UV_DEFAULT_INDEX": done.stdout.strip()}
    return kept


@pytest.mark.timeout(900)
def test_an_unmodified_script_trains_in_its_locked_environment_and_comes_home(world: World) -> None:
    document = yaml.safe_load((MANIFESTS / "pytorch.yaml").read_text())
    document["transfers"][0]["source"] = str(MANIFESTS / "pytorch")
    document["env"] = {**registry(), "OMP_NUM_THREADS": "1"}
    path = world.root / "pytorch.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    world.configure()

    done = world.run("run", str(path), "--yes", timeout=800)

    assert done.returncode == 0, done.stdout
    shown = " ".join(done.stdout.split())
    assert "Environment of training: built from the lock" in shown
    assert "ok torch expected 2.13 seen 2.13" in shown
    journal = SqliteJournal(world.home / "journal.db")
    told = [r.event.data["status"]["beat"] for r in journal.records(journal.runs()[-1]) if r.event.kind == "status"]
    seen = {beat["step"] for beat in told if beat.get("source") == "log" and "loss" in beat}
    assert len(seen) >= 2, "the progress was read from what the script printed"
    assert world.status()[-1]["outcome"] == "completed"
    (copy,) = (world.root / "results").glob("*/*/ckpt.pt")
    with zipfile.ZipFile(copy) as archive:
        assert archive.testzip() is None and any(n.endswith("data.pkl") for n in archive.namelist())
    assert world.rentals() == []


def test_the_script_of_the_example_names_nothing_of_ours() -> None:
    text = (MANIFESTS / "pytorch" / "train.py").read_text()
    assert "GPUOPS" not in text and "import gpuops" not in text and "beat" not in text
