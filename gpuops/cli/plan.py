"""`gpuops plan`: one screen before money."""

from __future__ import annotations

import typer

from gpuops.cli.context import make_app
from gpuops.cli.foresee import as_one
from gpuops.cli.options import AcceptLoss, Json, ManifestPath, command_app
from gpuops.cli.output import error_document
from gpuops.cli.start import pinned, read_manifest, show_plan

app = command_app()


@app.command()
def plan(manifest: ManifestPath, json: Json = False, accept_loss: AcceptLoss = "") -> None:
    """Show what would be bought, what it costs and what ends it; buys nothing.

    Refuses, as `up` would, what is known to fail later: a secret without a value, a volume that is not there, a missing tool.

    Example: gpuops plan manifests/local-demo.yaml
    """
    context = make_app(as_json=json)
    spec = pinned(context, read_manifest(manifest, context.clock.now()))
    made, problems = show_plan(context, spec, accept_loss)
    if json:
        rows = [{"code": p.code, "message": p.message, "next": p.next_command or None} for p in problems]
        document = {"plan": made.as_json(), "problems": rows}
        if problems:
            document |= error_document(as_one(problems))
        context.printer.document(document)
        context.printer.lines(f"would fail: {row['message']}" for row in rows)
        raise typer.Exit(problems[0].exit_code if problems else 0)
    if problems:
        raise as_one(problems)
    context.printer.line(f"  next: gpuops run {manifest}   (asks before it buys)")
