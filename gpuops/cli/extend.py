"""`gpuops extend`: move the deadline, in either direction."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_app
from gpuops.cli.driving import decide, ensure_guard, go
from gpuops.cli.options import Json, MaybeRun, command_app
from gpuops.cost import affordable_until
from gpuops.errors import GateRefused, UsageError
from gpuops.provider import Traits
from gpuops.render import clock_text, money_text
from gpuops.report import rfc3339
from gpuops.state import RunState
from gpuops.steps import fact
from gpuops.units import duration_s, instant
from gpuops.values import Time

app = command_app()

_SAME_S = 1.5
"""Vendors keep whole seconds."""


@app.command()
def extend(
    run: MaybeRun = None,
    by: Annotated[str, typer.Option(metavar="DURATION", help="Move the deadline by this much; -30m shortens.")] = "",
    to: Annotated[str, typer.Option(metavar="TIME", help="Move the deadline to this moment, RFC 3339.")] = "",
    json: Json = False,
) -> None:
    """Move the deadline; counts only when every layer has moved.

    To extend, every layer is moved and read back first; until then the old limit holds. To shorten, the journal comes first.

    Examples: gpuops extend local-demo --by 2h
              gpuops extend local-demo --to 2026-12-01T06:00:00Z
    """
    context = make_app(as_json=json)
    state = context.find(run, open_only=True)
    if state.closed or state.wanted == "closed":
        raise UsageError(
            f"run {state.run} is going down or closed: its deadline cannot move",
            next_command=f"gpuops watch {state.run}",
        )
    rental = state.rental
    if rental is None or rental.life != "created":
        raise UsageError(f"run {state.run} has no rental yet", next_command=f"gpuops status {state.run}")
    deadline = _target(state.deadline, by, to)
    now, limit = context.clock.now(), deadline + state.spec.hold_s
    spent, rate = state.spent(now), rental.rate or rental.offer.rate
    # what other purchases may still cost stays reserved
    free = state.available(now) + rental.reserved(now, rental.mark.limit_at)
    begun = rental.created_at if rental.created_at is not None else rental.intended_at
    last = affordable_until(begun, free, rate, rental.offer.billing_unit_s)
    if deadline <= now:
        raise UsageError("that deadline has passed", next_command=f"gpuops down {state.run}")
    if limit > max(last, state.limit):
        raise GateRefused(
            f"the cap {money_text(state.spec.cap)}, of which {money_text(spent)} is spent, pays until {clock_text(last)} at "
            f"{money_text(rate)} per hour; with the hold the deadline can be {clock_text(last - state.spec.hold_s)} at most",
            next_command=f"gpuops extend {state.run} --to {rfc3339(last - state.spec.hold_s)}",
        )
    if problem := _fixed_timer(state, limit, context.provider(state.spec.provider).traits):
        raise GateRefused(problem, next_command=f"gpuops status {state.run}")
    kind = "extend_wanted" if limit > state.limit else "shortened"
    decide(context, state.run, lambda s: fact(kind, None, deadline=deadline, limit=limit))
    until = now + context.home.policy.call_s * 2
    code = go(
        context, state.run, "extend", yes=False, until=lambda s: s.extension is None or context.clock.now() > until
    )
    after = context.state(state.run)
    if after.wanted == "closed":
        raise GateRefused(f"the run is going down meanwhile: {after.cause}", next_command=f"gpuops watch {state.run}")
    if after.extension is not None:
        ensure_guard(context)
        raise GateRefused(
            f"not every layer has moved, so the old limit {clock_text(after.limit)} holds; the guard goes on trying",
            next_command=f"gpuops status {state.run}",
        )
    if abs(after.deadline - deadline) > 1:
        raise GateRefused(
            f"nothing was moved: the rental was lost meanwhile, and the run keeps its limit {clock_text(after.limit)}",
            next_command=f"gpuops status {state.run}",
        )
    if not json:
        context.printer.line(f"Deadline {clock_text(after.deadline)}, limit {clock_text(after.limit)}.")
    raise typer.Exit(code)


def _fixed_timer(state: RunState, limit: Time, traits: Traits) -> str:
    """Why the provider's own timer stands in the way; empty when it does not."""
    timer = state.layers.get("provider timer")
    if traits.end_movable or timer is None or limit <= timer.at + _SAME_S:
        return ""
    return (
        f"{state.spec.provider} itself ends the rental at {clock_text(timer.at)}, and its timer cannot be moved: the limit stays "
        f"{clock_text(state.limit)}"
    )


def _target(deadline: Time, by: str, to: str) -> Time:
    if bool(by) == bool(to):
        raise UsageError("give either --by or --to", next_command="gpuops extend --help")
    try:
        if to:
            return instant(to)
        return deadline + (-duration_s(by[1:]) if by.startswith("-") else duration_s(by.removeprefix("+")))
    except ValueError as error:
        raise UsageError(str(error), next_command="gpuops extend --help") from None
