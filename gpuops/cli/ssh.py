"""`gpuops ssh`: a shell on the rental, with the run's own key and the pinned host key."""

from __future__ import annotations

import os

from gpuops.cli.context import make_app
from gpuops.cli.driving import ensure_guard
from gpuops.cli.options import Json, MaybeRun, command_app
from gpuops.errors import UsageError

app = command_app()


@app.command()
def ssh(run: MaybeRun = None, json: Json = False) -> None:
    """Open a shell on the rental, with the pinned host key.

    Leaving the shell stops nothing and ends no bill. With --json nothing is opened: the command that would be run is printed.

    Example: gpuops ssh local-demo
    """
    context = make_app(as_json=json)
    state = context.find(run, open_only=True)
    ensure_guard(context)
    rental = state.rental
    if rental is None or rental.endpoint is None or not rental.work.fingerprint:
        raise UsageError(f"run {state.run} has no checked host", next_command=f"gpuops status {state.run}")
    command = context.ports.host.shell(state.run, rental.endpoint)
    if json:
        context.printer.document({"run": state.run, "argv": command})
        return
    os.execvp(command[0], command)
