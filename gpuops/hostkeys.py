"""Keys of a run on this computer: its own two key pairs, and the known_hosts files that pin its hosts.

Everything lies in one folder per run. Whoever logs in takes identity and pin from here and from nowhere else.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuops import argv, names
from gpuops.errors import HostError, HostKeyMismatch
from gpuops.ports import Clock
from gpuops.remote import run_child
from gpuops.values import Endpoint, HostKey

KEYGEN_S = 30.0
_PUBLIC = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]+=*")


@dataclass(frozen=True, slots=True)
class Jump:
    """A host through which every rental is reached from this computer."""

    endpoint: Endpoint
    host_key: str
    identity: str


def make(directory: Path, clock: Clock) -> tuple[str, HostKey]:
    """Make the client key and the host key once, as a whole directory put in place by one rename."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(directory.parent / ".keys.lock"):
        if not (directory / "client.pub").exists():
            new = Path(tempfile.mkdtemp(prefix=".ssh-", dir=directory.parent))
            for name in ("client", "host"):
                made = run_child(argv.keygen(str(new / name), f"gpuops-{name}"), clock, clock.now() + KEYGEN_S)
                if made.code:
                    raise HostError(f"ssh-keygen: {made.err}")
            if directory.exists():
                for known in directory.iterdir():
                    shutil.copy2(known, new / known.name)
                shutil.rmtree(directory)
            os.rename(new, directory)
    public = _bare((directory / "host.pub").read_text())
    return (
        _bare((directory / "client.pub").read_text()),
        HostKey((directory / "host").read_text(), public, fingerprint(public)),
    )


def pin(directory: Path, endpoint: Endpoint, public_key: str) -> str:
    """Write the line of this address in the run's known_hosts and return the key's fingerprint.

    A run may know several addresses: a lost rental that was replaced may come back, with work on it.
    """
    argv.check_endpoint(endpoint)
    bare = _bare(public_key)
    if not _PUBLIC.fullmatch(bare):
        raise HostError(f"not a public host key: {names.escape(public_key)[:80]!r}")
    path, line = directory / "known_hosts", argv.known_hosts_line(endpoint, bare)
    others = [known for known in _lines(path) if known.split(" ", 1)[0] != line.split(" ", 1)[0]]
    _replace(path, "".join([*others, line]))
    return fingerprint(bare)


def pinned(directory: Path, endpoint: Endpoint) -> str:
    """The known_hosts line of this address. Raises `HostKeyMismatch` when nothing, or another address, is pinned."""
    lines = _lines(directory / "known_hosts")
    if not lines:
        raise HostKeyMismatch("no host key is pinned for this run: nothing is sent to a host that proved nothing")
    keys = ((line, " ".join(line.split()[1:3])) for line in lines)
    line = next((a for a, key in keys if _PUBLIC.fullmatch(key) and a == argv.known_hosts_line(endpoint, key)), "")
    if not line:
        raise HostKeyMismatch(f"the pinned host key is for another address than {endpoint.host} port {endpoint.port}")
    return line


def jump_login(directory: Path, jump: Jump | None) -> argv.Login | None:
    """The jump host with a known_hosts file that holds its configured key and nothing else."""
    if jump is None:
        return None
    bare = _bare(jump.host_key)
    if not _PUBLIC.fullmatch(bare):
        raise HostKeyMismatch(f"not a public key of the jump host: {names.escape(jump.host_key)[:80]!r}")
    known, line = directory / "jump_known_hosts", argv.known_hosts_line(jump.endpoint, bare)
    if _lines(known) != [line]:
        _replace(known, line)
    return argv.Login(jump.endpoint, jump.identity, str(known), line.split()[1], "")


def presented(scan: bytes) -> str:
    """The first public key in what ssh-keyscan printed; empty when there is none."""
    for line in scan.decode("ascii", "replace").splitlines():
        key = " ".join(line.split()[1:3])
        if _PUBLIC.fullmatch(key):
            return key
    return ""


def fingerprint(public_key: str) -> str:
    """`SHA256:…` of a public key, as ssh-keygen prints it."""
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, ValueError) as error:
        raise HostError("not a public key") from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _bare(public_key: str) -> str:
    """Kind and blob without a comment."""
    return " ".join(public_key.split()[:2])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines(keepends=True)
    except OSError:
        return []


def _replace(path: Path, text: str) -> None:
    """Write a file that ssh may be reading, by one rename."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".known-", dir=path.parent)
    with os.fdopen(handle, "w") as out:
        out.write(text)
    os.rename(temporary, path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
