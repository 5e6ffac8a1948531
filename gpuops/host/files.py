"""Reading, hashing and writing files on the host, never through a link that somebody else put there."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable
from typing import Any

BUFFER = 1 << 20
SMALL = 256 << 10
PART_FILES = 2000
MOST_PROCESSES = 8


class RefusedError(Exception):
    """The host says that something is wrong; the text is for a person."""


def atomic_write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that a reader sees the old or the new content and nothing between, also after a power cut."""
    temporary = f"{path}.new.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Make a rename durable; filesystems that cannot sync a directory are left alone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def read_json(path: str, limit: int = 64 << 20) -> Any:
    """The JSON value in a file; None when it is missing, too large or torn."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as source:
            info = os.fstat(source.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
                return None
            return json.loads(source.read())
    except (OSError, ValueError, RecursionError):
        return None


def parts_of(relative: str) -> list[str]:
    """The components of a relative path. Raises `RefusedError` for anything that could point elsewhere."""
    parts = relative.split("/")
    if not relative or any(p in ("", ".", "..") or "\0" in p for p in parts):
        raise RefusedError(f"not a plain relative path: {relative!r}")
    return parts


def open_beneath(root: str, relative: str) -> int:
    """Open a regular file below `root` for reading; no component below `root` may be a link.

    Raises `OSError` for a link or a missing file, `RefusedError` for a special file. Never blocks on a fifo.
    """
    *inner, last = parts_of(relative)
    fd = open_folder(root, inner)
    try:
        found = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise RefusedError(f"not a regular file: {relative!r}")
    return found


def open_folder(root: str, parts: list[str]) -> int:
    """Open the folder below `root` that `parts` name; none of them may be a link. Raises `OSError`."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        try:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def signature(info: os.stat_result) -> list[int]:
    """What changes when a file is written: size, times and inode."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def hash_file(root: str, relative: str, cache: dict[str, Any] | None = None) -> tuple[int, str]:
    """Size and sha256 of one file. `cache` maps a path to its signature and hash, so that a second call need not read.

    Raises `RefusedError` when the file changed while it was read.
    """
    fd = open_beneath(root, relative)
    try:
        before = signature(os.fstat(fd))
        key = os.path.join(root, relative)
        known = cache.get(key) if cache is not None else None
        if known and known[0] == before:
            return before[0], str(known[1])
        digest = hash_open(fd, relative, before)
    finally:
        os.close(fd)
    if cache is not None:
        cache[key] = [before, digest]
    return before[0], digest


def hash_open(fd: int, name: str, before: list[int], tell: Callable[[int], Any] = lambda count: None) -> str:
    """sha256 of an open file whose signature was `before`; `tell` hears how many bytes were read.

    Raises `RefusedError` when the file changed while it was read.
    """
    digest, buffer = hashlib.sha256(), bytearray(max(1, min(BUFFER, before[0] + 1)))
    view = memoryview(buffer)
    while True:
        count = os.readv(fd, [buffer])
        if not count:
            break
        digest.update(view[:count])
        tell(count)
    if signature(os.fstat(fd)) != before:
        raise RefusedError(f"{name} changed while it was read")
    return digest.hexdigest()


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Apply `work` on all cores and keep the order; the first error is raised. Hashing and reading release the lock.

    Plain threads: importing a pool would cost every request of the agent as much as its own work.
    """
    waiting = list(enumerate(items))[::-1]
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run() -> None:
        while not errors:
            try:
                index, item = waiting.pop()
            except IndexError:
                return
            try:
                results[index] = work(item)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(min(len(waiting), max(2, os.cpu_count() or 1)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in sorted(results)]


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Hash named files: `trees` is a list of {root, files}; what cannot be read yields its reason instead."""
    return {"trees": [_verify_parts(tree["root"], tree["files"]) for tree in request["trees"]]}


def _verify_parts(root: str, names: list[str]) -> list[Any]:
    """A tree of very many files by several processes: threads would wait for each other at every small one."""
    count = min(os.cpu_count() or 1, MOST_PROCESSES, len(names) // PART_FILES + 1)
    size = -(-len(names) // count)
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    others = [_beside(root, part) for part in parts[1:]]
    found = _verify_tree(root, parts[0]) if parts else []
    for part, (child, answers) in zip(parts[1:], others, strict=True):
        with os.fdopen(answers, "rb") as source:
            told = source.read()
        ended = os.waitpid(child, 0)[1]
        # one that was killed, for want of memory for example, has told nothing: its part is looked at here
        found += json.loads(told) if ended == 0 else _verify_tree(root, part)
    return found


def _beside(root: str, names: list[str]) -> tuple[int, int]:
    """A process that looks at `names`, and where its answers can be read. The agent has no threads when it forks."""
    answers, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, answers
    try:
        os.close(answers)
        with os.fdopen(tell, "wb") as out:
            out.write(json.dumps(_verify_tree(root, names)).encode())
    except BaseException:
        os._exit(1)
    os._exit(0)


def _verify_tree(root: str, names: list[str]) -> list[Any]:
    """Small files one after the other, in a folder that stays open; large ones on all cores.

    Opening every folder again and handing the interpreter from thread to thread would each double the time.
    """
    found: list[Any] = [None] * len(names)
    large: list[int] = []
    folder, parent = -1, None
    try:
        for index, name in enumerate(names):
            try:
                *inner, last = parts_of(name)
                if inner != parent:
                    if folder >= 0:
                        os.close(folder)
                    folder, parent = -1, None
                    folder, parent = open_folder(root, inner), inner
                found[index] = _look(folder, last)
            except (OSError, RefusedError) as error:
                found[index] = ["missing", 0, f"{error}"]
            if found[index] is None:
                large.append(index)
    finally:
        if folder >= 0:
            os.close(folder)

    def one(index: int) -> None:
        try:
            found[index] = ["file", *hash_file(root, names[index])]
        except (OSError, RefusedError) as error:
            found[index] = ["missing", 0, f"{error}"]

    in_threads(one, large)
    return found


def _look(folder: int, name: str) -> list[Any] | None:
    """What a name in an open folder is; None for a file that is large enough for a thread of its own."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        target = os.fsencode(os.readlink(name, dir_fd=folder))
        return ["link", len(target), hashlib.sha256(target).hexdigest()]
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise RefusedError(f"not a regular file: {name!r}")
        if info.st_size > SMALL:
            return None
        data = os.read(fd, info.st_size + 1)
        if len(data) != info.st_size:
            raise RefusedError(f"{name} changed while it was read")
        return ["file", len(data), hashlib.sha256(data).hexdigest()]
    finally:
        os.close(fd)


def receive(root: str, source: Any) -> dict[str, Any]:
    """Unpack a tar stream of regular files, links and directories below `root`. Each file appears whole, by rename.

    Raises `RefusedError` for a name that leaves `root`, another kind of entry and a torn stream.
    """
    import tarfile  # here: a request that unpacks nothing does not wait for it

    os.makedirs(root, exist_ok=True)
    directories, count = [], 0
    try:
        with tarfile.open(fileobj=source, mode="r|") as entries:
            for entry in entries:
                path = os.path.join(root, *parts_of(entry.name))
                if entry.isdir():
                    os.makedirs(path, exist_ok=True)
                    directories.append((path, entry))
                else:
                    _place(path, entry, entries.extractfile(entry) if entry.isreg() else None)
                count += 1
    except tarfile.TarError as error:
        raise RefusedError(f"the files did not arrive whole: {error}") from error
    # last and from the inside out: a directory may be closed to writing, and what is put into it changes its time
    for path, entry in reversed(directories):
        _stamp(path, entry)
    return {"count": count}


def _place(path: str, entry: Any, content: Any) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = path + ".gpuops-partial"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    if entry.issym():
        os.symlink(entry.linkname, temporary)
    elif content is None:
        raise RefusedError(f"neither a file nor a link: {entry.name!r}")
    else:
        with open(temporary, "xb") as out:
            shutil.copyfileobj(content, out, BUFFER)
        _stamp(temporary, entry)
    os.rename(temporary, path)


def _stamp(path: str, entry: Any) -> None:
    os.chmod(path, entry.mode & 0o777)
    os.utime(path, (entry.mtime, entry.mtime))


def stream(root: str, ranges: list[Any], write: Callable[[Any], Any]) -> None:
    """Write byte ranges, each with its true length in 8 bytes before it; a file that cannot be read has length 0."""
    for relative, offset, length in ranges:
        try:
            fd = open_beneath(root, relative)
        except (OSError, RefusedError):
            write((0).to_bytes(8, "big"))
            continue
        try:
            there = max(0, min(length, os.fstat(fd).st_size - offset))
            write(there.to_bytes(8, "big"))
            while there:
                data = os.pread(fd, min(BUFFER, there), offset)
                if not data:
                    raise RefusedError(f"{relative} became shorter while it was read")
                write(data)
                offset, there = offset + len(data), there - len(data)
        finally:
            os.close(fd)
