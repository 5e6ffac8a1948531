"""Copies on a local directory, independent of every rental.

    <destination>/<run>/.incoming/<generation>.<digest>/   an attempt: may be incomplete, is never trusted
    <destination>/<run>/<generation>/                      a verified copy with its hash list: never written over

An attempt becomes a copy by one rename, after every byte was read again from disk and compared with what was sealed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuops import names
from gpuops.codec import from_json, to_json
from gpuops.errors import CopyError
from gpuops.values import Copied, Generation, RunId

INCOMING = ".incoming"
LOCK_S = 30.0
MAX_RECORD_BYTES = 64 << 20
MAX_SUFFIX = 1000
BUFFER = 1 << 20


class LocalStore:
    """`ports.Store` on directories of this computer."""

    def find(self, run: RunId, destination: str, generation: Generation) -> Copied | None:
        """A published copy with exactly this content, read again from disk; None when there is none or it rotted."""
        for path in _published(_run_directory(run, destination), generation.id):
            if _content(path) != names.content_digest(generation):
                continue
            try:
                _compare(path, generation)
            except CopyError:
                continue  # a copy that no longer matches its list is left where it is and not counted
            return _copied(path, generation)
        return None

    def attempt(self, run: RunId, destination: str, generation: Generation) -> str:
        """A private directory for this content; what an earlier attempt brought stays in it.

        Raises `CopyError` when the destination has no room for the rest of it, or cannot be written.
        """
        problem = names.generation_problem(generation)
        if problem:
            raise CopyError(f"the generation cannot be stored: {problem}")
        digest = names.content_digest(generation)
        directory = _run_directory(run, destination)
        path = directory / INCOMING / f"{generation.id}.{digest[:12]}"
        try:
            with _locked(directory):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CopyError(f"cannot write to {destination}: {error}") from error
        needed = generation.bytes - sum(_blocks(p) for p in path.rglob("*"))
        free = self.free_bytes(destination)
        if needed > free:
            raise CopyError(f"no space at {destination}: {free:,} bytes free, {needed:,} needed for {generation.id}")
        return str(path)

    def publish(self, run: RunId, destination: str, generation: Generation, attempt: str) -> Copied:
        """Sync, read again from disk, compare, write the hash list, rename. Repeating it is harmless.

        Raises `CopyError` when a file differs, is missing or is not a regular file, and when the disk is full.
        """
        source, directory = Path(attempt), _run_directory(run, destination)
        try:
            with contextlib.suppress(FileNotFoundError):
                (source / names.RANGES_FILE).unlink()
            if not source.is_dir():
                raise CopyError(f"{attempt} is gone")
            _check_members(source, generation)
            _sync_tree(source)
            _compare(source, generation)
            with _locked(directory):
                for path in _published(directory, generation.id):
                    if _content(path) == names.content_digest(generation) and _same(path, generation):
                        shutil.rmtree(source)
                        return _copied(path, generation)
                _write_record(source, generation)
                target = _free_name(directory, generation.id)
                os.rename(source, target)
                _sync(directory)
                _sync(source.parent)
        except OSError as error:
            raise _full(error, destination, generation, self) from error
        return _copied(target, generation)

    def load(self, copy: Copied) -> Generation:
        """The hash list of a published copy, after every file was read again from disk. Raises `CopyError`."""
        path = Path(copy.path)
        try:
            generation = from_json(Generation, _record(path))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise CopyError(f"{copy.path} has no hash list of ours: {type(error).__name__}") from error
        if names.content_digest(generation) != copy.digest:
            raise CopyError(f"{copy.path} is not the copy that was verified as {copy.generation}")
        _compare(path, generation)
        return generation

    def discard(self, attempt: str) -> None:
        """Remove a spoiled attempt; anything that is not an attempt is left alone."""
        path = Path(attempt)
        if path.parent.name == INCOMING:
            shutil.rmtree(path, ignore_errors=True)

    def prune(self, run: RunId, destination: str, keep_last: int, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Remove published generations beyond the newest `keep_last`; never `keep`, telemetry or the only one."""
        directory = _run_directory(run, destination)
        if not directory.is_dir():
            return ()
        removed = []
        with _locked(directory):
            found = sorted(
                (
                    (record.get("step", 0), record.get("published_at", 0.0), path)
                    for path, record in _records(directory)
                ),
                key=lambda item: (item[0], item[1], item[2].name),
            )
            copies = [path for _, _, path in found if path.name.partition("~")[0] != names.TELEMETRY]
            for path in copies[: max(0, len(copies) - max(1, keep_last))]:
                if path.name in keep or path.name.partition("~")[0] in keep:
                    continue
                bin_ = directory / INCOMING / f".old-{path.name}"
                bin_.parent.mkdir(mode=0o700, exist_ok=True)
                shutil.rmtree(bin_, ignore_errors=True)
                # by rename first: an interrupted removal leaves no half generation under a published name
                os.rename(path, bin_)
                _sync(directory)
                shutil.rmtree(bin_, ignore_errors=True)
                removed.append(path.name)
        return tuple(removed)

    def free_bytes(self, destination: str) -> int:
        """Free space at the destination, where something was written just now. Raises `CopyError` when nothing can be."""
        try:
            Path(destination).mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=destination) as probe:
                probe.write(b"x")
            return shutil.disk_usage(destination).free
        except OSError as error:
            raise CopyError(f"cannot write to {destination}: {error.strerror}") from error


