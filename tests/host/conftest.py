"""Fixtures of the tests that need a host."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostcase import RUN, Case, RealClock
from sshd import sshd

from gpuops.ssh import SshHost


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshHost]:
    # a control socket's path may have about 90 characters, which pytest's own folders exceed
    with tempfile.TemporaryDirectory(prefix="gpuops-") as short:
        yield SshHost(tmp_path / "runs", Path(os.path.realpath(short)), RealClock())


@pytest.fixture
def case(tmp_path: Path, ssh: SshHost) -> Iterator[Case]:
    public, host_key = ssh.keys(RUN)
    with sshd(tmp_path / "h", public, host_key.private) as host:
        case = Case(tmp_path, ssh, host)
        ssh.pin(RUN, case.endpoint, host_key.public)
        yield case
        ssh.close(RUN)
    assert host.processes() == []
