"""A whole run whose code is a commit and whose data the rental fetches, makes and gets, by the real command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from dataserver import data_server
from e2e.world import TRAIN, World
from repository import Repository

pytestmark = pytest.mark.e2e


def test_a_run_trains_on_a_commit_and_on_inputs_that_were_verified(world: World, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    check = "import hashlib\nfor n in ('fetched', 'made', 'own'):\n    print(n, len(open('/workspace/data/' + n, 'rb').read()))\n"
    repository.write("train.py", check + TRAIN)
    (tmp_path / "own.bin").write_bytes(b"own")
    with data_server(tmp_path / "server") as server:
        made = server.add("x", 300_000)
        server.breaks = 1
        repository.write("ca.crt", server.ca.read_text())
        commit = repository.commit()
        data = {"revision": "r1", "licence": "CC0"}
        manifest = world.manifest(
            transfers=[{"git": {"repository": str(repository.path)}, "to": "/workspace/code"}],
            inputs=[
                {"to": "/workspace/data/fetched", "https": f"{server.url}/x", "sha256": made.sha256(), "bytes": made.size,
                 "ca": "/workspace/code/ca.crt", "data": data},
                {"to": "/workspace/data/made", "command": ["python3", "-c", "open('{to}', 'w').write('made')"],
                 "sha256": hashlib.sha256(b"made").hexdigest()},
                {"to": "/workspace/data/own", "path": str(tmp_path / "own.bin")},
            ],
        )  # fmt: skip
        done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 0, done.stdout
    assert f"commit {commit}" in done.stdout
    assert "Input fetched and verified: /workspace/data/fetched (300.0 kB" in done.stdout
    document = world.json("report", world.status()[-1]["id"])
    kinds = [record["kind"] for record in document["audit"]]
    assert kinds.index("sent") < kinds.index("brought") < kinds.index("transferred") < kinds.index("launching")
    brought = next(record for record in document["audit"] if record["kind"] == "brought")
    assert brought["data"]["inputs"][0]["data"] == data, json.dumps(brought)
    log = next((world.root / "results").glob("*/telemetry/train.log")).read_text()
    assert "fetched 300000\nmade 4\nown 3\n" in log


def test_a_checkout_with_changes_buys_nothing(world: World, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write("train.py", "changed")
    manifest = world.manifest(transfers=[{"git": {"repository": str(repository.path)}, "to": "/workspace/code"}])
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 3 and "train.py" in done.stdout and "dirty: patch" in done.stdout
    assert world.creates() == 0