def _run_directory(run: RunId, destination: str) -> Path:
    if not os.path.isabs(destination) or names.path_problem(run) or "/" in run:
        raise CopyError(f"not a place for copies: {destination!r}, run {names.escape(run)!r}")
    return Path(destination) / run


def _published(directory: Path, generation: str) -> list[Path]:
    """Every published copy under this id: the first has its name, others of other content `~2`, `~3` …"""
    first = directory / generation
    others = sorted(directory.glob(f"{_literal(generation)}~*"))
    return [p for p in [first, *others] if p.is_dir() and not p.is_symlink()]


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _free_name(directory: Path, generation: str) -> Path:
    for number in range(1, MAX_SUFFIX):
        path = directory / (generation if number == 1 else f"{generation}~{number}")
        if not os.path.lexists(path):
            return path
    raise CopyError(f"too many copies of {generation} with different content")


def _record(path: Path) -> dict[str, Any]:
    """Our own hash list of a published copy; empty when it cannot be read."""
    for name in (names.RECORD_FILE, names.MANIFEST_FILE):
        try:
            file = path / name
            if file.lstat().st_size <= MAX_RECORD_BYTES and not file.is_symlink():
                found = json.loads(file.read_text())
                if isinstance(found, dict) and found.get("by") == "gpuops":
                    return found
        except (OSError, ValueError):
            continue
    return {}


def _records(directory: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            record = _record(path)
            if record:
                yield path, record


def _content(path: Path) -> str:
    return str(_record(path).get("content", ""))


def _write_record(path: Path, generation: Generation) -> None:
    """The hash list, in the file that the generation does not have itself; written last."""
    own = any(f.path == names.MANIFEST_FILE for f in generation.files)
    record = {
        "by": "gpuops", "content": names.content_digest(generation), "published_at": time.time(), **to_json(generation),
    }  # fmt: skip
    file = path / (names.RECORD_FILE if own else names.MANIFEST_FILE)
    with open(file, "w") as out:
        json.dump(record, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    _sync(path)


def _check_members(path: Path, generation: Generation) -> None:
    """Only the files of the list, and they are regular files: nothing else may be published."""
    wanted = {f.path for f in generation.files}
    if names.RECORD_FILE in wanted:
        raise CopyError(f"the generation has a file {names.RECORD_FILE}, which is our own name")
    for directory, inner, plain in os.walk(path):
        for name in [*inner, *plain]:
            full = os.path.join(directory, name)
            relative = os.path.relpath(full, path)
            mode = os.lstat(full).st_mode
            if stat.S_ISDIR(mode):
                continue
            if relative not in wanted:
                if relative in (names.RECORD_FILE, names.MANIFEST_FILE):
                    os.unlink(full)  # the list of an earlier attempt that ended between list and rename
                    continue
                raise CopyError(f"{names.escape(relative)!r} is in the attempt and not in the sealed list")
            if not stat.S_ISREG(mode):
                raise CopyError(f"{names.escape(relative)!r} is not a regular file")


def _compare(path: Path, generation: Generation) -> None:
    """Read every file from the disk, on all cores. Raises `CopyError` naming the first that differs."""

    def one(index: int) -> str:
        file = generation.files[index]
        try:
            size, digest = _hash_from_disk(os.path.join(path, file.path))
        except OSError as error:
            return f"{file.path}: {error.strerror}"
        if size != file.size:
            return f"{file.path} has {size:,} bytes instead of {file.size:,}"
        return "" if digest == file.sha256 else f"{file.path} has sha256 {digest} instead of {file.sha256}"

    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1)) as pool:
        for problem in pool.map(one, range(len(generation.files))):
            if problem:
                raise CopyError(f"{generation.id}: {problem}")


def _same(path: Path, generation: Generation) -> bool:
    try:
        _compare(path, generation)
    except CopyError:
        return False
    return True


def _hash_from_disk(path: str) -> tuple[int, str]:
    """Size and sha256 of a regular file, read past the page cache where the system lets us drop it."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb", buffering=0) as source:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest, buffer, size = hashlib.sha256(), bytearray(BUFFER), 0
        view = memoryview(buffer)
        while count := source.readinto(buffer):
            digest.update(view[:count])
            size += count
    return size, digest.hexdigest()


def _sync_tree(path: Path) -> None:
    """Make every file and directory below `path` durable, files before the directories that name them."""
    for directory, _, plain in os.walk(path, topdown=False):
        for name in plain:
            _sync(Path(directory) / name)
        _sync(Path(directory))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _blocks(path: Path) -> int:
    """Bytes that a file really occupies: an attempt's files have their full length from the start."""
    info = path.lstat()
    return min(info.st_blocks * 512, info.st_size) if stat.S_ISREG(info.st_mode) else 0


def _copied(path: Path, generation: Generation) -> Copied:
    return Copied(generation.id, str(path), generation.bytes, names.content_digest(generation))


def _full(error: OSError, destination: str, generation: Generation, store: LocalStore) -> CopyError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(Path(destination).anchor if not os.path.isdir(destination) else destination).free
        return CopyError(
            f"no space at {destination}: {free:,} bytes free, {generation.bytes:,} needed for {generation.id}"
        )
    return CopyError(f"cannot publish {generation.id} at {destination}: {error}")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One writer for each run directory, across processes. Raises `CopyError` when another holds it for too long."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600), "r+b") as lock:
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise CopyError(f"another process is writing to {directory}") from error
                threading.Event().wait(0.02)
        yield
