"""`gpuops guard`: the process that brings runs down in time when no terminal is there."""

from __future__ import annotations

import json as jsonlib
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.options import Json, command_app
from gpuops.errors import GpuopsError, JournalError, MayBill
from gpuops.journal import SqliteJournal
from gpuops.locks import held
from gpuops.report import name_of, rfc3339
from gpuops.state import RunState
from gpuops.values import RunId

app = command_app()


@app.command()
def guard(
    once: Annotated[bool, typer.Option("--once", help="Act once, from credentials and marks alone, and end.")] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", help="With --once: which accounts; default those that log in here."),
    ] = None,
    json: Json = False,
    run: Annotated[str, typer.Option("--run", hidden=True)] = "",
) -> None:
    """Keep runs going down in time without a terminal; --once needs marks alone.

    `up` starts it by itself, one per user; it ends when no run is open. Without options it runs in the foreground.
    With --once it ends every rental whose own mark says that its limit has passed, and does what is due now for the open
    runs of this computer's journal: for cron, or for a second computer that has the credentials and nothing else.

    Example: gpuops guard --once --provider local
    """
    context = make_app(as_json=json)
    if run:
        _child(context, run)
    elif once:
        _once(context, provider or [])
    else:
        _parent(context)


class _Process:
    """A child: its output goes to a file, so that neither side ever waits for a full pipe."""

    def __init__(self, run: RunId, output: Path, log: IO[bytes]) -> None:
        self._output = output
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with output.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuops", "guard", "--run", run],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def said(self) -> str:
        try:
            return self._output.read_text(errors="replace")
        except OSError:  # the run's directory was removed: what it said is lost, the run is not
            return ""


def _parent(context: App) -> None:
    from gpuops.guard import Parent

    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, frame: stop.append(n))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with held(context.home.path / "guard.lock", from_stopped=True, patience_s=2.0) as mine:
        if not mine:
            context.printer.line("A guard of this user runs already.")
            return
        context.home.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (context.home.path / "guard.log").open("ab") as log:
            Parent(
                versions=context.journal.versions,
                spawn=lambda run: _Process(run, context.home.runs / run / "guard.out", log),
                clock=context.clock,
                stopped=lambda: bool(stop) or not context.home.journal.exists(),
            ).keep()


def _child(context: App, run: RunId) -> None:
    from gpuops.guard import tend

    with held(context.home.runs / run / "guard-child.lock", from_stopped=True) as mine:
        due = (
            tend(run, context.ports, context.home.policy, context.locks.is_driven, context.locks.undriven_s, arms=True)
            if mine
            else context.clock.now() + 5
        )
    sys.stdout.write(jsonlib.dumps({"next": due, "now": context.clock.now()}) + "\n")


def _once(context: App, names: list[str]) -> None:
    from gpuops.cli.accounts import asked
    from gpuops.guard import sentinel, tend
    from gpuops.inventory import known_gap

    problems: list[str] = []
    states: list[RunState] = []
    try:
        if context.home.journal.exists():
            states = context.states()
        else:
            context.journal = SqliteJournal(
                ":memory:"
            )  # nothing to read, and nothing to write where it may not be possible
    except (JournalError, OSError) as error:  # marks and credentials are enough for what is past its limit
        problems.append(f"the runs of this computer: {error}")
        context.journal = SqliteJournal(":memory:")
    known = {p.ref for s in states if not s.closed for p in s.purchases.values()}
    left: list[str] = []
    done: list[dict[str, object]] = []
    for name in asked(context, names, states):
        ports = replace(context.ports, journal=SqliteJournal(":memory:"))
        try:
            driven, failed, gaps = sentinel(
                name, ports, context.home.policy, lambda item: item.ref in known, patience_s=300
            )
        except GpuopsError as error:
            problems.append(f"{name}: {error.message}")
            continue
        left += failed
        now = context.clock.now()
        problems += [
            f"{name}: {g.region}/{g.kind}: {g.reason}"
            for g in gaps
            if not known_gap(name, g, context.home.known_gaps, now)
        ]
        for state in driven:
            done.append({"run": state.run, "closed": state.closed})
            context.printer.line(
                f"{state.run}: past its limit, " + ("ended and proved gone" if state.closed else "NOT proved gone")
            )
            left += [name_of(p) for p in state.may_bill]
    for state in [s for s in states if not s.closed]:
        try:
            due = tend(
                state.run, context.ports, context.home.policy, context.locks.is_driven, context.locks.undriven_s, stays_s=0
            )  # fmt: skip
        except GpuopsError as error:
            problems.append(f"{state.run}: {error.message}")
            continue
        after = context.state(state.run)
        context.printer.line(f"{after.run}: {after.phase}, due again {rfc3339(due)}")
        if context.clock.now() > after.limit:
            left += [name_of(p) for p in after.may_bill]
    if context.printer.as_json:
        context.printer.document({"ended": done, "problems": problems})
    context.printer.lines(f"NOT PROVED: {problem}" for problem in problems)
    context.printer.lines(
        ["  next: gpuops guard --once   (again, when those accounts can be read)"] if problems else []
    )
    if left:
        raise MayBill(
            "not everything past its limit is proved gone", may_bill=tuple(left), next_command="gpuops guard --once"
        )
    raise typer.Exit(3 if problems else 0)
