"""`gpuops status`: the journal's view; asks nobody and loads nothing heavy."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, MaybeRun, command_app

app = command_app()


@app.command()
def status(
    run: MaybeRun = None,
    json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Closed runs as well.")] = False,
) -> None:
    """Show runs and what may bill, from the journal alone.

    Asks no provider: `gpuops reconcile` does. What is unknown counts as billing.

    Example: gpuops status --json
    """
    from gpuops.report import status_line

    context = make_app(as_json=json)
    if run is not None:
        states = [context.find(run)]
    elif not context.home.journal.exists():
        states = []
    else:
        states = context.states(open_only=not every)
    document = {"runs": [status_line(s, time.time()) for s in states]}
    if json:
        context.printer.document(document)
        return
    from gpuops.render import status_lines

    context.printer.lines(status_lines(document["runs"]))
