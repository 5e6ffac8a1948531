"""What goes to the host: the list that a person approves, and the proof that exactly that list arrived."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from gpuops import argv, codec, names, packing, reading, streaming
from gpuops.errors import HostError, ListChanged, Unreachable
from gpuops.ports import Clock
from gpuops.remote import Connection, Finished, judge, run_child
from gpuops.spec import Spec, Transfer
from gpuops.values import Generation, SendFile, SendList, Time

MOST_EXCLUDED = 500
_LINE = re.compile(rb"^[<>ch.*]([fdLDS])[^|]{9}\|(\d+)\|(.*)$", re.DOTALL)
_BEGAN = re.compile(r"\([1-9]\d* bytes received so far\)|protocol version|on remote machine")
"""What rsync says only when another rsync, or at least somebody, answered it."""
_ESCAPE = re.compile(rb"\\#([0-7]{3})")
_KINDS = {b"f": "file", b"d": "directory", b"L": "link"}


Stamp = tuple[str, str, int, int]
"""What shows that something of a list changed: path, kind, size, time."""


class _NoRsyncError(HostError):
    """The host cannot speak rsync; the message says why."""


@dataclass(frozen=True, slots=True)
class _Tree:
    files: tuple[SendFile, ...]
    stamps: tuple[Stamp, ...]
    excluded: tuple[str, ...]
    excluded_count: int
    suspicious: tuple[str, ...]


def preview(spec: Spec, connection: Connection | None, clock: Clock, until: Time) -> SendList:
    """List what would be sent, by rsync against the host; without a connection against an empty directory: same list.

    Raises `HostError` for names that cannot be carried, links that leave the tree and a total beyond `max_total_bytes`.
    """
    streamed = ""
    try:
        trees = [_list_tree(t, connection, clock, until) for t in spec.transfers]
    except _NoRsyncError as error:
        streamed = f"{error.message}: the files go as a tar stream over the same connection"
        trees = [_list_tree(t, None, clock, until) for t in spec.transfers]
    total = sum(f.size for t in trees for f in t.files if f.kind == "file")
    if total > spec.max_total_bytes:
        sized = [(f.size, f.path) for t in trees for f in t.files if f.kind == "file"]
        biggest = ", ".join(f"{path} ({size:,} bytes)" for size, path in sorted(sized, reverse=True)[:5])
        raise HostError(
            f"{total:,} bytes would be sent, max_total allows {spec.max_total_bytes:,}; the biggest: {biggest}"
        )
    pairs = list(zip(spec.transfers, trees, strict=True))
    return SendList(
        trees=tuple((t.destination, tree.files) for t, tree in pairs),
        excluded=tuple(f"{t.source}: {e}" for t, tree in pairs for e in tree.excluded),
        suspicious=tuple(f"{t.source}: {e}" for t, tree in pairs for e in tree.suspicious),
        total_bytes=total,
        digest=_digest_of([(t, tree.stamps) for t, tree in pairs]),
        excluded_count=sum(tree.excluded_count for tree in trees),
        streamed=streamed,
    )


def total_bytes(spec: Spec, clock: Clock, until: Time) -> int:
    """How much would be sent. Raises `HostError` as `preview` does."""
    listed = [file for t in spec.transfers for file in _entries(t, None, clock, until)[0]]
    return sum(file.size for file in listed if file.kind == "file")


def send(spec: Spec, approved: SendList, connection: Connection, clock: Clock, until: Time) -> tuple[int, int]:
    """Send the approved list, then compare sha256 of every file on both ends; returns (files, bytes) verified."""
    pairs = list(zip(spec.transfers, approved.trees, strict=True))
    over = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as beside:  # hashed here while rsync lists again and while the files go
        try:
            hashing = beside.submit(lambda: [reading.hashes(t.source, files, over.is_set) for t, (_, files) in pairs])
            if _list_digest(spec, clock, until) != approved.digest:
                raise ListChanged("the files changed since the list was approved: look at the new list and approve it")
            for place, (transfer, (destination, files)) in enumerate(pairs):
                small = streaming.worth(transfer, files)
                if not small or not streaming.stream(transfer, destination, files, connection, clock, until):
                    wanted_there = partial(lambda n: hashing.result()[n], place)
                    _carry(transfer, destination, files, wanted_there, connection, clock, until)
            wanted = hashing.result()
        finally:
            over.set()
    request = [{"root": d, "files": sorted(w)} for (d, _), w in zip(approved.trees, wanted, strict=True)]
    answer = connection.call("verify", {"trees": request}, until)
    count = size = 0
    for (destination, _), want, seen in zip(approved.trees, wanted, answer["trees"], strict=True):
        for path, found in zip(sorted(want), seen, strict=True):
            if tuple(found) != want[path]:
                raise HostError(_difference(f"{destination}/{path}", found, want[path]))
            count, size = count + 1, size + want[path][1]
    return count, size


def _list_digest(spec: Spec, clock: Clock, until: Time) -> str:
    """What `preview` would say of the same list now, without what only a person looks at."""
    return _digest_of([(t, _entries(t, None, clock, until)[1]) for t in spec.transfers])


def _digest_of(trees: list[tuple[Transfer, tuple[Stamp, ...]]]) -> str:
    return codec.digest([[t.destination, stamps] for t, stamps in trees])


def restore(
    generation: Generation, source: str, target: str, connection: Connection, clock: Clock, until: Time
) -> None:
    """Send the files of a copy to directory `target` and compare sha256 of each; raises `HostError` for one that differs."""
    files = tuple(SendFile(f.path, f.size, "file") for f in generation.files)
    wanted = {f.path: ("file", f.size, f.sha256) for f in generation.files}
    _carry(Transfer(source, target), target, files, lambda: wanted, connection, clock, until)
    answer = connection.call("verify", {"trees": [{"root": target, "files": [f.path for f in files]}]}, until)
    for file, found in zip(generation.files, answer["trees"][0], strict=True):
        if tuple(found) != ("file", file.size, file.sha256):
            raise HostError(_difference(f"{target}/{file.path}", found, ("file", file.size, file.sha256)))


def verify_inputs(spec: Spec, connection: Connection, until: Time, approved: SendList | None = None) -> tuple[int, int]:
    """Verify the files that the manifest's sha256sum file names, on the host.

    Returns (files, bytes) of those that are not in the approved list.
    """
    if not spec.inputs_sha256:
        return 0, 0
    text, base = _read_sums(spec, connection, until)
    wanted: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](.+)", line)
        if not match:
            raise HostError(f"{spec.inputs_sha256}: not a line of sha256sum: {names.escape(line)[:100]!r}")
        wanted[os.path.normpath(os.path.join(base, match[2]))] = match[1].lower()
    if not wanted:
        raise HostError(f"{spec.inputs_sha256} names no file")
    request = {"trees": [{"root": "/", "files": [p.lstrip("/") for p in wanted]}]}
    seen = connection.call("verify", request, until)["trees"][0]
    trees = approved.trees if approved is not None else ()
    sent = {f"{destination.rstrip('/')}/{file.path}" for destination, files in trees for file in files}
    beside: list[int] = []
    for (path, digest), found in zip(wanted.items(), seen, strict=True):
        if found[0] != "file" or found[2] != digest:
            raise HostError(_difference(path, found, ("file", None, digest)))
        if path not in sent:
            beside.append(int(found[1]))
    return len(beside), sum(beside)


def _read_sums(spec: Spec, connection: Connection, until: Time) -> tuple[str, str]:
    """The text of the sums file, and the directory on the host to which its names are relative."""
    path = spec.inputs_sha256
    for transfer in spec.transfers:
        local = path if os.path.isabs(path) else os.path.join(transfer.source, path)
        if os.path.isfile(local):
            with open(local, encoding="utf-8") as source:
                text = source.read()
            inside = os.path.relpath(os.path.realpath(local), os.path.realpath(transfer.source))
            if not inside.startswith(".."):
                return text, os.path.join(transfer.destination, os.path.dirname(inside))
    if os.path.isabs(path) and os.path.isfile(path):
        with open(path, encoding="utf-8") as source:
            return source.read(), spec.train.workdir
    remote = os.path.join(spec.train.workdir, path)
    return str(connection.call("sums", {"file": remote}, until)["text"]), os.path.dirname(remote)


def _list_tree(transfer: Transfer, connection: Connection | None, clock: Clock, until: Time) -> _Tree:
    files, stamps, skipped = _entries(transfer, connection, clock, until)
    excluded = [*_excluded(transfer.source, {f.path for f in files}), *(names.escape(s) for s in skipped)]
    suspicious = tuple(reading.suspicious(transfer.source, files))
    return _Tree(files, stamps, tuple(excluded[:MOST_EXCLUDED]), len(excluded), suspicious)


def _entries(
    transfer: Transfer, connection: Connection | None, clock: Clock, until: Time
) -> tuple[tuple[SendFile, ...], tuple[Stamp, ...], list[str]]:
    """The list of one tree, the stamps of its entries, and what rsync skipped."""
    source = transfer.source
    if not os.path.isdir(source):
        raise HostError(f"{source} is not a directory")
    _check_destination(transfer.destination)
    ignored = [] if transfer.include_ignored else _git_ignored(source, clock, until)
    excludes = (*argv.DEFAULT_EXCLUDES, *transfer.exclude, *ignored)
    entries, skipped = _parse(_dry_run(transfer, excludes, connection, clock, until).out)
    files, stamps = [], []
    for kind, raw, size in entries:
        path = _name(raw)
        full = f"{source}/{path}"
        try:
            changed_ns = os.stat(full).st_mtime_ns if kind == "file" else 0
            if kind == "link":
                _check_link(source, path, transfer.follow)
        except OSError as error:
            raise HostError(f"{full} vanished while it was listed") from error
        files.append(SendFile(path, size, kind))
        stamps.append((path, kind, size if kind != "directory" else 0, changed_ns))
    return tuple(files), tuple(stamps), skipped


def _dry_run(
    transfer: Transfer, excludes: tuple[str, ...], connection: Connection | None, clock: Clock, until: Time
) -> Finished:
    if connection is not None:
        target = argv.rsync_target(connection.login.endpoint, transfer.destination.rstrip("/") + "/")
        shell = argv.remote_shell(connection.login)
        command = argv.rsync_list(transfer.source, target, excludes, transfer.follow, shell)
        done = _over(connection, command, clock, until)
    else:
        with tempfile.TemporaryDirectory(prefix="gpuops-") as empty:
            done = run_child(argv.rsync_list(transfer.source, empty + "/", excludes, transfer.follow), clock, until)
            _judge_rsync(done)
    return done


def _over(connection: Connection, command: list[str], clock: Clock, until: Time) -> Finished:
    """Run rsync over the shared connection, once more when that turns out to be dead. Raises what its end means."""
    connection.ensure(until)
    done = run_child(command, clock, until)
    if done.code == 255 and clock.now() < until:
        judge(Finished(0, b"", done.err))
        connection.drop()
        connection.ensure(until)
        done = run_child(command, clock, until)
    if done.code and not _BEGAN.search(done.err) and not connection.call("which", {"name": "rsync"}, until)["path"]:
        # asked, because every shell has its own words for it and rsync's exit status depends on which end was faster
        raise _NoRsyncError("the login finds no rsync on the host")
    _judge_rsync(done)
    return done


def _judge_rsync(done: Finished) -> None:
    """rsync's exit status in our words: what the network or a partner's end caused may pass, the rest may not."""
    if done.code == 0:
        return
    if "is your shell clean" in done.err:
        raise _NoRsyncError("the host's login shell prints, which rsync cannot take")
    if done.code == 2 or ("on remote machine" in done.err and "unknown option" in done.err):
        raise _NoRsyncError("the host's rsync is too old")
    if done.code == 255:
        judge(done)
    if done.code < 0 or done.code in (10, 12, 20, 30, 35, 255):
        raise Unreachable(f"rsync: {done.err or done.code}")
    raise HostError(f"rsync ended with {done.code}: {done.err}")


def _carry(
    transfer: Transfer,
    destination: str,
    files: tuple[SendFile, ...],
    wanted: Callable[[], packing.Hashes],
    connection: Connection,
    clock: Clock,
    until: Time,
) -> None:
    """Bring the files of a list to the host: by rsync, and as a tar stream into the agent where that does not work."""
    try:
        _rsync(transfer, destination, files, connection, clock, until)
    except _NoRsyncError:
        packing.send(transfer.source, destination, files, wanted(), connection, until)


def _rsync(
    transfer: Transfer, destination: str, files: tuple[SendFile, ...], connection: Connection, clock: Clock, until: Time
) -> None:
    with tempfile.NamedTemporaryFile(prefix="gpuops-") as listing:
        # rsync takes a line that begins with # or ; for a comment
        listing.write(b"".join(b"./" + os.fsencode(f.path) + b"\0" for f in files))
        listing.flush()
        target = argv.rsync_target(connection.login.endpoint, destination.rstrip("/") + "/")
        shell = argv.remote_shell(connection.login)
        command = argv.rsync_send(transfer.source, target, listing.name, transfer.follow, shell)
        _over(connection, command, clock, until)


def _parse(out: bytes) -> tuple[list[tuple[str, bytes, int]], list[str]]:
    """(kind, name, size) of each listed entry; and what rsync skipped, such as fifos and devices."""
    entries, skipped = [], []
    for line in out.split(b"\n"):
        match = _LINE.match(line)
        if not match:
            if line.startswith(b"skipping"):
                skipped.append(line.decode("utf-8", "replace"))
            continue
        name = _ESCAPE.sub(lambda m: bytes([int(m[1], 8)]), match[3]).rstrip(b"/")
        if name == b"." or match[1] not in _KINDS:
            continue
        entries.append((_KINDS[match[1]], name, int(match[2])))
    return entries, skipped


def _name(raw: bytes) -> str:
    """A file name as text. Raises `HostError` for what cannot be carried without being mangled."""
    try:
        path = raw.decode()
    except UnicodeDecodeError as error:
        raise HostError(f"the name {raw!r} is not UTF-8: rename or exclude it") from error
    if names.escape(path) != path:
        raise HostError(f"the name {names.escape(path)!r} has control characters: rename or exclude it")
    return path


def _check_destination(destination: str) -> None:
    if (
        not destination.startswith("/")
        or names.escape(destination) != destination
        or os.path.normpath(destination) == "/"
    ):
        raise HostError(f"not a directory on the host to send to: {names.escape(destination)!r}")


def _check_link(source: str, path: str, follow: bool) -> None:
    """A link stays a link; one that leaves the tree would mean something else on the host."""
    target = os.readlink(os.path.join(source, path))
    inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
    leaves = os.path.isabs(target) or inside == ".." or inside.startswith("../")
    if leaves and not follow:
        raise HostError(
            f"{path} is a link that leaves the tree ({names.escape(target)}): remove it, exclude it or set follow"
        )


def _git_ignored(source: str, clock: Clock, until: Time) -> list[str]:
    """Exclude patterns for what git ignores; none where the source is no work tree or git is not installed."""
    directory = os.path.realpath(source)
    while not os.path.exists(os.path.join(directory, ".git")):
        parent = os.path.dirname(directory)
        if parent == directory:
            return []
        directory = parent
    try:
        done = run_child(argv.git_ignored(source), clock, until)
    except HostError:
        return []
    return (
        [argv.rsync_literal(os.fsdecode(p)) for p in done.out.split(b"\0") if p and p != b"./"] if not done.code else []
    )


def _excluded(source: str, sent: set[str]) -> Iterator[str]:
    """What lies in the source and is not sent; a directory that is left out as a whole is one entry."""
    for directory, inner, plain in os.walk(source):
        relative = os.path.relpath(directory, source)
        prefix = "" if relative == "." else relative + "/"
        for name in sorted([*inner, *plain]):
            if prefix + name not in sent:
                yield names.escape(prefix + name) + ("/" if name in inner else "")
        inner[:] = [n for n in inner if prefix + n in sent and not os.path.islink(os.path.join(directory, n))]


def _difference(path: str, found: list[object], want: tuple[str, int | None, str]) -> str:
    shown = names.escape(path)
    if found[0] == "missing":
        return f"{shown} is not on the host: {names.escape(str(found[2]))}"
    return f"{shown} differs on the host: sha256 {names.escape(str(found[2]))} instead of {want[2]}"
