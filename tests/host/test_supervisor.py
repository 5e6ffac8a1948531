"""The supervisor: training with everything that it starts is ended and classified, whatever the program does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuops.host.supervisor as supervisor

SOURCE = Path(supervisor.__file__)
SAVES_ON_TERM = """
import os, signal, sys, time
def stop(number, frame):
    open(os.environ["GPUOPS_OUTPUT_DIR"] + "/saved", "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""
IGNORES_TERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


class Case:
    """A supervisor process on a plan of its own."""

    def __init__(self, directory: Path) -> None:
        self.state, self.outputs, self.work = directory / "state", directory / "out", directory / "work"
        for path in (self.state, self.outputs, self.work):
            path.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.run = f"case-{os.getpid()}-{time.time_ns()}"

    def start(self, argv: list[str], deadline: float | None = 60, **plan: Any) -> None:
        self.plan = {
            "run": self.run, "boot_id": "boot", "state": str(self.state), "argv": argv, "workdir": str(self.work),
            "outputs": str(self.outputs), "env": {"PATH": os.environ["PATH"]}, "wall_clock_s": 0, "grace_s": 5, **plan,
        }  # fmt: skip
        if deadline is not None:
            self.deadline(time.time() + deadline)
        (self.state / "run.json").write_text(json.dumps(self.plan))
        command = [sys.executable, "-I", str(SOURCE), str(self.state / "run.json")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def deadline(self, at: float, **changes: Any) -> None:
        value = {"run": self.run, "boot_id": "boot", "deadline": at, **changes}
        (self.state / "deadline.new").write_text(json.dumps(value))
        (self.state / "deadline.new").rename(self.state / "deadline.json")

    def python(self, program: str, **plan: Any) -> None:
        self.start([sys.executable, "-c", program], **plan)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "status.json").read_text())
        return found

    def ended(self, within: float = 10) -> dict[str, Any]:
        assert self.process is not None
        self.process.wait(within)
        status = self.status()
        assert status["phase"] == "ended"
        assert self.living() == []
        return status

    def until_log(self, text: bytes) -> None:
        end = time.monotonic() + 10
        while text not in self.log():
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def log(self) -> bytes:
        path = self.state / "train.log"
        return path.read_bytes() if path.exists() else b""

    def living(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"GPUOPS_RUN_ID={self.run}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    if case.process is not None and case.process.poll() is None:
        case.process.kill()
        case.process.wait()
    for pid in case.living():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_exit_zero_alone_is_ended_and_not_completed(case: Case) -> None:
    case.python("print('done')")
    status = case.ended()
    assert (status["outcome"], status["exit_code"], case.log()) == ("ended", 0, b"done\n")


def test_training_that_fails_at_once_is_failed_with_its_exit_code(case: Case) -> None:
    case.python("import sys; sys.exit(3)")
    status = case.ended()
    assert (status["outcome"], status["exit_code"], status["reason"]) == ("failed", 3, "exit 3")


def test_a_command_that_does_not_exist_is_failed_with_the_reason(case: Case) -> None:
    case.start(["/nonexistent/train"])
    status = case.ended()
    assert (status["outcome"], status["exit_code"]) == ("failed", 127)
    assert "cannot start" in status["reason"]


def test_a_signal_is_reported_as_one(case: Case) -> None:
    case.python("import os; os.kill(os.getpid(), 11)")
    status = case.ended()
    assert (status["outcome"], status["exit_code"], status["signal"]) == ("failed", None, 11)


def test_training_that_hangs_is_ended_at_the_deadline_and_may_save(case: Case) -> None:
    case.python(SAVES_ON_TERM, deadline=1.5)
    status = case.ended()
    assert (status["outcome"], status["exit_code"]) == ("interrupted", 0)
    assert "deadline reached" in status["reason"]
    assert (case.outputs / "saved").exists()


def test_the_wall_clock_of_the_manifest_ends_training_before_the_deadline(case: Case) -> None:
    case.python(SAVES_ON_TERM, wall_clock_s=1)
    assert "wall clock" in case.ended()["reason"]


def test_training_that_ignores_sigterm_is_killed_after_its_grace(case: Case) -> None:
    case.python(IGNORES_TERM, deadline=1, grace_s=0.5)
    status = case.ended()
    assert (status["outcome"], status["signal"]) == ("aborted", 9)
    assert "ignored SIGTERM" in status["reason"]


def test_a_stop_request_of_this_run_ends_training_and_one_of_another_run_does_not(case: Case) -> None:
    case.python(SAVES_ON_TERM)
    case.until_log(b"ready")
    stop = case.state / "stop.json"
    stop.write_text(json.dumps({"run": "other", "boot_id": "boot", "why": "not ours"}))
    time.sleep(0.6)
    assert case.status()["phase"] == "running"
    stop.write_text(json.dumps({"run": case.run, "boot_id": "boot", "why": "sealing"}))
    status = case.ended()
    assert (status["outcome"], status["reason"]) == ("interrupted", "sealing; exit 0")


def test_sigterm_to_the_supervisor_is_forwarded(case: Case) -> None:
    case.python(SAVES_ON_TERM)
    case.until_log(b"ready")
    assert case.process is not None
    case.process.terminate()
    assert case.ended()["outcome"] == "interrupted"
    assert (case.outputs / "saved").exists()


def test_a_deadline_moves_and_a_torn_or_foreign_file_changes_nothing(case: Case) -> None:
    case.python(SAVES_ON_TERM, deadline=60)
    case.until_log(b"ready")
    first = case.status()["deadline"]
    for bad in ('{"run": "', "", json.dumps({"run": "other", "boot_id": "boot", "deadline": 1})):
        (case.state / "deadline.json").write_text(bad)
        time.sleep(1.2)
        assert case.status()["phase"] == "running"
    case.deadline(1, boot_id="another boot")
    time.sleep(1.2)
    assert case.status()["deadline"] == first
    later = time.time() + 500
    case.deadline(later)
    time.sleep(1.4)
    assert case.status()["deadline"] == pytest.approx(later)
    assert float((case.state / "deadline").read_text()) == pytest.approx(later, abs=0.01)
    case.deadline(time.time())
    assert case.ended()["outcome"] == "interrupted"


def test_nothing_is_left_writing_also_not_a_child_in_a_session_of_its_own(case: Case) -> None:
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    case.python(
        "import subprocess, sys, os\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '60'])\n",
        grace_s=0.5,
    )
    status = case.ended()
    assert (status["outcome"], status["left_running"]) == ("ended", [])


def test_binary_output_is_kept_byte_for_byte(case: Case) -> None:
    case.python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000); sys.stderr.write('e')")
    case.ended()
    assert case.log() == bytes(range(256)) * 1000 + b"e"


