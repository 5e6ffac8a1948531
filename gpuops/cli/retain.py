"""`gpuops retain`: keep a rental on purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import decide, ensure_guard, go
from gpuops.cli.options import Json, RunName, command_app
from gpuops.errors import GateRefused, UsageError
from gpuops.render import clock_text, money_text
from gpuops.report import name_of
from gpuops.state import RunState
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

    What training left is sealed and copied first. The machine goes on billing until then, and goes down by itself at the
    expiry; every layer still ends it at the run's limit.

    Example: gpuops retain local-demo --reason "look at the crash" --for 30m
    """
    context = make_app(as_json=json)
    state = context.find(run, open_only=True)
    rental = state.rental
    if not reason.strip():
        raise UsageError(
            "--reason must say why it is kept: it stands in every reconcile report", next_command="gpuops retain --help"
        )
    if rental is not None and rental.life == "retained":
        raise UsageError(
            f"run {state.run} is kept already, until {clock_text(rental.retained_until)}: {rental.retained_why}",
            next_command=f"gpuops release {state.run}",
        )
    if rental is None or rental.life != "created":
        raise UsageError(
            f"run {state.run} has no rental to keep: it is {state.phase}", next_command=f"gpuops status {state.run}"
        )
    work = rental.work
    if work.launching_at is not None and not work.outcome and not work.safe_to_end:
        raise UsageError(
            f"training runs on {state.run}: it can be kept when training has ended. For that moment to come, the manifest needs "
            "`teardown: {when: manual}`, or keep_failed for a run that fails",
            next_command=f"gpuops watch {state.run}",
        )
    now = context.clock.now()
    try:
        until = now + duration_s(keep)
    except ValueError as error:
        raise UsageError(str(error), next_command="gpuops retain --help") from None
    last = min(state.limit, rental.mark.limit_at)
    if until > last:
        raise GateRefused(
            f"the limit, which the cap pays for, allows it until {clock_text(last)}",
            next_command="gpuops extend " + run,
        )
    decide(
        context, state.run, lambda s: fact("retained", rental.id, reason=reason, until=until, owner=state.spec.owner)
    )
    decide(context, state.run, lambda s: fact("wanted", None, what="closed", cause=f"retained: {reason}"))
    ensure_guard(context)
    code = go(context, state.run, "retain", yes=True, until=lambda s: s.closed or _brought_home(s))
    rate = money_text(rental.rate or rental.offer.rate)
    context.printer.line(f"Kept until {clock_text(until)} at {rate} per hour: {name_of(rental)}")
    context.printer.line(f"  next: gpuops release {state.run}")
    raise typer.Exit(code)


def _brought_home(state: RunState) -> bool:
    """Nothing on the kept rental is missing here."""
    rental = state.rental
    return rental is None or rental.life != "retained" or rental.work.safe_to_end
