"""What doctor sees on a computer: each line says what it means and which command mends it; nothing is changed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from commandcase import Desk
from runstory import START, Story
from test_startup import HEAVY, modules
from typer.testing import CliRunner, Result

from gpuops.cli import computer
from gpuops.cli.doctor import app
from gpuops.journal import SqliteJournal, examine
from gpuops.registry import credential_names
from gpuops.values import Event, Finding


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUOPS_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")


def doctor(*options: str) -> Result:
    return CliRunner().invoke(app, list(options))


def findings(*options: str) -> dict[str, dict[str, str]]:
    document = json.loads(doctor(*options, "--json").stdout)
    assert document["missing"] == len([f for f in document["findings"] if f["state"] == "missing"])
    return {f["name"]: f for f in document["findings"]}


def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """PATH leads to these scripts and nowhere else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_good_computer_misses_nothing_and_nothing_is_made_on_it(tmp_path: Path) -> None:
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "Nothing that is needed is missing." in done.output
    assert not (tmp_path / "home").exists() and not (tmp_path / "cloud").exists()


def test_a_missing_program_names_what_it_is_for_and_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "echo 'rsync  version 3.4.1  protocol version 32'"
    only(tmp_path, monkeypatch, rsync=line, **{"apt-get": ""})
    seen = findings()
    assert doctor().exit_code == 3
    assert seen["ssh"]["state"] == "missing" and "reaches rented machines" in seen["ssh"]["meaning"]
    assert "openssh" in seen["ssh"]["fix"]
    assert seen["git"]["state"] == "warning"
    assert seen["rsync"] == {
        "about": "this computer", "name": "rsync", "state": "ok", "meaning": "version 3.4.1: sends code and data", "fix": None
    }  # fmt: skip
    (tmp_path / "bin" / "rsync").unlink()
    assert "4 needed and missing.  next: " in doctor().output
    if sys.platform.startswith("linux"):
        assert "next: sudo apt-get install openssh-client rsync\n" in doctor().output, "one command for both"


def test_an_rsync_with_known_holes_is_a_warning_that_can_be_lived_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = {"ssh": "", "ssh-keygen": "", "ssh-keyscan": "", "git": ""}
    only(tmp_path, monkeypatch, rsync="echo 'rsync  version 3.2.7  protocol version 31'", **ssh)
    assert findings()["rsync"]["state"] == "warning" and "3.4.0 mends them" in findings()["rsync"]["meaning"]
    assert doctor().exit_code == 0


def test_a_home_that_cannot_be_written_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOME", "/proc/gpuops")
    assert findings()["home"]["state"] == "missing" and "GPUOPS_HOME" in findings()["home"]["fix"]


def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    inner = os.path.realpath(tmp_path)
    mounts.write_text(
        f"2 1 0:5 / {inner} rw shared:7 - nfs4 server:/home rw\n"
        "1 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"3 1 0:6 / {inner}x rw - tmpfs none rw\nnonsense\n"
    )
    assert computer.file_system(tmp_path / "home", str(mounts)) == "nfs4"
    assert computer.file_system(Path("/elsewhere"), str(mounts)) == "ext4"
    assert computer.file_system(tmp_path, str(tmp_path / "none")) == ""
    assert "nfs4" in computer.NETWORKED


def test_a_journal_is_read_through_and_a_damaged_one_is_told_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "home" / "journal.db"
    journal = SqliteJournal(path)
    journal.append_facts("run-1", (Event("planned", {}),), at=1, wall=1)
    assert findings()["journal"]["meaning"] == "1 run(s), every page can be read"
    journal.close()
    for beside in path.parent.glob("journal.db-*"):
        beside.unlink()
    path.write_bytes(path.read_bytes()[:1000] + b"\xff" * 9000)
    seen = findings()["journal"]
    assert seen["state"] == "missing" and "may bill" in seen["meaning"] and "gpuops adopt" in seen["fix"]
    assert doctor().exit_code == 3


