"""`SshHost` against a real sshd: pinning, sending, launching, sealing and fetching, with what goes wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hostcase import CANARY, RUN, Case, RealClock

from gpuops import argv, firstlogin
from gpuops.errors import CopyError, HostError, HostKeyMismatch, Unreachable
from gpuops.fetching import CHUNK_BYTES
from gpuops.names import RANGES_FILE
from gpuops.ports import no_progress
from gpuops.spec import Checks
from gpuops.ssh import SshHost
from gpuops.store import LocalStore

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
    whole = f"training {RUN}\n"
    assert ssh.log(RUN, endpoint, spec, 0, case.until()) == (whole, len(whole))
    assert ssh.log(RUN, endpoint, spec, 9, case.until()) == (whole[9:], len(whole))
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
    with pytest.raises(CopyError):
        case.ssh.fetch(RUN, case.endpoint, case.spec, generation, str(into), case.until(), no_progress)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_run_knows_the_pins_of_several_addresses(case: Case) -> None:
    """A lost rental that was replaced may come back, with work on it: it is still the host that was pinned."""
    own = case.ssh.scan(RUN, case.endpoint, case.until())
    case.ssh.pin(RUN, case.endpoint, own)
    other = replace(case.endpoint, host="192.0.2.7")
    case.ssh.pin(RUN, other, own)
    case.ssh.pin(RUN, other, own)
    assert len((case.ssh.runs_dir / RUN / "ssh" / "known_hosts").read_text().splitlines()) == 2
    assert case.ssh.status(RUN, case.endpoint, case.spec, case.until()).phase in ("missing", "ended", "running")
    unknown = replace(case.endpoint, host="192.0.2.8")
    with pytest.raises(HostKeyMismatch, match="another address"):
        case.ssh.status(RUN, unknown, case.spec, case.until())
