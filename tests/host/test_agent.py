"""The agent: which generations count, what their hashes say, and how the end of a run is told."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import HostError
from gpuops.host import facts, files, generations, sealing
from gpuops.host.agent import last_beat, log, tail
from gpuops.host.files import RefusedError, receive
from gpuops.remote import AGENT_COMMAND, Finished, judge, read_answer, script


def publish(outputs: Path, name: str, step: int, content: bytes = b"weights", **manifest: Any) -> Path:
    """A generation as the contract wants it: written beside, published by rename, list last."""
    temporary = outputs / f".tmp-{name}"
    (temporary / "shard").mkdir(parents=True)
    (temporary / "shard" / "w.bin").write_bytes(content)
    listed = [{"path": "shard/w.bin", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}]
    (temporary / "MANIFEST.json").write_text(json.dumps({"step": step, "files": listed, **manifest}))
    temporary.rename(outputs / name)
    return outputs / name


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def sealing_request(tmp_path: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A run that ended with exit 0, ready to be sealed."""
    told = tmp_path / "host.json"
    told.write_text(json.dumps({"state_directory": str(tmp_path / "states"), "boot": "b"}))
    monkeypatch.setenv("GPUOPS_HOST_JSON", str(told))
    state = Path(facts.make_state("r1", []))
    (state / "run.json").write_text(json.dumps({"run": "r1", "env": {}}))
    (state / "before.json").write_text(json.dumps(generations.list_before(str(outputs))))
    status = {
        "run": "r1",
        "boot_id": facts.boot_id(),
        "phase": "ended",
        "outcome": "ended",
        "exit_code": 0,
        "reason": "exit 0",
    }
    (state / "status.json").write_text(json.dumps(status))
    (state / "train.log").write_text("log")
    return {
        "run": "r1",
        "outputs": str(outputs),
        "workdir": str(tmp_path),
        "keep_last": 2,
        "best": "",
        "load_check": [],
    }


def ids(sealed: dict[str, Any]) -> list[str]:
    return [g["id"] for g in sealed["generations"]]


def test_the_newest_complete_generations_are_sealed_with_their_hashes(
    sealing_request: dict[str, Any], outputs: Path
) -> None:
    for step in (1, 2, 3):
        publish(outputs, f"gen-{step}", step)
    sealed = sealing.seal(sealing_request)
    assert ids(sealed) == ["gen-3", "gen-2"]
    assert sealed["outcome"] == "completed"
    assert [f["path"] for f in sealed["generations"][0]["files"]] == ["MANIFEST.json", "shard/w.bin"]
    assert sealed["generations"][0]["files"][1]["sha256"] == hashlib.sha256(b"weights").hexdigest()


def test_exit_zero_without_a_generation_stays_ended_unverified(sealing_request: dict[str, Any]) -> None:
    sealed = sealing.seal(sealing_request)
    assert (sealed["outcome"], sealed["generations"]) == ("ended", [])
    assert "no complete new generation" in sealed["reason"]


def test_a_flipped_bit_falls_back_to_the_generation_before(sealing_request: dict[str, Any], outputs: Path) -> None:
    publish(outputs, "gen-1", 1)
    path = publish(outputs, "gen-2", 2) / "shard" / "w.bin"
    path.write_bytes(b"weighus")
    sealed = sealing.seal({**sealing_request, "keep_last": 1})
    assert ids(sealed) == ["gen-1"]
    assert "gen-2" in sealed["reason"] and "differs" in sealed["reason"]


def test_a_truncated_or_missing_file_or_list_is_not_complete(sealing_request: dict[str, Any], outputs: Path) -> None:
    publish(outputs, "gen-1", 1)
    (publish(outputs, "gen-2", 2) / "shard" / "w.bin").write_bytes(b"wei")
    (publish(outputs, "gen-3", 3) / "shard" / "w.bin").unlink()
    (publish(outputs, "gen-4", 4) / "MANIFEST.json").write_text('{"files": [')
    (outputs / "gen-5").mkdir()
    assert generations.complete_ids(str(outputs), {}, time.time() + 100) == ["gen-1"]
    assert ids(sealing.seal(sealing_request)) == ["gen-1"]


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../b", ""])
def test_a_list_that_points_elsewhere_is_refused(outputs: Path, path: str) -> None:
    listed = [{"path": path, "size": 1, "sha256": "0" * 64}]
    publish(outputs, "gen-1", 1, files=listed)
    assert generations.complete_ids(str(outputs), {}, time.time()) == []


