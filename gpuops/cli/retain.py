"""`gpuops retain`: keep a rental on purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import decide, go
from gpuops.cli.options import Json, RunName, command_app
from gpuops.cost import affordable_until
from gpuops.errors import GateRefused, UsageError
from gpuops.render import clock_text, money_text
from gpuops.report import name_of
from gpuops.steps import fact
from gpuops.units import duration_s

app = command_app()


@app.command()
def retain(
    run: RunName,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is kept; stands in every reconcile report.")],
    keep: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long; no later than the run's limit.")],
    json: Json = False,
) -> None:
    """Keep a rental on purpose, with a reason and an expiry.

    The run closes with the rental retained. It goes on billing; blind layers still end it at the run's limit.

    Example: gpuops retain local-demo --reason "look at the crash" --for 30m
    """
    context = make_app(as_json=json)
    state = context.find(run, open_only=True)
    rental = state.rental
    if rental is None or rental.life != "created":
        raise UsageError(f"run {state.run} has no rental to keep: it is {state.phase}")
    now = context.clock.now()
    try:
        until = now + duration_s(keep)
    except ValueError as error:
        raise UsageError(str(error)) from None
    last = min(state.limit, affordable_until(now, state.spec.cap + state.spent(now).times(-1), rental.offer.rate))
    if until > last:
        raise GateRefused(
            f"the limit and the cap allow it until {clock_text(last)}", next_command="gpuops extend " + run
        )
    decide(
        context, state.run, lambda s: fact("retained", rental.id, reason=reason, until=until, owner=state.spec.owner)
    )
    decide(context, state.run, lambda s: fact("wanted", None, what="closed", cause=f"retained: {reason}"))
    go(context, state.run, "down", yes=True, until=lambda s: s.closed)
    rate = money_text(rental.rate or rental.offer.rate)
    context.printer.line(f"Kept until {clock_text(until)} at {rate} per hour: {name_of(rental)}")
    context.printer.line(f"  next: gpuops release {state.run}")
