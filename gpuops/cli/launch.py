"""`gpuops launch`: dry run, ask, transfer, verify, start."""

from __future__ import annotations

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import check_secrets, ensure_guard, go, resume_from, wish
from gpuops.cli.options import Json, MaybeRun, Resume, Yes, command_app
from gpuops.errors import UsageError

app = command_app()


@app.command()
def launch(run: MaybeRun = None, resume: Resume = "", yes: Yes = False, json: Json = False) -> None:
    """Send code and data to a ready machine and start training.

    Shows what would be sent and asks before anything goes over. Training runs in tmux and does not need this terminal.

    Examples: gpuops launch local-demo
              gpuops launch local-demo --resume step-000120
    """
    context = make_app(as_json=json)
    state = context.find(run, open_only=True)
    if state.closed or state.wanted == "closed":
        raise UsageError(f"run {state.run} is going down or closed", next_command="gpuops up MANIFEST")
    if state.rental is None or state.rental.work.launching_at is None:
        check_secrets(context, state.spec, "Nothing was sent; the machine bills until it goes down by itself.")
    resume_from(context, state.run, resume)
    wish(context, state, "training")
    ensure_guard(context)
    raise typer.Exit(go(context, state.run, "launch", yes=yes, until=_started))


def _started(state: object) -> bool:
    rental = getattr(state, "rental", None)
    return rental is not None and rental.work.launched_at is not None
