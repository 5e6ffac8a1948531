"""`gpuops plan`: one screen before money."""

from __future__ import annotations

from gpuops.cli.context import make_app
from gpuops.cli.options import AcceptLoss, Json, ManifestPath, command_app
from gpuops.cli.start import pinned, read_manifest, show_plan

app = command_app()


@app.command()
def plan(manifest: ManifestPath, json: Json = False, accept_loss: AcceptLoss = "") -> None:
    """Show what would be bought, what it costs and what ends it; buys nothing.

    Example: gpuops plan manifests/local-demo.yaml
    """
    context = make_app(as_json=json)
    made = show_plan(context, pinned(context, read_manifest(manifest, context.clock.now())), accept_loss)
    if json:
        context.printer.document({"plan": made.as_json()})
