"""Every test gets its own home and cloud, and leaves no process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # short paths: control sockets and the cloud's sshd configuration have limits that pytest's folders exceed
    with tempfile.TemporaryDirectory(prefix="gpuops-e2e-") as short:
        made = World(tmp_path, Path(short) / "home", Path(short) / "cloud")
        made.configure()
        try:
            yield made
        finally:
            made.end()
