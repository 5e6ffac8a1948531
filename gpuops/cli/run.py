"""`gpuops run`: the whole life of a run in one command."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import go, resume_from
from gpuops.cli.options import AcceptLoss, Json, ManifestPath, Resume, Yes, command_app
from gpuops.cli.start import begin

app = command_app()


@app.command()
def run(
    manifest: ManifestPath,
    yes: Yes = False,
    json: Json = False,
    accept_loss: AcceptLoss = "",
    resume: Resume = "",
    new: Annotated[
        bool, typer.Option("--new", help="Rent a further machine although one is open for this manifest.")
    ] = False,
) -> None:
    """The whole life: up, launch, watch, down.

    The same command typed again after a crash goes on where the run is.

    Example: gpuops run manifests/local-demo.yaml --yes
    """
    context = make_app(as_json=json)
    name = begin(context, manifest, "training", accept_loss, new=new)
    resume_from(context, name, resume)
    raise typer.Exit(go(context, name, "run", yes=yes, until=lambda s: s.closed))
