"""`gpuops status`: the journal's view; asks nobody and loads nothing heavy."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, MaybeRun, command_app

app = command_app()

NOTHING = (
    "No open runs (--all shows closed ones). Nothing of ours bills as far as this journal knows.",
    "  next: gpuops reconcile   (asks the providers)",
)


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
    context = make_app(as_json=json)
    if run is None and not (context.home.journal.exists() and context.journal.runs(open_only=not every)):
        if json:
            context.printer.document({"runs": []})
        else:
            there = context.home.journal.exists()
            context.printer.lines(NOTHING if there else (f"There is no journal at {context.home.journal}.", *NOTHING))
        return
    # only now: most of the time that this command takes is importing
    from gpuops.render import status_lines
    from gpuops.report import status_line

    states = [context.find(run)] if run is not None else context.states(open_only=not every)
    document = {"runs": [status_line(s, time.time()) for s in states]}
    if json:
        context.printer.document(document)
    else:
        context.printer.lines(status_lines(document["runs"]))
