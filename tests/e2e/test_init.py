"""The first hour of somebody else: a script that knows nothing of gpuops, `init`, and a closed run."""

from __future__ import annotations

import pytest
from e2e.world import World

pytestmark = pytest.mark.e2e

# What people have: an argument for the folder, a file per checkpoint, nothing of our contract.
SCRIPT = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--out-dir", default="out")
arguments = parser.parse_args()
os.makedirs(arguments.out_dir, exist_ok=True)
for step in range(1, arguments.steps + 1):
    time.sleep(0.2)
    with open(os.path.join(arguments.out_dir, f"ckpt-{step}.json"), "w") as file:
        json.dump({"step": step}, file)
    print("step", step, flush=True)
"""


def test_init_and_run_bring_a_script_that_is_not_ours_to_a_closed_run(world: World) -> None:
    folder = world.root / "theirs"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    made = world.json("init", str(folder), "--command", "python train.py --steps 3")
    assert made["argv"] == ["python3", "train.py", "--steps", "3", "--out-dir", "/workspace/out"]
    assert world.run("check", made["manifest"]).returncode == 0
    done = world.run("run", made["manifest"], "--yes")
    assert done.returncode == 0, done.stdout
    assert [p.name for p in (folder / "gpuops-results").rglob("ckpt-3.json")] == ["ckpt-3.json"]
    assert world.rentals() == []
