"""From a manifest to a planned run, or to the open run that this manifest already has."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path

from gpuops.cli.context import App
from gpuops.cli.driving import decide, ensure_guard
from gpuops.codec import to_json
from gpuops.errors import GateRefused
from gpuops.marks import new_nonce
from gpuops.plan import Plan, make_plan
from gpuops.render import plan_lines
from gpuops.steps import fact
from gpuops.values import RunId, Spec, Time


def read_manifest(path: Path, now: Time) -> Spec:
    """Load a manifest; pydantic and YAML are imported here, so that commands without a manifest start fast."""
    from gpuops.manifest import load

    return load(path, now=now)


def show_plan(app: App, spec: Spec, accept_loss: str) -> Plan:
    """Ask the provider for offers and print the plan. Raises `GateRefused`; buys nothing."""
    provider = app.provider(spec.provider)
    now = app.clock.now()
    provider.account()
    offers = provider.quote(spec.need, now + app.home.policy.call_s)
    if spec.need.max_price_per_hour is not None:
        offers = tuple(o for o in offers if o.rate.amount <= spec.need.max_price_per_hour)
    plan = make_plan(spec, offers, provider.traits, now, app.home.policy, guard=app.home.guard, accept_loss=accept_loss)
    app.printer.lines(plan_lines(spec, plan, now))
    return plan


def begin(app: App, path: Path, what: str, accept_loss: str, *, new: bool) -> RunId:
    """Plan a run for the manifest at `path` and wish it `what`, or go on with the open run that it has.

    The same command typed again after a crash must not buy a second machine.
    """
    spec = read_manifest(path, app.clock.now())
    running = [s for s in app.states(open_only=True) if s.spec.manifest_path == spec.manifest_path and not s.closed]
    if running and not new:
        state = running[-1]
        app.printer.line(f"Going on with {state.run}, which is {state.phase}. (--new would rent a second machine.)")
        if state.spec != replace(spec, owner=state.spec.owner):
            app.printer.line("  note: the manifest changed since; this run keeps what it was planned with")
        if state.wanted != "closed":
            decide(app, state.run, lambda s: fact("wanted", None, what=what))
        ensure_guard(app)
        return state.run
    plan = show_plan(app, spec, accept_loss)
    if not app.home.guard and plan.layers == ():
        raise GateRefused("nothing would end this rental when the terminal is gone. Nothing was bought.")
    run = _plan_run(app, spec, plan, what)
    if app.home.guard and not ensure_guard(app):
        raise GateRefused("the guard could not be started. Nothing was bought.", next_command="gpuops guard")
    app.warm_up()
    return run


def _plan_run(app: App, spec: Spec, plan: Plan, what: str) -> RunId:
    now = app.clock.now()
    run = _run_id(spec.name, now, app.ports.random_bytes(8))
    app.home.runs.joinpath(run).mkdir(parents=True, exist_ok=True, mode=0o700)
    planned = fact(
        "planned", None, spec=to_json(spec), seed=new_nonce(app.ports.random_bytes(8)), plan=plan.as_json(),
        plan_digest=plan.digest, offer=to_json(plan.offer), deadline=plan.deadline, limit=plan.limit,
        account=plan.offer.account, listing_lag_s=plan.listing_lag_s,
    )  # fmt: skip
    # both in one transaction: a run that was planned and wishes nothing would be neither dead nor alive
    wanted = fact("wanted", None, what=what)
    app.journal.append_facts(run, (planned, wanted), at=now, wall=app.clock.wall())
    return run


def _run_id(name: str, now: Time, random: bytes) -> RunId:
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y%m%d")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "run"
    return f"{slug}-{day}-{new_nonce(random)[:4]}"
