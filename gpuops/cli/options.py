"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; human words go to stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Approve what would be asked.")]
ManifestPath = Annotated[Path, typer.Argument(help="The manifest, a YAML file.", show_default=False)]
RunName = Annotated[
    str, typer.Argument(help="Run id, the start of one, or the name in its manifest.", show_default=False)
]
MaybeRun = Annotated[
    str | None, typer.Argument(help="Run id, its start, or its name; default: the only open run.", show_default=False)
]
Resume = Annotated[
    str,
    typer.Option(metavar="GENERATION", help="Go on from a generation on the host: a name in outputs, or a path there."),
]
AcceptLoss = Annotated[
    str, typer.Option("--accept-loss", metavar="REASON", help="Buy although nothing survives if this computer is off.")
]


def command_app() -> typer.Typer:
    """A Typer app for one command, in the plain style of all."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
