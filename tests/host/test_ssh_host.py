"""`SshHost` against a real sshd: pinning, sending, launching, sealing and fetching, with what goes wrong on the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from sshd import Sshd, sshd

from gpuops import argv, firstlogin
from gpuops.errors import HostError, HostKeyMismatch, Unreachable
from gpuops.fetching import CHUNK_BYTES
from gpuops.names import RANGES_FILE
from gpuops.ports import no_progress
from gpuops.ssh import SshHost
from gpuops.store import LocalStore
from gpuops.values import (
    Checks,
    Endpoint,
    FileHash,
    Generation,
    Money,
    Need,
    Outputs,
    Spec,
    Teardown,
    Train,
    Transfer,
)

RUN = "demo-1"
CANARY = "canary-93b1"
TRAIN = """
import hashlib, json, os, signal, sys, time
out, stop = os.environ["GPUOPS_OUTPUT_DIR"], []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
assert os.environ["TOKEN"]
print("training", os.environ["GPUOPS_RUN_ID"], flush=True)
for step in range(1, 1000):
    temporary = os.path.join(out, ".tmp-%d" % step)
    os.mkdir(temporary)
    data = os.urandom(1000)
    open(temporary + "/w.bin", "wb").write(data)
    files = [{"path": "w.bin", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    json.dump({"step": step, "files": files}, open(temporary + "/MANIFEST.json", "w"))
    os.rename(temporary, os.path.join(out, "gen-%04d" % step))
    with open(out + "/heartbeat.jsonl", "a") as beats:
        beats.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    if stop or step == int(os.environ.get("STEPS", "999")):
        sys.exit(0)
    time.sleep(0.1)
"""


class RealClock:
    def now(self) -> float:
        return time.time()

    def wall(self) -> float:
        return time.time()

    def learn(self, provider_time: float) -> None: ...

    def sleep_until(self, at: float) -> None: ...


class Case:
    """A pinned host with a source tree, a spec, and short words for bounded calls."""

    def __init__(self, directory: Path, ssh: SshHost, host: Sshd) -> None:
        self.directory, self.ssh, self.host = directory, ssh, host
        self.endpoint = Endpoint(host.host, host.port, host.user)
        self.source = directory / "src"
        self.source.mkdir()
        (self.source / "train.py").write_text(TRAIN)
        self.workdir, self.outputs = directory / "h" / "w" / "code", directory / "h" / "w" / "out"
        self.spec = Spec(
            name="demo", owner="me", provider="local", need=Need("A100"), image="", disk_gb=1, volumes=(),
            checks=Checks(device="A100", memory_gb=80, driver="535.1"),
            transfers=(Transfer(str(self.source), str(self.workdir)),), max_total_bytes=1 << 30, inputs_sha256="",
            env=(), secrets=("TOKEN",),
            train=Train((sys.executable, "train.py"), str(self.workdir), grace_s=5),
            outputs=Outputs(str(self.outputs), str(directory / "copies")), cap=Money(Decimal(1)), deadline_s=60,
            deadline_at=0, hold_s=60, setup_s=60, teardown=Teardown(),
        )  # fmt: skip

    def until(self, seconds: float = 30) -> float:
        return time.time() + seconds

    def send(self) -> tuple[int, int]:
        approved = self.ssh.preview(RUN, self.endpoint, self.spec, self.until())
        return self.ssh.send(RUN, self.endpoint, self.spec, approved, self.until())

    def launch(self, **env: str) -> str:
        spec = replace(self.spec, env=tuple(env.items()))
        return self.ssh.launch(RUN, self.endpoint, spec, {"TOKEN": CANARY}, self.until(60), "", self.until())

    def wait_for(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not done():
            assert time.monotonic() < end
            time.sleep(0.1)

    def on_host(self, *blobs: bytes) -> Generation:
        """A generation that lies on the host, without any training."""
        directory = self.outputs / "gen-1"
        directory.mkdir(parents=True)
        files = []
        for number, blob in enumerate(blobs):
            (directory / f"f{number}").write_bytes(blob)
            files.append(FileHash(f"f{number}", len(blob), hashlib.sha256(blob).hexdigest()))
        return Generation("gen-1", 1, tuple(files))


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


# --- keys and pinning ------------------------------------------------------------------------------------------------


def test_keys_are_made_once_and_private(ssh: SshHost, tmp_path: Path) -> None:
    first = ssh.keys(RUN)
    assert ssh.keys(RUN) == first
    assert first[1].fingerprint.startswith("SHA256:")
    assert first[0] != ssh.keys("demo-2")[0]
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "runs" / RUN / "ssh").iterdir()}
    assert modes["client"] == modes["host"] == 0o600


def test_another_host_key_is_refused_by_both_clients_before_anything_is_sent(case: Case) -> None:
    case.ssh.pin(RUN, case.endpoint, case.ssh.keys("other-run")[1].public)
    with pytest.raises(HostKeyMismatch):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until())
    with pytest.raises(HostKeyMismatch):
        case.ssh.status(RUN, case.endpoint, case.spec, case.until())
    log = case.host.log.read_text()
    assert "authenticating user" not in log and case.host.logins() == 0


def test_the_key_pinned_for_one_run_does_not_serve_another(case: Case) -> None:
    case.ssh.keys("other-run")
    with pytest.raises(HostKeyMismatch):
        case.ssh.status("other-run", case.endpoint, case.spec, case.until())
    with pytest.raises(HostKeyMismatch):
        case.ssh.status(RUN, replace(case.endpoint, port=case.endpoint.port - 1), case.spec, case.until())
    assert case.host.logins() == 0


def test_an_unknown_key_is_never_accepted(case: Case, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    identity = tmp_path / "runs" / RUN / "ssh" / "client"
    login = argv.Login(case.endpoint, str(identity), str(empty), "ssh-ed25519", str(tmp_path / "c.s"))
    with pytest.raises(HostKeyMismatch):
        firstlogin.connect(login, 10)
    done = subprocess.run(argv.master(login, 5), capture_output=True, text=True, timeout=20)
    assert done.returncode == 255 and "Host key verification failed" in done.stderr
    assert empty.read_bytes() == b"" and case.host.logins() == 0


def test_fabric_rejects_unknown_keys_and_reads_no_configuration_of_the_user(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(f"Host *\n ProxyCommand touch {tmp_path}/proxied\n ForwardAgent yes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    connection = firstlogin.connect(case.ssh._login(RUN, case.endpoint), 10)
    assert type(connection.client._policy).__name__ == "RejectPolicy"
    assert connection.forward_agent is False
    connection.close()
    assert not (tmp_path / "proxied").exists()


def test_openssh_reads_no_configuration_of_the_user(case: Case, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n ProxyCommand touch /nonexistent\n ForwardAgent yes\n")
    passwd = tmp_path / "passwd"
    passwd.write_text(f"{case.host.user}:x:{os.getuid()}:{os.getgid()}::{tmp_path}:/bin/sh\n")
    space = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
    inside = [*space, "sh", "-c", f'mount --bind {passwd} /etc/passwd && exec "$@"', "-"]
    host = case.endpoint.host
    taken = subprocess.run([*inside, "ssh", "-G", host], capture_output=True, text=True, timeout=20)
    assert "forwardagent yes" in taken.stdout, taken.stderr
    ours = ["ssh", "-G", *argv.options(case.ssh._login(RUN, case.endpoint)), host]
    told = subprocess.run([*inside, *ours], capture_output=True, text=True, timeout=20).stdout.splitlines()
    assert "forwardagent no" in told and "stricthostkeychecking true" in told
    assert not any(line.startswith("proxycommand") for line in told)


def test_scan_shows_the_key_that_the_host_presents(case: Case) -> None:
    assert case.ssh.scan(RUN, case.endpoint, case.until()) == case.ssh.keys(RUN)[1].public


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_host_that_does_not_answer_costs_no_more_than_the_given_time(case: Case) -> None:
    assert case.host.process is not None
    os.kill(case.host.process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    for call in (case.ssh.check, case.ssh.status):
        with pytest.raises(Unreachable):
            call(RUN, case.endpoint, case.spec, case.until(2))
    assert time.monotonic() - begun < 8
    os.kill(case.host.process.pid, signal.SIGCONT)


def test_nothing_listens(case: Case) -> None:
    case.host.stop()
    with pytest.raises(Unreachable):
        case.ssh.check(RUN, case.endpoint, case.spec, case.until(5))
    with pytest.raises(Unreachable):
        case.ssh.status(RUN, case.endpoint, case.spec, case.until(5))


def test_the_connection_is_found_again_by_another_process_and_a_dead_one_is_replaced(
    case: Case, tmp_path: Path
) -> None:
    case.ssh.status(RUN, case.endpoint, case.spec, case.until())
    again = SshHost(case.ssh.runs_dir, case.ssh.runtime_dir, RealClock())
    again.status(RUN, case.endpoint, case.spec, case.until())
    assert case.host.logins() == 1
    case.host.cut()
    assert again.status(RUN, case.endpoint, case.spec, case.until()).phase == "missing"
    assert case.host.logins() == 2


def test_a_login_shell_that_prints_does_no_harm(case: Case) -> None:
    (case.host.home / ".bashrc").write_text("printf 'junk\\033[2J\\n'; echo more >&2\n")
    assert case.ssh.status(RUN, case.endpoint, case.spec, case.until()).phase == "missing"
    generation = case.on_host(b"abc")
    into = case.directory / "into"
    into.mkdir()
    assert case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), no_progress)


def test_a_socket_path_that_is_too_long_is_said_at_once(case: Case, tmp_path: Path) -> None:
    deep = SshHost(case.ssh.runs_dir, tmp_path / ("x" * 80), RealClock())
    with pytest.raises(HostError, match="too long"):
        deep.status(RUN, case.endpoint, case.spec, case.until())


# --- check -----------------------------------------------------------------------------------------------------------


def test_the_check_compares_expected_with_seen(case: Case) -> None:
    case.host.tell(published_ports=[22, 8888])
    wrong = replace(case.spec, checks=Checks(device="H100", count=2, memory_gb=141, driver="570", free_gb=1e6))
    facts = case.ssh.check(RUN, case.endpoint, wrong, case.until())
    bad = {c.name for c in facts.checks if not c.ok}
    assert bad == {"device", "device count", "device memory", "driver", "free space", "published ports"}
    case.host.tell()
    facts = case.ssh.check(RUN, case.endpoint, case.spec, case.until())
    assert [c for c in facts.checks if not c.ok] == []
    assert "simulated" in facts.facts["device"]


# --- preview and send ------------------------------------------------------------------------------------------------


def test_the_list_shows_what_goes_what_stays_and_what_looks_like_a_secret(case: Case) -> None:
    source = case.source
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / ".gitignore").write_text("data/\n*.log\n")
    for name in ("data/big", "a.log", ".env", "__pycache__/x.pyc", "id_rsa", "mine/keep", "skip/me"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("x")
    (source / "config.yaml").write_text("token: hf_" + "a" * 34)
    (source / "my_credentials.json").write_text("{}")
    os.symlink("train.py", source / "link")
    spec = replace(case.spec, transfers=(replace(case.spec.transfers[0], exclude=("skip",)),))
    shown = case.ssh.preview(RUN, case.endpoint, spec, case.until())
    kinds = {f.path: f.kind for f in shown.trees[0][1]}
    assert kinds == {
        ".gitignore": "file", "config.yaml": "file", "link": "link", "mine": "directory", "mine/keep": "file",
        "my_credentials.json": "file", "train.py": "file",
    }  # fmt: skip
    left_out = {e.split(": ")[1] for e in shown.excluded}
    assert left_out == {".git/", "data/", "a.log", ".env", "__pycache__/", "id_rsa", "skip/"}
    assert [s.split(": ")[1] for s in shown.suspicious] == ["config.yaml", "my_credentials.json"]
    assert not case.workdir.exists()


@pytest.mark.parametrize("name", [b"new\nline", b"esc\x1b[2J", b"latin-\xff", b"back\\#012slash\x7f"])
def test_names_that_cannot_be_carried_are_refused(case: Case, name: bytes) -> None:
    with open(os.fsencode(case.source) + b"/" + name, "w"):
        pass
    with pytest.raises(HostError, match=r"control characters|UTF-8") as caught:
        case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    assert caught.value.message.isprintable()


def test_strange_but_harmless_names_arrive(case: Case) -> None:
    for name in ("a b", "ünï", "-rf", "$(x)", "q'\"q", "back\\#012", ";", "#hash", "star*"):
        (case.source / name).write_text(name)
    assert case.send()[0] == 10
    assert (case.workdir / "back\\#012").read_text() == "back\\#012"


def test_a_link_that_leaves_the_tree_is_refused_unless_followed(case: Case, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("content")
    os.symlink("../outside", case.source / "link")
    with pytest.raises(HostError, match="leaves the tree"):
        case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    case.spec = replace(case.spec, transfers=(replace(case.spec.transfers[0], follow=True),))
    case.send()
    assert (case.workdir / "link").read_text() == "content" and not (case.workdir / "link").is_symlink()


def test_too_much_is_refused_and_the_biggest_are_named(case: Case) -> None:
    (case.source / "huge.bin").write_bytes(b"x" * 5000)
    with pytest.raises(HostError, match=r"huge\.bin \(5,000 bytes\)"):
        case.ssh.preview(RUN, case.endpoint, replace(case.spec, max_total_bytes=4000), case.until())


def test_a_change_after_the_approval_is_refused(case: Case) -> None:
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    (case.source / "train.py").write_text(TRAIN + "\n")
    with pytest.raises(HostError, match="changed since"):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())
    assert not case.workdir.exists()


def test_nothing_on_the_host_is_deleted_and_the_list_is_the_same_the_second_time(case: Case) -> None:
    case.workdir.mkdir(parents=True)
    (case.workdir / "results").write_text("theirs")
    first = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    case.send()
    assert case.ssh.preview(RUN, case.endpoint, case.spec, case.until()) == first
    assert (case.workdir / "results").read_text() == "theirs"


def test_one_corrupted_byte_is_found(case: Case) -> None:
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    shim = case.host.bin / "rsync"
    rsync = shutil.which("rsync")
    flip = f"printf X | dd of={case.workdir}/train.py bs=1 seek=20 conv=notrunc 2>/dev/null"
    shim.write_text(f'#!/bin/sh\n{rsync} "$@"; code=$?; {flip}; exit $code\n')
    shim.chmod(0o755)
    with pytest.raises(HostError, match=r"train\.py differs on the host"):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())


SLOWLY = """
import os, time
while data := os.read(0, 65536):
    while data:
        data = data[os.write(1, data):]
    time.sleep(0.02)
"""


def test_an_rsync_that_was_killed_half_way_is_resumed(case: Case) -> None:
    (case.source / "data.bin").write_bytes(os.urandom(6 << 20))
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    shim = case.host.bin / "rsync"
    shim.write_text(f"#!/bin/sh\npython3 -c '{SLOWLY}' | {shutil.which('rsync')} \"$@\"\n")
    shim.chmod(0o755)

    def kill_half_way() -> None:
        case.wait_for(lambda: any(p.stat().st_size > 1 << 20 for p in case.workdir.glob(".data.bin.*")))
        found = subprocess.run(["pgrep", "-P", str(os.getpid()), "rsync"], capture_output=True, text=True)
        for pid in found.stdout.split():
            os.killpg(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill_half_way)
    killer.start()
    with pytest.raises(Unreachable):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())
    killer.join()
    partial = case.workdir / ".gpuops-partial" / "data.bin"
    case.wait_for(partial.exists)
    shim.unlink()
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 2
    assert not partial.exists()
    assert case.host.logins() == 1


def test_inputs_are_verified_on_the_host(case: Case) -> None:
    (case.source / "in.bin").write_bytes(b"input")
    (case.source / "SHA256SUMS").write_text(f"{hashlib.sha256(b'input').hexdigest()}  in.bin\n")
    case.spec = replace(case.spec, inputs_sha256=str(case.source / "SHA256SUMS"))
    assert case.send()[0] == 4
    (case.source / "SHA256SUMS").write_text(f"{hashlib.sha256(b'another').hexdigest()}  in.bin\n")
    with pytest.raises(HostError, match=r"in\.bin differs"):
        case.send()


def test_inputs_that_lie_on_the_host_already_are_verified_there(case: Case) -> None:
    case.send()
    (case.workdir / "data").write_bytes(b"volume")
    (case.workdir / "SUMS").write_text(f"{hashlib.sha256(b'volume').hexdigest()} *data\n")
    case.spec = replace(case.spec, inputs_sha256="SUMS")
    assert case.send()[0] == 2


# --- launch, status, seal --------------------------------------------------------------------------------------------


def test_a_whole_run_with_two_logins_and_no_secret_where_it_must_not_be(case: Case) -> None:
    ssh, endpoint, spec = case.ssh, case.endpoint, case.spec
    ssh.check(RUN, endpoint, spec, case.until())
    case.send()
    boot = case.launch()
    assert case.launch() == boot
    case.wait_for(lambda: len(ssh.status(RUN, endpoint, spec, case.until()).generations) > 2)
    status = ssh.status(RUN, endpoint, spec, case.until())
    assert (status.phase, status.boot_id, status.log_tail) == ("running", boot, f"training {RUN}\n")
    assert status.beat["step"] >= 2
    assert case.host.logins() == 2
    later = case.until(500)
    assert ssh.set_deadline(RUN, endpoint, later, case.until()) == pytest.approx(later)
    early = ssh.hash_generation(RUN, endpoint, spec, status.generations[0], case.until())
    assert early.id == "gen-0001"
    commands = b"".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
    assert CANARY.encode() not in commands
    sealed = ssh.seal(RUN, endpoint, spec, case.until())
    assert (sealed.outcome, sealed.exit_code) == ("interrupted", 0)
    assert len(sealed.generations) == 2 and sealed.generations[0].step > sealed.generations[1].step
    assert ssh.seal(RUN, endpoint, spec, case.until()) == sealed
    store = LocalStore()
    for generation in (*sealed.generations, sealed.telemetry):
        attempt = store.attempt(RUN, spec.outputs.destination, generation)
        assert ssh.fetch(RUN, endpoint, spec, generation, attempt, case.until(), no_progress)
        store.publish(RUN, spec.outputs.destination, generation, attempt)
    tree = [p for p in case.directory.rglob("*") if p.is_file() and p.name != "passwd"]
    assert not any(CANARY.encode() in p.read_bytes() for p in tree)
    assert list(Path("/dev/shm").glob(f".gpuops-*-{RUN}*")) == []


def test_exit_zero_with_a_complete_generation_is_completed(case: Case) -> None:
    case.send()
    case.launch(STEPS="2")
    status = case.ssh.status
    case.wait_for(lambda: status(RUN, case.endpoint, case.spec, case.until()).phase == "ended")
    assert status(RUN, case.endpoint, case.spec, case.until()).outcome == "completed"
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert (sealed.outcome, [g.id for g in sealed.generations]) == ("completed", ["gen-0002", "gen-0001"])


def test_a_damaged_newest_generation_falls_back(case: Case) -> None:
    case.send()
    case.launch(STEPS="3")
    case.wait_for(lambda: case.ssh.status(RUN, case.endpoint, case.spec, case.until()).phase == "ended")
    weights = case.outputs / "gen-0003" / "w.bin"
    data = bytearray(weights.read_bytes())
    data[500] ^= 1
    weights.write_bytes(data)
    os.truncate(case.outputs / "gen-0002" / "w.bin", 999)
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert [g.id for g in sealed.generations] == ["gen-0001"]
    assert "gen-0003" in sealed.reason and "gen-0002" in sealed.reason


def test_a_host_on_which_nothing_was_launched_seals_as_aborted(case: Case) -> None:
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert (sealed.outcome, sealed.generations) == ("aborted", ())


def test_a_launch_into_a_command_that_is_missing_ends_as_failed(case: Case) -> None:
    case.send()
    case.spec = replace(case.spec, train=replace(case.spec.train, argv=("no-such-program",)))
    case.launch()
    case.wait_for(lambda: case.ssh.status(RUN, case.endpoint, case.spec, case.until()).phase == "ended")
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert (sealed.outcome, sealed.exit_code) == ("failed", 127)


def test_a_supervisor_that_was_killed_is_told_and_its_training_ended(case: Case) -> None:
    case.send()
    case.launch()
    case.wait_for(lambda: (case.outputs / "gen-0001").exists())
    state = case.host.home / ".gpuops" / RUN
    os.kill(json.loads((state / "status.json").read_text())["supervisor"][0], signal.SIGKILL)
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert sealed.outcome == "aborted" and "supervisor" in sealed.reason
    assert sealed.generations


def test_a_host_that_was_started_anew_is_missing_and_seals_as_interrupted(case: Case) -> None:
    case.send()
    boot = case.launch()
    case.wait_for(lambda: bool(case.ssh.status(RUN, case.endpoint, case.spec, case.until()).generations))
    case.host.stop()
    case.host.tell(boot="second")
    case.host.start()
    status = case.ssh.status(RUN, case.endpoint, case.spec, case.until())
    assert status.phase == "missing" and status.boot_id != boot
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until())
    assert (sealed.outcome, bool(sealed.generations)) == ("interrupted", True)


def test_hostile_generation_names_never_become_local_paths(case: Case) -> None:
    case.send()
    for name in ("bad\nname", "esc\x1b[2J", "-rf"):
        (case.source / "train.py").write_text("")
        directory = case.outputs / name
        directory.mkdir(parents=True)
        (directory / "w").write_text("x")
    (case.outputs.parent / "good").mkdir()
    (case.outputs / "fine-1").mkdir()
    (case.outputs / "fine-1" / "w").write_text("x")
    os.symlink("/etc/passwd", case.outputs / "fine-1" / "\x1b]0;title")
    os.symlink(case.outputs.parent, case.outputs / "link-1")
    sealed = case.ssh.seal(
        RUN, case.endpoint, replace(case.spec, outputs=replace(case.spec.outputs, keep_last=9)), case.until()
    )
    assert [g.id for g in sealed.generations] == ["fine-1"]
    assert sealed.generations[0].left_behind == ("\\x1b]0;title",)
    assert sealed.reason.isprintable() and "refused a generation" in sealed.reason


# --- fetch -----------------------------------------------------------------------------------------------------------


def test_a_connection_cut_in_the_middle_is_resumed_by_range(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.ssh.channels_for", lambda endpoint, size: 3)
    blobs = (os.urandom(3 * CHUNK_BYTES + 7), b"", os.urandom(100))
    generation = case.on_host(*blobs)
    into = case.directory / "into"
    into.mkdir()
    cuts = []

    def cut(what: str, done: float, total: float) -> None:
        if not cuts:
            cuts.append(done)
            case.host.cut()

    assert case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), cut)
    assert [(into / f"f{n}").read_bytes() for n in range(3)] == list(blobs)
    assert case.host.logins() == 2


def test_a_fetch_out_of_time_says_so_and_the_next_goes_on_where_it_ended(case: Case) -> None:
    generation = case.on_host(os.urandom(3 * CHUNK_BYTES))
    into = case.directory / "into"
    into.mkdir()
    assert not case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(-1), no_progress)
    seen: list[float] = []

    def one_and_stop(what: str, done: float, total: float) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), one_and_stop)
    record = (into / RANGES_FILE).read_text().splitlines()
    (into / RANGES_FILE).write_text("\n".join([record[0], json.dumps([0, 0, CHUNK_BYTES])]) + "\n[0, 83")
    seen.clear()
    fetch = case.ssh.fetch
    assert fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), lambda w, d, t: seen.append(d))
    assert seen == [2 * CHUNK_BYTES, 3 * CHUNK_BYTES]


@pytest.mark.parametrize("change", ["gone", "short", "link", "fifo"])
def test_what_is_no_longer_as_it_was_sealed_is_an_error(case: Case, change: str) -> None:
    generation = case.on_host(b"x" * 1000)
    path = case.outputs / "gen-1" / "f0"
    path.unlink()
    if change == "short":
        path.write_bytes(b"x" * 999)
    if change == "link":
        (case.outputs / "t").write_bytes(b"x" * 1000)
        path.symlink_to(case.outputs / "t")
    if change == "fifo":
        os.mkfifo(path)
    into = case.directory / "into"
    into.mkdir()
    with pytest.raises(HostError, match="no longer has"):
        case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), no_progress)


def test_a_local_link_in_the_attempt_is_not_followed(case: Case, tmp_path: Path) -> None:
    generation = case.on_host(b"x" * 10)
    into = case.directory / "into"
    into.mkdir()
    (tmp_path / "precious").write_text("mine")
    (into / "f0").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), no_progress)
    assert (tmp_path / "precious").read_text() == "mine"
