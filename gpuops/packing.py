"""Files as a tar stream into the agent: how they go to a host that cannot speak rsync.

The list, the connection and the proof by sha256 are those of rsync. What an interrupted stream delivered is not sent again.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Mapping
from functools import partial
from typing import IO, Any

from gpuops.errors import HostError
from gpuops.remote import Connection
from gpuops.values import SendFile, Time

Hashes = Mapping[str, tuple[str, int, str]]
"""Path to (kind, size, sha256)."""


def send(
    source: str,
    destination: str,
    files: Iterable[SendFile],
    wanted: Hashes,
    connection: Connection,
    until: Time,
) -> None:
    """Send what is not on the host yet with the content of `wanted`; directories always, for their modes and times."""
    request = {"trees": [{"root": destination, "files": sorted(wanted)}]}
    seen = connection.call("verify", request, until)["trees"][0]
    there = {path for path, found in zip(sorted(wanted), seen, strict=True) if tuple(found) == wanted[path]}
    missing = [f for f in files if f.path not in there]
    connection.call("receive", {"root": destination}, until, partial(_pack, source, missing))


def _pack(source: str, files: Iterable[SendFile], out: IO[bytes]) -> None:
    try:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as stream:
            for file in files:
                _add(stream, source, file)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(f"cannot be read here: {error}") from error


def _add(stream: Any, source: str, file: SendFile) -> None:
    """One entry; what the list calls a file is one also where a link leads to it (`follow`)."""
    path = os.path.join(source, file.path)
    info = os.lstat(path) if file.kind == "link" else os.stat(path)
    entry = tarfile.TarInfo(file.path)
    entry.mode, entry.mtime = info.st_mode & 0o777, info.st_mtime
    if file.kind == "directory":
        entry.type = tarfile.DIRTYPE
        stream.addfile(entry)
    elif file.kind == "link":
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        stream.addfile(entry)
    else:
        with open(path, "rb") as content:
            entry.size = os.fstat(content.fileno()).st_size
            stream.addfile(entry, content)
