"""Sending exactly one commit: what it is, what it does not hold, and its files in a private folder.

The archive is made on this computer, so that a private repository needs no credential on the rental.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuops import argv, names
from gpuops.errors import GateRefused, HostError, UsageError
from gpuops.ports import Clock
from gpuops.remote import MAX_ANSWER_BYTES, run_child
from gpuops.spec import GitSource
from gpuops.values import Time

GIT_S = 120.0
MOST_NAMED = 8
LFS = "^version https://git-lfs.github.com/spec/v1$"


def pin(source: GitSource, clock: Clock) -> GitSource:
    """The source with its full hash, the hash of its patch and what it does not hold.

    Raises `UsageError` when there is no such commit, `GateRefused` when HEAD has changes and no patch is wanted.
    """
    where = source.repository
    code, out, _ = _git(source, clock, "rev-parse", "--show-prefix")
    if code:
        raise UsageError(f"{where} is not a git checkout. Nothing was bought.")
    if prefix := os.fsdecode(out).strip():
        raise UsageError(f"{where} is the folder {names.escape(prefix)} of a checkout: name the checkout itself")
    revision = f"{source.revision}^{{commit}}"
    code, out, _ = _git(source, clock, "rev-parse", "--verify", "--quiet", "--end-of-options", revision)
    if code:
        raise UsageError(f"{where} has no commit {names.escape(source.revision)!r}. Nothing was bought.")
    source = replace(source, commit=out.decode().strip())
    patch_sha256 = ""
    untracked: list[str] = []
    if source.revision == "HEAD":
        changed, untracked = _changes(source, clock)
        if source.dirty == "refuse" and (changed or untracked):
            raise GateRefused(
                f"{where} has changes that commit {source.commit[:12]} does not hold: {_listed([*changed, *untracked])}. "
                "Nothing was bought.",
                next_command=f"git -C {where} commit (or stash), or set `dirty: patch` in the manifest",
            )
        text = patch(source, clock) if changed else b""
        patch_sha256 = hashlib.sha256(text).hexdigest() if text else ""
    notes = [*_absent(source, clock)]
    if untracked:
        notes.append(f"not known to git and NOT sent: {_listed(untracked)}")
    return replace(source, patch_sha256=patch_sha256, notes=tuple(f"{where}: {note}" for note in notes))


def patch(source: GitSource, clock: Clock) -> bytes:
    """The changes of the checkout beside its commit, without those inside submodules."""
    options = ("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--ignore-submodules=all")
    words = ("diff", *options, "--src-prefix=a/", "--dst-prefix=b/", source.commit)
    out = _out(source, clock, *words)
    if len(out) >= MAX_ANSWER_BYTES:
        raise GateRefused(f"the changes in {source.repository} are too large for a patch: commit them")
    return out


def save_patch(source: GitSource, folder: Path, clock: Clock) -> None:
    """Keep the patch that was planned in the run's folder. Raises `GateRefused` when the checkout changed since."""
    if not source.patch_sha256 or _patch_file(source, folder).exists():
        return
    text = patch(source, clock)
    if hashlib.sha256(text).hexdigest() != source.patch_sha256:
        raise GateRefused(
            f"{source.repository} changed while it was planned. Nothing was bought.", next_command="again"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkstemp(prefix=".patch-", dir=folder)[1])
    new.write_bytes(text)
    os.rename(new, _patch_file(source, folder))


