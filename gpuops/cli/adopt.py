"""`gpuops adopt`: rebuild runs from the marks on rentals, after the journal was lost or on another computer."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.accounts import asked, listings
from gpuops.cli.context import App, make_app
from gpuops.cli.driving import ensure_guard
from gpuops.cli.homes import elsewhere
from gpuops.cli.options import Json, Yes, command_app
from gpuops.cli.output import ask
from gpuops.cli.start import keep, pinned, read_manifest
from gpuops.errors import GpuopsError, HostError, HostKeyMismatch, UsageError
from gpuops.guard import take_on
from gpuops.inventory import Found, blind_spec
from gpuops.inventory import adopt as rebuild
from gpuops.names import RUN_ID
from gpuops.provider import TellsHostKey
from gpuops.render import safe
from gpuops.report import rfc3339
from gpuops.spec import Spec
from gpuops.values import Billable, Endpoint, RunId, Scope, Time

app = command_app()

"""What a mark says comes from the account and becomes a folder name here."""


@app.command()
def adopt(
    run: Annotated[
        str | None, typer.Argument(help="Only this run; default: all of this owner.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="Which accounts; default those that log in here.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="The run's manifest, where the host no longer tells what was planned.")
    ] = None,
    first_use: Annotated[
        bool,
        typer.Option(
            "--trust-on-first-use", help="Trust the host key as presented, where neither mark nor provider tells it."
        ),
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Take on rentals that carry our mark and that this journal does not know.

    Losing the journal loses history, never money and never access: the mark names run and limit, the host keeps what
    was planned. Access needs a key in config.toml under [ssh]: authorized_keys when renting, identity_file here.

    Example: gpuops adopt --provider local
    """
    from gpuops.manifest import default_owner

    context = make_app(as_json=json)
    states = context.states()
    known = {p.nonce for s in states for p in s.purchases.values()}
    taken: list[str] = []
    gaps: list[str] = []
    others: list[str] = []
    for name, listing in listings(context, asked(context, provider, states), Scope(("rental",))):
        if isinstance(listing, GpuopsError):
            gaps.append(f"{name}: {listing.message}")
            continue
        gaps += [f"{name}: {g.region}/{g.kind}: {g.reason}" for g in listing.gaps]
        for item in listing.items:
            if item.mark is None or item.damaged or item.nonce in known or not item.bills:
                continue
            if not RUN_ID.fullmatch(item.mark.run):
                gaps.append(f"{item.ref}: its mark names no possible run; nothing is done")
            elif run is None and item.mark.owner != default_owner(os.environ):
                others.append(f"{safe(item.mark.run)} of {safe(item.mark.owner)}")
            elif run is None or item.mark.run.startswith(run):
                try:
                    taken += _take(context, item, manifest, yes=yes, first_use=first_use)
                finally:
                    if taken:
                        ensure_guard(context)
    if json:
        context.printer.document({"adopted": taken, "gaps": gaps})
    context.printer.lines(f"NOT PROVED: {gap}" for gap in gaps)
    context.printer.lines(f"left alone: {who} (name the run to take it on, or set $GPUOPS_OWNER)" for who in others)
    context.printer.lines(["  next: gpuops adopt   (again, when those accounts can be read)"] if gaps else [])
    if not taken:
        context.printer.line("Nothing to adopt.")
    else:
        context.printer.lines(f"  next: gpuops down {name}   or: gpuops watch {name}" for name in taken)
    raise typer.Exit(3 if gaps else 0)


