"""The timer inside the machine: its file is moved by rename and read back, by root or with a sudo that asks for nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hostcase import RUN, Case

from gpuops.host import guest
from gpuops.host.files import RefusedError


@pytest.fixture
def timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "deadline").write_text("1800000000\n")
    return tmp_path / "etc" / "deadline"


def test_the_end_is_moved_and_read_back(timer: Path) -> None:
    before = timer.stat().st_ino
    assert guest.move_end({"at": 1900000000, "file": str(timer)}) == {"at": 1900000000}
    assert timer.read_text() == "1900000000\n" and timer.stat().st_ino != before, "whoever reads sees old or new"
    assert timer.stat().st_mode & 0o777 == 0o644


def test_a_machine_without_a_timer_says_so(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no timer of its own"):
        guest.move_end({"at": 1, "file": str(tmp_path / "none")})


def test_a_user_who_may_not_write_it_uses_a_sudo_that_asks_for_nothing(
    timer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sudo").write_text('#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(guest.os, "access", lambda path, mode: False)
    assert guest.move_end({"at": 1900000000, "file": str(timer)}) == {"at": 1900000000}
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
    with pytest.raises(RefusedError, match="may not move the machine's timer: sudo: a password is required"):
        guest.move_end({"at": 1, "file": str(timer)})


def test_a_file_that_holds_no_number_is_not_taken_for_one(timer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "atomic_write", lambda path, data, mode: None)
    timer.write_text("soon\n")
    assert guest.move_end({"at": 1, "file": str(timer)}) == {"at": None}


def test_over_ssh_a_host_without_a_timer_is_told_as_it_is(case: Case) -> None:
    from gpuops.errors import HostError

    with pytest.raises(HostError, match="no timer of its own"):
        case.ssh.set_guest_end(RUN, case.endpoint, time.time() + 3600, time.time() + 30)
