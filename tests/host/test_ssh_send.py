"""Sending to a real host: the list that is approved, and that exactly it arrives."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hostcase import RUN, TRAIN, Case, RealClock
from repository import Repository

from gpuops import gitsource, sending
from gpuops.errors import HostError, ListChanged, Unreachable
from gpuops.render import send_lines
from gpuops.spec import Input, Transfer


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
    with pytest.raises(ListChanged, match="changed since"):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())
    assert not case.workdir.exists()


def test_all_that_is_left_out_is_counted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_EXCLUDED", 15)
    for number in range(20):
        (case.source / f"x{number}.skip").write_text("")
    transfer = replace(case.spec.transfers[0], exclude=("*.skip",))
    spec = replace(case.spec, transfers=(transfer,))
    found = sending.preview(spec, None, RealClock(), case.until())
    assert (len(found.excluded), found.excluded_count) == (15, 20)
    assert any(line.endswith(" and 8 more") for line in send_lines(found))


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


def test_a_dead_connection_is_replaced_on_the_way(case: Case) -> None:
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    case.host.cut()
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 1
    assert case.host.logins() == 2


def test_inputs_are_verified_on_the_host(case: Case) -> None:
    (case.source / "in.bin").write_bytes(b"input")
    (case.source / "SHA256SUMS").write_text(f"{hashlib.sha256(b'input').hexdigest()}  in.bin\n")
    case.spec = replace(case.spec, inputs_sha256=str(case.source / "SHA256SUMS"))
    assert case.send()[0] == 3, "a file that was sent is counted once"
    (case.source / "SHA256SUMS").write_text(f"{hashlib.sha256(b'another').hexdigest()}  in.bin\n")
    with pytest.raises(HostError, match=r"in\.bin differs"):
        case.send()


def test_inputs_that_lie_on_the_host_already_are_verified_there(case: Case) -> None:
    case.send()
    (case.workdir / "data").write_bytes(b"volume")
    (case.workdir / "SUMS").write_text(f"{hashlib.sha256(b'volume').hexdigest()} *data\n")
    case.spec = replace(case.spec, inputs_sha256="SUMS")
    assert case.send()[0] == 2


def test_one_corrupted_byte_in_one_of_many_files_is_found(case: Case) -> None:
    for number in range(400):
        (case.source / f"d{number % 7}").mkdir(exist_ok=True)
        (case.source / f"d{number % 7}" / f"f{number}").write_bytes(bytes([number % 256]) * (number * 40))
    (case.source / "large.bin").write_bytes(bytes(1 << 20))
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    shim = case.host.bin / "rsync"
    for victim, at in (("d4/f333", 9000), ("large.bin", 700_000)):
        flip = f"printf X | dd of={case.workdir}/{victim} bs=1 seek={at} conv=notrunc 2>/dev/null"
        shim.write_text(f'#!/bin/sh\n{shutil.which("rsync")} "$@"; code=$?; {flip}; exit $code\n')
        shim.chmod(0o755)
        with pytest.raises(HostError, match=rf"{victim} differs on the host"):
            case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())
        shim.unlink()
        assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 402


def test_what_git_ignores_is_sent_where_the_manifest_says_so(case: Case) -> None:
    subprocess.run(["git", "init", "-q", str(case.source)], check=True)
    (case.source / ".gitignore").write_text("data/\n")
    (case.source / "data").mkdir()
    (case.source / "data" / "made").write_text("x")
    listed = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    assert "data/made" not in [f.path for f in listed.trees[0][1]]
    spec = replace(case.spec, transfers=(replace(case.spec.transfers[0], include_ignored=True),))
    listed = case.ssh.preview(RUN, case.endpoint, spec, case.until())
    assert "data/made" in [f.path for f in listed.trees[0][1]]


def test_a_link_is_never_followed_when_the_host_hashes(case: Case) -> None:
    case.send()
    (case.workdir / "moved").mkdir()
    (case.workdir / "moved" / "train.py").write_text(TRAIN)
    os.symlink("moved", case.workdir / "folder")
    answer = case.ssh._connection(RUN, case.endpoint).call(
        "verify", {"trees": [{"root": str(case.workdir), "files": ["folder/train.py", "moved/train.py"]}]}, case.until()
    )
    assert [seen[0] for seen in answer["trees"][0]] == ["missing", "file"]


def test_a_commit_goes_over_and_what_it_lacks_stands_in_the_list(case: Case, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    git = gitsource.pin(repository.source(), RealClock())
    case.spec = replace(case.spec, transfers=(Transfer("", str(case.workdir), git=git),))
    repository.write("train.py", "later")
    listed = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    assert any(git.commit in note for note in listed.notes)
    assert any(git.commit in line for line in send_lines(listed))
    assert case.ssh.send(RUN, case.endpoint, case.spec, listed, case.until())[0] == 3
    assert (case.workdir / "train.py").read_text() == "print(1)\n"


def test_files_and_folders_that_are_inputs_go_with_the_transfers(case: Case, tmp_path: Path) -> None:
    (tmp_path / "local.bin").write_bytes(b"one file")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "part").write_bytes(b"of a folder")
    data = case.workdir.parent / "data"
    inputs = (
        Input(
            str(data / "renamed.bin"),
            "path",
            str(tmp_path / "local.bin"),
            sha256=hashlib.sha256(b"one file").hexdigest(),
        ),
        Input(str(data / "set"), "path", str(tmp_path / "set")),
    )
    case.spec = replace(case.spec, inputs=inputs)
    assert case.send()[0] == 3
    assert (data / "renamed.bin").read_bytes() == b"one file" and not (data / "renamed.bin").is_symlink()
    assert (data / "set" / "part").read_bytes() == b"of a folder"
    seen = case.ssh.bring(RUN, case.endpoint, case.spec, inputs, case.until(), lambda *_: None)
    assert [there.how for there in seen.done] == ["sent", "sent"]
    (data / "renamed.bin").write_bytes(b"another")
    seen = case.ssh.bring(RUN, case.endpoint, case.spec, inputs, case.until(), lambda *_: None)
    assert seen.final and "has sha256" in seen.problem


def many(case: Case) -> None:
    for number in range(600):
        (case.source / f"d{number % 7}").mkdir(exist_ok=True)
        (case.source / f"d{number % 7}" / f"-f {number}\\n").write_bytes(bytes([number % 256]) * number)
    (case.source / "run.sh").write_text("#!/bin/sh\n")
    (case.source / "run.sh").chmod(0o750)
    os.symlink("d0", case.source / "link")


def test_many_small_files_go_as_one_stream_and_are_verified_all_the_same(case: Case) -> None:
    many(case)
    rsync, tar = case.host.bin / "rsync", case.host.bin / "tar"
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    rsync.write_text("#!/bin/sh\nexit 1\n")
    rsync.chmod(0o755)
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 603
    assert (case.workdir / "run.sh").stat().st_mode & 0o777 == 0o750 and os.readlink(case.workdir / "link") == "d0"
    assert case.host.logins() == 1
    flip = f"printf X | dd of='{case.workdir}/d3/-f 598\\n' bs=1 seek=20 conv=notrunc 2>/dev/null"
    tar.write_text(f'#!/bin/sh\n{shutil.which("tar")} "$@"; {flip}\n')
    tar.chmod(0o755)
    with pytest.raises(HostError, match=r"-f 598\\n differs on the host"):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())


@pytest.mark.parametrize("broken", ["exit 2", "head -c 20000 >/dev/null; exit 1", "kill -9 $PPID"])
def test_a_stream_that_fails_is_left_to_rsync(case: Case, broken: str) -> None:
    many(case)
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    tar = case.host.bin / "tar"
    tar.write_text(f"#!/bin/sh\n{broken}\n")
    tar.chmod(0o755)
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 603


# --- hosts that cannot speak rsync


def without_rsync(case: Case) -> None:
    """Nothing but what the agent needs is on the host's PATH from now on."""
    settings = case.directory / "h" / "sshd_config"
    settings.write_text(re.sub(r" PATH=\S+", f" PATH={case.host.bin}", settings.read_text()))
    case.host.stop()
    case.host.start()


