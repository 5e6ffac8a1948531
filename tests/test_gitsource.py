"""A commit is sent exactly as it is, what it does not hold is named, and changes are refused or recorded as a patch."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from hostcase import RealClock
from repository import Repository

from gpuops import gitsource
from gpuops.errors import GateRefused, HostError, UsageError
from gpuops.spec import GitSource

CLOCK = RealClock()
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The private folder of a run; it lies inside another checkout, which must not matter."""
    subprocess.run(["git", "init", "-q", str(tmp_path / "home")], check=True)
    return tmp_path / "home" / "runs" / "r" / "git"


def tree(source: GitSource, folder: Path) -> tuple[Path, tuple[str, ...]]:
    path, notes = gitsource.tree(source, folder, CLOCK, CLOCK.now() + 30)
    return Path(path), notes


def test_a_commit_is_resolved_and_sent_as_it_is(repository: Repository, folder: Path) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.write("train.py", "print(2)\n")
    repository.commit()
    pinned = gitsource.pin(repository.source(revision="HEAD~1"), CLOCK)
    assert (pinned.commit, pinned.patch_sha256, pinned.notes) == (first, "", ())
    made, notes = tree(pinned, folder)
    assert {str(p.relative_to(made)) for p in made.rglob("*")} == {"train.py", "pkg", "pkg/mod.py", "link"}
    assert (made / "train.py").read_text() == "print(1)\n" and os.readlink(made / "link") == "train.py"
    assert notes == ()


def test_the_tree_is_the_same_when_it_is_made_again(repository: Repository, folder: Path, tmp_path: Path) -> None:
    pinned = gitsource.pin(repository.source(), CLOCK)
    first, _ = tree(pinned, folder)
    again, _ = tree(pinned, tmp_path / "elsewhere")
    assert (first / "train.py").stat().st_mtime_ns == (again / "train.py").stat().st_mtime_ns
    assert tree(pinned, folder)[0] == first


@pytest.mark.parametrize("change", ["edit", "staged", "untracked", "deleted"])
def test_a_checkout_with_changes_is_refused_by_name_and_with_the_fix(repository: Repository, change: str) -> None:
    name = {"edit": "train.py", "staged": "new.py", "untracked": "new.py", "deleted": "pkg/mod.py"}[change]
    if change == "deleted":
        (repository.path / name).unlink()
    else:
        repository.write(name, "changed")
    if change == "staged":
        repository.git("add", name)
    with pytest.raises(GateRefused, match=name) as caught:
        gitsource.pin(repository.source(), CLOCK)
    assert "Nothing was bought" in caught.value.message
    assert "commit" in caught.value.next_command and "dirty: patch" in caught.value.next_command


def test_changes_do_not_matter_to_a_commit_that_is_named(repository: Repository, folder: Path) -> None:
    repository.write("train.py", "changed")
    made, _ = tree(gitsource.pin(repository.source(revision="main"), CLOCK), folder)
    assert (made / "train.py").read_text() == "print(1)\n"


def test_changes_go_over_as_a_patch_that_is_kept_and_recorded(repository: Repository, folder: Path) -> None:
    repository.write("train.py", "print(3)\n")
    (repository.path / "weights.bin").write_bytes(bytes(range(256)))
    repository.git("add", "weights.bin")
    repository.write("scratch.txt", "unknown")
    pinned = gitsource.pin(repository.source(dirty="patch"), CLOCK)
    assert any("scratch.txt" in note and "NOT sent" in note for note in pinned.notes)
    gitsource.save_patch(pinned, folder, CLOCK)
    repository.write("train.py", "print(4)\n")  # later changes are another run's
    kept = next(folder.glob("*.patch"))
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == pinned.patch_sha256
    made, notes = tree(pinned, folder)
    assert (made / "train.py").read_text() == "print(3)\n"
    assert (made / "weights.bin").read_bytes() == bytes(range(256)) and not (made / "scratch.txt").exists()
    assert any(pinned.patch_sha256[:12] in note for note in notes)


def test_a_patch_that_is_not_the_planned_one_is_refused(repository: Repository, folder: Path) -> None:
    repository.write("train.py", "print(3)\n")
    pinned = gitsource.pin(repository.source(dirty="patch"), CLOCK)
    gitsource.save_patch(pinned, folder, CLOCK)
    next(folder.glob("*.patch")).write_text("another")
    with pytest.raises(HostError, match="patch that was planned"):
        tree(pinned, folder)
    repository.write("train.py", "print(5)\n")
    with pytest.raises(GateRefused, match="changed while it was planned"):
        gitsource.save_patch(pinned, folder.parent / "other", CLOCK)


def test_what_a_commit_only_points_to_is_named(repository: Repository, tmp_path: Path, folder: Path) -> None:
    inner = Repository(tmp_path / "inner")
    repository.git("submodule", "--quiet", "add", str(inner.path), "vendor/inner")
    repository.write("model.bin", POINTER)
    repository.commit()
    pinned = gitsource.pin(repository.source(), CLOCK)
    assert any("submodules are NOT sent: vendor/inner" in note for note in pinned.notes)
    assert any("LFS" in note and "model.bin" in note for note in pinned.notes)
    made, notes = tree(pinned, folder)
    assert (made / "model.bin").read_text() == POINTER and set(pinned.notes) <= set(notes)


def test_what_attributes_leave_out_or_change_is_named(repository: Repository, folder: Path) -> None:
    repository.write(".gitattributes", "docs export-ignore\nversion.txt export-subst\n")
    repository.write("docs/page.md", "x")
    repository.write("version.txt", "$Format:%H$\n")
    repository.commit()
    _, notes = tree(gitsource.pin(repository.source(), CLOCK), folder)
    assert any("export-ignore" in note and "docs/page.md" in note for note in notes)
    assert any("export-subst" in note and "version.txt" in note for note in notes)


@pytest.mark.parametrize("revision", ["no-such", "--output=x", "HEAD^{tree}", "a b"])
def test_what_is_no_commit_is_refused(repository: Repository, revision: str) -> None:
    with pytest.raises(UsageError, match="has no commit"):
        gitsource.pin(repository.source(revision=revision), CLOCK)


def test_a_folder_that_is_no_checkout_is_refused(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match="not a git checkout"):
        gitsource.pin(GitSource(str(tmp_path / "plain")), CLOCK)
    with pytest.raises(UsageError, match="name the checkout itself"):
        gitsource.pin(GitSource(str(repository.path / "pkg")), CLOCK)


def test_the_callers_own_git_variables_mean_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    other.write("train.py", "print(9)\n")
    other.commit()
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert gitsource.pin(repository.source(), CLOCK).commit == repository_head(repository)


def repository_head(repository: Repository) -> str:
    return (repository.path / ".git" / "refs" / "heads" / "main").read_text().strip()
