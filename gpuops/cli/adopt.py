"""`gpuops adopt`: rebuild runs from the marks on rentals, after the journal was lost or on another computer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.driving import ensure_guard
from gpuops.cli.options import Json, Yes, command_app
from gpuops.cli.start import read_manifest
from gpuops.errors import GpuopsError, HostError, UsageError
from gpuops.guard import take_on
from gpuops.inventory import adopt as rebuild
from gpuops.inventory import blind_spec
from gpuops.registry import names as installed
from gpuops.values import Billable, RunId, Scope, Spec

app = command_app()


@app.command()
def adopt(
    run: Annotated[
        str | None, typer.Argument(help="Only this run; default: all of this owner.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="Which accounts; default all installed.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="The run's manifest, where the host no longer tells what was planned.")
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Take on rentals that carry our mark and that this journal does not know.

    Losing the journal loses history, never money and never access: the mark names run and limit, the host keeps what was
    planned. Access needs a key in config.toml under [ssh]: authorized_keys when renting, identity_file here.

    Example: gpuops adopt --provider local
    """
    context = make_app(as_json=json)
    known = {p.nonce for s in context.states() for p in s.purchases.values()}
    taken: list[str] = []
    gaps: list[str] = []
    for name in provider or installed():
        try:
            listing = context.provider(name).list_billable(
                Scope(("rental",)), context.clock.now() + context.home.policy.call_s
            )
        except GpuopsError as error:
            gaps.append(f"{name}: {error.message}")
            continue
        gaps += [f"{name}: {g.region}/{g.kind}: {g.reason}" for g in listing.gaps]
        for item in listing.items:
            if item.mark is None or item.damaged or item.nonce in known or not item.bills:
                continue
            if run is None or item.mark.run.startswith(run):
                taken += _take(context, item, manifest, yes=yes)
    if json:
        context.printer.document({"adopted": taken, "gaps": gaps})
    context.printer.lines(f"NOT PROVED: {gap}" for gap in gaps)
    if not taken:
        context.printer.line("Nothing to adopt.")
    else:
        ensure_guard(context)
        context.printer.lines(f"  next: gpuops down {name}   or: gpuops watch {name}" for name in taken)
    raise typer.Exit(3 if gaps else 0)


def _take(context: App, item: Billable, manifest: Path | None, *, yes: bool) -> list[RunId]:
    mark = item.mark
    if mark is None:
        return []
    if not yes and not (
        context.printer.live and typer.confirm(f"Adopt {mark.run} of {mark.owner} ({item.ref})?", default=False)
    ):
        raise UsageError("Not approved: nothing was adopted.", next_command="gpuops adopt --yes")
    _place_identity(context, mark.run)
    spec, launched, problem = _what_was_planned(context, item, manifest)
    run, events = rebuild(item, spec, context.clock.now(), context.ports.random_bytes(8), launched=launched)
    take_on(run, events, context.ports)
    context.printer.line(f"Adopted {run}: {item.ref}, limit {mark.limit_at:.0f}" + (f"; {problem}" if problem else ""))
    return [run]


def _what_was_planned(context: App, item: Billable, manifest: Path | None) -> tuple[Spec, bool, str]:
    """The spec of the rental's run: from the manifest, else from the host, else only what the mark tells.

    What cannot be read may still hold work: it is taken as launched, so that it ends only after a copy or at its limit.
    """
    if manifest is not None:
        return read_manifest(manifest, context.clock.now()), True, ""
    ports, now = context.ports, context.clock.now()
    until = now + context.home.policy.call_s
    try:
        seen = context.provider(item.ref.provider).inspect(item.ref, until)
        if seen.endpoint is None or item.mark is None:
            raise HostError("the rental has no address")
        presented = ports.host.scan(item.mark.run, seen.endpoint, until)
        fingerprint = ports.host.pin(item.mark.run, seen.endpoint, presented)
        if item.mark.host_key and fingerprint != item.mark.host_key:
            raise HostError(f"the host presents {fingerprint}, the mark says {item.mark.host_key}")
        spec = ports.host.recall(item.mark.run, seen.endpoint, until)
    except GpuopsError as error:
        return (
            blind_spec(item, ""),
            True,
            f"the host does not tell what was planned ({error.message}); held until its limit",
        )
    return (spec, True, "") if spec is not None else (blind_spec(item, ""), False, "nothing was launched on it")


def _place_identity(context: App, run: RunId) -> None:
    """Let the run use the configured identity, since its own key was lost with the journal."""
    if not context.home.identity_file:
        return
    source = Path(context.home.identity_file).expanduser()
    target = context.home.runs / run / "ssh"
    if (target / "client").exists():
        return
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        shutil.copyfile(source, target / "client")
        (target / "client").chmod(0o600)
        shutil.copyfile(f"{source}.pub", target / "client.pub")
    except OSError as error:
        raise UsageError(f"config.toml, ssh.identity_file: {error}") from None