def everything(case: Case) -> None:
    """A tree with what can be carried: modes, times, an empty folder, a link, awkward names."""
    for name in ("a b", "ünï", "-rf", "$(x)", "deep/er/file"):
        (case.source / name).parent.mkdir(parents=True, exist_ok=True)
        (case.source / name).write_text(name)
    (case.source / "run.sh").write_text("#!/bin/sh\n")
    (case.source / "run.sh").chmod(0o755)
    os.utime(case.source / "run.sh", (1e9, 1e9))
    (case.source / "empty").mkdir()
    os.symlink("run.sh", case.source / "link")


def test_without_rsync_on_the_host_the_same_list_goes_as_a_tar_stream(case: Case) -> None:
    everything(case)
    by_rsync = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    without_rsync(case)
    shown = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    assert replace(shown, streamed="") == by_rsync and by_rsync.streamed == ""
    assert (
        shown.streamed == "the login finds no rsync on the host: the files go as a tar stream over the same connection"
    )
    assert f"  {shown.streamed}" in send_lines(shown)
    assert case.send()[0] == 8
    arrived = {str(p.relative_to(case.workdir)) for p in case.workdir.rglob("*")}
    assert arrived == {f.path for f in shown.trees[0][1]}
    assert os.readlink(case.workdir / "link") == "run.sh"
    info = (case.workdir / "run.sh").stat()
    assert (info.st_mode & 0o777, info.st_mtime) == (0o755, 1e9)
    assert case.host.logins() == 2, "one before and one after the change"


