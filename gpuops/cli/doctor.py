"""`gpuops doctor`: what is missing on this computer, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from gpuops.cli import computer
from gpuops.cli.context import App, make_app
from gpuops.cli.options import Json, command_app
from gpuops.errors import GpuopsError
from gpuops.registry import names as installed
from gpuops.values import Finding

app = command_app()

HERE = "this computer"


@app.command()
def doctor(
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", help="Look at this provider, too: credentials, account, clock, what it needs."),
    ] = None,
    json: Json = False,
) -> None:
    """Say what is missing on this computer and which command mends it.

    Looks and changes nothing. Exit code 3 when something is missing that is needed; a warning can be lived with.

    Example: gpuops doctor --provider local
    """
    context = make_app(as_json=json)
    chosen = tuple(provider or ())
    about = [(HERE, finding) for finding in _here(context)]
    for name in installed():
        if name not in chosen:
            about += [(HERE, finding) for finding in computer.credentials(context, name, needed=False)]
    for name in chosen:
        about += [(name, finding) for finding in _there(context, name)]
    if chosen:  # the provider's own time says more than what a run last heard
        about = [(who, f) for who, f in about if (who, f.name) != (HERE, "clock")]
    missing = [finding for _, finding in about if finding.state == "missing"]
    if json:
        rows = [
            {"about": a, "name": f.name, "state": f.state, "meaning": f.meaning, "fix": f.fix or None} for a, f in about
        ]
        context.printer.document({"findings": rows, "missing": len(missing)})
    context.printer.lines(_screen(about))
    if missing:
        context.printer.line(f"{len(missing)} needed and missing.  next: {_first(missing)}")
        raise typer.Exit(3)
    known = installed()
    further = "" if chosen else f"  next: gpuops doctor --provider {known[0] if len(known) == 1 else 'NAME'}"
    context.printer.line(f"Nothing that is needed is missing.{further}")


def _first(missing: list[Finding]) -> str:
    """The first command that mends something; packages of one installer are installed at once."""
    how = missing[0].fix.rpartition(" ")[0]
    if not how.endswith(" install"):
        return missing[0].fix
    packages = dict.fromkeys(f.fix.rpartition(" ")[2] for f in missing if f.fix.rpartition(" ")[0] == how)
    return f"{how} {' '.join(packages)}"


def _here(context: App) -> Iterator[Finding]:
    yield computer.python()
    yield from computer.programs()
    yield from computer.terminal()
    yield from computer.home(context)
    yield computer.journal(context)
    yield from computer.guard(context)
    yield computer.heard_clock(context)


def _there(context: App, name: str) -> Iterator[Finding]:
    yield from computer.credentials(context, name, needed=True)
    try:
        yield from computer.account(context, name)
    except GpuopsError as error:  # the adapter itself cannot be used: a library of it is missing, or a setting is wrong
        yield Finding(f"{name} itself", "missing", error.message, error.next_command or "gpuops providers")


def _screen(about: list[tuple[str, Finding]]) -> Iterator[str]:
    width = max(len(finding.name) for _, finding in about)
    before = ""
    for who, finding in about:
        if who != before:
            yield "This computer" if who == HERE else f"Provider {who}"
        before = who
        yield f"  {finding.state:<7}  {finding.name:<{width}}  {finding.meaning}"
        if finding.fix and finding.state != "ok":
            yield f"  {'':<7}  {'':<{width}}  mend it: {finding.fix}"