def test_a_page_in_the_middle_that_is_damaged_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append_facts("run-1", tuple(Event("status", {"n": n}) for n in range(2_000)), at=1, wall=1)
    journal.close()
    assert examine(path, 5)[0]
    pages = path.read_bytes()
    path.write_bytes(pages[:20_480] + b"\x05" * 4096 + pages[24_576:])
    good, said = examine(path, 5)
    assert not good and said


def test_a_journal_too_large_to_read_in_time_is_not_called_damaged(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append_facts("run-1", tuple(Event("status", {"n": n}) for n in range(20_000)), at=1, wall=1)
    journal.close()
    assert examine(tmp_path / "journal.db", 0.0) == (True, "not read through in 0 s; nothing wrong so far")


def guard(desk: Desk) -> list[Finding]:
    made = desk.app()
    made.home = replace(made.home, guard=True)
    return list(computer.guard(made))


def test_an_open_run_without_a_guard_is_missing_one_and_an_unarmed_guard_counts_as_none(tmp_path: Path) -> None:
    (first,) = guard(Desk(tmp_path / "a", START, Story().bought()))
    assert first.state == "missing" and first.fix == "gpuops watch run-1"
    unarmed = Story().wanted("ready").tell("unarmed", None, layer="guard on this computer", why="its key is another's")
    assert "its key is another's" in guard(Desk(tmp_path / "b", START, unarmed))[-1].meaning
    (calm,) = guard(Desk(tmp_path / "c", START))
    assert calm.state == "ok"


def test_a_clock_that_is_far_off_is_a_warning() -> None:
    assert computer.clock(2.0, "the provider's time", 60).state == "ok"
    wrong = computer.clock(-400.0, "the provider's time", 60)
    assert wrong.state == "warning" and "400.0 s behind the provider's time" in wrong.meaning and wrong.fix


def test_credentials_are_told_by_name_and_never_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange_adapter.py").write_text('CREDENTIALS = ("STRANGE_KEY",)\nraise SystemExit("was imported")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("strange", "strange_adapter:provider", "gpuops.providers")
    assert credential_names("strange", [entry]) == ("STRANGE_KEY",)
    assert credential_names("other", [entry]) is None and "strange_adapter" not in sys.modules
    monkeypatch.setattr(computer, "credential_names", lambda name: ("STRANGE_KEY",))
    assert findings()["local credentials"]["state"] == "warning"
    assert findings("--provider", "local")["local credentials"]["state"] == "missing"
    monkeypatch.setenv("STRANGE_KEY", "very-secret-value")
    said = doctor("--provider", "local").output
    assert "STRANGE_KEY is in the environment" in said and "very-secret-value" not in said


def test_a_provider_that_is_named_is_asked_and_says_what_it_needs_here(tmp_path: Path) -> None:
    seen = findings("--provider", "local")
    assert seen["sshd"]["about"] == "local" and {"tmux", "isolation"} <= set(seen)
    assert seen["account"]["meaning"].endswith("account default") and seen["clock"]["about"] == "local"
    (tmp_path / "cloud").mkdir(exist_ok=True)
    (tmp_path / "cloud" / "tokens.json").write_text('{"default": "abcdefgh"}')
    refused = findings("--provider", "local")["account"]
    assert refused["state"] == "missing" and refused["fix"].startswith("gpuops auth set")


def test_an_unknown_provider_is_missing_and_the_rest_is_told_all_the_same() -> None:
    done = doctor("--provider", "nowhere")
    assert done.exit_code == 3 and "there is no provider 'nowhere'" in done.output and "This computer" in done.output


def test_without_a_provider_none_is_imported(tmp_path: Path) -> None:
    code, loaded = modules(tmp_path, "doctor")
    assert code == 0 and not loaded & (HEAVY - {"gpuops_providers"})