def test_links_and_special_files_are_left_behind_and_named(sealing_request: dict[str, Any], outputs: Path) -> None:
    path = publish(outputs, "gen-1", 1)
    os.symlink("/etc/passwd", path / "link")
    os.mkfifo(path / "fifo")
    os.symlink(path, outputs / "latest")
    sealed = sealing.seal(sealing_request)
    assert ids(sealed) == ["gen-1"]
    assert sealed["generations"][0]["left_behind"] == ["fifo", "link"]


def test_a_link_in_place_of_a_listed_file_is_not_complete(outputs: Path) -> None:
    path = publish(outputs, "gen-1", 1) / "shard" / "w.bin"
    path.rename(outputs.parent / "elsewhere")
    path.symlink_to(outputs.parent / "elsewhere")
    assert generations.complete_ids(str(outputs), {}, time.time()) == []
    with pytest.raises(OSError):
        files.open_beneath(str(outputs / "gen-1"), "shard/w.bin")


def test_what_lay_there_before_launch_is_no_generation_of_this_run(outputs: Path) -> None:
    publish(outputs, "gen-1", 1)
    publish(outputs, "gen-2", 2)
    before = generations.list_before(str(outputs))
    publish(outputs, "gen-3", 3)
    (outputs / "gen-2").rename(outputs / ".old")
    publish(outputs, "gen-2", 2, b"another")
    assert generations.complete_ids(str(outputs), before, time.time()) == ["gen-2", "gen-3"]


def test_names_of_unfinished_work_are_not_published(outputs: Path) -> None:
    for name in (".tmp-gen", ".incoming-gen", "gen-9.tmp", "gen.partial"):
        (outputs / name).mkdir()
        (outputs / name / "w").write_text("x")
    assert generations.find(str(outputs), {}) == []


def test_the_best_generation_by_heartbeat_is_kept_beside_the_newest(
    sealing_request: dict[str, Any], outputs: Path
) -> None:
    with open(outputs / "heartbeat.jsonl", "w") as beats:
        for step, loss in ((1, 0.1), (2, 0.9), (3, 0.8), (4, 0.7)):
            publish(outputs, f"gen-{step}", step)
            beats.write(json.dumps({"step": step, "eval": {"val_loss": loss}}) + "\n")
    sealed = sealing.seal({**sealing_request, "best": "val_loss"})
    assert ids(sealed) == ["gen-4", "gen-3", "gen-1"]
    assert sealed["generations"][-1]["metric"] == 0.1


def test_a_program_without_a_list_is_sealed_by_step_and_its_damaged_zip_passed_over(
    sealing_request: dict[str, Any], outputs: Path
) -> None:
    for step in (100, 200):
        with zipfile.ZipFile(outputs / f"model-{step}.npz", "w") as archive:
            archive.writestr("w.npy", b"z" * 1000)
        (outputs / f"optim-{step}.bin").write_bytes(b"o" * 10)
    data = bytearray((outputs / "model-200.npz").read_bytes())
    data[100] ^= 1
    (outputs / "model-200.npz").write_bytes(data)
    (outputs / "config.json").write_text("{}")
    sealed = sealing.seal(sealing_request)
    assert ids(sealed) == ["step-100", "loose"]
    assert [f["path"] for f in sealed["generations"][0]["files"]] == ["model-100.npz", "optim-100.bin"]
    assert "model-200.npz" in sealed["reason"]


def test_an_unlisted_generation_counts_only_once_it_is_quiet(outputs: Path) -> None:
    (outputs / "checkpoint-5").mkdir()
    (outputs / "checkpoint-5" / "w").write_text("x")
    assert generations.complete_ids(str(outputs), {}, time.time()) == []
    assert generations.complete_ids(str(outputs), {}, time.time() + 31) == ["checkpoint-5"]