def tree(source: GitSource, folder: Path, clock: Clock, until: Time) -> tuple[str, tuple[str, ...]]:
    """The folder that holds the commit's files, made once, and what differs from the commit. Raises `HostError`."""
    if not source.commit:
        raise HostError(f"the commit of {source.repository} was never resolved")
    made = folder / "-".join(filter(None, (source.commit[:16], source.patch_sha256[:16])))
    record = made.with_suffix(".json")
    if not made.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".tree-", dir=folder))
        try:
            differs = _extract(source, new, folder, clock, until)
            record.write_text(json.dumps(differs))
            os.rename(new, made)
        except (OSError, tarfile.TarError) as error:
            raise HostError(f"the archive of {source.commit[:12]} cannot be made: {error}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return str(made), (*source.notes, *json.loads(record.read_text()))


def _extract(source: GitSource, into: Path, folder: Path, clock: Clock, until: Time) -> list[str]:
    """Unpack the commit, compare it with git's own list, put the patch on it; every file gets the commit's time."""
    with tempfile.NamedTemporaryFile(prefix=".archive-", dir=folder) as archive:
        _out(source, clock, "archive", "--format=tar", "-o", archive.name, source.commit)
        with tarfile.open(archive.name) as packed:
            packed.extractall(into, filter="tar")
    differs = list(_differences(source, into, clock))
    if source.patch_sha256:
        kept = _patch_file(source, folder)
        if not kept.exists() or hashlib.sha256(kept.read_bytes()).hexdigest() != source.patch_sha256:
            raise HostError(f"the patch that was planned is not in {kept}: plan the run anew")
        # outside of any checkout: inside one, git would pass over files of that other checkout in silence
        command = argv.git(str(into), "apply", "--whitespace=nowarn", "--binary", str(kept), ceiling=str(folder))
        done = run_child(command, clock, until)
        if done.code:
            raise HostError(f"the patch does not fit on {source.commit[:12]}: {done.err}")
        differs.append(
            f"{source.repository}: sent with changes beside {source.commit[:12]}, patch {source.patch_sha256[:12]}"
        )
    made_at = int(_text(source, clock, "show", "-s", "--format=%ct", source.commit).split()[-1])
    for directory, _, plain in os.walk(into):
        for name in plain:
            os.utime(os.path.join(directory, name), (made_at, made_at), follow_symlinks=False)
    return differs


def _differences(source: GitSource, into: Path, clock: Clock) -> Iterator[str]:
    """What an attribute of the repository left out of the archive or changed in it."""
    missing, changed = [], []
    for mode, kind, blob, path in _entries(source, clock):
        full = into / path
        if kind != "blob":
            continue
        if not os.path.lexists(full):
            missing.append(path)
            continue
        data = os.fsencode(os.readlink(full)) if mode == "120000" else full.read_bytes()
        digest = hashlib.sha1 if len(blob) == 40 else hashlib.sha256
        if digest(b"blob %d\0" % len(data) + data).hexdigest() != blob:
            changed.append(path)
    if missing:
        yield f"{source.repository}: left out by the attribute export-ignore: {_listed(missing)}"
    if changed:
        yield f"{source.repository}: changed by attributes (line ends, export-subst or a filter): {_listed(changed)}"


def _absent(source: GitSource, clock: Clock) -> Iterator[str]:
    """What a commit only points to."""
    modules = [path for mode, _, _, path in _entries(source, clock) if mode == "160000"]
    if modules:
        yield f"submodules are NOT sent: {_listed(modules)}"
    code, out, err = _git(source, clock, "grep", "-l", "-z", "-I", "--full-name", "-e", LFS, source.commit)
    if code not in (0, 1):
        raise UsageError(f"git grep in {source.repository}: {err}")
    pointers = [item.partition(":")[2] for item in os.fsdecode(out).split("\0") if item]
    if pointers:
        yield f"only pointers to LFS are sent, NOT the contents: {_listed(pointers)}"


def _entries(source: GitSource, clock: Clock) -> Iterator[tuple[str, str, str, str]]:
    """(mode, kind, hash, path) of everything in the commit."""
    for line in os.fsdecode(_out(source, clock, "ls-tree", "-r", "-z", "--full-tree", source.commit)).split("\0"):
        if line:
            about, _, path = line.partition("\t")
            mode, kind, blob = about.split()
            yield mode, kind, blob, path


def size(source: GitSource, clock: Clock) -> int:
    """Bytes of all files in the commit."""
    lines = os.fsdecode(_out(source, clock, "ls-tree", "-r", "-l", "-z", "--full-tree", source.commit)).split("\0")
    sizes = [line.partition("\t")[0].split()[3] for line in lines if line]
    return sum(int(size) for size in sizes if size != "-")


def _changes(source: GitSource, clock: Clock) -> tuple[list[str], list[str]]:
    """(changed, unknown to git) of the checkout."""
    options = ("--porcelain=v1", "-z", "--untracked-files=normal", "--no-renames")
    changed: list[str] = []
    untracked: list[str] = []
    for item in os.fsdecode(_out(source, clock, "status", *options)).split("\0"):
        if item:
            (untracked if item.startswith("??") else changed).append(item[3:])
    return changed, untracked


def _listed(paths: list[str]) -> str:
    shown = ", ".join(names.escape(path) for path in paths[:MOST_NAMED])
    return shown + (f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else "")


def _patch_file(source: GitSource, folder: Path) -> Path:
    return folder / f"{source.patch_sha256[:16]}.patch"


def _git(source: GitSource, clock: Clock, *words: str) -> tuple[int, bytes, str]:
    done = run_child(argv.git(source.repository, *words), clock, clock.now() + GIT_S)
    return done.code, done.out, done.err


def _out(source: GitSource, clock: Clock, *words: str) -> bytes:
    code, out, err = _git(source, clock, *words)
    if code:
        raise UsageError(f"git {words[0]} in {source.repository}: {err or code}")
    return out


def _text(source: GitSource, clock: Clock, *words: str) -> str:
    return os.fsdecode(_out(source, clock, *words))
