"""Reading what is to be sent: the hash of every file, and what looks like a key or token."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from gpuops.errors import HostError
from gpuops.values import SendFile

MAX_SCAN_BYTES = 256 << 10
SMALL_BYTES = 256 << 10
"""Up to this size threads cost more in handing over the interpreter than a second core brings."""
Seen = tuple[str, int, str]
"""(kind, size, sha256) of a file or link."""
_KEY_NAME = re.compile(
    r"^(id_[a-z0-9]+|.*\.(pem|key|p12|pfx|ppk|kdbx|jks)|.*credentials.*|.*secret.*|\.netrc|\.npmrc|\.pypirc"
    r"|.*token(s|\.txt|\.json)?)$",
    re.IGNORECASE,
)
_KEY_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY|\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\b(AKIA|ASIA)[0-9A-Z]{16}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bAIza[0-9A-Za-z_-]{35}|\bxox[abp]-[0-9A-Za-z-]{20,}"
)
# What every match of `_KEY_TEXT` has: the words of a private key, or one of the beginnings within 20 such letters in a row.
# Looking for these first is a hundred times faster than the pattern, and a tree has thousands of files.
_KEY_WORDS = b"PRIVATE KEY"
_BEGINNINGS = (b"hf_", b"sk-", b"AKIA", b"ASIA", b"AIza", b"xox", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")
_LETTERS = bytes(120 if chr(c).isascii() and (chr(c).isalnum() or chr(c) in "_-") else 32 for c in range(256))
_LONG_WORD = b"x" * 20


def suspicious(source: str, files: Iterable[SendFile]) -> Iterator[str]:
    """Files of a list that look like a key or carry a token."""
    for file in files:
        if file.kind != "file":
            continue
        if _KEY_NAME.match(file.path.rpartition("/")[2]):
            yield f"{file.path}: named like a key or token"
        elif file.size <= MAX_SCAN_BYTES and has_key(_head(f"{source}/{file.path}", file.size)):
            yield f"{file.path}: contains what looks like a key or token"


def has_key(text: bytes) -> bool:
    """Whether a text contains what looks like a key or token."""
    if _KEY_WORDS not in text:
        if _LONG_WORD not in text.translate(_LETTERS):
            return False
        if not any(beginning in text for beginning in _BEGINNINGS):
            return False
    return _KEY_TEXT.search(text) is not None


def hashes(source: str, files: Iterable[SendFile], over: Callable[[], bool] = lambda: False) -> dict[str, Seen]:
    """What every file and link of a list is here, on all cores; left off between two files when `over` says that nobody waits.

    Raises `HostError` for one that cannot be read.
    """
    real = [f for f in files if f.kind != "directory"]
    batches = [[f] for f in real if f.size > SMALL_BYTES]
    batches.append([f for f in real if f.size <= SMALL_BYTES])
    try:
        with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1)) as pool:
            done = pool.map(lambda batch: [(f.path, _hash(source, f)) for f in batch if not over()], batches)
            return {path: seen for batch in done for path, seen in batch}
    except OSError as error:
        raise HostError(f"cannot be read here: {error}") from error


def _hash(source: str, file: SendFile) -> Seen:
    path = f"{source}/{file.path}"
    if file.kind == "link":
        target = os.fsencode(os.readlink(path))
        return "link", len(target), hashlib.sha256(target).hexdigest()
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise HostError(f"{path} is no regular file any more")
        if info.st_size <= SMALL_BYTES:
            data = os.read(fd, info.st_size + 1)  # no more: a large buffer for each small file costs more than its hash
            if len(data) == info.st_size:
                return "file", len(data), hashlib.sha256(data).hexdigest()
            os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(fd), "rb", buffering=0) as whole:
            return "file", info.st_size, hashlib.file_digest(whole, "sha256").hexdigest()
    finally:
        os.close(fd)


def _head(path: str, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)
