"""`gpuops up`: plan, ask, buy, check."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import go
from gpuops.cli.options import AcceptLoss, Json, ManifestPath, Yes, command_app
from gpuops.cli.start import begin

app = command_app()


@app.command()
def up(
    manifest: ManifestPath,
    yes: Yes = False,
    json: Json = False,
    accept_loss: AcceptLoss = "",
    new: Annotated[
        bool, typer.Option("--new", help="Rent a further machine although one is open for this manifest.")
    ] = False,
) -> None:
    """Rent the machine and check it; stops when it is ready.

    A machine that is ready and never launched goes down by itself after `setup`.

    Example: gpuops up manifests/local-demo.yaml
    """
    context = make_app(as_json=json)
    run = begin(context, manifest, "ready", accept_loss, new=new)
    raise typer.Exit(go(context, run, "up", yes=yes, until=lambda s: s.phase in ("ready", "training")))
