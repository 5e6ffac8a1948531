"""A first manifest: what a folder shows, what is asked, what is written; and that the file is good."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.detect import look, split
from gpuops.cli.init import app
from gpuops.errors import UsageError
from gpuops.manifest import load

ARGPARSE = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume", help="path of a checkpoint")
"""
CONSTANTS = "out_dir = 'out'\nimport torch\ntorch.save({}, f'{out_dir}/ckpt.pt')\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))


def folder(tmp_path: Path, **files: str) -> Path:
    made = tmp_path / "my Training"
    for name, text in (files or {"train": ARGPARSE}).items():
        made.mkdir(exist_ok=True)
        (made / f"{name}.py").write_text(text)
    return made


def init(where: Path, *options: str) -> Result:
    """Without a terminal."""
    return CliRunner().invoke(app, [str(where), *options])


def told(result: Result) -> str:
    """The error that left the command, and the command that it names."""
    assert isinstance(result.exception, UsageError), result.output
    assert result.exception.next_command
    return result.exception.message


def test_without_a_terminal_what_the_folder_shows_is_taken_and_the_file_is_good(tmp_path: Path) -> None:
    where = folder(tmp_path)
    done = init(where)
    assert done.exit_code == 0, done.output
    spec = load(where / "gpuops.yaml")
    assert spec.name == "my-training" and spec.provider == "local"
    assert spec.train.argv == ("python3", "train.py", "--output_dir", "/workspace/out")
    assert spec.outputs.directory == "/workspace/out"
    assert spec.transfers[0].source == str(where) and spec.outputs.destination == str(where / "gpuops-results")
    assert f"next: gpuops check {where / 'gpuops.yaml'}" in done.output


def test_a_folder_that_the_script_names_by_itself_is_where_checkpoints_appear_and_is_not_sent(tmp_path: Path) -> None:
    where = folder(tmp_path, train=CONSTANTS)
    assert init(where).exit_code == 0
    spec = load(where / "gpuops.yaml")
    assert spec.train.argv == ("python3", "train.py")
    assert spec.outputs.directory == "/workspace/code/out"
    assert "/out" in spec.transfers[0].exclude


def test_every_answer_is_an_option(tmp_path: Path) -> None:
    where = folder(tmp_path, train="print(1)", other="print(2)")
    options = ["--provider", "local", "--command", 'python other.py --lr 0.1 --tag "a b"', "--checkpoints", "weights"]
    options += [
        "--cap",
        "2.5",
        "--deadline",
        "90m",
        "--device",
        "H100",
        "--name",
        "mine",
        "-o",
        str(tmp_path / "m.yaml"),
    ]
    assert init(where, *options).exit_code == 0
    spec = load(tmp_path / "m.yaml")
    assert spec.train.argv == ("python3", "other.py", "--lr", "0.1", "--tag", "a b")
    assert (spec.name, str(spec.cap), spec.deadline_s, spec.need.device) == ("mine", "2.5 USD", 5400, "H100")
    assert spec.outputs.directory == "/workspace/code/weights"
    assert spec.transfers[0].source == str(where) and spec.outputs.destination == str(where / "gpuops-results")


def test_a_file_that_is_there_is_written_over_only_when_told(tmp_path: Path) -> None:
    where = folder(tmp_path)
    (where / "gpuops.yaml").write_text("mine")
    assert "is there already" in told(init(where))
    assert (where / "gpuops.yaml").read_text() == "mine"
    assert init(where, "--force").exit_code == 0
    assert load(where / "gpuops.yaml").name == "my-training"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "does not show where it writes checkpoints"),
        (["--checkpoints", "."], "folder of their own"),
        (["--checkpoints", ".."], "folder of their own"),
        (["--checkpoints", "~/out"], "write the folder of checkpoints out"),
        (["--checkpoints", "out", "--provider", "nowhere"], "there is no provider 'nowhere'; known: aws, gcp, local"),
        (["--checkpoints", "out", "--cap", "much"], "is not an amount of money"),
        (["--checkpoints", "out", "--cap", "0"], "must be more than 0"),
        (["--checkpoints", "out", "--deadline", "soon"], "is not a duration"),
        (["--checkpoints", "out", "--command", "python 'train.py"], "No closing quotation"),
    ],
)
def test_what_cannot_be_right_is_refused_and_nothing_is_written(tmp_path: Path, options: list[str], words: str) -> None:
    where = folder(tmp_path, train="print(1)")
    assert words in told(init(where, *options))
    assert [p.name for p in where.iterdir()] == ["train.py"]


