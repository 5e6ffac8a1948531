"""What a manifest says about code and data: from its keys to transfers and inputs, and what one key alone cannot show."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterator

from gpuops import manifest_keys as keys_of
from gpuops import shapes
from gpuops.spec import GitSource, Input, Spec, Transfer
from gpuops.yamlpos import KeyPath, key_text

Problem = tuple[KeyPath, str]
Local = Callable[[str], str]
KINDS = ("https", "path", "volume", "command")
_SIGNED = ("sig", "signature", "x-amz-signature", "x-goog-signature", "awsaccesskeyid", "expires")


def transfers(keys: keys_of.Manifest, local: Local) -> tuple[Transfer, ...]:
    """The trees that are sent; `local` makes a path on this computer absolute."""
    return tuple(
        Transfer(
            local(t.source) if t.source else "", t.to, t.exclude, t.follow, t.git_ignored == "include",
            GitSource(local(t.git.repository), t.git.commit, t.git.dirty) if t.git else None,
        )
        for t in keys.transfers
    )  # fmt: skip


def inputs(keys: keys_of.Manifest, local: Local) -> tuple[Input, ...]:
    """The data that must lie on the host."""
    return tuple(_input(i, local) for i in keys.inputs)


def _input(key: keys_of.Input, local: Local) -> Input:
    kind = next((k for k in _kinds(key)), "command")
    source = {"https": key.https or "", "path": local(key.path or ""), "volume": key.volume or "", "command": ""}[kind]
    data = key.data.model_dump(exclude_none=True) if key.data else {}
    return Input(
        to=key.to,
        kind=kind,  # type: ignore[arg-type]
        source=source,
        argv=key.command if kind == "command" else (),
        sha256=key.sha256 or data.get("sha256", ""),
        bytes=key.bytes if key.bytes is not None else data.get("bytes", 0),
        ca=key.ca or "",
        data=tuple((name, str(value)) for name, value in data.items()),
    )


def _kinds(key: keys_of.Input) -> list[str]:
    return [kind for kind in KINDS if getattr(key, kind)]


def check_transfers(keys: keys_of.Manifest, spec: Spec) -> Iterator[Problem]:
    """Each transfer has one source; whether a folder is a checkout, the plan finds out."""
    for index, key in enumerate(keys.transfers):
        here: KeyPath = ("transfers", index)
        if (key.source is None) == (key.git is None):
            yield here, "needs exactly one of source and git"
            continue
        git = spec.transfers[index].git
        if git is None:
            continue
        if not os.path.isdir(git.repository):
            yield (*here, "git", "repository"), f"{git.repository} is not a folder"
        if git.revision.startswith("-"):
            yield (*here, "git", "commit"), f"{git.revision!r} is not a revision"
        if git.dirty == "patch" and git.revision != "HEAD":
            yield (*here, "git", "dirty"), "patch has a meaning only with commit HEAD, whose changes it sends"


def check_inputs(keys: keys_of.Manifest, spec: Spec) -> Iterator[Problem]:
    """Each input has one source, a hash where nothing else proves it, and a place of its own."""
    taken: dict[str, KeyPath] = {t.destination: ("transfers", n, "to") for n, t in enumerate(spec.transfers)}
    for index, (key, item) in enumerate(zip(keys.inputs, spec.inputs, strict=True)):
        here: KeyPath = ("inputs", index)
        if len(_kinds(key)) != 1:
            yield here, f"needs exactly one of {', '.join(KINDS)}"
            continue
        if item.to in taken:
            yield (*here, "to"), f"{item.to} is already used by {key_text(taken[item.to])}"
        taken.setdefault(item.to, (*here, "to"))
        if f"{item.to}/".startswith(f"{spec.outputs.directory}/"):
            yield (*here, "to"), f"lies where {spec.outputs.directory} is: results must not mix with inputs"
        if item.to in [volume.mount for volume in spec.volumes]:
            yield (*here, "to"), "is a volume itself"
        if item.kind != "path" and not item.sha256:
            yield here, "needs sha256: nothing else shows that it is the right file"
        if key.ca and item.kind != "https":
            yield (*here, "ca"), "has a meaning only with https"
        yield from _check_record(here, key)
        yield from _CHECKS[item.kind](here, item, spec)


def _check_record(here: KeyPath, key: keys_of.Input) -> Iterator[Problem]:
    for name in ("sha256", "bytes"):
        own, recorded = getattr(key, name), getattr(key.data, name, None)
        if own is not None and recorded is not None and own != recorded:
            yield (*here, "data", name), f"is not what the input itself says ({own})"


def _check_address(here: KeyPath, item: Input, spec: Spec) -> Iterator[Problem]:
    path = (*here, "https")
    try:
        parts = urllib.parse.urlsplit(item.source)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        yield path, f"is not an address: {error}"
        return
    if parts.scheme != "https" or not host or not item.source.isascii() or any(c.isspace() for c in item.source):
        yield path, "must be an address that begins with https://"
    if parts.username is not None or parts.password is not None or parts.fragment:
        yield path, "must not contain a user, a password or a fragment: secrets never stand in addresses"
    named = [name for name, _ in urllib.parse.parse_qsl(parts.query, keep_blank_values=True)]
    secret = any(shapes.secret_name(name) or name.lower() in _SIGNED for name in named)
    values = [value for _, value in urllib.parse.parse_qsl(parts.query)]
    if secret or shapes.VALUE_SHAPES.search(item.source) or any(shapes.secret_value(value) for value in values):
        yield path, "its query looks like a secret: the address is recorded in the journal and sent to the host"


def _check_path(here: KeyPath, item: Input, spec: Spec) -> Iterator[Problem]:
    if not os.path.exists(item.source):
        yield (*here, "path"), f"{item.source} does not exist"
    elif os.path.isdir(item.source) and (item.sha256 or item.bytes):
        yield (*here, "path"), "is a folder: sha256 and bytes are those of one file"
    elif not os.path.isdir(item.source) and not os.path.isfile(item.source):
        yield (*here, "path"), f"{item.source} is neither a file nor a folder"


def _check_volume(here: KeyPath, item: Input, spec: Spec) -> Iterator[Problem]:
    if not any(item.source.startswith(volume.mount + "/") for volume in spec.volumes):
        yield (*here, "volume"), "lies on none of the attached volumes (see `volumes`)"


def _check_command(here: KeyPath, item: Input, spec: Spec) -> Iterator[Problem]:
    for index, argument in enumerate(item.argv):
        path = (*here, "command", index)
        if "\0" in argument or (index == 0 and not argument.strip()):
            yield path, "must not be empty or contain a NUL character"
        if shapes.secret_value(argument.rpartition("=")[2]) or shapes.secret_value(argument):
            yield path, "looks like a secret; every process on the host can read arguments"


_CHECKS = {"https": _check_address, "path": _check_path, "volume": _check_volume, "command": _check_command}
