"""`gpuops watch`: follow a run until it is closed."""

from __future__ import annotations

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import ensure_guard, go
from gpuops.cli.options import Json, MaybeRun, command_app
from gpuops.engine import GUARD

app = command_app()


@app.command()
def watch(run: MaybeRun = None, json: Json = False) -> None:
    """Follow training until the run is closed; leaving it stops nothing.

    Survives lost connections. Exit code 6 when training did not complete.

    Example: gpuops watch local-demo
    """
    context = make_app(as_json=json)
    state = context.find(run)
    if not state.closed:
        ensure_guard(context)
    raise typer.Exit(go(context, state.run, "watch", yes=False, may=GUARD - {"resume"}, until=lambda s: s.closed))
