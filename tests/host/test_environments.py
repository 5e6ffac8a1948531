"""Environments on the host: built from a lock by pip where there is no uv, used again by content, half ones made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.test_environment import wheel

from gpuops.host import environments, probing
from gpuops.host.files import RefusedError
from gpuops.host.jobs import Job


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (tmp_path / "lock.txt").write_text(wheel(wheels, "trainingtools", "1.4"))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels)}
    environment = {"lock": str(tmp_path / "lock.txt"), "command": [], "directory": str(tmp_path / "environments")}
    return {
        "run": "small", "argv": ["python3", "train.py"], "workdir": str(tmp_path), "outputs": str(tmp_path / "out"),
        "env": offline, "environment": environment,
    }  # fmt: skip


@pytest.mark.parametrize("has_uv", [True, False])
def test_a_lock_is_built_once_and_seen_from_inside(
    plan: dict[str, Any], tmp_path: Path, has_uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if not has_uv:
        monkeypatch.setattr(environments, "_uv", lambda base, found: [])
    log = str(tmp_path / "log")
    first = environments.build(plan, log)
    assert first["how"] == "lock" and not first["reused"], Path(log).read_text()
    assert "trainingtools==1.4" in environments.look(plan)["packages"]
    assert ("-m venv" not in Path(log).read_text()) is has_uv
    assert environments.build(plan, log)["reused"]


def test_another_lock_is_another_environment_and_half_of_one_is_made_anew(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    log = str(tmp_path / "log")
    environments.build(plan, log)
    place = Path(environments.place_of(plan))
    (place / environments.STAMP).unlink()
    (place / "half").write_text("x")
    assert not environments.build(plan, log)["reused"] and not (place / "half").exists()
    Path(plan["environment"]["lock"]).write_text("# another one\n" + Path(plan["environment"]["lock"]).read_text())
    assert environments.place_of(plan) != str(place)


def test_a_lock_that_is_not_there_is_named(plan: dict[str, Any], tmp_path: Path) -> None:
    os.unlink(plan["environment"]["lock"])
    with pytest.raises(RefusedError, match=r"lock\.txt cannot be read"):
        environments.build(plan, str(tmp_path / "log"))


def test_a_job_is_done_once_for_each_key_and_outlives_who_asked(tmp_path: Path) -> None:
    count = tmp_path / "count"

    def work(log: str) -> dict[str, Any]:
        time.sleep(0.5)
        with count.open("a") as out:
            out.write("x")
        return {"answer": 42}

    state = str(tmp_path)
    assert Job(state, "work", "a").ask(work, 0.0) is None
    assert Job(state, "work", "a").ask(work, 10.0) == {"answer": 42}
    assert Job(state, "work", "a").ask(work, 0.0) == {"answer": 42}
    assert count.read_text() == "x"
    assert Job(state, "work", "b").ask(work, 10.0) == {"answer": 42} and count.read_text() == "xx"


def test_what_a_job_refuses_is_told_to_whoever_asks(tmp_path: Path) -> None:
    def work(log: str) -> dict[str, Any]:
        raise RefusedError("no such compiler")

    for _ in range(2):
        with pytest.raises(RefusedError, match="no such compiler"):
            Job(str(tmp_path), "work", "a").ask(work, 10.0)


def test_a_job_whose_process_was_killed_is_begun_again(tmp_path: Path) -> None:
    def work(log: str) -> dict[str, Any]:
        time.sleep(60 if not (tmp_path / "again").exists() else 0)
        return {"answer": 1}

    assert Job(str(tmp_path), "work", "a").ask(work, 0.3) is None
    begun = json.loads((tmp_path / "work.begun.json").read_text())
    (tmp_path / "again").write_text("")
    os.kill(begun["pid"], 9)
    os.waitpid(begun["pid"], 0)
    assert Job(str(tmp_path), "work", "a").ask(work, 10.0) == {"answer": 1}


def test_a_probe_that_hangs_is_ended_with_all_its_processes(plan: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    plan = {
        **plan,
        "environment": None,
        "argv": ["sh", "-c", "trap '' TERM; sleep 300 & sleep 300"],
        "updates": 1,
        "timeout_s": 0.5,
    }
    probing_grace, probing.GRACE_S = probing.GRACE_S, 0.5
    try:
        found = probing.measure(plan, {}, str(tmp_path / "log"))
    finally:
        probing.GRACE_S = probing_grace
    assert found["timed_out"] and found["exit_code"] == -9 and found["seconds"] < 10
    left = subprocess.run(["pgrep", "-f", "sleep 300"], capture_output=True, text=True).stdout
    assert left == "" and not (tmp_path / "out" / probing.FOLDER).exists()
