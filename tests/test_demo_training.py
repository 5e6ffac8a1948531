"""The demo training keeps the contract: whole generations whatever kills it, and a resume that leaves no trace."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "manifests" / "demo"
# Small enough that a whole training takes about a second.
SMALL = ["--batch", "64", "--hidden", "32", "--context", "8"]
FILES = {"weights.npz", "optimizer.npz", "state.json"}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    subprocess.run([sys.executable, str(DEMO / "collect.py"), str(folder)], check=True, capture_output=True, timeout=60)
    # Starting on all of it takes most of a second, and these tests start many trainings.
    (folder / "start.txt").write_bytes((folder / "corpus.txt").read_bytes()[:200_000])
    return folder


@pytest.fixture
def start(corpus: Path) -> Any:
    """Starts a training in an output folder; whatever still runs at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(output: Path, *more: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, str(DEMO / "train.py"), "--data", str(corpus / "start.txt"), *SMALL, *more]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUOPS_")}
        environment = {**clean, "GPUOPS_OUTPUT_DIR": str(output), "GPUOPS_RUN_ID": "r1", **(env or {})}
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def train(start: Start, output: Path, *more: str, env: dict[str, str] | None = None) -> str:
    process = start(output, *more, env=env)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    return text


def beats(output: Path) -> list[dict[str, Any]]:
    lines = (output / "heartbeat.jsonl").read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def generations(output: Path) -> list[str]:
    return sorted(p.name for p in output.glob("step-*"))


