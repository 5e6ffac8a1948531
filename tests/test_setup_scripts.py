"""The scripts that a newcomer starts, against stand-ins for the system's tools; and what the locks may contain."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(p for p in (*(ROOT / "script").iterdir(), ROOT / ".ci/run") if p.is_file())
SHELL_SCRIPTS = [p for p in SCRIPTS if p.suffix == ".sh" or b"bash" in p.read_bytes().split(b"\n", 1)[0]]
LOCKS = [ROOT / "requirements/run.txt", ROOT / "requirements/test.txt"]

BASIC_TOOLS = "bash cat chmod cp cut dirname env flock grep ls mkdir mktemp mv rm sed sleep tail tee".split()
NEEDED_TOOLS = "ssh rsync sshd tmux bwrap ps findmnt setsid df ip unshare nsenter".split()

# Makes a real but empty environment; installing is only written down.
FAKE_PYTHON = """#!/bin/bash
case "$*" in
  "-m venv "*)
    echo venv >> "$CALLS"
    "$REAL_PYTHON" -m venv --without-pip "$3" && rm "$3/bin/python" && cp "$0" "$3/bin/python" ;;
  "-m pip install "*)
    echo "pip ${@: -2}" >> "$CALLS"
    [ -z "$FAIL_PIP" ] || exit 1
    [ "${@: -2:1}" != -e ] || printf '#!/bin/sh\\n' > "$(dirname "$0")/gpuops"
    chmod +x "$(dirname "$0")/gpuops" 2>/dev/null || true ;;
  "-c import pip") exit 0 ;;
  "-c import ensurepip, venv") [ -z "$NO_ENSUREPIP" ] ;;
  *)
    if [ -e "$(dirname "$0")/../pyvenv.cfg" ]; then exec "$(dirname "$0")/python3" "$@"; fi
    exec "$REAL_PYTHON" "$@" ;;
esac
"""
FAKE_APT = """#!/bin/bash
echo "apt-get ${*#*Use-Pty=0 }" >> "$CALLS"
case " $* " in
  *" install "*) for tool in $NEEDED; do printf '#!/bin/sh\\n' > "$BIN/$tool"; chmod +x "$BIN/$tool"; done ;;
esac
"""


@dataclass
class Machine:
    """A scratch checkout and a PATH on which nothing stands but what the test put there."""

    checkout: Path
    bin: Path
    calls: Path

    def add(self, name: str, text: str = "#!/bin/sh\n") -> None:
        # unlink first: the name may be a symlink to a real program, and writing would go through it
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        known = {
            "PATH": str(self.bin),
            "HOME": str(self.checkout),
            "BIN": str(self.bin),
            "CALLS": str(self.calls),
            "NEEDED": " ".join(NEEDED_TOOLS),
            "REAL_PYTHON": getattr(sys, "_base_executable", sys.executable),
        }
        return subprocess.run(
            [self.bin / "bash", self.checkout / "script/setup", *arguments],
            env={**known, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def made(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A Linux machine with Python, for root, with neither the needed tools nor a way to install them."""
    machine = Machine(tmp_path / "checkout", tmp_path / "bin", tmp_path / "calls")
    machine.bin.mkdir()
    for name in ("script", "requirements"):
        shutil.copytree(ROOT / name, machine.checkout / name)
    shutil.copy(ROOT / "pyproject.toml", machine.checkout)
    # The scripts also look into the system's sbin folders; here they must not see what this machine has there.
    common = machine.checkout / "script/_common.sh"
    common.write_text(common.read_text().replace(":/usr/local/sbin:/usr/sbin:/sbin", ""))
    script = machine.checkout / "script/setup"
    script.write_text(script.read_text().replace("/usr/sbin/policy-rc.d", str(tmp_path / "policy-rc.d")))
    for name in BASIC_TOOLS:
        found = shutil.which(name)
        assert found, f"this machine has no {name}"
        (machine.bin / name).symlink_to(found)
    machine.add("python3", FAKE_PYTHON)
    machine.add("id", "#!/bin/sh\necho ${FAKE_UID:-0}\n")
    machine.add("uname", "#!/bin/sh\necho ${FAKE_SYSTEM:-Linux}\n")
    return machine


