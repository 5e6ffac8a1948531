"""What training runs in: made on the host, looked at from inside, tried for a few updates; what does not fit is not launched."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from e2e import hands
from e2e.world import TRAIN, World

pytestmark = pytest.mark.e2e

PROBE = {"updates": 3, "argv": ["python3", "train.py", "3", "0.1", "3"], "timeout": "30s"}


def wheel(folder: Path, name: str, version: str) -> str:
    """A wheel of one module, written by hand; returns its line in a lock."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def line(place: str, content: str) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        return f"{place},sha256={digest},{len(content)}"

    record = "\n".join([*(line(place, content) for place, content in files.items()), f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for place, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(place, content)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def locked(world: World, code: str = TRAIN, **changes: Any) -> Path:
    """A manifest whose environment is built from a lock with one package of our own."""
    source = world.root / "code"
    (source / "wheels").mkdir(parents=True, exist_ok=True)
    (source / "lock.txt").write_text(wheel(source / "wheels", "trainingtools", "1.4"))
    offline = dict.fromkeys(("UV_FIND_LINKS", "PIP_FIND_LINKS"), "/workspace/code/wheels")
    environment = {"lock": "/workspace/code/lock.txt", "directory": "/workspace/environments"}
    return world.manifest(
        code="import trainingtools; assert trainingtools.version == '1.4'\n" + code,
        env={**offline, "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"},
        environment={**environment, **changes},
    )


def test_training_runs_in_an_environment_that_was_built_from_a_hashed_lock(world: World) -> None:
    done = world.run("run", str(locked(world)), "--yes")
    assert done.returncode == 0, done.stdout
    assert "built from the lock" in done.stdout
    found = hands.records(world, "environment")[0]["found"]
    assert "trainingtools==1.4" in found["packages"] and found["how"] == "lock" and not found["reused"]
    assert world.status()[-1]["outcome"] == "completed"


def test_a_wheel_that_is_not_the_locked_one_ends_the_run_before_training(world: World) -> None:
    manifest = locked(world)
    lock = world.root / "code" / "lock.txt"
    lock.write_text(lock.read_text()[:-3] + "00\n")
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 4, done.stdout
    assert "environment" in done.stdout and "hash" in done.stdout.lower()
    assert world.status()[-1]["may_bill"] == [] and hands.records(world, "launching") == []


def test_an_environment_that_lacks_what_is_expected_is_shown_and_nothing_is_launched(world: World) -> None:
    expect = {"python": "3", "torch": "2.13", "cuda": "13.0"}
    done = world.run("run", str(world.manifest(environment={"expect": expect})), "--yes")
    assert done.returncode == 4, done.stdout
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("ok python expected 3 seen 3.") for line in shown)
    assert any(line.startswith("WRONG torch expected 2.13 seen not installed") for line in shown)
    assert "WRONG torch.cuda.is_available() expected True seen False" in shown
    assert hands.records(world, "launching") == [] and world.rentals() == []


def test_a_command_makes_the_environment_once_and_its_failure_is_told_with_its_last_words(world: World) -> None:
    script = "mkdir -p /workspace/made && date >> /workspace/made/when && echo made"
    manifest = world.manifest(environment={"command": ["sh", "-c", script]})
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 0, done.stdout
    assert hands.records(world, "environment")[0]["found"]["how"] == "command"
    failing = ["sh", "-c", "echo there is no such compiler >&2; exit 7"]
    done = world.run("run", str(world.manifest(name="other", environment={"command": failing})), "--yes")
    assert done.returncode == 4 and "sh ended with 7: there is no such compiler" in done.stdout, done.stdout


def test_a_probe_measures_time_and_checkpoint_and_leaves_nothing_behind(world: World) -> None:
    manifest = hands.manifest(world, train={"probe": PROBE, "max_updates": 6})
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 0, done.stdout
    found = hands.records(world, "probed")[0]["found"]
    assert found["exit_code"] == 0 and found["updates"] == 3
    assert 0.08 < found["step_s"] < 0.3 and 500 < found["tokens_per_s"] < 1300
    assert 131_072 <= found["generation_bytes"] < 140_000 and found["memory_bytes"] > 1_000_000
    assert "6 updates take" in done.stdout
    assert [g.name for g in world.generations()] == ["step-000003", "step-000006"]


def test_what_does_not_fit_is_not_launched(world: World) -> None:
    manifest = hands.manifest(world, train={"probe": PROBE, "max_updates": 100_000})
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 4, done.stdout
    assert "WRONG  training time" in done.stdout and "for 100,000 updates" in done.stdout
    assert hands.records(world, "launching") == [] and world.rentals() == []


def test_what_a_probe_leaves_in_the_real_output_folder_is_no_result_of_training(world: World) -> None:
    code = TRAIN.replace('os.environ["GPUOPS_OUTPUT_DIR"]', '"/workspace/out"')
    manifest = hands.manifest(
        world, code=code, train={"argv": ["python3", "train.py", "2", "0.1", "9"], "probe": PROBE}
    )
    done = world.run("run", str(manifest), "--yes")
    assert done.returncode == 6, done.stdout
    assert world.status()[-1]["outcome"] == "ended" and world.generations() == [], "training itself published nothing"
    assert "step 2" in next((world.root / "results").glob("*/telemetry/train.log")).read_text()
