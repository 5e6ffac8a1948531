"""The engine: one level-triggered loop over pure rules. Every start reads the journal and goes on: no separate resume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from gpuops.errors import GpuopsError, JournalError, Stale
from gpuops.fold import fold
from gpuops.policy import Policy, with_timeouts
from gpuops.ports import Ports
from gpuops.stages.admit import admit
from gpuops.stages.attach import attach
from gpuops.stages.buy import buy
from gpuops.stages.check_host import check_host
from gpuops.stages.close import close
from gpuops.stages.copy import copy
from gpuops.stages.environment import environment
from gpuops.stages.launch import launch
from gpuops.stages.limit import enforce_limit
from gpuops.stages.mirror import mirror
from gpuops.stages.move_end import move_end
from gpuops.stages.observe import observe
from gpuops.stages.probe import probe
from gpuops.stages.prove_gone import prove_gone
from gpuops.stages.resolve import resolve
from gpuops.stages.resume import resume
from gpuops.stages.seal import seal
from gpuops.stages.terminate import terminate
from gpuops.stages.transfer import transfer
from gpuops.state import RunState
from gpuops.steps import Ask, Closed, Do, Rule, Step, Wait, attempted
from gpuops.timekeeping import ProviderTime, look
from gpuops.values import Event, Record, RunId, Time

# The order IS the safety argument: what ends a bill comes before what starts or uses one, and nothing that may hang or fail
# (seal, copy, the host) stands before the limit.
RULES: tuple[Rule, ...] = (
    close, resolve, enforce_limit, prove_gone, terminate, copy, seal,
    observe, attach, move_end, admit, mirror, resume, launch, probe, environment, transfer, check_host, buy,
)  # fmt: skip

OPERATOR: frozenset[str] = frozenset(rule.__name__ for rule in RULES)
GUARD: frozenset[str] = OPERATOR - {"buy", "launch", "probe", "environment", "transfer", "check_host"}

_IDLE_S = 300.0
"""No rule has anything to say: look again after this long."""


def load(run: RunId, ports: Ports, state: RunState | None = None) -> RunState:
    """The state of a run, read on from `state` where that is given. Raises `GpuopsError` for a run without records."""
    state = fold(ports.journal.records(run, state.version if state else 0), state)
    if state is None:
        raise GpuopsError(f"no such run: {run}")
    return state


def decide(state: RunState, now: Time, policy: Policy, may: frozenset[str]) -> Step:
    """The first permitted Do that is due; else an Ask; else a Wait until the earliest next due time. Total.

    Who may resume may do all that a replacement needs, once one was decided on: buy it, send to it and launch on it.
    """
    if "resume" in may and state.replaced:
        may = OPERATOR
    policy = with_timeouts(policy, state.timeouts, state.spec.timeouts)
    asks: list[Ask] = []
    waits: list[Wait] = []
    for rule in RULES:
        step = rule(state, now, policy)
        if isinstance(step, Closed):
            return step
        if rule.__name__ not in may or step is None:
            continue
        if isinstance(step, Do):
            return step
        if isinstance(step, Ask):
            asks.append(step)
        else:
            waits.append(step)
    if asks:
        return asks[0]
    return min(waits, key=lambda w: w.until) if waits else Wait(now + _IDLE_S, "nothing to do")


def advance(run: RunId, ports: Ports, policy: Policy, may: frozenset[str], state: RunState | None = None) -> Step:
    """Take one step of a run and return it; a `Do` has been done when it is returned. Raises `Stale` when the run moved on."""
    try:
        state = load(run, ports, state)
    except JournalError as error:
        if state is not None:
            _end_without_journal(ports, state, policy, error)
        raise
    now = ports.clock.now()
    step = decide(state, now, policy, may)
    if not isinstance(step, Do):
        return step
    try:
        with ports.shield(step.name):  # a Ctrl-C between an outside effect and its record would lose the record
            if step.decision is not None:
                # folded first: a decision that does not fit the life tables must raise before it stands in the journal
                wall = ports.clock.wall()
                decided = fold([Record(run, state.version + 1, step.decision, True, now, wall)], state) or state
                ports.journal.append(run, step.decision, expected=state.version, at=now, wall=wall)
                state = decided
            events = _act(ports, state, step)
            ports.journal.append_facts(run, events, at=ports.clock.now(), wall=ports.clock.wall())
    except JournalError as error:
        _end_without_journal(ports, state, policy, error)
        raise
    return step


def drive(
    run: RunId,
    ports: Ports,
    policy: Policy,
    may: frozenset[str],
    *,
    until: Callable[[RunState], bool],
    tell: Callable[[RunState, Step], None] = lambda state, step: None,
    answer: Callable[[RunState, Ask], bool] = lambda state, ask: False,
) -> tuple[RunState, Step]:
    """Advance a run until `until(state)` holds, it closes, or a question stays unanswered; returns the last state and step.

    `tell` sees each step after it was taken. `answer` appends an approval and returns True, or returns False to stop.
    """
    state, provider_time = load(run, ports), ProviderTime()
    while True:
        provider_time.ask(ports, state, policy)
        if until(state):
            return state, Wait(ports.clock.now(), "reached")
        try:
            step = advance(run, ports, policy, may, state)
        except Stale:
            state = load(run, ports, state)
            continue
        state = load(run, ports, state)
        tell(state, step)
        if isinstance(step, Closed):
            return state, step
        if isinstance(step, Ask):
            if not answer(state, step):
                return state, step
            state = load(run, ports, state)
        elif isinstance(step, Wait):
            now = ports.clock.now()
            wake_at = [step.until, now + policy.wake_s]
            if provider_time.again_at > now and not provider_time.told:
                wake_at.append(provider_time.again_at)
            ports.clock.sleep_until(min(wake_at))
            state = load(run, ports, state)


def _act(ports: Ports, state: RunState, step: Do) -> tuple[Event, ...]:
    """Run the effect. The attempt itself is a fact: what fails is recorded, so that no rule spins or starves another."""
    try:
        events = step.effect(ports, state, step)
    except JournalError:
        raise
    except GpuopsError as error:
        return (attempted(step.name, ports.clean(error.message), step.purchase),)
    except Exception as error:
        # a bug in one effect must not stop the rules that end the bill
        ports.bug(f"{state.run} {step.name}", error)
        return (attempted(step.name, ports.clean(f"bug: {type(error).__name__}: {error}"), step.purchase),)
    return _cleaned(ports, events) or (attempted(step.name, "nothing learned", step.purchase),)


def _cleaned(ports: Ports, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """What somebody else said, without secrets."""
    said = ("error", "why", "reason", "problem", "message", "by")
    return tuple(
        Event(
            e.kind,
            {k: ports.clean(v) if k in said and isinstance(v, str) else v for k, v in e.data.items()},
            e.purchase,
        )
        for e in events
    )


def _end_without_journal(ports: Ports, state: RunState, policy: Policy, error: JournalError) -> None:
    """Past the limit money must stop even when nothing can be recorded: disk full, or a stopped process holds the lock."""
    now = ports.clock.now()
    if now < state.limit:
        return
    for p in state.may_bill:
        if p.ref is not None:
            with contextlib.suppress(Exception):  # if it cannot be asked, this clock has to do: money must stop
                look(ports, state, p, p.ref, now + policy.call_s)
            if ports.clock.now() < state.limit:
                continue
            ports.notify(state.run, "alarm", f"past the limit and {error.message}: ending {p.ref} without recording it")
            try:
                ports.providers(state.spec.provider).terminate(p.ref, now + policy.call_s)
            except Exception as refused:  # whatever it was, the next rental must still be asked to end
                ports.notify(state.run, "alarm", f"{p.ref}: {refused}")
