"""`gpuops logs`: what training printed, from the host while it lives, else from the verified copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.driving import ensure_guard
from gpuops.cli.interrupts import Interrupted
from gpuops.cli.options import MaybeRun, command_app
from gpuops.errors import UsageError
from gpuops.render import safe
from gpuops.state import RunState

app = command_app()


@app.command()
def logs(
    run: MaybeRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until training ends.")] = False,
) -> None:
    """Print the log of training.

    Example: gpuops logs local-demo -f
    """
    context = make_app()
    state = context.find(run)
    if not state.closed:
        ensure_guard(context)
    copied = next((p.work.copied["telemetry"] for p in state.purchases.values() if "telemetry" in p.work.copied), None)
    if copied is not None:
        file = next(iter(sorted(Path(copied.path).glob("*.log"))), None)
        context.printer.line(safe(file.read_text(errors="replace")) if file else f"no log in {copied.path}")
        return
    try:
        with context.interrupts.watching():
            _from_host(context, state, follow)
    except Interrupted:
        context.printer.line(f"Left; training goes on.  next: gpuops watch {state.run}")


def _from_host(context: App, state: RunState, follow: bool) -> None:
    rental = state.rental
    if rental is None or rental.endpoint is None or rental.work.launched_at is None or rental.life != "created":
        raise UsageError(f"run {state.run} has no log: it is {state.phase}", next_command=f"gpuops report {state.run}")
    shown = ""
    while True:
        now = context.clock.now()
        status = context.ports.host.status(state.run, rental.endpoint, state.spec, now + context.home.policy.call_s)
        tail = status.log_tail
        new = tail[len(shown) :] if tail.startswith(shown) else tail
        context.printer.lines([safe(new.rstrip("\n"))] if new.strip() else [])
        shown = tail
        if not follow or status.phase != "running":
            return
        context.clock.sleep_until(now + context.home.policy.status_every_s)
