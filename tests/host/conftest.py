"""Fixtures of the tests that need a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostcase import RUN, Case, RealClock
from sshd import sshd

from gpuops.ssh import SshHost


@pytest.fixture
def ssh(tmp_path: Path) -> SshHost:
    return SshHost(tmp_path / "runs", Path(os.path.realpath(tmp_path)) / "r", RealClock())


@pytest.fixture
def case(tmp_path: Path, ssh: SshHost) -> Iterator[Case]:
    public, host_key = ssh.keys(RUN)
    with sshd(tmp_path / "h", public, host_key.private) as host:
        case = Case(tmp_path, ssh, host)
        ssh.pin(RUN, case.endpoint, host_key.public)
        yield case
        ssh.close(RUN)
    assert host.processes() == []