@pytest.fixture
def equipped(bare: Machine) -> Machine:
    """The same machine with every tool that gpuops calls."""
    for name in NEEDED_TOOLS:
        bare.add(name)
    return bare


# --- what the scripts promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda p: p.name)
def test_a_script_is_valid_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("name", ["setup", "demo", "test", "lint"])
def test_help_says_how_to_use_it_and_changes_nothing(name: str) -> None:
    shown = subprocess.run([ROOT / "script" / name, "--help"], capture_output=True, text=True, check=True).stdout
    assert f"usage: script/{name}" in shown
    assert "--yes" in shown


@pytest.mark.parametrize("name", ["setup", "demo", "test", "lint"])
def test_a_script_can_be_started(name: str) -> None:
    assert os.access(ROOT / "script" / name, os.X_OK)


def test_an_unknown_argument_is_a_usage_error(bare: Machine) -> None:
    result = bare.setup("--tset")
    assert result.returncode == 2
    assert "--tset" in result.stderr


# --- the environment --------------------------------------------------------------------------------------------------


def test_set_up_installs_the_lock_and_then_gpuops(equipped: Machine) -> None:
    result = equipped.setup()
    assert result.returncode == 0, result.stderr
    assert equipped.made() == [
        "venv",
        f"pip -r {equipped.checkout}/requirements/run.txt",
        f"pip -e {equipped.checkout}",
    ]


def test_a_second_set_up_does_nothing(equipped: Machine) -> None:
    equipped.setup()
    result = equipped.setup()
    assert (result.returncode, equipped.made(), result.stderr) == (0, [], "")


def test_set_up_for_tests_serves_the_demo_too(equipped: Machine) -> None:
    equipped.setup("--test")
    equipped.setup()
    assert equipped.made() == []


def test_a_set_up_for_the_demo_is_completed_for_tests(equipped: Machine) -> None:
    equipped.setup()
    equipped.setup("--test")
    assert equipped.made() == [f"pip -r {equipped.checkout}/requirements/test.txt", f"pip -e {equipped.checkout}"]


def test_a_changed_lock_is_installed_into_the_same_environment(equipped: Machine) -> None:
    equipped.setup()
    with (equipped.checkout / "requirements/run.txt").open("a") as lock:
        lock.write("# changed\n")
    equipped.setup()
    assert equipped.made() == [f"pip -r {equipped.checkout}/requirements/run.txt", f"pip -e {equipped.checkout}"]


def test_an_interrupted_set_up_is_never_taken_for_a_complete_one(equipped: Machine) -> None:
    equipped.add("sleep")  # the pauses between attempts
    assert equipped.setup(FAIL_PIP="1").returncode != 0
    assert equipped.made().count(f"pip -r {equipped.checkout}/requirements/run.txt") == 3
    assert equipped.setup().returncode == 0
    assert equipped.made()[0] == "venv"


