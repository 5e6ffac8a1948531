"""`gpuops release`: end a retention."""

from __future__ import annotations

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import decide, ensure_guard, go
from gpuops.cli.options import Json, RunName, command_app
from gpuops.errors import UsageError
from gpuops.steps import fact

app = command_app()


@app.command()
def release(run: RunName, json: Json = False) -> None:
    """End a retention: the rental goes down.

    Example: gpuops release local-demo
    """
    context = make_app(as_json=json)
    state = context.find(run)
    kept = [p for p in state.purchases.values() if p.life == "retained"]
    if not kept:
        raise UsageError(f"run {state.run} retains nothing", next_command=f"gpuops status {state.run}")
    for p in kept:
        decide(context, state.run, lambda s, p=p: fact("released", p.id))  # type: ignore[misc]
    ensure_guard(context)
    raise typer.Exit(go(context, state.run, "down", yes=True, until=lambda s: s.closed))
