"""The local store: a copy is verified from disk before it gets its name, and never changes afterwards."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.errors import CopyError
from gpuops.names import RANGES_FILE
from gpuops.store import LocalStore
from gpuops.values import FileHash, Generation

STORE = LocalStore()


def generation(ident: str = "gen-1", step: int = 1, **content: bytes) -> Generation:
    listed = content or {"w": b"weights"}
    hashes = (FileHash(n.replace("__", "/"), len(c), hashlib.sha256(c).hexdigest()) for n, c in listed.items())
    return Generation(ident, step, tuple(hashes))


def fill(attempt: str, **content: bytes) -> None:
    for name, data in (content or {"w": b"weights"}).items():
        path = Path(attempt, name.replace("__", "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def publish(destination: Path, item: Generation, **content: bytes) -> str:
    attempt = STORE.attempt("run-1", str(destination), item)
    fill(attempt, **content)
    return STORE.publish("run-1", str(destination), item, attempt).path


def test_a_verified_attempt_gets_its_name_and_is_found_again(tmp_path: Path) -> None:
    item = generation(w=b"1", shard__v=b"2")
    attempt = STORE.attempt("run-1", str(tmp_path), item)
    fill(attempt, w=b"1", shard__v=b"2")
    Path(attempt, RANGES_FILE).write_text("x")
    copied = STORE.publish("run-1", str(tmp_path), item, attempt)
    assert copied.path == str(tmp_path / "run-1" / "gen-1")
    assert sorted(os.listdir(copied.path)) == ["MANIFEST.json", "shard", "w"]
    assert STORE.find("run-1", str(tmp_path), item) == copied
    assert not Path(attempt).exists()


def test_one_wrong_byte_is_not_published(tmp_path: Path) -> None:
    item = generation()
    attempt = STORE.attempt("run-1", str(tmp_path), item)
    fill(attempt, w=b"weighus")
    with pytest.raises(CopyError, match="sha256"):
        STORE.publish("run-1", str(tmp_path), item, attempt)
    assert STORE.find("run-1", str(tmp_path), item) is None
    STORE.discard(attempt)
    assert not Path(attempt).exists()


@pytest.mark.parametrize("what", ["missing", "short", "extra", "link", "fifo"])
def test_only_exactly_the_sealed_files_are_published(tmp_path: Path, what: str) -> None:
    item = generation()
    attempt = STORE.attempt("run-1", str(tmp_path), item)
    path = Path(attempt, "w")
    fill(attempt)
    if what in ("missing", "link", "fifo"):
        path.unlink()
    if what == "short":
        path.write_bytes(b"wei")
    if what == "extra":
        Path(attempt, "other").write_text("x")
    if what == "link":
        (tmp_path / "t").write_bytes(b"weights")
        path.symlink_to(tmp_path / "t")
    if what == "fifo":
        os.mkfifo(path)
    with pytest.raises(CopyError):
        STORE.publish("run-1", str(tmp_path), item, attempt)


def test_a_verified_copy_is_never_written_over(tmp_path: Path) -> None:
    first = publish(tmp_path, generation(w=b"one"), w=b"one")
    second = publish(tmp_path, generation(w=b"two"), w=b"two")
    assert (Path(first, "w").read_bytes(), Path(second, "w").read_bytes()) == (b"one", b"two")
    assert Path(second).name == "gen-1~2"
    found = STORE.find("run-1", str(tmp_path), generation(w=b"two"))
    assert found is not None and found.path == second


def test_publishing_the_same_content_again_gives_the_same_copy(tmp_path: Path) -> None:
    assert publish(tmp_path, generation()) == publish(tmp_path, generation())
    assert os.listdir(tmp_path / "run-1" / ".incoming") == []


def test_a_copy_that_rotted_is_not_found_and_a_new_one_stands_beside_it(tmp_path: Path) -> None:
    first = publish(tmp_path, generation())
    Path(first, "w").write_bytes(b"weighus")
    assert STORE.find("run-1", str(tmp_path), generation()) is None
    assert Path(publish(tmp_path, generation())).name == "gen-1~2"


def test_the_list_of_the_program_is_kept_and_ours_stands_beside_it(tmp_path: Path) -> None:
    item = Generation("gen-1", 1, (FileHash("MANIFEST.json", 2, hashlib.sha256(b"{}").hexdigest()),))
    attempt = STORE.attempt("run-1", str(tmp_path), item)
    Path(attempt, "MANIFEST.json").write_bytes(b"{}")
    path = STORE.publish("run-1", str(tmp_path), item, attempt).path
    assert Path(path, "MANIFEST.json").read_bytes() == b"{}"
    assert json.loads(Path(path, "GPUOPS.json").read_text())["id"] == "gen-1"


def test_an_unfinished_attempt_of_the_same_content_is_reused(tmp_path: Path) -> None:
    first = STORE.attempt("run-1", str(tmp_path), generation())
    assert STORE.attempt("run-1", str(tmp_path), generation()) == first
    assert STORE.attempt("run-1", str(tmp_path), generation(w=b"other")) != first


def test_a_record_left_by_a_crash_before_the_rename_does_no_harm(tmp_path: Path) -> None:
    attempt = STORE.attempt("run-1", str(tmp_path), generation())
    fill(attempt)
    Path(attempt, "MANIFEST.json").write_text("torn")
    assert STORE.publish("run-1", str(tmp_path), generation(), attempt).generation == "gen-1"


def test_pruning_keeps_the_newest_the_named_ones_and_telemetry(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        publish(tmp_path, generation(f"gen-{step}", step))
    publish(tmp_path, generation("telemetry", 0))
    assert STORE.prune("run-1", str(tmp_path), 2, ("gen-1",)) == ("gen-2",)
    assert sorted(p.name for p in (tmp_path / "run-1").glob("[gt]*")) == ["gen-1", "gen-10", "gen-11", "telemetry"]


def test_pruning_never_removes_the_only_copy(tmp_path: Path) -> None:
    publish(tmp_path, generation())
    assert STORE.prune("run-1", str(tmp_path), 0, ()) == ()
    assert STORE.prune("other", str(tmp_path), 0, ()) == ()


def test_a_destination_without_room_says_what_is_free_and_what_is_needed(tmp_path: Path) -> None:
    item = Generation("gen-1", 1, (FileHash("w", 1 << 60, "0" * 64),))
    with pytest.raises(CopyError, match=r"bytes free, 1,152,921,504,606,846,976 needed"):
        STORE.attempt("run-1", str(tmp_path), item)


@pytest.mark.parametrize("ident", ["../x", "a/b", ".hidden", "-rf", "a\nb", ""])
def test_a_hostile_generation_name_is_refused(tmp_path: Path, ident: str) -> None:
    with pytest.raises(CopyError):
        STORE.attempt("run-1", str(tmp_path), generation(ident))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "-x", "a\x1b[2J", "e\u0301", "x" * 256, RANGES_FILE])
def test_a_hostile_file_name_is_refused(tmp_path: Path, path: str) -> None:
    item = Generation("gen-1", 1, (FileHash(path, 1, "0" * 64),))
    with pytest.raises(CopyError):
        STORE.attempt("run-1", str(tmp_path), item)


def test_names_that_collide_on_a_case_blind_disk_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="upper and lower case"):
        STORE.attempt("run-1", str(tmp_path), generation(W=b"1", w=b"2"))


def test_discard_leaves_published_copies_alone(tmp_path: Path) -> None:
    path = publish(tmp_path, generation())
    STORE.discard(path)
    assert Path(path, "w").exists()


def test_a_copy_is_loaded_only_when_every_byte_is_as_it_was_verified(tmp_path: Path) -> None:
    item = generation(w=b"1", shard__v=b"2")
    path = publish(tmp_path, item, w=b"1", shard__v=b"2")
    copy = STORE.find("run-1", str(tmp_path), item)
    assert copy is not None and STORE.load(copy) == item
    with pytest.raises(CopyError, match="is not the copy that was verified"):
        STORE.load(replace(copy, digest="0" * 16))
    Path(path, "shard", "v").write_bytes(b"3")
    with pytest.raises(CopyError, match="shard/v has sha256"):
        STORE.load(copy)
    Path(path, "MANIFEST.json").unlink()
    with pytest.raises(CopyError, match="no hash list of ours"):
        STORE.load(copy)
