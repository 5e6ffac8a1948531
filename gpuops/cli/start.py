"""From a manifest to a planned run, or to the open run that this manifest already has."""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuops.cli.context import SENSELESS, App
from gpuops.cli.driving import INTERRUPTED, decide, ensure_guard, was_told, wish
from gpuops.cli.foresee import as_one, would_fail
from gpuops.cli.interrupts import Interrupted
from gpuops.cli.leaving import still_bills, unwritable
from gpuops.engine import OPERATOR, drive
from gpuops.errors import GateRefused, GpuopsError, JournalError, UsageError
from gpuops.locks import held
from gpuops.marks import new_nonce
from gpuops.plan import Lines, Plan, make_plan, nothing_fits, planned
from gpuops.render import plan_lines
from gpuops.spec import Spec, unpinned
from gpuops.state import RunState, later_wish
from gpuops.steps import fact
from gpuops.values import Need, RunId, Time

LISTING_S = 60.0
REMEMBERED_RUNS = 50
"""So many of the newest runs are asked how fast a line was."""
ALONE_S = 30.0
"""How long to wait for another command that is just planning."""


def read_manifest(path: Path, now: Time) -> Spec:
    """Load a manifest; pydantic and YAML are imported here, so that commands without a manifest start fast."""
    from gpuops.manifest import load

    return load(path, now=now)


def pinned(app: App, spec: Spec) -> Spec:
    """The spec with every commit of the manifest resolved. Raises `UsageError` and `GateRefused`: nothing was bought."""
    if not any(t.git for t in spec.transfers):
        return spec
    from gpuops.sources import pin

    try:
        return pin(spec, app.clock)
    except GpuopsError as error:
        change = f"change transfers in {spec.manifest_path}, then: gpuops plan {spec.manifest_path}"
        error.next_command = error.next_command or change
        raise


def keep(app: App, run: RunId, spec: Spec) -> None:
    """Make the run's folder, and keep in it what only exists now: the patches of checkouts."""
    folder = app.home.runs / run
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(t.git for t in spec.transfers):
        from gpuops.sources import keep_patches

        keep_patches(spec, folder, app.clock)


def show_plan(app: App, spec: Spec, accept_loss: str) -> tuple[Plan, list[GpuopsError]]:
    """Ask the provider for offers and print the plan; returns it with what would fail later. Buys nothing.

    Raises `GateRefused` when there is nothing to plan.
    """
    provider = app.provider(spec.provider)
    # first, since it takes a moment: the time of the plan runs from `now`
    problems = would_fail(app, spec, provider.account())
    now = app.clock.now()
    offers = provider.quote(spec.need, now + app.home.policy.call_s)
    if spec.need.max_price_per_hour is not None:
        offers = tuple(o for o in offers if o.rate.amount <= spec.need.max_price_per_hour)
    if not offers:
        anything = Need("", region=spec.need.region)
        raise nothing_fits(spec, provider.quote(anything, now + app.home.policy.call_s))
    plan = make_plan(
        spec, offers, provider.traits, now, app.home.policy, guard=app.home.guard, accept_loss=accept_loss,
        lines=_lines(app, spec),
    )  # fmt: skip
    app.printer.lines(plan_lines(spec, plan, now, app.printer.width))
    return plan, problems


def _lines(app: App, spec: Spec) -> Lines:
    """What this computer would send, how fast it did so lately, and the room for results."""
    from gpuops.sources import send_bytes

    size: int | None = None
    with contextlib.suppress(GpuopsError):  # the dry run will complain in full
        size = send_bytes(spec, app.clock, app.clock.now() + LISTING_S)
    place = Path(spec.outputs.destination)
    existing = next(p for p in (place, *place.parents) if p.exists())
    free: int | None = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(existing).free
    return Lines(size, lambda provider, region: _rates(app, provider, region), free)


def _rates(app: App, provider: str, region: str) -> tuple[float, float]:
    """Bytes per second from here, and by the host itself, as last measured there; 0 where that is not known."""
    up = down = 0.0
    if not app.home.journal.exists():
        return up, down
    for run in list(app.journal.runs())[: -REMEMBERED_RUNS - 1 : -1]:
        with contextlib.suppress(*SENSELESS):  # a run whose records make no sense measured nothing
            for p in app.state(run).purchases.values():
                if (p.offer.provider, p.offer.region) == (provider, region):
                    up, down = up or p.work.uplink, down or p.work.downlink
        if up and down:
            break
    return up, down


