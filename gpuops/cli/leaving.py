"""What a command says when it leaves something behind that may bill: what, which layer ends it, and what to type."""

from __future__ import annotations

from pathlib import Path

from gpuops.cli.context import SENSELESS, App, make_app
from gpuops.cli.output import plain
from gpuops.errors import GateRefused, GpuopsError, JournalError, MayBill
from gpuops.locks import held
from gpuops.report import name_of, rfc3339
from gpuops.state import RunState


def guard_runs(app: App) -> bool:
    """A guard of this user runs now."""
    return guard_holds(app.home.path)


def guard_holds(home: Path) -> bool:
    """A guard of the home at this path runs now."""
    if not (home / "guard.lock").exists():
        return False
    with held(home / "guard.lock", mark=False) as free:
        return not free


def still_bills(app: App, state: RunState) -> GpuopsError:
    """The message of exit 5: what bills, what will end it, what to type."""
    return MayBill(
        f"Detached from {state.run}; it goes on, and `gpuops watch {state.run}` follows it. {layers_text(app, state)}",
        may_bill=tuple(name_of(p) for p in state.may_bill),
        next_command=f"gpuops down {state.run}",
    )


def layers_text(app: App, state: RunState) -> str:
    """Which layer ends what this run bills, and when."""
    timer = state.layers.get("provider timer")
    limit = rfc3339(min(state.limit, timer.at) if timer else state.limit)
    said = []
    if guard_runs(app):
        rental = state.rental
        if state.wanted == "closed":
            said.append("the guard goes on with the teardown.")
        elif rental is not None and rental.work.launching_at is None and rental.work.checked_at is not None:
            down_at = min(rental.work.checked_at + state.spec.setup_s, state.teardown_at(app.home.policy))
            said.append(f"The guard brings it down at {rfc3339(down_at)} unless it is launched.")
        else:
            said.append(
                f"the guard seals, copies and ends it when training ends, by the deadline {rfc3339(state.deadline)}."
            )
        said.append(f"{timer.name if timer else 'the guard'} ends it at {limit} at the latest.")
    elif timer:
        said.append(f"No guard runs here: nothing more is copied. The {timer.name} ends it at {limit} at the latest.")
    else:
        said.append(f"No guard runs here and no timer was seen: nothing but you ends it at the limit {limit}.")
    return " ".join(s[0].upper() + s[1:] for s in said)


def unwritable(app: App, state: RunState | None, error: GpuopsError) -> GpuopsError:
    """The journal cannot be used: refused as long as nothing bills, otherwise what bills outranks it."""
    message = error.message[0].upper() + error.message[1:]
    if state is None or not state.may_bill:
        return GateRefused(
            f"{message}. Nothing was bought.",
            next_command=f"make {app.home.path} writable, then the same command again",
        )
    bills = still_bills(app, state)
    return MayBill(
        f"{message}. {layers_text(app, state)}",
        may_bill=bills.may_bill,
        next_command=f"make {app.home.path} writable, then gpuops down {state.run}",
    )


def farewell(app: App, state: RunState) -> str:
    """What a second Ctrl-C prints: from memory alone."""
    if not state.may_bill:
        return f"  next: gpuops status {state.run}\n"
    error = still_bills(app, state)
    lines = [f"  {layers_text(app, state)}", *(f"  may still bill: {what}" for what in error.may_bill)]
    return plain("\n".join([*lines, f"  next: {error.next_command}", ""]))


def whatever_bills() -> tuple[str, ...]:
    """What may bill as far as the journal tells, asked after an error; an unreadable journal is no reason to say nothing."""
    try:
        app = make_app()
        if not app.home.journal.exists():
            return ()
        found: list[str] = []
        for run in app.journal.runs(open_only=True):
            try:
                found += [name_of(p) for p in app.state(run).may_bill]
            except JournalError:
                raise
            except SENSELESS as error:
                found.append(f"run {run}: its records make no sense ({error})")
        return tuple(found)
    except Exception as error:
        return (f"whatever the journal names; it cannot be read now ({error})",)