def safetensors(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (safetensors({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"1234"), True),
        (safetensors({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"123"), False),
        (safetensors({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, b"1234"), False),
        (b"\x08\0\0", False),
        (struct.pack("<Q", 1 << 60) + b"{}", False),
        (safetensors({}, b"")[:-1], False),
    ],
)
def test_the_header_of_safetensors_tells_whether_the_file_is_whole(outputs: Path, content: bytes, whole: bool) -> None:
    (outputs / "m.safetensors").write_bytes(content)
    if whole:
        generations.check_structure(str(outputs), "m.safetensors", deep=True)
    else:
        with pytest.raises(RefusedError):
            generations.check_structure(str(outputs), "m.safetensors", deep=True)


def test_the_load_command_passes_over_what_it_cannot_load_but_never_leaves_nothing(
    sealing_request: dict[str, Any], outputs: Path
) -> None:
    publish(outputs, "gen-1", 1, b"good")
    publish(outputs, "gen-2", 2, b"bad")
    check = "import sys, os; sys.exit(open(os.path.join(sys.argv[1], 'shard/w.bin')).read() != 'good')"
    command = [sys.executable, "-c", check]
    sealed = sealing.seal({**sealing_request, "load_check": command})
    assert ids(sealed) == ["gen-1", "gen-2"], "the newest is sealed too, behind the sound one"
    assert ids(sealing.seal({**sealing_request, "load_check": command, "keep_last": 1})) == ["gen-1", "gen-2"]
    assert "gen-2: the load command ended with 1" in sealed["reason"]
    publish(outputs, "gen-3", 3, b"bad")
    (outputs / "gen-1").rename(outputs / ".gone")
    assert ids(sealing.seal({**sealing_request, "load_check": command})) == ["gen-3", "gen-2"]


def test_a_load_command_that_always_fails_is_not_asked_about_everything_and_what_it_said_is_kept(
    sealing_request: dict[str, Any], outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 7):
        publish(outputs, f"gen-{step}", step)
    asked: list[str] = []
    done: list[str] = []
    real = sealing._load_check

    def cut_off(request: dict[str, Any], found: Any, *rest: Any) -> str:
        asked.append(found.id)
        if asked == ["gen-6", "gen-5"] and not done:
            raise SystemExit
        return real(request, found, *rest)

    monkeypatch.setattr(sealing, "_load_check", cut_off)
    request = {**sealing_request, "load_check": [sys.executable, "-c", "raise SystemExit(3)"]}
    with pytest.raises(SystemExit):
        sealing.seal(request)
    state = facts.find_state("r1")
    assert state is not None
    assert list(json.loads(Path(state, "sealed.json").read_text())["loads"]) == ["gen-6"]
    done = [*asked]
    asked.clear()
    assert ids(sealing.seal(request)) == ["gen-6", "gen-5"]
    assert asked == ["gen-6", "gen-5"]


def test_sealing_again_gives_the_same_and_notices_a_change(sealing_request: dict[str, Any], outputs: Path) -> None:
    (outputs / "checkpoint-1").mkdir()
    (outputs / "checkpoint-1" / "w").write_text("one")
    first = sealing.seal(sealing_request)
    assert sealing.seal(sealing_request) == first
    (outputs / "checkpoint-1" / "w").write_text("two")
    again = sealing.seal(sealing_request)
    assert ids(again) == ["checkpoint-1"]
    assert "changed after it was sealed" in again["reason"]


def test_telemetry_is_copied_once_and_does_not_change(sealing_request: dict[str, Any], outputs: Path) -> None:
    (outputs / "heartbeat.jsonl").write_text('{"step": 1}\n')
    first = sealing.seal(sealing_request)["telemetry"]
    (outputs / "heartbeat.jsonl").write_text('{"step": 2}\n')
    assert sealing.seal(sealing_request)["telemetry"] == first
    assert {f["path"] for f in first["files"]} >= {"heartbeat.jsonl", "train.log", "status.json", "run.json"}


def test_a_host_that_was_started_anew_counts_as_interrupted(sealing_request: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "states" / "r1" / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps({**status, "boot_id": "earlier", "phase": "running", "supervisor": [1, "0"]}))
    sealed = sealing.seal(sealing_request)
    assert (sealed["outcome"], "started anew" in sealed["reason"]) == ("interrupted", True)


def test_a_generation_is_not_hashed_while_it_changes(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = outputs / "w"
    path.write_bytes(b"x" * 100)
    real = files.signature
    calls = iter([1, 2])
    monkeypatch.setattr(files, "signature", lambda info: [*real(info), next(calls)])
    with pytest.raises(RefusedError, match="changed while it was read"):
        files.hash_file(str(outputs), "w")


def test_a_fifo_does_not_block_a_reader(outputs: Path) -> None:
    os.mkfifo(outputs / "w")
    with pytest.raises(RefusedError):
        files.open_beneath(str(outputs), "w")


def test_the_last_complete_beat_counts_and_torn_lines_do_not(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n\xff\xfe\n[1]\n{"step": 2')
    assert last_beat(str(path), 0) == {"step": 1}
    assert last_beat(str(path), 24) == {}
    assert last_beat(str(tmp_path / "none"), 0) == {}


def test_the_log_is_told_in_pieces_across_its_rotated_part(sealing_request: dict[str, Any]) -> None:
    state = Path(facts.find_state("r1") or "")
    whole = "first ä\n" * 3 + "second €\n" * 3
    data = whole.encode()
    (state / "train.log.1").write_bytes(data[:20])
    (state / "train.log").write_bytes(data[20:])
    text, offset = "", 0
    while (piece := log({"run": "r1", "offset": offset, "most": 5, "part": 20}))["next"] != offset:
        assert piece["next"] <= offset + 5
        text, offset = text + piece["text"], piece["next"]
    assert (text, offset) == (whole, len(data))
    (state / "train.log.1").write_bytes(data[20:])
    (state / "train.log").write_bytes(b"third\n")
    assert log({"run": "r1", "offset": offset, "most": 99, "part": 20})["text"] == "third\n"
    assert log({"run": "other", "offset": 7, "most": 5, "part": 20}) == {"text": "", "next": 7}


def test_the_tail_of_a_binary_log_is_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(range(256)) * 100)
    assert len(tail(str(tmp_path / "log"))) == 4096


def test_the_state_lies_outside_the_volume_where_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOST_JSON", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "volume" / "home"))
    places = [str(tmp_path / "volume" / "a"), str(tmp_path / "root" / "b")]
    monkeypatch.setattr(facts, "state_candidates", lambda: places)
    assert facts.make_state("r1", [str(tmp_path / "volume")]) == str(tmp_path / "root" / "b" / "r1")


def ask(command: str, path: str) -> subprocess.CompletedProcess[bytes]:
    program = script("status", {"run": "none", "outputs": "/nonexistent"}, "token-1")
    return subprocess.run(
        ["/bin/sh", "-c", command], input=program, capture_output=True, timeout=20, env={"PATH": path}
    )


def test_the_agent_answers_over_stdin_whatever_the_login_shell_prints() -> None:
    done = ask(f"echo junk; printf '\\033[2J'; {AGENT_COMMAND}", os.path.dirname(sys.executable))
    assert read_answer(done.stdout, "token-1", "")["phase"] == "missing"


def test_python_is_found_off_the_path_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    """A first python3 that says it is too old, and the good one in a folder that only the fixed places name."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "python3").write_text("#!/bin/sh\nexit 97\n")
    (tmp_path / "opt" / "odd" / "bin").mkdir(parents=True)
    (tmp_path / "opt" / "odd" / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for script_file in tmp_path.rglob("python3"):
        script_file.chmod(0o755)
    here = AGENT_COMMAND.replace(" /", f" {tmp_path}/").replace(f"exec {tmp_path}/bin/sh", "exec /bin/sh")
    done = ask(here, str(tmp_path / "path"))
    assert read_answer(done.stdout, "token-1", "")["phase"] == "missing", done
    (tmp_path / "opt" / "odd" / "bin" / "python3").unlink()
    assert ask(here, str(tmp_path / "path")).returncode == 127
    with pytest.raises(HostError, match=r"no python3 of version 3\.8 or later"):
        judge(Finished(127, b"", ""))


def tar_of(*entries: tuple[str, bytes, bytes]) -> io.BytesIO:
    """A stream of (name, kind, content); a link's content is its target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as stream:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            entry.linkname = content.decode() if kind != tarfile.REGTYPE else ""
            stream.addfile(entry, io.BytesIO(content))
    out.seek(0)
    return out


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("a/../../x", tarfile.SYMTYPE), ("fifo", tarfile.FIFOTYPE)],
)
def test_a_stream_unpacks_only_plain_things_below_its_root(tmp_path: Path, name: str, kind: bytes) -> None:
    with pytest.raises(RefusedError):
        receive(str(tmp_path / "root"), tar_of((name, kind, b"x")))
    assert not (tmp_path / "x").exists() and list((tmp_path / "root").iterdir()) == []


def test_a_torn_stream_is_refused_and_leaves_no_half_file(tmp_path: Path) -> None:
    whole = tar_of(("first", tarfile.REGTYPE, b"1"), ("second", tarfile.REGTYPE, b"2" * 50_000)).getvalue()
    with pytest.raises(RefusedError, match="did not arrive whole"):
        receive(str(tmp_path), io.BytesIO(whole[:30_000]))
    assert (tmp_path / "first").read_bytes() == b"1" and not (tmp_path / "second").exists()
