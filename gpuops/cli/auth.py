"""`gpuops auth`: credentials by name; values are never printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, command_app
from gpuops.errors import UsageError

app = command_app()


@app.command()
def auth(
    action: Annotated[str, typer.Argument(help="set, where or remove.", show_default=False)],
    name: Annotated[str, typer.Argument(help="The name, such as RUNPOD_API_KEY.", show_default=False)],
    json: Json = False,
) -> None:
    """Store, find and remove credentials.

    A name is looked up in $GPUOPS_NAME, then $NAME, then the keyring. `set` reads the value from the terminal, hidden, or from
    standard input; never from the command line, where other users would see it.

    Examples: gpuops auth set RUNPOD_API_KEY
              gpuops auth where RUNPOD_API_KEY
    """
    context = make_app(as_json=json)
    credentials = context.credentials
    if action == "set":
        value = typer.prompt("Value", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
        credentials.store(name, value)
        said = f"{name} is in the keyring"
    elif action == "where":
        said = f"{name}: {credentials.where(name)}"
        if credentials.headless():
            said += " (this machine has no keyring: only the environment counts)"
    elif action == "remove":
        said = f"{name} removed" if credentials.delete(name) else f"{name} was not in the keyring"
    else:
        raise UsageError(f"{action!r} is not set, where or remove", next_command="gpuops auth --help")
    if json:
        context.printer.document({"name": name, "where": credentials.where(name)})
    else:
        context.printer.line(said)
