"""What one key of a manifest alone cannot show: numbers together, folders that exist, places on the host, and secrets."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuops import manifest_data, shapes
from gpuops.manifest_keys import Manifest
from gpuops.spec import Spec, Transfer
from gpuops.yamlpos import KeyPath, key_text

Problem = tuple[KeyPath, str]

_SECRET_ADVICE = "put the name under `secrets` and the value into keyring or environment"


def _check_numbers(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    if keys.members != 1:
        yield ("members",), "only 1 is accepted for now"
    if not 1 <= keys.resources.count <= 64:
        yield ("resources", "count"), "must be between 1 and 64"
    if keys.train.resume > 10:
        yield ("train", "resume"), "at most 10: a machine that is lost more often than that needs a person"
    if keys.outputs.keep_last < 2:
        yield ("outputs", "keep_last"), "must be at least 2, so that one damaged generation never is the only one"
    for index, port in enumerate(keys.checks.ports):
        if not 1 <= port <= 65535:
            yield ("checks", "ports", index), f"{port} is not a port (1 to 65535)"
    if 22 not in keys.checks.ports:
        yield ("checks", "ports"), "must contain 22: the host is reached by SSH"
    if keys.teardown.when == "manual" and keys.teardown.keep_failed:
        yield ("teardown", "keep_failed"), "has no effect with `when: manual`: nothing goes down by itself there"


def _check_local(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """Sources exist; the copies do not land inside what is sent next time; only local copies for now."""
    for index, transfer in enumerate(spec.transfers):
        here: KeyPath = ("transfers", index, "source")
        if not transfer.source:
            continue
        if not os.path.exists(transfer.source):
            yield here, f"{transfer.source} does not exist"
        elif not os.path.isdir(transfer.source):
            yield here, f"{transfer.source} is not a folder"
        inner = _inside(spec.outputs.destination, transfer.source)
        if inner is not None and not _excluded(inner, transfer.exclude):
            yield (
                ("outputs", "copy_to"),
                f"lies inside {key_text(here)}: the next run would send the copies; add /{inner} to its exclude",
            )
    if re.match(r"[a-z][a-z0-9+.-]*://", keys.outputs.copy_to) or re.match(r"[^/]+@?[^/]*:", keys.outputs.copy_to):
        yield ("outputs", "copy_to"), "must be a local folder for now"
    elif os.path.exists(spec.outputs.destination) and not os.path.isdir(spec.outputs.destination):
        yield ("outputs", "copy_to"), f"{spec.outputs.destination} is not a folder"


def _check_host_paths(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """What is sent and what is produced on the host stay apart."""
    places: dict[str, KeyPath] = {}
    named = [(("volumes", i, "mount"), v.mount) for i, v in enumerate(spec.volumes)]
    for path, place in [*named, *((("transfers", i, "to"), t.destination) for i, t in enumerate(spec.transfers))]:
        if place in places:
            yield path, f"{place} is already used by {key_text(places[place])}"
        places.setdefault(place, path)
    directory = spec.outputs.directory
    for index, transfer in enumerate(spec.transfers):
        inner = _inside(directory, transfer.destination)
        if inner == "":
            yield ("outputs", "directory"), f"is where transfers[{index}] goes: results must not mix with what was sent"
        elif inner is not None and not _excluded(inner, transfer.exclude):
            yield (
                ("outputs", "directory"),
                f"lies inside transfers[{index}].to: add /{inner} to its exclude",
            )
        if _inside(transfer.destination, directory):
            yield ("transfers", index, "to"), f"lies inside outputs.directory ({directory})"


def _check_environment(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """It is made from a lock that will be there, outside of the results; the probe does something."""
    given, probe = keys.environment, keys.train.probe
    if probe is not None and not 1 <= probe.updates <= 1000:
        yield ("train", "probe", "updates"), "must be between 1 and 1000"
    if given is None:
        return
    if given.lock:
        for inner, transfer in _transfers_to(given.lock, spec):
            local = os.path.join(transfer.source, inner)
            if os.path.isdir(transfer.source) and not os.path.isfile(local):
                yield ("environment", "lock"), f"would be sent from {local}, which does not exist"
            elif os.path.isfile(local) and "--hash=" not in Path(local).read_text(errors="replace"):
                yield (
                    ("environment", "lock"),
                    f"{local} has no hashes: make it with `uv pip compile --generate-hashes` or `pip-compile --generate-hashes`",
                )
    if _inside(given.directory, spec.outputs.directory) is not None:
        yield ("environment", "directory"), "lies in outputs.directory: everything there would be taken for results"


def _transfers_to(path: str, spec: Spec) -> list[tuple[str, Transfer]]:
    """The transfer that brings a file to `path` on the host, with the file's place in it; empty when none does."""
    fitting = [(inner, t) for t in spec.transfers if (inner := _inside(path, t.destination))]
    return sorted(fitting, key=lambda pair: len(pair[0]))[:1]


