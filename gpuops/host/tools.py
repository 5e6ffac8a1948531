"""Installing what is missing on the host, bounded in time: as root, or by a sudo that asks for no password."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import Any

from gpuops.host.facts import image_environment

MANAGERS: tuple[tuple[str, list[list[str]]], ...] = (
    ("apt-get", [["update", "-q"], ["install", "-y", "-q", "--no-install-recommends"]]),
    ("dnf", [["install", "-y", "-q"]]),
    ("microdnf", [["install", "-y"]]),
    ("yum", [["install", "-y", "-q"]]),
    ("apk", [["add", "--no-cache"]]),
    ("zypper", [["--non-interactive", "install", "--no-recommends"]]),
    ("pacman", [["-Sy", "--noconfirm", "--needed"]]),
)
"""Package managers and their steps; the last step takes the packages, which are called like the tools everywhere."""


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Install `tools` within `seconds`; `said` tells a person what came of it. Never an error: something else stands in."""
    end = time.monotonic() + float(request["seconds"])
    environment = {**image_environment(), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    path, wanted = environment["PATH"], [str(tool) for tool in request["tools"]]
    what = ", ".join(wanted)
    found = [(name, steps) for name, steps in MANAGERS if shutil.which(name, path=path)]
    if not found:
        return {"said": f"{what} not installed: no package manager that gpuops knows"}
    name, steps = found[0]
    problem = _rights(environment, end)
    for number, step in enumerate(steps):
        packages = wanted if number == len(steps) - 1 else []
        if not problem:
            problem = _run([*_sudo(), name, *step, *packages], environment, end)
    if problem:
        return {"said": f"{what} not installed by {name}: {problem}"}
    return {"said": f"installed by {name}{' with sudo' if _sudo() else ''}: {what}"}


def _sudo() -> list[str]:
    return [] if os.getuid() == 0 else ["sudo", "-n"]


def _rights(environment: dict[str, str], end: float) -> str:
    if os.getuid() == 0 or not _run([*_sudo(), "true"], environment, end):
        return ""
    return "this user is not root and has no sudo without a password"


def _run(command: list[str], environment: dict[str, str], end: float) -> str:
    """Run one step; why it failed, or nothing. At the end of the time it is ended with its children."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"{error}"
    try:
        out = child.communicate(timeout=max(0.1, end - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass  # it runs as somebody else: it goes on and disturbs nothing
        return f"{command[len(_sudo())]} did not end in time"
    last = out.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"exit code {child.returncode}{': ' + last[0][:200] if last else ''}" if child.returncode else ""
