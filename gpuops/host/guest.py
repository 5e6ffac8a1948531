"""The timer inside the machine that powers it off, where that ends the bill: a file that belongs to root."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from gpuops.host.files import RefusedError, atomic_write

DEADLINE_FILE = "/etc/gpuops/deadline"
STEP_S = 10.0


def move_end(request: dict[str, Any]) -> dict[str, Any]:
    """Write the moment at which the machine powers off, whole seconds since 1970, and read it back.

    Raises `RefusedError` when there is no such file, or when this user may not write it.
    """
    path, text = str(request.get("file", DEADLINE_FILE)), f"{int(request['at'])}\n"
    if not os.path.exists(path):
        raise RefusedError(f"this machine has no timer of its own: {path} is not there")
    if os.access(os.path.dirname(path), os.W_OK):
        atomic_write(path, text.encode(), 0o644)
    else:
        for command in (["tee", f"{path}.new"], ["mv", f"{path}.new", path]):
            _as_root(command, text)
    with open(path) as source:
        said = source.read(64).strip()
    return {"at": int(said) if said.isdigit() else None}


def _as_root(command: list[str], text: str) -> None:
    try:
        done = subprocess.run(["sudo", "-n", *command], input=text.encode(), capture_output=True, timeout=STEP_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"sudo: {error}") from error
    if done.returncode:
        raise RefusedError(
            f"this user may not move the machine's timer: {done.stderr.decode('utf-8', 'replace')[:200]}"
        )