def _check_inputs(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """A hash list that travels with a transfer must exist here, before money is spent."""
    for inner, transfer in _transfers_to(spec.inputs_sha256, spec):
        local = os.path.join(transfer.source, inner)
        if transfer.source and os.path.isdir(transfer.source) and not os.path.isfile(local):
            yield ("inputs_sha256",), f"would be sent from {local}, which does not exist: make the inputs first"


def _check_secrets(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """No value of a manifest looks like a secret; names are used once."""
    for name, value in keys.env.items():
        here: KeyPath = ("env", name)
        if name.startswith("GPUOPS_"):
            yield here, "names that begin with GPUOPS_ are set by gpuops itself"
        elif shapes.secret_name(name):
            yield (
                here,
                f"looks like a secret by its name: {_SECRET_ADVICE}",
            )
        elif shapes.secret_value(value):
            yield (
                here,
                f"its value looks like a secret: {_SECRET_ADVICE}",
            )
        if "\0" in value:
            yield here, "must not contain a NUL character"
        on_volume = [v.mount for v in spec.volumes if _inside(value, v.mount) is not None]
        if name in ("HF_HOME", "HF_TOKEN_PATH") and on_volume:
            yield (
                here,
                f"would put a token on the volume at {on_volume[0]}, which others may read: use `caches` for what is large",
            )
    for index, name in enumerate(keys.secrets):
        if name.startswith("GPUOPS_"):
            yield ("secrets", index), "names that begin with GPUOPS_ are set by gpuops itself"
        if name in keys.env:
            yield ("secrets", index), f"{name} stands under env, too"
        if name in keys.secrets[:index]:
            yield ("secrets", index), f"{name} is given twice"
    commands: list[tuple[KeyPath, tuple[str, ...]]] = [
        (("train", "argv"), keys.train.argv),
        (("train", "probe", "argv"), keys.train.probe.argv if keys.train.probe else ()),
        (("environment", "command"), keys.environment.command if keys.environment else ()),
        (("outputs", "load_check"), keys.outputs.load_check),
    ]
    for where, argv in commands:
        for index, argument in enumerate(argv):
            path: KeyPath = (*where, index)
            if "\0" in argument or (index == 0 and not argument.strip()):
                yield path, "must not be empty or contain a NUL character"
            if shapes.secret_value(argument.rpartition("=")[2]) or shapes.secret_value(argument):
                yield path, "looks like a secret; every process on the host can read arguments: use `secrets`"


CHECKS: tuple[Callable[[Manifest, Spec], Iterator[Problem]], ...] = (
    _check_numbers,
    _check_local,
    _check_host_paths,
    _check_inputs,
    _check_environment,
    _check_secrets,
    manifest_data.check_transfers,
    manifest_data.check_inputs,
)


def _inside(path: str, folder: str) -> str | None:
    """The way from `folder` to `path` when it lies inside or is the same (then empty); else None."""
    if path == folder:
        return ""
    return path[len(folder) :].lstrip("/") if path and path.startswith(folder.rstrip("/") + "/") else None


def _excluded(inner: str, patterns: tuple[str, ...]) -> bool:
    """Whether an rsync-like exclude pattern covers `inner`: a leading / anchors it, else any part may match."""
    parts = inner.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for pattern in patterns:
        bare = posixpath.normpath(pattern.strip("/") or ".").removesuffix("/**")
        candidates = parents if pattern.startswith("/") or "/" in bare else parts
        if any(fnmatch.fnmatchcase(candidate, bare) for candidate in candidates):
            return True
    return False
