"""`gpuops down`: seal, copy, terminate, reconcile."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.driving import decide, ensure_guard, go, wish
from gpuops.cli.options import Json, MaybeRun, command_app
from gpuops.report import name_of, status_line
from gpuops.state import RunState
from gpuops.steps import fact

app = command_app()


@app.command()
def down(
    run: MaybeRun = None,
    json: Json = False,
    force_unverified: Annotated[
        str, typer.Option(metavar="REASON", help="End the rental without a verified copy. What is not copied is lost.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would end and what would stay; change nothing.")
    ] = False,
) -> None:
    """Seal, copy, terminate and prove that it is gone.

    Can be killed at any point and typed again. Exit code 0 means: proved gone. What was copied, and what was lost, it says.

    Examples: gpuops down local-demo
              gpuops down local-demo --force-unverified "the disk is broken"
    """
    context = make_app(as_json=json)
    state = context.find(run)
    if dry_run:
        _preview(context, state)
        raise typer.Exit(0)
    if not state.closed:
        wish(context, state, "closed", "asked for by the user")
        if force_unverified:
            _force(context, state, force_unverified)
        ensure_guard(context)
    raise typer.Exit(go(context, state.run, "down", yes=True, until=lambda s: s.closed, since=state.version))


def _force(context: App, state: RunState, reason: str) -> None:
    for p in context.state(state.run).purchases.values():
        if p.life in ("created", "ended_elsewhere") and not p.work.safe_to_end:
            decide(context, state.run, lambda s, p=p: fact("forced", p.id, reason=reason, by="user"))  # type: ignore[misc]


def _preview(context: App, state: RunState) -> None:
    if context.printer.as_json:
        context.printer.document({"runs": [status_line(state, context.clock.now())]})
        return
    if not state.may_bill:
        context.printer.line(f"{state.run}: nothing bills.")
    for p in state.may_bill:
        work = p.work
        copied = ", ".join(g for g in work.copied if g != "telemetry") or "nothing"
        context.printer.line(f"would end: {name_of(p)}")
        if work.launching_at is not None:
            context.printer.line(
                f"  first sealed and copied to {state.spec.outputs.destination}; copied so far: {copied}"
            )
    for v in state.spec.volumes:
        context.printer.line(f"would stay: volume {v.id} (it existed before this run)")
