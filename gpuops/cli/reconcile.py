"""`gpuops reconcile`: what the accounts show against what the journal knows."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from gpuops.cli.accounts import asked, listings
from gpuops.cli.context import App, make_app
from gpuops.cli.driving import decide, ensure_guard, go
from gpuops.cli.homes import elsewhere
from gpuops.cli.options import Json, Yes, command_app
from gpuops.cli.output import ask
from gpuops.codec import to_json
from gpuops.errors import GpuopsError, UsageError
from gpuops.guard import take_on
from gpuops.inventory import OURS_UNWANTED, Line, adopt, blind_spec, classify, known_gap, unlisted
from gpuops.marks import new_nonce
from gpuops.names import RUN_ID
from gpuops.render import reconcile_lines
from gpuops.report import name_of, rfc3339
from gpuops.state import RunState
from gpuops.steps import fact
from gpuops.values import Created, Gap, RunId, Scope

app = command_app()

# Volumes and addresses hang on rentals: what computes goes first, then what it held.
_ORDER = ("rental", "address", "volume", "snapshot")
UNPROVED = "Not everything is proved.  next: gpuops reconcile   (again; what is known can be named in config.toml, [known_gaps])"


@app.command()
def reconcile(
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="Which accounts; default those that log in here.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="End orphans of ours, after showing the plan and asking.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List what bills on the accounts and whose it is; --apply ends orphans, and finishes teardowns that were cut off.

    pending: a run is at work. retained: kept on purpose. expired: its retention is over. orphaned: ours, and nothing wants it.
    Another operator's and foreign things are listed and never touched. What is yours and not known to this journal, because it is
    another home's or the journal was lost, `gpuops adopt` takes on.

    Examples: gpuops reconcile
              gpuops reconcile --provider local --apply
    """
    context = make_app(as_json=json)
    names = asked(context, provider, context.states() if context.home.journal.exists() else [])
    lines, gaps, missing = _look(context, names)
    if json and not apply:
        context.printer.document({"items": [_item(x) for x in lines], "gaps": gaps, "unlisted": missing})
    context.printer.lines(reconcile_lines(lines, [_gap_text(g) for g in gaps]))
    context.printer.lines(f"may bill, not listed: {m}" for m in missing)
    unwanted = [x for x in lines if x.cls in OURS_UNWANTED]
    ending = sorted(
        (x for x in unwanted if x.cls in ("orphaned", "expired")),
        key=lambda x: _ORDER.index(x.item.ref.kind) if x.item.ref.kind in _ORDER else len(_ORDER),
    )
    dying = _dying(context, names) if apply else []
    if apply and (ending or dying):
        code = max(_end(context, ending, yes=yes) if ending else 0, _go_on(context, dying))
        if json:
            lines, gaps, missing = _look(context, names)
            context.printer.document({"items": [_item(x) for x in lines], "gaps": gaps, "unlisted": missing})
        raise typer.Exit(code)
    if unwanted:
        context.printer.line("Something of ours bills that nothing wants.  next: gpuops reconcile --apply")
        raise typer.Exit(5)
    mine = [x for x in lines if x.yours and x.item.bills]
    context.printer.lines(f"  next: gpuops adopt {x.run}   (takes on what is yours and not known here)" for x in mine)
    unproved = missing or any(not g["known"] for g in gaps)
    context.printer.lines([UNPROVED] if unproved else [])
    raise typer.Exit(3 if unproved else 0)


def _look(context: App, names: tuple[str, ...]) -> tuple[list[Line], list[dict[str, object]], list[str]]:
    from gpuops.manifest import default_owner

    states = context.states() if context.home.journal.exists() else []
    lines: list[Line] = []
    gaps: list[dict[str, object]] = []
    missing: list[str] = []
    for name, inventory in listings(context, names, Scope()):
        mine = [s for s in states if s.spec.provider == name]
        if isinstance(inventory, GpuopsError):
            gaps.append(_gap(context, name, Gap("*", "*", inventory.message)))
            continue
        if inventory.provider_time is not None:
            context.clock.learn(inventory.provider_time)
        found = classify(inventory.items, mine, context.clock.now(), context.home.policy, default_owner(os.environ))
        lines += [_placed(context, line) for line in found]
        gaps += [_gap(context, name, g) for g in inventory.gaps]
        if not inventory.gaps:
            missing += [f"{s.run}: {name_of(p)}" for s, p in unlisted(inventory.items, mine) if p.life == "unproven"]
    return lines, gaps, missing


