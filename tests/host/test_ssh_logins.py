"""Logins that are not a plain root shell: refused commands, start files that hang, and tools that have to be installed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostcase import RUN, Case

from gpuops.errors import HostError, Unreachable
from gpuops.host import facts, tools


@contextmanager
def forced(case: Case, script: str) -> Iterator[None]:
    """Every login of the host runs this script instead of what was asked for."""
    command = case.host.bin / "forced"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    settings = case.directory / "h" / "sshd_config"
    settings.write_text(f"{settings.read_text()}ForceCommand {command}\n")
    case.host.stop()
    case.host.start()
    yield


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Use a terminal.\x1b[2J'; exit 1", r"exit code 1, it says: Use a terminal\.\\x1b\[2J\): it cannot carry"),
        ("exit 0", r"runs no commands \(exit code 0\): it cannot carry transfers"),
        ("cat >/dev/null; exit 127", r"no python3 of version 3\.8 or later"),
    ],
)  # fmt: skip
def test_a_login_that_runs_nothing_is_refused_at_once_with_what_it_said(case: Case, script: str, why: str) -> None:
    with forced(case, script), pytest.raises(HostError, match=why) as caught:
        case.ssh.check(RUN, case.endpoint, case.spec, case.until())
    assert not isinstance(caught.value, Unreachable), "trying again cannot help"
    assert case.host.logins() == 1


@pytest.mark.parametrize("script", ["sleep 100", "echo Welcome; sleep 100", "while :; do echo junk; sleep 0.1; done"])
def test_a_start_file_that_hangs_costs_the_time_of_the_call_and_is_named(case: Case, script: str) -> None:
    begun = time.monotonic()
    with forced(case, script), pytest.raises(Unreachable, match=r"a start file such as \.bashrc may hang"):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until(3))
    assert time.monotonic() - begun < 8


def test_a_connection_that_breaks_is_not_taken_for_a_refusal(case: Case) -> None:
    with forced(case, 'kill -9 "$(cat /proc/$PPID/stat | cut -d" " -f4)" $PPID'), pytest.raises(Unreachable):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until(10))


# --- installing


SHIM = '#!/bin/sh\necho "{name} $*" >> {log}\n{script}\n'


class Image:
    """A PATH with nothing on it but what a test puts there, and a record of what was called."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
        self.bin, self.log = directory / "bin", directory / "log"
        self.bin.mkdir()
        monkeypatch.setattr(tools, "image_environment", lambda: {"PATH": f"{self.bin}:/bin:/usr/bin"})
        monkeypatch.setattr(tools, "MANAGERS", tuple((f"test-{n}", s) for n, s in tools.MANAGERS))
        monkeypatch.setattr(os, "getuid", lambda: uid)
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")

    def has(self, name: str, script: str = "") -> None:
        (self.bin / name).write_text(SHIM.format(name=name, log=self.log, script=script))
        (self.bin / name).chmod(0o755)

    def install(self, seconds: float = 10) -> str:
        return str(tools.install({"tools": ["tmux", "rsync"], "seconds": seconds})["said"])

    def called(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    return Image(tmp_path, monkeypatch, 0)


@pytest.fixture
def as_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    return Image(tmp_path, monkeypatch, 1000)


def test_root_installs_by_the_package_manager_that_is_there(as_root: Image) -> None:
    as_root.has("test-apk")
    assert as_root.install() == "installed by test-apk: tmux, rsync"
    assert as_root.called() == ["test-apk add --no-cache tmux rsync"]


def test_a_user_installs_by_a_sudo_that_asks_for_no_password(as_user: Image) -> None:
    as_user.has("test-apt-get")
    as_user.has("sudo", 'shift; exec "$@"')
    assert as_user.install() == "installed by test-apt-get with sudo: tmux, rsync"
    assert as_user.called()[-1] == "test-apt-get install -y -q --no-install-recommends tmux rsync"


@pytest.mark.parametrize("sudo", ["exit 1", None])
def test_a_user_without_rights_installs_nothing(as_user: Image, sudo: str | None) -> None:
    as_user.has("test-dnf")
    as_user.has("sudo", sudo or "exit 127")
    said = as_user.install()
    assert said == "tmux, rsync not installed by test-dnf: this user is not root and has no sudo without a password"
    assert "test-dnf" not in " ".join(as_user.called()), said


def test_what_goes_wrong_is_said_and_nothing_outlasts_its_time(as_root: Image) -> None:
    assert as_root.install() == "tmux, rsync not installed: no package manager that gpuops knows"
    as_root.has("test-apt-get", "echo 'E: no network'; exit 100")
    assert as_root.install() == "tmux, rsync not installed by test-apt-get: exit code 100: E: no network"
    as_root.has("test-apt-get", "sleep 100")
    begun = time.monotonic()
    assert as_root.install(0.5) == "tmux, rsync not installed by test-apt-get: test-apt-get did not end in time"
    assert time.monotonic() - begun < 5
    left = subprocess.run(["pgrep", "-f", str(as_root.bin)], capture_output=True, text=True).stdout.split()
    assert left == [], "its children are ended with it"


# --- folders


def test_a_folder_that_the_login_cannot_write_to_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts.closed(str(tmp_path / "not" / "yet" / "there")) == ""
    assert facts.closed("nowhere") == facts.closed("") == facts.closed("/"), "what is no absolute path ends at the root"
    (tmp_path / "file").write_text("")
    assert facts.closed(str(tmp_path / "file" / "below")) == f"{tmp_path}/file is no directory"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    tmp_path.chmod(0o755)
    assert facts.closed(str(tmp_path / "x")) == f"{tmp_path} is closed to this user (mode 755)"
