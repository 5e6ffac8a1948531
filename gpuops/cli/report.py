"""`gpuops report`: everything about one run."""

from __future__ import annotations

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, MaybeRun, command_app

app = command_app()


@app.command()
def report(run: MaybeRun = None, json: Json = False) -> None:
    """The report of a run: time, cost, layers, audit trail.

    Example: gpuops report local-demo --json
    """
    from gpuops.render import report_lines
    from gpuops.report import report as make

    context = make_app(as_json=json)
    state = context.find(run)
    document = make(state, context.journal.records(state.run), context.clock.now())
    if json:
        context.printer.document(document)
    else:
        context.printer.lines(report_lines(document))