@pytest.mark.parametrize(
    ("shim", "why"),
    [
        ('printf a; exec {rsync} "$@"', "the host's login shell prints, which rsync cannot take"),
        (
            'echo "Welcome to this machine!"; exec {rsync} "$@"',
            "the host's login shell prints, which rsync cannot take",
        ),
        (
            'echo "rsync: on remote machine: --mkpath: unknown option" >&2; exit 1',
            "the host's rsync is too old",
        ),
    ],
)
def test_what_stands_in_the_way_of_rsync_is_named(case: Case, shim: str, why: str) -> None:
    (case.host.bin / "rsync").write_text(f"#!/bin/sh\n{shim.format(rsync=shutil.which('rsync'))}\n")
    (case.host.bin / "rsync").chmod(0o755)
    shown = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    assert shown.streamed.startswith(f"{why}: ")
    assert case.send()[0] == 1


def test_a_tar_stream_sends_what_is_not_there_yet_and_follows_where_that_is_wanted(case: Case, tmp_path: Path) -> None:
    without_rsync(case)
    (tmp_path / "outside").write_text("content")
    os.symlink("../outside", case.source / "followed")
    case.spec = replace(case.spec, transfers=(replace(case.spec.transfers[0], follow=True),))
    case.workdir.mkdir(parents=True)
    shutil.copy(case.source / "train.py", case.workdir / "train.py")
    before = (case.workdir / "train.py").stat().st_ctime_ns
    assert case.send()[0] == 2
    assert (case.workdir / "train.py").stat().st_ctime_ns == before, "not sent again"
    assert (case.workdir / "followed").read_text() == "content" and not (case.workdir / "followed").is_symlink()


def test_a_byte_that_changes_on_the_way_of_a_tar_stream_is_found(case: Case) -> None:
    without_rsync(case)
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    python = case.host.bin / "python3"
    real = os.path.realpath(python)
    python.unlink()
    sent = case.workdir / "train.py"
    flip = f"[ ! -e {sent} ] || printf X | /bin/dd of={sent} bs=1 seek=20 conv=notrunc 2>/dev/null"
    python.write_text(f'#!/bin/sh\n{real} "$@"; code=$?; {flip}; exit $code\n')
    python.chmod(0o755)
    with pytest.raises(HostError, match=r"train\.py differs on the host"):
        case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())


def test_a_tar_stream_larger_than_a_pipe_survives_a_dead_connection(case: Case) -> None:
    without_rsync(case)
    (case.source / "data.bin").write_bytes(os.urandom(3 << 20))
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until())
    begun = case.host.logins()
    case.host.cut()
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until())[0] == 2
    assert case.host.logins() == begun + 1
