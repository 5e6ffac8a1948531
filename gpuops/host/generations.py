"""Finding complete generations in the output directory of training, and hashing them.

A generation by contract is a directory that was published by rename and holds `MANIFEST.json`, written last:
`{"files": [{"path", "size", "sha256"}], "step", "metric"}`. A program that writes no such list is taken as it is: each
directory, and each set of loose files with the same number in their names, is a generation once it has been quiet.
Neither a name such as `latest` nor a modification time proves anything; completeness and hashes do.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any

from gpuops.host.files import RefusedError, hash_file, in_threads, open_beneath, parts_of, read_json

MANIFEST = "MANIFEST.json"
QUIET_S = 30.0
MOST = 200
LOOSE = "loose"
NOT_PUBLISHED = re.compile(r"^\.|^heartbeat\.jsonl$|\.(tmp|part|partial|incoming|lock)$", re.IGNORECASE)
ZIPPED = (".npz", ".zip")
PICKLED = (".pt", ".pth", ".ckpt", ".bin")


class Found:
    """A candidate: id, step, and files (relative to `root`) with the sizes and hashes that its own list promises."""

    def __init__(self, ident: str, root: str, step: int) -> None:
        self.id, self.root, self.step = ident, root, step
        self.metric: float | None = None
        self.listed = False
        self.files: dict[str, tuple[int, str]] = {}
        self.left_behind: list[str] = []
        self.changed_at = 0.0
        self.problem = ""

    def order(self) -> tuple[int, float, str]:
        """Oldest first: by step, then by age, then by name."""
        return (self.step, 0.0 if self.listed else self.changed_at, self.id)


def list_before(directory: str) -> dict[str, Any]:
    """What lies in the output directory now: name to inode and, for files, size and time. Recorded before launch."""
    names = {}
    for entry in _entries(directory):
        info = entry.stat(follow_symlinks=False)
        names[entry.name] = _identity(info)
    try:
        offset = os.stat(os.path.join(directory, "heartbeat.jsonl")).st_size
    except OSError:
        offset = 0
    return {"names": names, "heartbeat_offset": offset}


def find(directory: str, before: dict[str, Any]) -> list[Found]:
    """Every candidate of this run, oldest first, complete or not (`problem` says why not)."""
    known = before.get("names", {})
    entries = [
        e for e in _entries(directory)
        if not NOT_PUBLISHED.search(e.name) and known.get(e.name) != _identity(e.stat(follow_symlinks=False))
    ]  # fmt: skip
    directories = [e for e in entries if e.is_dir(follow_symlinks=False)]
    by_contract = [e for e in directories if os.path.lexists(os.path.join(e.path, MANIFEST))]
    if by_contract:
        # a program that keeps the contract means it: what has no list is not published
        found = [_listed(directory, e.name) for e in by_contract]
    else:
        found = [_unlisted(directory, e.name) for e in directories]
        found += _loose(directory, [e for e in entries if e.is_file(follow_symlinks=False)])
    return sorted(found, key=Found.order)[-MOST:]


def complete_ids(directory: str, before: dict[str, Any], now: float) -> list[str]:
    """Ids of complete generations, oldest first, without reading any weights."""
    return [f.id for f in find(directory, before) if not f.problem and (f.listed or now - f.changed_at >= QUIET_S)]


def quiesce(directory: str, before: dict[str, Any], pause_s: float = 0.3, rounds: int = 20) -> bool:
    """Wait until nothing in the output directory changes any more; False when something still does."""
    last: object = None
    for _ in range(rounds):
        seen = [(f.id, f.changed_at, sorted(f.files.items())) for f in find(directory, before)]
        if seen == last:
            return True
        last = seen
        time.sleep(pause_s)
    return False


def hashed(found: Found, cache: dict[str, Any]) -> dict[str, Any]:
    """Read every file of a complete candidate and return the generation with its hash list.

    Raises `RefusedError` when a file is missing, differs from the program's own list, or when its
    structure is broken.
    """
    if found.problem:
        raise RefusedError(f"{found.id}: {found.problem}")
    names = sorted(found.files)
    try:
        sums = in_threads(lambda n: (n, *hash_file(found.root, n, cache)), names)
        for name, size, digest in sums:
            want_size, want_digest = found.files[name]
            if size != want_size or (want_digest and digest != want_digest):
                raise RefusedError(f"{found.id}: {name} differs from the generation's own list")
        in_threads(lambda n: check_structure(found.root, n, deep=not found.listed), names)
    except OSError as error:
        raise RefusedError(f"{found.id}: {error}") from error
    files = [{"path": n, "size": s, "sha256": d} for n, s, d in sums]
    return {
        "id": found.id, "step": max(found.step, 0), "files": files, "metric": found.metric,
        "left_behind": found.left_behind[:MOST],
    }  # fmt: skip


def check_structure(root: str, name: str, deep: bool) -> None:
    """Raise `RefusedError` when a file is not whole as its format says; `deep` also reads the CRC of zip members."""
    lower = name.lower()
    if not lower.endswith((*ZIPPED, *PICKLED, ".safetensors", ".index.json")):
        return
    with os.fdopen(open_beneath(root, name), "rb") as source:
        size = os.fstat(source.fileno()).st_size
        if lower.endswith(".safetensors"):
            _check_safetensors(name, source, size)
        elif lower.endswith(".index.json"):
            _check_index(root, name, source.read(64 << 20))
        elif lower.endswith(ZIPPED) or source.read(4) == b"PK\x03\x04":
            import zipfile  # here: most requests of the agent read no zip file, and this import takes as long as they do

            try:
                with zipfile.ZipFile(source) as archive:
                    bad = archive.testzip() if deep else None
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
                raise RefusedError(f"{name} is not a whole zip file: {error}") from error
            if bad:
                raise RefusedError(f"{name}: member {bad!r} is damaged")
        elif size == 0:
            raise RefusedError(f"{name} is empty")


def _check_safetensors(name: str, source: Any, size: int) -> None:
    length = int.from_bytes(source.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, 100 << 20):
        raise RefusedError(f"{name} is cut off in its header")
    try:
        header = json.loads(source.read(length))
        spans = sorted(tuple(v["data_offsets"]) for k, v in header.items() if k != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RefusedError(f"{name} has a header that cannot be read") from error
    at = 0
    for start, end in spans:
        if start != at or end < start:
            raise RefusedError(f"{name} has holes or overlaps")
        at = end
    if 8 + length + at != size:
        raise RefusedError(f"{name} has {size} bytes, its header says {8 + length + at}")


def _check_index(root: str, name: str, data: bytes) -> None:
    """A sharded checkpoint's index: every shard that it names must be there."""
    try:
        shards = {str(s) for s in json.loads(data)["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError):
        return
    for shard in shards:
        if not os.path.isfile(os.path.join(root, os.path.dirname(name), *parts_of(shard))):
            raise RefusedError(f"{name} names {shard}, which is missing")


def _listed(directory: str, name: str) -> Found:
    root = os.path.join(directory, name)
    found = Found(name, root, _number(name))
    found.listed = True
    manifest = read_json(os.path.join(root, MANIFEST))
    try:
        found.step = int(manifest.get("step", found.step))
        metric = manifest.get("metric")
        found.metric = float(metric) if isinstance(metric, (int, float)) else None
        for item in manifest["files"]:
            path, size, digest = str(item["path"]), int(item["size"]), str(item["sha256"]).lower()
            if not re.fullmatch("[0-9a-f]{64}", digest):
                raise RefusedError(f"no sha256 for {path!r}")
            parts_of(path)
            if path in found.files or path == MANIFEST:
                raise RefusedError(f"{path!r} is listed twice")
            found.files[path] = (size, digest)
    except (AttributeError, TypeError, KeyError, ValueError, RefusedError, OverflowError) as error:
        found.problem = f"its {MANIFEST} cannot be used ({error})"
        return found
    there = dict(_walk(found))
    for path, (size, _) in found.files.items():
        if path not in there:
            found.problem = f"{path} is missing or not a regular file"
        elif there[path] != size:
            found.problem = f"{path} has {there[path]} bytes instead of {size}"
    found.left_behind += sorted(set(there) - set(found.files) - {MANIFEST})
    found.files[MANIFEST] = (there.get(MANIFEST, -1), "")
    return found


def _unlisted(directory: str, name: str) -> Found:
    found = Found(name, os.path.join(directory, name), _number(name))
    for path, size in _walk(found):
        if path.rsplit("/", 1)[-1].endswith((".tmp", ".partial", ".incomplete")):
            found.problem = f"{path} is still being written"
        found.files[path] = (size, "")
    if not found.files:
        found.problem = "it is empty"
    return found


def _loose(directory: str, entries: list[os.DirEntry[str]]) -> list[Found]:
    """Files that lie in the output directory itself: one generation per number in their names, one for all others."""
    groups: dict[str, Found] = {}
    for entry in entries:
        step = _number(entry.name)
        ident = f"step-{step}" if step >= 0 else LOOSE
        found = groups.setdefault(ident, Found(ident, directory, step))
        info = entry.stat(follow_symlinks=False)
        found.files[entry.name] = (info.st_size, "")
        found.changed_at = max(found.changed_at, info.st_mtime, info.st_ctime)
    return list(groups.values())


def _walk(found: Found) -> Iterator[tuple[str, int]]:
    """Regular files below a candidate with their sizes; links and special files are named as left behind."""
    for directory, names, files in os.walk(found.root, followlinks=False):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, found.root)
            try:
                info = os.lstat(path)
            except OSError:
                found.problem = f"{relative} vanished"
                continue
            found.changed_at = max(found.changed_at, info.st_mtime, info.st_ctime)
            if stat.S_ISREG(info.st_mode):
                yield relative, info.st_size
            elif not stat.S_ISDIR(info.st_mode):
                found.left_behind.append(relative)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError:
        return []


def _identity(info: os.stat_result) -> list[int]:
    """A directory published again under an old name is a new one: it has another inode."""
    return [info.st_ino] if stat.S_ISDIR(info.st_mode) else [info.st_ino, info.st_size, info.st_mtime_ns]


def _number(name: str) -> int:
    """The last number in a name, which programs use for the step; -1 without one."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1][:15]) if numbers else -1
