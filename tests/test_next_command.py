"""No error leaves a person without the command to run next."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from gpuops import cli, errors
from gpuops.cli import driving
from gpuops.errors import (
    CredentialsError,
    GateRefused,
    GpuopsError,
    HostError,
    ManifestError,
    ProviderError,
    UsageError,
)

SOURCE = Path(cli.__file__).parent
GATES = (*sorted(SOURCE.glob("*.py")), SOURCE.parent / "plan.py")
# a manifest's complaint names file, line and key; a journal's is completed where it is caught
EXEMPT = {"ManifestError", "JournalError", "Stale", "GpuopsError"}
NAMES = {n for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, GpuopsError)} - EXEMPT


@pytest.mark.parametrize("file", GATES, ids=lambda f: f.name)
def test_each_error_that_a_command_or_a_gate_raises_names_the_next_command(file: Path) -> None:
    calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
    made = [n for n in calls if getattr(n.func, "id", "") in NAMES]
    silent = [f"{file.name}:{n.lineno}" for n in made if "next_command" not in {k.arg for k in n.keywords}]
    assert silent == []


@pytest.mark.parametrize("command", ["plan", "up", "watch", "logs", "reconcile", "doctor", "nonsense"])
@pytest.mark.parametrize(
    "error",
    [ProviderError("p"), HostError("h"), GateRefused("g"), CredentialsError("c"), UsageError("u"), ManifestError("m")],
)
def test_what_comes_from_further_down_gets_one_when_it_leaves(
    command: str,
    error: GpuopsError,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["gpuops", command])
    error.next_command = ""
    assert cli._fail(error, error.exit_code) == error.exit_code
    assert "\n  next: " in capsys.readouterr().err


@pytest.mark.parametrize("code", [3, 4, 5, 6])
def test_a_closed_run_that_left_something_undone_names_one_too(code: int) -> None:
    from runstory import Story

    assert driving._after(Story().state, code)
