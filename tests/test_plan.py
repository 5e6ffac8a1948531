"""One screen before money: what it says, in which order, and what it knows will fail later."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpuops_providers.local import create_volume
from typer.testing import CliRunner, Result

from gpuops.cli import computer
from gpuops.cli.plan import app
from gpuops.errors import GpuopsError
from gpuops.render import sheet
from gpuops.values import Finding


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUOPS_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")


def plan(tmp_path: Path, *options: str, **changes: Any) -> Result:
    """Plan a small manifest; `changes` replace top-level keys."""
    (tmp_path / "code").mkdir(exist_ok=True)
    document = {
        "name": "small", "provider": "local", "resources": {"device": "A100"},
        "transfers": [{"source": "code", "to": "/workspace/code"}],
        "train": {"argv": ["python3", "train.py"], "workdir": "/workspace/code"},
        "outputs": {"directory": "/workspace/out", "copy_to": "results"}, "budget": {"cap": "5.00"}, "deadline": "1h",
    }  # fmt: skip
    (tmp_path / "m.yaml").write_text(yaml.safe_dump({**document, **changes}))
    return CliRunner().invoke(app, [str(tmp_path / "m.yaml"), *options])


def refused(result: Result) -> GpuopsError:
    assert isinstance(result.exception, GpuopsError), result.output
    assert result.exception.next_command
    return result.exception


def test_the_screen_begins_with_the_money_and_ends_with_the_next_command(tmp_path: Path) -> None:
    done = plan(tmp_path)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "Plan for small (nothing is bought yet)"
    assert lines[1].startswith("  costs at most  1.5000 USD (by the deadline 1.2000 USD); your cap is 5.0000 USD")
    assert lines[-1] == f"  next: gpuops run {tmp_path / 'm.yaml'}   (asks before it buys)"
    labels = [line[2:15].strip() for line in lines[1:-1] if line[2:15].strip()]
    assert labels == [
        "costs at most", "price", "device", "offer", "if sold out", "runs", "deadline", "limit", "ended by", "ended by",
        "what survives", "upload", "copies go to",
    ]  # fmt: skip
    assert len(lines) <= 24, "one screen"


def test_what_happens_when_the_machine_is_lost_is_said_where_it_is_approved(tmp_path: Path) -> None:
    train = {"argv": ["python3", "train.py"], "workdir": "/workspace/code", "resume": "2"}
    words = " ".join(plan(tmp_path, train=train).output.split())
    assert "if the machine is lost, another one is rented, at most 2 times, within the same cap and deadline" in words


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    plan(tmp_path)
    assert not (tmp_path / "home").exists() and not (tmp_path / "results").exists()


def test_long_sentences_are_wrapped_under_their_beginning_and_paths_stay_whole() -> None:
    path = "/a/very/long/path/that/somebody/will/copy/and-it-has-hyphens/in-it"
    lines = sheet([("short", "one two three four five six " * 3), ("a longer label", path)], 50)
    assert all(len(line) <= 50 or path in line for line in lines)
    assert lines[1].startswith(" " * 18) and lines[1][18] != " "
    assert lines[-1] == f"  a longer label  {path}"


def test_a_secret_without_a_value_is_known_before_money(tmp_path: Path) -> None:
    error = refused(plan(tmp_path, secrets=["WANDB_API_KEY"]))
    assert error.exit_code == 2 and "WANDB_API_KEY" in error.message and "Nothing was bought" in error.message
    assert error.next_command == "gpuops auth set WANDB_API_KEY"


def test_a_volume_that_is_not_there_is_known_before_money(tmp_path: Path) -> None:
    volumes = [{"id": "vol-mine", "mount": "/data"}]
    error = refused(plan(tmp_path, volumes=volumes))
    assert error.exit_code == 3 and "volume vol-mine is not on account default (it has: none)" in error.message
    made = create_volume("other", 1, directory=tmp_path / "cloud")
    assert f"it has: {made.id}" in refused(plan(tmp_path, volumes=volumes)).message
    assert plan(tmp_path, volumes=[{"id": made.id, "mount": "/data"}]).exit_code == 0


def test_a_listing_with_gaps_does_not_say_that_a_volume_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "faults.json").write_text(json.dumps({"listing_gap": ["here"]}))
    assert plan(tmp_path, volumes=[{"id": "vol-mine", "mount": "/data"}]).exit_code == 0


def test_a_missing_tool_is_known_before_money(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computer, "programs", lambda names: [Finding("rsync", "missing", "not installed", "get rsync")])
    error = refused(plan(tmp_path))
    assert error.exit_code == 3 and "rsync is not installed" in error.message and error.next_command == "get rsync"


def test_copies_that_have_no_place_are_known_before_money(tmp_path: Path) -> None:
    outputs = {"directory": "/workspace/out", "copy_to": "/proc/results"}
    assert "/proc/results cannot be written" in refused(plan(tmp_path, outputs=outputs)).message
    outputs = {"directory": "/workspace/out", "copy_to": "results", "expected_bytes": "9000TB"}
    assert "checkpoints need" in refused(plan(tmp_path, outputs=outputs)).message


def test_everything_that_would_fail_is_told_at_once_and_in_json_beside_the_plan(tmp_path: Path) -> None:
    broken = {"secrets": ["A_TOKEN"], "volumes": [{"id": "vol-mine", "mount": "/data"}]}
    assert "also: volume vol-mine" in refused(plan(tmp_path, **broken)).message
    done = plan(tmp_path, "--json", **broken)
    document = json.loads(done.stdout)
    assert done.exit_code == 2 and document["plan"]["deadline"]
    assert [p["next"][:10] for p in document["problems"]] == ["gpuops aut", "change vol"]
    assert document["error"]["code"] == "credentials" and document["error"]["next"] == "gpuops auth set A_TOKEN"


def test_what_is_offered_instead_is_named(tmp_path: Path) -> None:
    error = refused(plan(tmp_path, resources={"device": "NOSUCH"}))
    assert "It offers 1 x " in error.message and "A100" in error.message, error.message


def test_a_local_file_that_is_not_the_input_is_known_before_money(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"other")
    item = {"to": "/workspace/data.bin", "path": "data.bin", "sha256": "0" * 64}
    error = refused(plan(tmp_path, inputs=[item]))
    assert "data.bin is not the input that the manifest names: sha256 d9298a10" in error.message
    assert "5 bytes instead of 6" in refused(plan(tmp_path, inputs=[{**item, "bytes": 6}])).message
    good = {**item, "sha256": hashlib.sha256(b"other").hexdigest(), "bytes": 5}
    assert plan(tmp_path, inputs=[good]).exit_code == 0


def test_a_revision_that_is_not_there_names_what_to_change(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "code")], check=True)
    transfer = {"git": {"repository": "code", "commit": "v9"}, "to": "/workspace/code"}
    (tmp_path / "code").mkdir(exist_ok=True)
    assert refused(plan(tmp_path, transfers=[transfer])).next_command.startswith("change transfers in ")


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"device": "NOSUCH"}},
        {"budget": {"cap": "0.01"}},
        {"outputs": {"directory": "/workspace/out", "copy_to": "results", "mirror": "false"}},
    ],
)
def test_each_refusal_names_what_to_do_next(tmp_path: Path, changes: dict[str, Any]) -> None:
    error = refused(plan(tmp_path, **changes))
    assert error.exit_code == 3 and "gpuops plan" in error.next_command