def assert_whole(generation: Path) -> None:
    manifest = json.loads((generation / "MANIFEST.json").read_bytes())
    assert {f["path"] for f in manifest["files"]} == FILES == {p.name for p in generation.iterdir()} - {"MANIFEST.json"}
    for listed in manifest["files"]:
        data = (generation / listed["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (listed["size"], listed["sha256"])
    assert manifest["step"] == json.loads((generation / "state.json").read_bytes())["step"]
    assert manifest["metric"] > 0


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_the_inputs_are_checksummed_and_the_same_each_time(corpus: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(DEMO / "collect.py"), str(tmp_path)], check=True, capture_output=True, timeout=60
    )
    listed = dict(reversed(line.split("  ")) for line in (tmp_path / "inputs.sha256").read_text().splitlines())
    assert set(listed) == {"corpus.txt", "data-manifest.json"}
    for name, digest in listed.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        assert (tmp_path / name).read_bytes() == (corpus / name).read_bytes()
    about = json.loads((tmp_path / "data-manifest.json").read_bytes())
    assert about["licence"].startswith("PSF-2.0") and about["bytes"] == (tmp_path / "corpus.txt").stat().st_size
    assert 1_000_000 < about["bytes"] <= 3_000_000 and about["files"]


def test_the_loss_falls_and_every_update_has_a_heartbeat(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "300", "--save-every", "100")
    seen = beats(tmp_path)
    losses = [b["loss"] for b in seen if "loss" in b and "ckpt" not in b]
    assert len(losses) == 300 and sum(losses[-30:]) < 0.75 * sum(losses[:30])
    assert [b["seq"] for b in seen] == list(range(len(seen)))
    assert seen[0]["state"] == "starting" and seen[-1]["state"] == "done"
    assert all(b.keys() >= {"v", "run", "seq", "t", "mono", "step", "tokens", "state"} for b in seen)
    assert [b["ckpt"]["step"] for b in seen if "ckpt" in b] == [100, 200, 300]
    assert generations(tmp_path) == ["step-000100", "step-000200", "step-000300"]
    for name in generations(tmp_path):
        assert_whole(tmp_path / name)


def test_a_resume_is_bit_exact(start: Start, tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(start, straight, "--updates", "120", "--save-every", "40")
    train(start, stopped, "--updates", "80", "--save-every", "40")
    text = train(
        start, stopped, "--updates", "120", "--save-every", "40", env={"GPUOPS_RESUME": str(stopped / "step-000080")}
    )
    assert "at update 80" in text
    for name in [*FILES, "MANIFEST.json"]:
        assert (straight / "step-000120" / name).read_bytes() == (stopped / "step-000120" / name).read_bytes()
    seen = beats(stopped)
    assert [b["seq"] for b in seen] == list(range(len(seen)))


def test_a_stop_anywhere_resumes_bit_exactly(start: Start, tmp_path: Path) -> None:
    """The save of a stop lies between the planned ones, and must not change what follows."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(start, straight, "--updates", "100", "--save-every", "50")
    train(start, stopped, "--updates", "100", "--save-every", "50", env={"GPUOPS_MAX_UPDATES": "63"})
    assert generations(stopped) == ["step-000050", "step-000063"]
    train(start, stopped, "--updates", "100", "--save-every", "50", "--resume", str(stopped / "step-000063"))
    assert (straight / "step-000100/MANIFEST.json").read_bytes() == (stopped / "step-000100/MANIFEST.json").read_bytes()


def test_kill_9_at_any_moment_leaves_only_whole_generations(start: Start, tmp_path: Path) -> None:
    """Saves come after every third update, so that most kills hit one; each life goes on from the newest."""
    dice = random.Random(7)
    resume: dict[str, str] = {}
    for _ in range(10):
        before = generations(tmp_path)[-1:]
        process = start(tmp_path, "--updates", "100000", "--save-every", "3", "--keep", "4", env=resume)
        wait_for(lambda: generations(tmp_path)[-1:] > before)  # noqa: B023
        time.sleep(dice.random() * 0.15)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = generations(tmp_path)
        assert len(found) >= 2 or not before
        for name in found:
            assert_whole(tmp_path / name)
        resume = {"GPUOPS_RESUME": str(tmp_path / found[-1])}
    # One more than it keeps: the kill may fall between publishing and removing.
    assert len(generations(tmp_path)) <= 5 and generations(tmp_path)[-1] >= "step-000030"


def test_sigterm_saves_the_last_update_and_ends_without_claiming_to_be_done(start: Start, tmp_path: Path) -> None:
    process = start(tmp_path, "--updates", "100000", "--save-every", "100000")
    wait_for(lambda: (tmp_path / "heartbeat.jsonl").exists() and len(beats(tmp_path)) > 20)
    os.kill(process.pid, signal.SIGTERM)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 0, text
    last = beats(tmp_path)[-1]
    assert last["stop"] == "SIGTERM" and last["state"] != "done"
    assert generations(tmp_path) == [f"step-{last['step']:06d}"]
    assert_whole(tmp_path / generations(tmp_path)[0])


@pytest.mark.parametrize("form", ["{at}\n", '{{"deadline": {at}, "boot": "x"}}'])
def test_it_ends_by_itself_before_the_deadline_which_may_change(start: Start, tmp_path: Path, form: str) -> None:
    file = tmp_path / "deadline"
    file.write_text(form.format(at=time.time() + 3600))
    process = start(tmp_path, "--updates", "100000", "--save-every", "100000", env={"GPUOPS_DEADLINE_FILE": str(file)})
    wait_for(lambda: (tmp_path / "heartbeat.jsonl").exists() and len(beats(tmp_path)) > 5)
    deadline = time.time() + 5
    file.write_text("torn")
    time.sleep(1.2)
    assert process.poll() is None, "an unreadable deadline is not one"
    (tmp_path / "new").write_text(form.format(at=deadline))
    os.rename(tmp_path / "new", file)
    process.communicate(timeout=30)
    assert process.returncode == 0 and time.time() < deadline
    assert beats(tmp_path)[-1]["stop"] == "deadline" and len(generations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("limit", "steps"),
    [({"GPUOPS_MAX_UPDATES": "7"}, 7), ({"GPUOPS_MAX_TOKENS": "640"}, 10), ({"GPUOPS_MAX_TOKENS": "700"}, 10)],
)
def test_hard_limits_are_never_passed(start: Start, tmp_path: Path, limit: dict[str, str], steps: int) -> None:
    train(start, tmp_path, "--updates", "50", env=limit)
    last = beats(tmp_path)[-1]
    assert (last["step"], last["state"]) == (steps, "training") and last["stop"].startswith("max_")


def test_a_limit_equal_to_the_plan_is_done(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "7", env={"GPUOPS_MAX_UPDATES": "7"})
    assert beats(tmp_path)[-1]["state"] == "done"


def test_old_generations_go_but_never_the_newest_two(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "60", "--save-every", "10", "--keep", "1")
    assert generations(tmp_path) == ["step-000050", "step-000060"]


def test_a_damaged_generation_is_not_resumed_from(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "10")
    weights = tmp_path / "step-000010" / "weights.npz"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    process = start(tmp_path, "--updates", "20", "--resume", str(tmp_path / "step-000010"))
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 1 and "differs from its hash list" in text
    assert beats(tmp_path)[-1]["state"] == "failed"


def test_the_load_check_accepts_whole_generations_only(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "10")
    check = [sys.executable, str(DEMO / "generation.py"), str(tmp_path / "step-000010")]
    assert subprocess.run(check, check=False, capture_output=True, timeout=30).returncode == 0
    with (tmp_path / "step-000010" / "optimizer.npz").open("ab") as file:
        file.write(b"x")
    assert subprocess.run(check, check=False, capture_output=True, timeout=30).returncode == 1


def test_another_configuration_is_not_resumed(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "10")
    process = start(tmp_path, "--updates", "20", "--seed", "2", "--resume", str(tmp_path / "step-000010"))
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 1 and "another configuration (seed)" in text


def test_a_published_generation_is_never_written_over(start: Start, tmp_path: Path) -> None:
    train(start, tmp_path, "--updates", "10")
    before = (tmp_path / "step-000010" / "MANIFEST.json").read_bytes()
    train(start, tmp_path, "--updates", "10", "--seed", "2")
    train(start, tmp_path, "--updates", "10")
    assert generations(tmp_path) == ["step-000010", "step-000010.2"]
    assert (tmp_path / "step-000010" / "MANIFEST.json").read_bytes() == before


# --- the heartbeat that users copy -----------------------------------------------------------------------------------


def test_the_demo_ships_the_same_heartbeat() -> None:
    assert (DEMO / "beat.py").read_bytes() == (ROOT / "gpuops" / "beat.py").read_bytes()
    assert len((DEMO / "beat.py").read_text().splitlines()) <= 60


def test_a_torn_last_line_is_left_alone_and_the_numbers_go_on(tmp_path: Path) -> None:
    from gpuops.beat import Heartbeat

    first = Heartbeat(str(tmp_path), "r1")
    assert first(step=1, tokens=8, state="training", loss=float("nan"))
    with first_file(tmp_path).open("ab") as file:
        file.write(b'{"v": 1, "seq": 99')
    assert Heartbeat(str(tmp_path), "r1")(step=2, tokens=16, state="training")
    lines = first_file(tmp_path).read_bytes().split(b"\n")
    assert json.loads(lines[0])["loss"] == "nan"
    assert lines[1] == b'{"v": 1, "seq": 99' and json.loads(lines[2])["seq"] == 1 and lines[3:] == [b""]


def test_a_heartbeat_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    from gpuops.beat import Heartbeat

    assert not Heartbeat(str(tmp_path / "gone"), "r1")(step=1, tokens=8, state="training")


def first_file(folder: Path) -> Path:
    return folder / "heartbeat.jsonl"
