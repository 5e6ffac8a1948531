"""A host behind a jump host: both are pinned, one login each, and the jump host is never asked for more than to carry bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hostcase import RUN, Case, RealClock
from sshd import Sshd, sshd

from gpuops.errors import HostKeyMismatch, Unreachable
from gpuops.hostkeys import Jump
from gpuops.ssh import SshHost
from gpuops.values import Endpoint


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[Case, Sshd]]:
    """A case whose host is reached through a second sshd, which accepts a key of its own."""
    with tempfile.TemporaryDirectory(prefix="gpuops-") as short:
        plain = SshHost(tmp_path / "jump-keys", Path(os.path.realpath(short)), RealClock())
        jump_public, jump_key = plain.keys("jump")
        with sshd(tmp_path / "jump", jump_public, jump_key.private) as jump_host:
            identity = str(tmp_path / "jump-keys" / "jump" / "ssh" / "client")
            jump = Jump(Endpoint(jump_host.host, jump_host.port, jump_host.user), jump_key.public, identity)
            ssh = SshHost(tmp_path / "runs", Path(os.path.realpath(short)), RealClock(), jump)
            public, host_key = ssh.keys(RUN)
            with sshd(tmp_path / "h", public, host_key.private) as host:
                case = Case(tmp_path, ssh, host)
                ssh.pin(RUN, case.endpoint, host_key.public)
                yield case, jump_host
                ssh.close(RUN)


def test_everything_goes_through_the_jump_host(far: tuple[Case, Sshd]) -> None:
    case, jump_host = far
    facts = case.ssh.check(RUN, case.endpoint, case.spec, case.until())
    assert all(c.ok for c in facts.checks if c.name == "device")
    assert case.send()[0] == 1
    case.launch(STEPS="3")
    case.wait_for(lambda: case.ssh.status(RUN, case.endpoint, case.spec, case.until()).phase == "ended")
    assert case.host.logins() == 2 and jump_host.logins() == 2, "the first check, and the shared connection"


def test_a_jump_host_with_another_key_is_refused_and_the_host_never_asked(
    far: tuple[Case, Sshd], tmp_path: Path
) -> None:
    case, jump_host = far
    assert case.ssh.jump is not None
    other = replace(case.ssh.jump, host_key=case.ssh.keys("other")[1].public)
    wrong = SshHost(case.ssh.runs_dir, case.ssh.runtime_dir, RealClock(), other)
    with pytest.raises(HostKeyMismatch, match="not the one that was pinned"):
        wrong.check(RUN, case.endpoint, case.spec, case.until())
    with pytest.raises(
        (HostKeyMismatch, Unreachable)
    ):  # ssh drops what a jump host says once it runs in the background
        wrong.preview(RUN, case.endpoint, case.spec, case.until())
    assert case.host.logins() == 0 and jump_host.logins() == 0


def test_a_host_with_another_key_behind_the_right_jump_host_is_refused(far: tuple[Case, Sshd]) -> None:
    case, _ = far
    case.ssh.pin(RUN, case.endpoint, case.ssh.keys("other")[1].public)
    with pytest.raises(HostKeyMismatch):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until())
    assert case.host.logins() == 0


def test_the_key_of_a_host_is_read_over_the_jump_host(far: tuple[Case, Sshd]) -> None:
    case, _ = far
    presented = case.ssh.scan(RUN, case.endpoint, case.until())
    assert presented == case.ssh.keys(RUN)[1].public.rsplit(" ", 1)[0] or presented in case.ssh.keys(RUN)[1].public


def test_a_jump_host_that_is_down_is_unreachable_and_named(far: tuple[Case, Sshd]) -> None:
    case, jump_host = far
    jump_host.stop()
    with pytest.raises(Unreachable, match="jump host"):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until(10))
