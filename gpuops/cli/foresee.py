"""What would fail after the approval and can be known before it: tools, secrets, volumes, the place for copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from gpuops.cli import computer
from gpuops.cli.context import App
from gpuops.errors import CredentialsError, GateRefused, GpuopsError
from gpuops.names import escape
from gpuops.provider import TellsNeeds
from gpuops.spec import Spec
from gpuops.values import Scope


def would_fail(app: App, spec: Spec, account: str) -> list[GpuopsError]:
    """Everything that would fail later, each with the command that mends it. Buys and changes nothing."""
    found = [*_secrets(app, spec), *_tools(app, spec), *_copies(spec), *_volumes(app, spec, account)]
    for error in found:
        error.message += ". Nothing was bought."
    return found


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