def _take(context: App, item: Billable, manifest: Path | None, *, yes: bool, first_use: bool) -> list[RunId]:
    mark = item.mark
    if mark is None:
        return []
    other = elsewhere(context.home, item)
    if other is not None:
        context.printer.line(
            f"{mark.run} is tended by {other}. Taken on here as well, either home may end it.\n"
            f"  to go on there: GPUOPS_HOME={shlex.quote(str(other.home))} gpuops watch {mark.run}"
        )
    if not yes and not (context.printer.live and ask(f"Adopt {mark.run} of {mark.owner} ({item.ref})?")):
        raise UsageError("Not approved: nothing was adopted.", next_command=f"gpuops adopt {mark.run} --yes")
    _place_identity(context, mark.run)
    found, spec, problem = _look(context, item, first_use=first_use)
    # what cannot be asked may still hold work: it ends only after a copy or at its limit
    launched = spec is not None or bool(problem)
    if manifest is not None:
        spec = pinned(context, replace(read_manifest(manifest, context.clock.now()), owner=mark.owner))
        keep(context, mark.run, spec)
    run, events = rebuild(
        item,
        spec
        or blind_spec(
            item,
            "",
            str(context.home.runs / mark.run / "copies"),
            # ready and never launched: nobody's impatience ends it before the limit that its owner chose
            setup_s=max(mark.limit_at - context.clock.now(), 0),
        ),
        context.clock.now(),
        context.ports.random_bytes(8),
        launched=launched,
        found=found,
    )
    take_on(run, events, context.ports)
    context.printer.line(f"Adopted {run}: {item.ref}. It bills; limit {rfc3339(mark.limit_at)}.")
    if problem:
        context.printer.line(
            f"  the host does not tell what was planned ({problem}); it is held until its limit, "
            f'or: gpuops down {run} --force-unverified "reason"'
        )
    elif launched and spec is not None:
        context.printer.line(
            f"  training was launched on it; its checkpoints will be copied to {spec.outputs.destination}"
        )
    else:
        context.printer.line("  nothing was launched on it")
    return [run]


def _look(context: App, item: Billable, *, first_use: bool) -> tuple[Found | None, Spec | None, str]:
    """What provider and host tell: (what was found, the spec of what was launched there, why it cannot be told)."""
    ports, now, found = context.ports, context.clock.now(), None
    run, until = item.mark.run if item.mark else "", now + context.home.policy.call_s
    try:
        seen = context.provider(item.ref.provider).inspect(item.ref, until)
        found = Found(seen)
        if seen.endpoint is None:
            raise HostError("the rental has no address", next_command="gpuops reconcile")
        fingerprint, route = _pin(context, item, seen.endpoint, until, first_use=first_use)
        found = Found(seen, fingerprint, route)
        spec = ports.host.recall(run, seen.endpoint, until)
        if spec is None:
            return found, None, ""
        status = ports.host.status(run, seen.endpoint, spec, until)
        return Found(seen, fingerprint, route, status.boot_id if status.phase != "missing" else ""), spec, ""
    except GpuopsError as error:
        return found, None, error.message
    finally:
        ports.host.close(run)


def _pin(context: App, item: Billable, endpoint: Endpoint, until: Time, *, first_use: bool) -> tuple[str, str]:
    """Pin the presented key when mark or provider vouch for it, or the user does. Returns (fingerprint, route)."""
    from gpuops.hostkeys import fingerprint

    provider = context.provider(item.ref.provider)
    expected, route = (item.mark.host_key if item.mark else ""), "mark"
    if not expected and isinstance(provider, TellsHostKey):
        expected, route = provider.host_key(item.ref, until) or "", "provider"
    run = item.mark.run if item.mark else ""
    presented = context.ports.host.scan(run, endpoint, until)
    seen = fingerprint(presented)
    if expected and seen != expected:
        raise HostKeyMismatch(
            f"the host presents the key {seen}, the {route} says {expected}", next_command="gpuops reconcile"
        )
    if not expected and not first_use:
        raise HostError(
            f"nobody vouches for its host key {seen}: add --trust-on-first-use to accept it",
            next_command=f"gpuops adopt {run} --trust-on-first-use",
        )
    return context.ports.host.pin(run, endpoint, presented), route if expected else "first use"


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
        raise UsageError(
            f"config.toml, ssh.identity_file: {error}", next_command=f"edit {context.home.path / 'config.toml'}"
        ) from None