def begin(app: App, path: Path, what: str, accept_loss: str, *, new: bool) -> RunId:
    """Plan a run for the manifest at `path` and wish it `what`, or go on with the open run that it has.

    The same command typed again after a crash must not buy a second machine, nor the same command typed twice at once.
    """
    spec = read_manifest(path, app.clock.now())
    try:
        with app.interrupts.watching():
            return _begin(app, spec, what, accept_loss, new=new)
    except Interrupted:
        with app.interrupts.quiet():
            raise _left(app, spec) from None
    except JournalError as error:
        state = None
        with contextlib.suppress(JournalError):
            state = _open_run(app, spec)
        raise unwritable(app, state, error) from error


def _begin(app: App, spec: Spec, what: str, accept_loss: str, *, new: bool) -> RunId:
    state = None if new else _open_run(app, spec)
    if state is None and what == "training" and not new and (over := _untold(app, spec)):
        app.printer.line(f"{over} ended meanwhile, and nobody was told. (--new, or the command again, rents anew.)")
        return over
    if state is None:
        spec = pinned(app, spec)
        plan, problems = show_plan(app, spec, accept_loss)
        if problems:
            raise as_one(problems)
        for other in [s for s in app.states(open_only=True) if s.spec.name == spec.name]:
            app.printer.line(
                f"  note: {other.run} has the same name, is {other.phase} and goes on beside it (from {other.spec.manifest_path})"
            )
        with app.interrupts.shield("plan"), _alone(app):
            # another command may have planned a run for this manifest meanwhile
            state = None if new else _open_run(app, spec)
            run = _plan_run(app, spec, plan, what) if state is None else state.run
    if state is not None:
        run = state.run
        app.printer.line(f"Going on with {state.run}, which is {state.phase}. (--new would rent a second machine.)")
        if unpinned(state.spec) != replace(unpinned(spec), owner=state.spec.owner):
            app.printer.line("  note: the manifest changed since; this run keeps what it was planned with")
        if later_wish(state.wanted, "ready" if what == "ready" else "training"):
            decide(app, run, lambda s: fact("wanted", None, what=what))
    if app.home.guard and not ensure_guard(app):
        left = app.state(run)
        if left.may_bill:
            bills = still_bills(app, left)
            bills.message = f"The guard could not be started. {bills.message}"
            raise bills
        raise GateRefused("the guard could not be started. Nothing was bought.", next_command="gpuops guard")
    app.warm_up()
    return run


@contextlib.contextmanager
def _alone(app: App) -> Iterator[None]:
    """One command of this computer at a time decides whether a manifest has a run already."""
    with held(app.home.path / "plan.lock", from_stopped=True, patience_s=ALONE_S) as mine:
        if not mine:
            raise GateRefused(
                "another gpuops is just planning a run and does not end. Nothing was bought.",
                next_command="gpuops status",
            )
        yield


def _open_run(app: App, spec: Spec) -> RunState | None:
    states = [s for s in app.states(open_only=True) if s.spec.manifest_path == spec.manifest_path and not s.closed]
    return states[-1] if states else None


def _untold(app: App, spec: Spec) -> RunId | None:
    """The last run of this manifest, when it trained and closed and no command has told anybody how it ended."""
    for state in reversed(app.states()):
        run = state.run
        if state.spec.manifest_path == spec.manifest_path:
            trained = any(p.work.launching_at is not None for p in state.purchases.values())
            return run if state.closed and trained and not was_told(app, run) else None
    return None


def _left(app: App, spec: Spec) -> GpuopsError:
    """Interrupted before the run was driven: what was only planned is closed; what bills is named."""
    state = _open_run(app, spec)
    if state is not None and state.purchases:
        return still_bills(app, state)
    if state is not None:
        wish(app, state, "closed", INTERRUPTED)
        drive(state.run, app.ports, app.home.policy, OPERATOR, until=lambda s: s.closed)
    return UsageError("Interrupted: nothing was bought.", next_command="gpuops status")


def _plan_run(app: App, spec: Spec, plan: Plan, what: str) -> RunId:
    now = app.clock.now()
    run = _run_id(spec.name, now, app.ports.random_bytes(8))
    keep(app, run, spec)
    # both in one transaction: a run that was planned and wishes nothing would be neither dead nor alive
    begun = (planned(spec, plan, new_nonce(app.ports.random_bytes(8))), fact("wanted", None, what=what))
    app.journal.append_facts(run, begun, at=now, wall=app.clock.wall())
    return run


def _run_id(name: str, now: Time, random: bytes) -> RunId:
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%d")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "run"
    return f"{slug}-{day}-{new_nonce(random)[:4]}"