def _placed(context: App, line: Line) -> Line:
    """Say which home tends what is ours and not of this journal."""
    other = elsewhere(context.home, line.item) if line.yours else None
    return line if other is None else replace(line, why=f"{line.why}; tended by {other}")


def _gap_text(gap: dict[str, object]) -> str:
    known = " (known)" if gap["known"] else ""
    return f"{gap['provider']} {gap['region']} {gap['kind']}: {gap['reason']}{known}"


def _gap(context: App, provider: str, gap: Gap) -> dict[str, object]:
    known = known_gap(provider, gap, context.home.known_gaps, context.clock.now())
    return {"provider": provider, "region": gap.region, "kind": gap.kind, "reason": gap.reason, "known": known}


def _item(line: Line) -> dict[str, object]:
    ref = line.item.ref
    return {
        "provider": ref.provider, "kind": ref.kind, "id": ref.id, "class": line.cls, "run": line.run or None,
        "rate": {"amount": str(line.item.rate.amount), "currency": line.item.rate.currency},
        "since": rfc3339(line.item.since), "why": line.why, "yours": line.yours,
    }  # fmt: skip


def _end(context: App, lines: list[Line], *, yes: bool) -> int:
    """Show the order, ask, and let the engine end and prove each."""
    context.printer.line("Would end, in this order:")
    context.printer.lines(f"  {n}. {x.item.ref} ({x.cls}: {x.why})" for n, x in enumerate(lines, 1))
    if not yes and not (context.printer.live and ask("End these?")):
        raise UsageError("Not approved: nothing was ended.", next_command="gpuops reconcile --apply --yes")
    codes = []
    for line in lines:
        run = _claim(context, line)
        ensure_guard(context)
        codes.append(go(context, run, "down", yes=True, until=lambda s: s.closed))
    return max(codes, default=0)


def _dying(context: App, names: tuple[str, ...]) -> list[RunId]:
    """Runs that are to be closed and are not: whoever was at it may have been killed."""
    states = context.states(open_only=True) if context.home.journal.exists() else []
    return [s.run for s in states if s.wanted == "closed" and not s.closed and s.spec.provider in names]


def _go_on(context: App, runs: list[RunId]) -> int:
    """Go on with the teardown of these runs; approved long ago."""
    codes = [0]
    for run in runs:
        if not context.state(run).closed:  # it may have been the run of an orphan
            context.printer.line(f"{run} is going down: going on with it")
            codes.append(go(context, run, "down", yes=True, until=lambda s: s.closed))
    return max(codes)


def _claim(context: App, line: Line) -> RunId:
    """Bring an orphan under a run that wants it closed."""
    now = context.clock.now()
    known = next((s for s in context.states() if line.purchase and s.run == line.run), None)
    if known is None:
        spec = blind_spec(line.item, "")
        run, events = adopt(line.item, spec, now, context.ports.random_bytes(8), launched=False)
        if not RUN_ID.fullmatch(run) or context.journal.records(run):
            run = f"adopted-{new_nonce(context.ports.random_bytes(8))}"
        take_on(run, events, context.ports)
    else:
        run = known.run
        _reopen(context, known, line)
    decide(context, run, lambda s: fact("wanted", None, what="closed", cause=f"reconcile: {line.cls}"))
    return run


def _reopen(context: App, state: RunState, line: Line) -> None:
    """The facts that reopen a run whose purchase bills again, or whose retention is over."""
    kind = "released" if line.cls == "expired" else "reappeared"
    if line.purchase and state.purchases[line.purchase].ref == line.item.ref:
        context.journal.append_facts(
            state.run, (fact(kind, line.purchase),), at=context.clock.now(), wall=context.clock.wall()
        )
        return
    item = line.item
    if item.ref.kind == "rental":
        made = to_json(Created(item.ref, item.since, item.rate))
        found = fact("created", line.purchase, created=made, via="search")
    else:
        found = fact("part", line.purchase, ref=to_json(item.ref), rate=to_json(item.rate), via="search")
    context.journal.append_facts(state.run, (found,), at=context.clock.now(), wall=context.clock.wall())
