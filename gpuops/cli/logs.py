"""`gpuops logs`: what training printed, from the host while it lives, else from the verified copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.driving import ensure_guard
from gpuops.cli.interrupts import Interrupted
from gpuops.cli.options import Json, MaybeRun, command_app
from gpuops.errors import UsageError
from gpuops.host.supervisor import LOG_BYTES
from gpuops.names import escape
from gpuops.ports import LOG_PIECE
from gpuops.report import name_of
from gpuops.state import RunState
from gpuops.values import Endpoint, Time

MOST_PIECES = 2 * LOG_BYTES // LOG_PIECE + 1

Put = Callable[[Iterable[str]], None]

app = command_app()


@app.command()
def logs(
    run: MaybeRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until training ends.")] = False,
    json: Json = False,
) -> None:
    """Print the log of training.

    Example: gpuops logs local-demo -f
    """
    context = make_app(as_json=json)
    state = context.find(run)
    if not state.closed:
        ensure_guard(context)
    kept: list[str] = []
    _print(context, state, follow, kept.extend if json else context.printer.lines)
    if json:
        context.printer.document({"run": state.run, "lines": kept})


def _print(context: App, state: RunState, follow: bool, put: Put) -> None:
    machines = [p for p in state.purchases.values() if p.work.launching_at is not None]
    for number, machine in enumerate(machines, 1):
        if len(machines) > 1:  # a lost machine was replaced: each has a log of its own
            context.printer.line(f"--- machine {number} of {len(machines)}: {name_of(machine)}")
        if "telemetry" in machine.work.copied:
            _copied(put, Path(machine.work.copied["telemetry"].path))
        elif machine is not state.rental:
            context.printer.line("its log was lost with it")
    if machines and (state.rental not in machines or "telemetry" in state.rental.work.copied):
        return  # the next machine has nothing to tell yet, or all was told
    try:
        with context.interrupts.watching():
            _from_host(context, state, follow, put)
    except Interrupted:
        context.printer.line(f"Left; training goes on.  next: gpuops watch {state.run}")


def _from_host(context: App, state: RunState, follow: bool, put: Put) -> None:
    rental = state.rental
    if rental is None or rental.endpoint is None or rental.work.launched_at is None or rental.life != "created":
        raise UsageError(f"run {state.run} has no log: it is {state.phase}", next_command=f"gpuops report {state.run}")
    text, offset = Text(put), 0
    try:
        while True:
            now = context.clock.now()
            running = follow and _phase(context, state, rental.endpoint, now) == "running"
            offset = _to_the_end(context, state, rental.endpoint, offset, text)
            if not running:
                return
            context.clock.sleep_until(now + context.home.policy.status_every_s)
    finally:
        text.end()


def _phase(context: App, state: RunState, endpoint: Endpoint, now: Time) -> str:
    return context.ports.host.status(state.run, endpoint, state.spec, now + context.home.policy.call_s).phase


def _to_the_end(context: App, state: RunState, endpoint: Endpoint, offset: int, text: Text) -> int:
    """Print piece after piece until one is not full; a program that prints faster than that does not hold us here."""
    for _ in range(MOST_PIECES):
        until = context.clock.now() + context.home.policy.call_s
        piece, following = context.ports.host.log(state.run, endpoint, state.spec, offset, until)
        text.add(piece)
        full = following - offset > LOG_PIECE - 4  # a character may have been held back
        offset = following
        if not full:
            break
    return offset


def _copied(put: Put, directory: Path) -> None:
    """All parts of the copied log, the oldest (`train.log.1`) first."""
    parts = [p for p in (directory / "train.log.1", directory / "train.log") if p.is_file()]
    if not parts:
        put((f"no log in {directory}",))
    text = Text(put)
    for part in parts:
        with part.open(errors="replace", newline="\n") as source:
            while piece := source.read(LOG_PIECE):
                text.add(escape(piece, "\n\t"))
    text.end()


class Text:
    """Puts pieces of a text out as whole lines; a tab becomes the blanks that it stands for."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._rest = ""

    def add(self, piece: str) -> None:
        """Print the lines that are whole now; a line without an end is cut somewhere."""
        *whole, self._rest = (self._rest + piece).split("\n")
        self._put(line.expandtabs() for line in whole)
        if len(self._rest) > LOG_PIECE:
            self.end()

    def end(self) -> None:
        """Print what is left."""
        self._put([self._rest.expandtabs()] if self._rest else [])
        self._rest = ""
