"""What all commands that move a run share: drive it, tell what happens, ask, and end with the right exit code."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuops.cli.context import App
from gpuops.cli.homes import remember
from gpuops.cli.interrupts import Interrupted
from gpuops.cli.leaving import farewell, guard_runs, still_bills, unwritable
from gpuops.cli.output import ask as ask_person
from gpuops.engine import OPERATOR, drive, load
from gpuops.errors import CredentialsError, JournalError, Stale, UsageError
from gpuops.fold import fold
from gpuops.fold_purchase import ImpossibleTransition
from gpuops.guard import waits_for_guard
from gpuops.locks import held
from gpuops.names import escape, path_problem
from gpuops.narration import narrate, starting
from gpuops.render import progress_line, send_lines
from gpuops.report import lost, name_of, rfc3339, status_line
from gpuops.spec import Spec
from gpuops.state import RunState
from gpuops.steps import Ask, Step, fact
from gpuops.values import Event, Record, RunId

LEAVES_FREELY = ("watch", "logs")
TELLS_FROM_NOW = (*LEAVES_FREELY, "launch", "extend", "retain")
"""What came before was told by the command that did it."""
GUARD_STARTS_S = 15.0
INTERRUPTED = "interrupted by the user while buying"
NOT_APPROVED = "not approved"


@dataclass
class Teller:
    """Prints what the journal says that is new, whoever wrote it: this command, the guard or another terminal."""

    app: App
    seen: int
    last: RunState | None = None
    lost: bool = False
    """The connection to the host was lost, and nobody was told that it is back."""
    said: str = ""
    """What the provider said last of a rental that does not run yet."""
    progress_at: float = -math.inf
    progress_of: object = None

    def __call__(self, state: RunState, step: Step) -> None:
        """Tell the new records of a run."""
        self.last = state
        if waits_for_guard(state):
            ensure_guard(self.app)  # one that died meanwhile would be waited for in vain
        progressed = False
        for record in self.app.journal.records(state.run, after=self.seen):
            self.seen = record.seq
            if record.event.kind == "attempted" and record.event.data["rule"] == "status":
                first, self.lost = not self.lost, True
                if first:  # whoever noticed it, and however often since
                    why = record.event.data["error"]
                    self.app.printer.line(f"Connection to the host lost ({why}); training goes on there, trying again")
                    continue
            if record.event.kind in ("gone", "replaced"):
                self.lost = False  # what was lost was the host, and that is told
            if record.event.kind == "status":
                if self.lost:
                    self.app.printer.line("Connection to the host is back; training did not need it")
                self.lost = False
                progressed = True
            elif record.event.kind == "observed":
                self._tell_start(starting(record))
            else:
                self.app.printer.lines(narrate(record, state))
        if progressed and state.outcome == "":
            self._progress(state)

    def _progress(self, state: RunState) -> None:
        """Show progress: in place at every look; as lines, which stay, no more often than this command alone would look.

        The guard looks as well, so that each moment may stand in the journal twice.
        """
        now, status = self.app.clock.now(), state.rental.work.status if state.rental else None
        what = (status.phase, status.generations, bool(status.beat)) if status else None
        if (
            self.app.printer.live
            or what != self.progress_of
            or now >= self.progress_at + self.app.home.policy.status_every_s
        ):
            self.progress_at, self.progress_of = now, what
            self.app.printer.progress(progress_line(state, now, self.app.home.policy))

    def _tell_start(self, said: str) -> None:
        """A start that takes long, such as the pull of an image, is shown each time that the provider says something new."""
        if said != self.said:
            self.said = said
            self.app.printer.progress(said)


def wish(app: App, state: RunState, what: str, cause: str = "") -> None:
    """Append what the user wants; a wish only moves forward."""
    decide(app, state.run, lambda s: fact("wanted", None, what=what, cause=cause))


def decide(app: App, run: RunId, make: Callable[[RunState], Event]) -> RunState:
    """Append a decision made on the newest version; tries again while other writers are faster, at most 20 times."""
    state = app.state(run)
    for _ in range(20):
        record = Record(run, state.version + 1, make(state), True, app.clock.now(), app.clock.wall())
        try:
            # folded first: a decision that does not fit the life tables must not stand in the journal
            decided = fold([record], state)
        except ImpossibleTransition as error:
            raise UsageError(f"{run} has moved on: {error.message}", next_command=f"gpuops status {run}") from None
        try:
            app.journal.append(run, record.event, expected=state.version, at=record.at, wall=record.wall)
        except Stale:
            state = app.state(run)
            continue
        return decided or state
    raise JournalError(f"run {run} changes faster than a decision can be written", next_command="try again")


def check_secrets(app: App, spec: Spec, consequence: str) -> None:
    """Every secret that training needs has a value on this computer. Raises `CredentialsError`."""
    missing = [name for name in spec.secrets if app.credentials.secret(name) is None]
    if missing:
        raise CredentialsError(
            f"secrets without a value, neither in the environment nor in the keyring: {', '.join(missing)}. {consequence}",
            next_command=f"gpuops auth set {missing[0]}",
        )


def resume_from(app: App, run: RunId, generation: str) -> None:
    """Record which generation on the host training goes on from. Raises `UsageError` when it is too late or no path."""
    if not generation:
        return
    if problem := path_problem(generation.removeprefix("/")):
        raise UsageError(f"--resume {escape(generation)}: {problem}", next_command="gpuops launch --help")
    state = app.state(run)
    if state.resume == generation:
        return
    rental = state.rental
    if rental is not None and rental.work.launching_at is not None:
        raise UsageError(f"training of {run} was started already", next_command=f"gpuops watch {run}")
    decide(app, run, lambda s: fact("resuming", None, generation=generation))


def go(
    app: App,
    run: RunId,
    command: str,
    *,
    until: Callable[[RunState], bool],
    yes: bool,
    may: frozenset[str] = OPERATOR,
    since: int | None = None,
) -> int:
    """Drive a run until `until`, and return the exit code of `command`.

    `since`: the version from which on its records are news to whoever typed the command.
    """
    first = app.state(run)
    told = since if since is not None else first.version if command in TELLS_FROM_NOW else 0
    teller = Teller(app, told, first)
    app.interrupts.farewell = lambda: farewell(app, teller.last or first)

    def answer(state: RunState, ask: Ask) -> bool:
        return confirm(app, state, ask, yes=yes)

    with app.locks.driving(run), app.interrupts.watching():
        while True:
            try:
                state, step = drive(run, app.ports, app.home.policy, may, until=until, tell=teller, answer=answer)
                teller(state, step)
                if command != "launch":  # the guard takes the connection over
                    app.ports.host.close(run)
                if isinstance(step, Ask):
                    return _unanswered(app, state)
                return finish(app, state, command) if state.closed else ready(app, state, command)
            except Interrupted:
                with app.interrupts.quiet():
                    code = _interrupted(app, run, command)
                if code is not None:
                    return code
            except JournalError as error:
                raise unwritable(app, teller.last, error) from error


def confirm(app: App, state: RunState, question: Ask, *, yes: bool) -> bool:
    """Show what is asked for and append the approval. Without terminal and `--yes` it is refused."""
    rental = state.rental
    if rental is not None and rental.work.preview is not None and rental.work.preview.digest == question.digest:
        app.printer.lines(send_lines(rental.work.preview))
    if not yes:
        if not sys.stdin.isatty():
            return False
        if not ask_person(question.question, sys.stderr if app.printer.as_json else None):
            app.printer.line("")
            return False
    decide(app, state.run, lambda s: fact("approved", None, digest=question.digest))
    return True


def ensure_guard(app: App) -> bool:
    """Start the guard of this user unless it runs; True when one runs afterwards."""
    remember(app.home)
    if not app.home.guard:
        return False
    app.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with held(app.home.path / "guard.lock", from_stopped=True, mark=False) as free:
        if not free:
            return True
    with (app.home.path / "guard.log").open("ab") as log:
        # its own session: neither the terminal nor this process takes it along
        subprocess.Popen(
            [sys.executable, "-m", "gpuops", "guard"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            start_new_session=True, env={**os.environ, "GPUOPS_HOME": str(app.home.path)},
        )  # fmt: skip
    return _guard_holds(app)


def _guard_holds(app: App) -> bool:
    """Wait until the guard that was started holds its lock: one that died at once is no layer."""
    end = time.monotonic() + GUARD_STARTS_S
    while time.monotonic() < end:
        with held(app.home.path / "guard.lock", mark=False) as free:
            if not free:
                return True
        time.sleep(0.05)
    return False


def ready(app: App, state: RunState, command: str) -> int:
    """The command reached what it wanted and the run goes on, as meant."""
    now = app.clock.now()
    if app.printer.as_json:
        app.printer.document({"runs": [status_line(state, now)]})
        return 0
    rental = state.rental
    if rental is not None and rental.work.launching_at is not None:
        app.printer.line(f"Training: {name_of(rental)}. It bills.")
    elif command == "up" and rental is not None and rental.work.checked_at is not None:
        down_at = min(rental.work.checked_at + state.spec.setup_s, state.teardown_at(app.home.policy))
        ends = f"Unless launched it goes down at {rfc3339(down_at)}."
        if not guard_runs(app):
            ends = f"No guard runs here: nothing brings it down before its limit {rfc3339(state.limit)}."
        app.printer.line(f"Ready: {name_of(rental)}. It bills. {ends}")
        app.printer.line(f"  next: gpuops launch {state.run}")
    if command in ("up", "launch") and rental is not None and rental.work.launching_at is not None:
        app.printer.line(f"  next: gpuops watch {state.run}   (leaving it stops nothing)")
    return 0


def finish(app: App, state: RunState, command: str) -> int:
    """The run is closed: say where things lie, and return the exit code."""
    code, said = verdict(state, command)
    if app.printer.as_json:
        app.printer.document({"runs": [status_line(state, app.clock.now())]})
    lines = [said, *(f"  replaced    {name_of(p)}: lost, another one was rented as approved" for p in state.replaced)]
    for work in [p.work for p in state.purchases.values() if p.work.copied]:
        sealed = [g.id for g in work.sealed.generations] if work.sealed else []
        names = [g for g in (*sealed, *reversed(work.copied)) if g in work.copied and g != "telemetry"]
        lines += [f"  checkpoint  {work.copied[name].path}" for name in names[:1]]
        lines += [f"  log         {work.copied['telemetry'].path}"] if "telemetry" in work.copied else []
    lines += [f"  next: {what}" for what in _after(state, code)]
    lines.append(f"  audit trail gpuops report {state.run}   (journal: {app.home.journal})")
    app.printer.lines(lines)
    _told(app, state)
    return code


def _after(state: RunState, code: int) -> tuple[str, ...]:
    """What to type when a closed run left something undone; a failed training is a matter of its log."""
    if code == 3 and state.preflight_final:
        return (f"gpuops plan {state.spec.manifest_path}",)
    if code in (3, 5):
        return ("gpuops reconcile",)
    trained = any(p.work.launched_at is not None for p in state.purchases.values())
    if code == 4 or (code == 6 and not trained):
        return (f"gpuops report {state.run}   (what was seen; then again: gpuops run {state.spec.manifest_path})",)
    return (f"gpuops logs {state.run}",) if code == 6 else ()


def was_told(app: App, run: RunId) -> bool:
    """Somebody was told how this run ended."""
    return any(r.event.kind == "told" for r in app.journal.records(run))


def _told(app: App, state: RunState) -> None:
    """Record that the end was told: until then the same command tells it, instead of renting anew."""
    with contextlib.suppress(JournalError):
        if not was_told(app, state.run):
            told = fact("told", None)
            app.journal.append_facts(state.run, (told,), at=app.clock.now(), wall=app.clock.wall())


def verdict(state: RunState, command: str) -> tuple[int, str]:
    """Exit code and sentence for a closed run."""
    if any(p.life == "unproven" for p in state.purchases.values()):
        return 3, "Closed, but one purchase was never found nor disproved: `gpuops reconcile` keeps looking."
    if any("carries this run's mark" in a for a in state.alarms):
        return 5, "Closed, but something on the account carries this run's mark: see `gpuops reconcile`."
    if all(p.work.launching_at is None for p in state.purchases.values()):
        if command == "down":
            return 0, f"Down: {state.cause}. Nothing of this run bills."
        if state.cause in (INTERRUPTED, NOT_APPROVED):
            if all(p.life in ("refused", "not_sent") for p in state.intents):
                return 2, f"{state.cause[0].upper()}{state.cause[1:]}: nothing was bought."
            said = f"{state.cause[0].upper()}{state.cause[1:]}: what was bought is gone, proved. Nothing of this run bills."
            return (6 if command == "run" else 4), said
        if state.preflight_final:
            return 3, f"Refused: {state.preflight_problem}. Nothing was bought."
        return 4, f"Failed before training: {state.cause}. Nothing of this run bills: proved."
    missing = lost(state)
    if state.outcome == "completed" and not missing:
        return 0, "Done: training completed, everything sealed is copied and verified, nothing of this run bills."
    said = f"Training {state.outcome or 'ended'}; teardown is complete, nothing of this run bills."
    if missing:
        said += f" Lost: {missing}."
    return (0 if command == "down" else 6), said


def _interrupted(app: App, run: RunId, command: str) -> int | None:
    """After a Ctrl-C or hang-up: None means drive on (to tear down), otherwise the exit code."""
    from gpuops.cli.output import print_error

    state = load(run, app.ports)
    if state.closed:
        return finish(app, state, command)
    if command in LEAVES_FREELY:
        app.printer.line(f"Left; the run goes on as meant.  next: gpuops watch {run}")
        return 0
    buying = (
        state.phase == "planned"
        and not state.replaced
        and state.wanted != "closed"
        and command in ("up", "launch", "run")
    )
    if buying:
        app.printer.line(
            "Interrupted while buying: recording what was bought and tearing it down. Again to leave at once."
        )
        wish(app, state, "closed", INTERRUPTED)
        return None
    if not state.may_bill:
        return None if state.wanted == "closed" and app.interrupts.count < 2 else 0
    error = still_bills(app, state)
    print_error(error, "may_bill", as_json=app.printer.as_json)
    return 5


def _unanswered(app: App, state: RunState) -> int:
    """A question stayed unanswered: refused. What was bought goes on until the setup limit, or at once if nothing was."""
    if not state.purchases:
        wish(app, state, "closed", NOT_APPROVED)
        drive(state.run, app.ports, app.home.policy, OPERATOR, until=lambda s: s.closed)
        raise UsageError("Not approved: nothing was bought.", next_command="add --yes, or run it on a terminal")
    error = still_bills(app, state)
    error.message = "Not approved: nothing was sent. " + error.message
    error.exit_code, error.code = 5, "may_bill"
    raise error
