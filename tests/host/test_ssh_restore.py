"""A verified copy goes back to a host: whole, beside the published generations, and none of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hostcase import RUN, Case

from gpuops.errors import HostError
from gpuops.host import generations
from gpuops.values import FileHash, Generation


def copy(directory: Path) -> Generation:
    """A published copy in `directory`, with our own record beside its files."""
    (directory / "shard").mkdir(parents=True)
    files = {"MANIFEST.json": b"{}", "shard/w.bin": b"w" * 70_000}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    (directory / "GPUOPS.json").write_text("ours")
    hashes = (FileHash(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in files.items())
    return Generation("step-000006", 6, tuple(hashes))


def test_exactly_the_files_of_the_generation_go_over_and_again_changes_nothing(case: Case, tmp_path: Path) -> None:
    source = tmp_path / "copy"
    item = copy(source)
    case.outputs.mkdir(parents=True)
    for _ in range(2):
        target = Path(case.ssh.restore(RUN, case.endpoint, case.spec, item, str(source), case.until()))
    assert target.name == "step-000006" and target.is_relative_to(case.outputs)
    sent = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert sent == {"MANIFEST.json": b"{}", "shard/w.bin": b"w" * 70_000}
    assert generations.find(str(case.outputs), {}) == [], "nobody takes it for a generation of this run"


def test_a_copy_that_changed_since_it_was_read_is_refused(case: Case, tmp_path: Path) -> None:
    source = tmp_path / "copy"
    item = copy(source)
    (source / "shard" / "w.bin").write_bytes(b"v" * 70_000)
    with pytest.raises(HostError, match=r"shard/w\.bin differs on the host"):
        case.ssh.restore(RUN, case.endpoint, case.spec, item, str(source), case.until())
