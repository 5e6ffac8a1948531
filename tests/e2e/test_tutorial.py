"""The tutorial is run, block after block, in one shell; what it says is printed must be printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.world import World

from gpuops.cli import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/tutorial/README.md"
STEP = re.compile(r"<!-- run -->\n```sh\n(.*?)```\n(?:<!-- prints -->\n```\n(.*?)```\n)?", re.S)


def steps() -> list[tuple[str, list[str]]]:
    """(what is typed, the lines that must appear in this order)."""
    return [(typed, shown.splitlines()) for typed, shown in STEP.findall(PAGE.read_text())]


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines of the page that the program did not print after the ones before; `...` stands for anything."""
    rest = printed.splitlines()
    lost = []
    for line in shown:
        pattern = ".*".join(re.escape(part.rstrip()) for part in line.split("..."))
        at = next((n for n, said in enumerate(rest) if re.fullmatch(pattern, said.rstrip())), None)
        if at is None:
            lost.append(line)
        else:
            rest = rest[at + 1 :]
    return lost


def test_the_page_names_only_commands_that_exist() -> None:
    named = set(re.findall(r"gpuops ([a-z]+)\b", PAGE.read_text())) - {"on", "alone"}
    assert named <= set(COMMANDS)
    assert {"init", "check", "plan", "run", "doctor", "status", "reconcile", "down"} <= named


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_the_page_types_works_and_prints_what_the_page_shows(world: World) -> None:
    tools = world.root / "tools"
    tools.mkdir()
    (tools / "gpuops").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuops "$@"\n')
    (tools / "gpuops").chmod(0o755)
    env = {**world.env, "PATH": f"{tools}:{os.environ['PATH']}"}
    where = world.root
    assert len(steps()) >= 5
    for typed, shown in steps():
        done = subprocess.run(
            ["bash", "-e"], input=f"{typed}\npwd > '{world.root}/where'\n", env=env, cwd=where, text=True, timeout=100,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{typed}\n{done.stdout}"
        assert missing(shown, done.stdout) == [], done.stdout
        where = Path((world.root / "where").read_text().strip())
    assert world.rentals() == []
