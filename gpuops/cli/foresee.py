"""What would fail after the approval and can be known before it: tools, secrets, volumes, the place for copies."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpuops.cli import computer
from gpuops.cli.context import App
from gpuops.errors import CredentialsError, GateRefused, GpuopsError
from gpuops.names import escape
from gpuops.provider import TellsNeeds
from gpuops.spec import Spec
from gpuops.values import Scope

MOST_HASHED_BYTES = 4_000_000_000
"""About ten seconds; what is larger is hashed while it is sent."""


def would_fail(app: App, spec: Spec, account: str) -> list[GpuopsError]:
    """Everything that would fail later, each with the command that mends it. Buys and changes nothing."""
    found = [*_secrets(app, spec), *_tools(app, spec), *_copies(spec), *_volumes(app, spec, account), *_inputs(spec)]
    for error in found:
        error.message += ". Nothing was bought."
    return found


def doubts(spec: Spec, installed: tuple[str, ...]) -> Iterator[str]:
    """What looks wrong in a manifest that is right in itself, found without asking anybody."""
    if spec.provider not in installed:
        yield f"there is no provider {spec.provider!r} here; installed are: {', '.join(installed) or 'none'}"
    workdir = spec.train.workdir
    trees = [t for t in spec.transfers if _below(workdir, t.destination)]
    if not trees and not any(_below(workdir, place) for place in _brought(spec)):
        yield f"nothing is sent to {workdir}, where training starts: the image itself must have it"
    for tree in [t for t in trees if not t.git]:
        folder = Path(tree.source) / PurePosixPath(workdir).relative_to(tree.destination)
        if not folder.is_dir():
            yield f"training starts in {workdir}, and {tree.source} has no such folder"
            continue
        for word in spec.train.argv:
            if word.endswith((".py", ".sh")) and not word.startswith("/") and not (folder / word).exists():
                yield f"`train.argv` names {word}, which is not in {folder}"


def _below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _brought(spec: Spec) -> tuple[str, ...]:
    """Where something else than a transfer puts files on the host."""
    return (*(v.mount for v in spec.volumes), *(str(PurePosixPath(i.to).parent) for i in spec.inputs))


def as_one(problems: list[GpuopsError]) -> GpuopsError:
    """The first problem, which names the next command; the others stand in its message."""
    first, *others = problems
    first.message = "\n".join([first.message, *(f"  also: {other.message}" for other in others)])
    return first


def _secrets(app: App, spec: Spec) -> Iterator[GpuopsError]:
    missing = [name for name in spec.secrets if app.credentials.secret(name) is None]
    if missing:
        yield CredentialsError(
            f"secrets without a value, neither in the environment nor in the keyring: {', '.join(missing)}",
            next_command=f"gpuops auth set {missing[0]}",
        )


def _tools(app: App, spec: Spec) -> Iterator[GpuopsError]:
    until = app.clock.now() + app.home.policy.call_s
    adapter = app.provider(spec.provider)
    here = computer.programs(("ssh", "ssh-keygen", *(("rsync",) if spec.transfers else ())))
    findings = {f.name: f for f in (adapter.needs(until) if isinstance(adapter, TellsNeeds) else ())}
    for finding in {**findings, **{f.name: f for f in here}}.values():
        if finding.state == "missing":
            yield GateRefused(f"{finding.name} is {finding.meaning}", next_command=finding.fix)


def _copies(spec: Spec) -> Iterator[GpuopsError]:
    place, outputs = computer.nearest(spec.outputs.destination), spec.outputs
    if problem := computer.unwritable(place):
        yield GateRefused(
            f"{outputs.destination} cannot be written ({problem}), and the checkpoints are to be copied there",
            next_command=f"change outputs.copy_to in {spec.manifest_path}, then: gpuops plan {spec.manifest_path}",
        )
        return
    free, needed = shutil.disk_usage(place).free, outputs.expected_bytes * (outputs.keep_last + 1)
    if free < needed:
        yield GateRefused(
            f"{outputs.destination} has {free / 1e9:.1f} GB free, and {outputs.keep_last + 1} checkpoints need "
            f"{needed / 1e9:.1f} GB",
            next_command=f"make room there, then: gpuops plan {spec.manifest_path}",
        )


def _inputs(spec: Spec) -> Iterator[GpuopsError]:
    """Files that are sent from here and are not what the manifest says. A large one is hashed only when it is sent."""
    for item in spec.inputs:
        path = Path(item.source)
        if item.kind != "path" or not item.sha256 or not path.is_file():
            continue
        size = path.stat().st_size
        wrong = f"{size:,} bytes instead of {item.bytes:,}" if item.bytes and size != item.bytes else ""
        if not wrong and size <= MOST_HASHED_BYTES:
            with path.open("rb") as source:
                found = hashlib.file_digest(source, "sha256").hexdigest()
            wrong = f"sha256 {found} instead of {item.sha256}" if found != item.sha256 else ""
        if wrong:
            yield GateRefused(
                f"{item.source} is not the input that the manifest names: {wrong}",
                next_command=f"change inputs in {spec.manifest_path}, then: gpuops plan {spec.manifest_path}",
            )


def _volumes(app: App, spec: Spec, account: str) -> Iterator[GpuopsError]:
    """Volumes that the account certainly does not have; a listing with gaps proves nothing."""
    adapter = app.provider(spec.provider)
    if not spec.volumes or "volume" not in adapter.traits.kinds:
        return
    try:
        listing = adapter.list_billable(Scope(("volume",)), app.clock.now() + app.home.policy.call_s)
    except GpuopsError:
        return  # before the intent everything is listed again: what cannot be listed is not bought
    if listing.gaps:
        return
    there = {item.ref.id for item in listing.items if item.ref.kind == "volume"}
    for volume in spec.volumes:
        if volume.id not in there:
            others = ", ".join(escape(name) for name in sorted(there)) or "none"
            yield GateRefused(
                f"volume {volume.id} is not on account {escape(account)} (it has: {others})",
                next_command=f"change volumes in {spec.manifest_path}, then: gpuops plan {spec.manifest_path}",
            )