def test_an_empty_folder_needs_the_command(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no training script was found" in told(init(tmp_path / "empty"))


def test_json_tells_answers_and_what_was_seen(tmp_path: Path) -> None:
    where = folder(tmp_path)
    document = json.loads(init(where, "--json").stdout)
    assert document["argv"] == ["python3", "train.py", "--output_dir", "/workspace/out"]
    assert document["seen"] == {"script": "train.py", "output_argument": "--output_dir", "git": False}
    assert document["next"] == f"gpuops check {where / 'gpuops.yaml'}"


def test_a_git_checkout_is_noticed_and_what_git_ignores_is_named(tmp_path: Path) -> None:
    where = folder(tmp_path)
    subprocess.run(["git", "init", "-q", str(where)], check=True)
    (where / ".gitignore").write_text("data/\n__pycache__/\n")
    for name in ("data", "__pycache__"):
        (where / name).mkdir()
        (where / name / "part").write_text("x")
    assert look(where).git_ignored == ("data",)
    said = init(where).output
    assert "git ignores data/" in said and ".gitignore" in said


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--model-path", "--checkpoint_path", "--data_dir", "--log-dir"], ""),
        (["--ckpt_dir"], "--ckpt_dir"),
        (["--checkpoint-dir", "--output_dir"], "--output_dir"),
        (["--outdir"], "--outdir"),
        (["--save-path"], "--save-path"),
    ],
)
def test_the_argument_for_results_is_told_from_those_for_inputs(
    tmp_path: Path, arguments: list[str], found: str
) -> None:
    text = "".join(f"parser.add_argument({a!r})\n" for a in arguments)
    assert look(folder(tmp_path, train=text)).output_argument == found


@pytest.mark.parametrize(
    ("typed", "argv"),
    [
        ("python train.py", ("python3", "train.py")),
        ("torchrun --nproc 2 train.py 'a b'", ("torchrun", "--nproc", "2", "train.py", "a b")),
        ("pip install -r r.txt && python train.py", ("bash", "-c", "pip install -r r.txt && python train.py")),
        ("python train.py > log", ("bash", "-c", "python train.py > log")),
        ("python train.py --data $HOME/x", ("bash", "-c", "python train.py --data $HOME/x")),
        ("python train.py 'a;b'", ("python3", "train.py", "a;b")),
    ],
)
def test_a_command_becomes_a_list_and_gets_a_shell_only_where_it_needs_one(typed: str, argv: tuple[str, ...]) -> None:
    assert split(typed) == argv


@pytest.mark.parametrize("text", ["a b", "true", "7", "- x", "a: b", "#", "ü", "--lr=0.1", "{x}", "'", '"', "\\n"])
def test_every_argument_is_read_back_as_it_was_typed(tmp_path: Path, text: str) -> None:
    where = folder(tmp_path)
    assert init(where, "--command", f"python3 train.py {shlex.quote(text)}").exit_code == 0
    assert load(where / "gpuops.yaml").train.argv[2] == text


def test_a_shell_line_cannot_be_told_where_to_write_so_the_scripts_own_folder_counts(tmp_path: Path) -> None:
    where = folder(tmp_path)
    line = "pip install -r r.txt && python train.py"
    assert init(where, "--command", line).exit_code == 0
    spec = load(where / "gpuops.yaml")
    assert spec.train.argv == ("bash", "-c", line) and spec.outputs.directory == "/workspace/code/out"
    assert init(where, "--force", "--command", f"{line} --output_dir /x/y").exit_code == 0
    assert load(where / "gpuops.yaml").outputs.directory == "/x/y"


def test_on_a_terminal_it_asks_and_an_empty_answer_takes_what_was_found(tmp_path: Path) -> None:
    where = folder(tmp_path)
    screen = type_into(["init", str(where)], ["", "", "weights", "1.5"])
    spec = load(where / "gpuops.yaml")
    assert "Which provider rents the machine (aws, gcp, local)" in screen
    assert "Which command trains?" in screen and "Where does it write checkpoints?" in screen
    assert spec.train.argv == ("python3", "train.py", "--output_dir", "/workspace/code/weights")
    assert str(spec.cap) == "1.5 USD"


def type_into(arguments: list[str], answers: list[str], patience_s: float = 30) -> str:
    """Run gpuops on a terminal of its own and answer each prompt; returns the screen."""
    leader, follower = pty.openpty()
    process: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, "-m", "gpuops", *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    screen, rest, end = "", list(answers), time.monotonic() + patience_s
    try:
        while time.monotonic() < end:
            if not select.select([leader], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(leader, 4096).decode()
            except OSError:  # the other side is closed
                break
            screen += piece
            if screen.rstrip().endswith("]:") and rest:
                os.write(leader, rest.pop(0).encode() + b"\n")
    finally:
        process.kill() if time.monotonic() >= end else process.wait(10)
        os.close(leader)
    assert not rest, screen
    return screen