def test_the_broken_folder_that_venv_leaves_on_debian_is_replaced(equipped: Machine) -> None:
    (equipped.checkout / ".venv/bin").mkdir(parents=True)
    (equipped.checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert equipped.setup().returncode == 0
    assert equipped.made()[0] == "venv"


def test_a_moved_checkout_gets_a_new_environment(equipped: Machine) -> None:
    equipped.setup()
    equipped.checkout = equipped.checkout.rename(equipped.checkout.parent / "elsewhere")
    assert equipped.setup().returncode == 0
    assert equipped.made()[0] == "venv"


# --- system packages --------------------------------------------------------------------------------------------------


def test_root_without_a_terminal_installs_what_is_missing_and_says_so(bare: Machine) -> None:
    bare.add("apt-get", FAKE_APT)
    result = bare.setup()
    assert result.returncode == 0, result.stderr
    assert "openssh-server" in result.stderr
    assert [c for c in bare.made() if "install" in c and "bubblewrap" in c]


def test_a_present_tool_is_not_installed_again(equipped: Machine) -> None:
    (equipped.bin / "tmux").unlink()
    equipped.add("apt-get", FAKE_APT)
    equipped.setup()
    assert [c.split("recommends ")[1] for c in equipped.made() if " install " in c] == ["tmux"]


def test_python_without_ensurepip_gets_its_package_where_there_is_no_uv(equipped: Machine) -> None:
    equipped.add("apt-get", FAKE_APT)
    equipped.setup(NO_ENSUREPIP="1")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert [c.split("recommends ")[1] for c in equipped.made() if " install " in c] == [f"python{version}-venv"]


def test_the_services_held_back_during_installation_are_released(bare: Machine, tmp_path: Path) -> None:
    bare.add("apt-get", FAKE_APT)
    bare.setup()
    assert not (tmp_path / "policy-rc.d").exists()


def test_somebody_elses_service_policy_stays(bare: Machine, tmp_path: Path) -> None:
    (tmp_path / "policy-rc.d").write_text("theirs")
    bare.add("apt-get", FAKE_APT)
    bare.setup()
    assert (tmp_path / "policy-rc.d").read_text() == "theirs"


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stderr.splitlines()[-1]


def test_a_user_who_cannot_be_asked_is_told_the_command(bare: Machine) -> None:
    bare.add("apt-get", FAKE_APT)
    bare.add("sudo", '#!/bin/bash\n[ "$1" = -n ] && shift\nexec "$@"\n')
    result = bare.setup(FAKE_UID="1000")
    assert result.returncode == 3
    assert "sudo apt-get install" in last_line(result)
    assert bare.made() == []


def test_a_user_who_said_yes_installs_by_sudo(bare: Machine) -> None:
    bare.add("apt-get", FAKE_APT)
    bare.add("sudo", '#!/bin/bash\n[ "$1" = -n ] && shift\nexec "$@"\n')
    bare.add("true")
    assert bare.setup("--yes", FAKE_UID="1000").returncode == 0


def test_without_rights_one_line_says_what_an_administrator_must_do(bare: Machine) -> None:
    bare.add("apt-get", FAKE_APT)
    result = bare.setup("--yes", FAKE_UID="1000")
    assert result.returncode == 3
    assert "ask an administrator to run: apt-get install" in last_line(result)


def test_another_linux_is_told_what_is_missing(bare: Machine) -> None:
    result = bare.setup()
    assert result.returncode == 3
    assert "no apt-get" in last_line(result)
    assert "tmux" in last_line(result)


def test_macos_is_told_what_to_brew(bare: Machine) -> None:
    result = bare.setup(FAKE_SYSTEM="Darwin")
    assert result.returncode == 3
    assert last_line(result).endswith("brew install openssh rsync")


# --- the locks --------------------------------------------------------------------------------------------------------


def pinned(lock: Path) -> dict[str, set[str]]:
    """The versions of each package; several where they differ by Python version."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", lock.read_text(), re.MULTILINE):
        versions.setdefault(name, set()).add(version)
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_a_lock_names_no_host_index_or_path(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if "://" in line or "/" in line or line.startswith("-")] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_every_locked_package_has_hashes(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", lock.read_text())[1:]
    assert entries
    assert [e.splitlines()[0] for e in entries if "--hash=sha256:" not in e] == []


def test_the_test_lock_contains_the_run_lock() -> None:
    run, test = map(pinned, LOCKS)
    assert {name: test.get(name) for name in run} == run


def test_the_locks_satisfy_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    build = [*project["build-system"]["requires"], *project["dependency-groups"]["build"]]
    run_needs = [*project["project"]["dependencies"], *extras["demo"], *build]
    for lock, needs in ((LOCKS[0], run_needs), (LOCKS[1], [*run_needs, *extras["test"]])):
        versions = pinned(lock)
        for requirement in map(Requirement, needs):
            locked = versions.get(requirement.name.lower(), set())
            assert locked, f"{requirement} is not in {lock.name}: run script/lock"
            assert all(v in requirement.specifier for v in locked), f"{requirement} in {lock.name}: run script/lock"


def test_the_run_lock_holds_no_cloud_sdk() -> None:
    names = pinned(LOCKS[0])
    assert [n for n in names if n.startswith(("boto", "google-", "runpod", "vastai", "azure"))] == []