def test_the_contract_reaches_training_and_secrets_only_its_environment(case: Case, tmp_path: Path) -> None:
    secrets = tmp_path / "shm"
    secrets.mkdir(mode=0o700)
    (secrets / "env").write_text(json.dumps({"TOKEN": "canary-7"}))
    case.start(
        [sys.executable, "-c", "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv]))"],
        secrets_file=str(secrets / "env"), resume="/out/gen-1", resume_argument="--resume", max_updates=7,
    )  # fmt: skip
    case.ended()
    environment, argv = json.loads(case.log())
    assert environment["TOKEN"] == "canary-7"
    assert environment["GPUOPS_OUTPUT_DIR"] == str(case.outputs)
    assert environment["GPUOPS_RESUME"] == "/out/gen-1"
    assert environment["GPUOPS_MAX_UPDATES"] == "7"
    assert "GPUOPS_MAX_TOKENS" not in environment
    assert argv[1:] == ["--resume", "/out/gen-1"]
    assert not secrets.exists()
    kept = [p.read_bytes() for p in case.state.iterdir() if p.name != "train.log"]
    assert not any(b"canary-7" in text for text in kept)


def test_a_second_supervisor_of_the_same_run_does_nothing(case: Case) -> None:
    case.python(SAVES_ON_TERM)
    case.until_log(b"ready")
    command = [sys.executable, "-I", str(SOURCE), str(case.state / "run.json")]
    assert subprocess.run(command, timeout=10).returncode == 0
    assert case.status()["phase"] == "running"
    assert case.log() == b"ready\n"


def test_training_is_asked_to_end_when_its_supervisor_is_killed(case: Case) -> None:
    case.python(SAVES_ON_TERM)
    case.until_log(b"ready")
    assert case.process is not None
    case.process.kill()
    case.process.wait()
    end = time.monotonic() + 5
    while case.living() and time.monotonic() < end:
        time.sleep(0.05)
    assert case.living() == []
    assert (case.outputs / "saved").exists()


def _can_mount(path: Path) -> bool:
    return os.getuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def test_the_status_is_written_when_training_fills_the_disk_of_the_state_itself(case: Case, tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.fail("this test needs unshare (util-linux)")
    fill = (
        "import os\nprint('x' * 100, flush=True)\n"
        "out = open(os.environ['GPUOPS_OUTPUT_DIR'] + '/big', 'wb', buffering=0)\nwhile True: out.write(b'x' * 65536)\n"
    )
    case.plan = {
        "run": case.run, "boot_id": "boot", "state": str(case.work), "argv": [sys.executable, "-c", fill],
        "workdir": "/", "outputs": str(case.work), "env": {"PATH": os.environ["PATH"]}, "wall_clock_s": 0, "grace_s": 2,
    }  # fmt: skip
    (case.state / "plan").write_text(json.dumps(case.plan))
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$1" && cp "$2/plan" "$1/run.json" && "$3" -I "$4" "$1/run.json" '
        '&& cp "$1/status.json" "$2/" && df --output=avail "$1" | tail -1'
    )
    user = [] if _can_mount(tmp_path) else ["-Ur"]
    done = subprocess.run(
        ["unshare", *user, "-m", "sh", "-c", script, "-", str(case.work), str(case.state), sys.executable, str(SOURCE)],
        capture_output=True, timeout=30, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    status = case.status()
    assert (status["phase"], status["outcome"], status["exit_code"]) == ("ended", "failed", 1)
    assert done.stdout.split()[-1] == "0"
