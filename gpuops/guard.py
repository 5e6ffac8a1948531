"""The guard: a parent that keeps due times and starts one child per due run, and a sentinel that needs marks alone.

The parent reads the journal and starts processes; it never talks to a provider or a host, so nothing can make it hang. A child
drives one run with the guard's rights and says when it is due again.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuops.engine import GUARD, advance, decide, drive, load
from gpuops.errors import CredentialsError, GpuopsError, JournalError, Stale, UsageError
from gpuops.inventory import adopt, blind_spec
from gpuops.policy import Policy
from gpuops.ports import Clock, Ports
from gpuops.state import GUARD_LAYER, RunState
from gpuops.steps import Closed, Do, Wait, fact
from gpuops.timekeeping import ProviderTime
from gpuops.values import Billable, Event, Gap, RunId, Scope, Time

LOOK_EVERY_S = 1.0
"""How often the parent looks whether the journal grew or a child ended: one indexed query."""
IDLE_S = 60.0
"""The parent ends after this long without open runs; `up` starts it again."""
CHILD_STAYS_S = 30.0
"""A child waits itself for what is due within this long; starting Python anew costs more."""
PATIENCE_S = 15.0
"""How long the guard leaves a step to a command at a terminal that drives the same run."""
HUNG_S = 7200.0
"""A child whose run's journal has not grown for this long hangs (stopped, a locked keyring): it is killed, another one goes on.
Longer than the longest single pass of hashing, which is 64 slices of a minute, and than a slice of sending."""
ARM_EVERY_S = 2.0
CRASH_BACKOFF_S = (2.0, 5.0, 15.0)
"""Short: a child that cannot write the journal still ends what is past its limit."""


class Child(Protocol):
    """A started child process."""

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def said(self) -> str:
        """Its standard output; called after it ended."""
        ...


@dataclass
class Parent:
    """Due times of the open runs, and the children at work."""

    versions: Callable[[], Mapping[RunId, int]]
    spawn: Callable[[RunId], Child]
    clock: Clock
    stopped: Callable[[], bool]
    _heap: list[tuple[Time, RunId]] = field(default_factory=list)
    _seen: dict[RunId, int] = field(default_factory=dict)
    _children: dict[RunId, Child] = field(default_factory=dict)
    _crashes: dict[RunId, int] = field(default_factory=dict)
    _started: dict[RunId, Time] = field(default_factory=dict)
    _grown: dict[RunId, tuple[int | None, Time]] = field(default_factory=dict)
    _known: Mapping[RunId, int] = field(default_factory=dict)

    def keep(self, idle_s: float = IDLE_S) -> None:
        """Run until no run was open for `idle_s` seconds, or until `stopped()`."""
        busy_at = self.clock.now()
        while not self.stopped():
            now = self.clock.now()
            # a journal that cannot be read for a moment ends nobody's watch
            with contextlib.suppress(JournalError):
                self._known = self.versions()
            versions = self._known
            self._collect(now, versions)
            if versions or self._children:
                busy_at = now
            elif now - busy_at >= idle_s:
                return
            for run, version in versions.items():
                if run not in self._seen:
                    heapq.heappush(self._heap, (now, run))
                self._seen.setdefault(run, version)
            self._start_due(now, versions)
            self.clock.sleep_until(now + LOOK_EVERY_S)

    def _collect(self, now: Time, versions: Mapping[RunId, int]) -> None:
        for run, child in list(self._children.items()):
            if versions.get(run) != self._grown.get(run, (None, 0.0))[0]:
                self._grown[run] = (versions.get(run), now)
            status = child.poll()
            if status is None:
                if now - max(self._started.get(run, now), self._grown[run][1]) >= HUNG_S:
                    child.kill()
                continue
            del self._children[run]
            if versions.get(run) != self._seen.get(run):
                self._crashes.pop(run, None)  # it got on before it ended
            try:
                said = json.loads(child.said().strip().splitlines()[-1])
                due = now + float(said["next"]) - float(said["now"])  # the child's clock has heard the provider's time
            except (ValueError, KeyError, IndexError, TypeError):
                self._later(run, now)
                continue
            self._crashes.pop(run, None)
            heapq.heappush(self._heap, (due, run))

    def _later(self, run: RunId, now: Time) -> None:
        """A child crashed or could not start: again after a gap that grows."""
        crashes = self._crashes.get(run, 0)
        self._crashes[run] = crashes + 1
        heapq.heappush(self._heap, (now + CRASH_BACKOFF_S[min(crashes, len(CRASH_BACKOFF_S) - 1)], run))

    def _start_due(self, now: Time, versions: Mapping[RunId, int]) -> None:
        # whatever somebody else wrote may have changed what is due
        for run, version in versions.items():
            if version != self._seen.get(run) and run not in self._children:
                heapq.heappush(self._heap, (now, run))
        while self._heap and self._heap[0][0] <= now:
            _, run = heapq.heappop(self._heap)
            if run in self._children or run not in versions:
                continue
            self._seen[run] = versions[run]
            try:
                self._children[run] = self.spawn(run)
                self._started[run] = now
            except OSError:  # no disk, no process: try again later, and keep the other runs
                self._later(run, now)


def tend(
    run: RunId,
    ports: Ports,
    policy: Policy,
    driven: Callable[[RunId], bool],
    undriven_s: Callable[[RunId], float] = lambda run: 0.0,
    stays_s: float = CHILD_STAYS_S,
    *,
    arms: bool = False,
) -> Time:
    """Drive one run with the guard's rights until nothing is due soon; returns when it is due again.

    While a command at a terminal drives the run and its journal grows, the guard leaves the next step to it. `undriven_s`:
    for how long no such command was seen. `stays_s`: what is due within this is waited for here. `arms`: this process is the
    layer that a plan counts on, and says so before anything is bought.
    """
    state = load(run, ports)
    provider_time = ProviderTime()
    mine, others_at = state.version, state.last_at
    while True:
        if arms:
            state = arm(ports, state)
        provider_time.ask(ports, state, policy)
        now = ports.clock.now()
        if state.version > mine:
            # what the guard itself wrote says nothing about whether somebody else is still at it
            mine, others_at = state.version, state.last_at
        step = decide(state, now, policy, GUARD)
        if isinstance(step, Closed):
            return now + 86_400
        if isinstance(step, Do) and driven(run) and now - others_at < PATIENCE_S:
            ports.clock.sleep_until(now + policy.wake_s / 2)
            state = load(run, ports, state)
            continue
        left = abandoned(state, now, undriven_s(run))
        try:
            if left is not None and left.until <= now:
                wish = fact("wanted", None, what="closed", cause=left.why)
                ports.journal.append(run, wish, expected=state.version, at=now, wall=ports.clock.wall())
            else:
                step = advance(run, ports, policy, GUARD, state)
        except Stale:
            state = load(run, ports, state)
            continue
        state = load(run, ports, state)
        mine = state.version
        if isinstance(step, Do) or (state.wanted == "closed" and left is not None):
            continue
        due = min(getattr(step, "until", now + CHILD_STAYS_S), left.until if left else math.inf)
        if arms and waits_for_guard(state):
            due = min(due, now + ARM_EVERY_S)
        if provider_time.again_at > now and not provider_time.told:
            due = min(due, provider_time.again_at)
        if due - now > stays_s:
            return float(due)
        ports.clock.sleep_until(min(due, now + policy.wake_s))
        state = load(run, ports, state)


def waits_for_guard(state: RunState) -> bool:
    """Nothing is bought for this run before the guard has said whether it reaches the account."""
    early = state.wanted in ("ready", "training") and state.rental is None and not state.adopted
    return early and state.counts_on_guard and state.armed_at is None and not state.unarmed


def arm(ports: Ports, state: RunState) -> RunState:
    """Show, from this process and with its credentials, that the account of a run is reached; or record why not.

    A guard keeps the environment of the shell that started it: a layer without the right key ends nothing.
    """
    if not waits_for_guard(state):
        return state
    try:
        account = ports.providers(state.spec.provider).account()
        why = "" if account == state.account else f"its credentials belong to account {account}"
    except (CredentialsError, UsageError) as error:
        why = ports.clean(error.message)
    except GpuopsError:
        return state  # a provider that does not answer now says nothing about the key
    hint = "end it, and the next command starts one from its own environment; or: gpuops auth set"
    event = fact("unarmed", None, layer=GUARD_LAYER, why=f"{why} ({hint})") if why else None
    event = event or fact("armed", None, layer=GUARD_LAYER, account=state.account)
    ports.journal.append_facts(state.run, (event,), at=ports.clock.now(), wall=ports.clock.wall())
    return load(state.run, ports, state)


def abandoned(state: RunState, now: Time, undriven_s: float) -> Wait | None:
    """When a ready rental, wished to train and never launched, goes down: the guard itself may neither send nor launch.

    The wish ends the setup limit of a rental that was only made ready. Whoever wished then went away, or never answered
    which files to send: the same time counts again from that moment.
    """
    rental = state.rental
    if state.wanted != "training" or rental is None or rental.life != "created" or not rental.work.checks_ok:
        return None
    work = rental.work
    if work.launching_at is not None:
        return None
    ready_at = max(work.checked_at or now, state.wanted_at)
    if work.preview is not None and work.preview.digest not in state.approved:
        since = max(ready_at, work.preview_at or ready_at)
    elif undriven_s > 0 and not state.replaced:
        since = max(ready_at, now - undriven_s)
    else:
        return None
    return Wait(since + state.spec.setup_s, f"not launched within {state.spec.setup_s:.0f} s of being ready")


def past_limit(items: tuple[Billable, ...], now: Time) -> tuple[Billable, ...]:
    """Marked rentals, whoever owns them, whose own mark says that their time is over. A damaged mark is never acted on."""
    return tuple(i for i in items if i.mark is not None and not i.damaged and i.bills and now > i.mark.limit_at)


def sentinel(
    name: str, ports: Ports, policy: Policy, known: Callable[[Billable], bool], patience_s: float
) -> tuple[tuple[RunState, ...], tuple[str, ...], tuple[Gap, ...]]:
    """End and prove what is past the limit in its mark, from credentials and marks alone: (what was driven, problems).

    `known`: the item belongs to a run of this computer's journal, whose own rules end it. `ports.journal` may be in memory:
    the sentinel needs no history. Bounded by `patience_s`; a rental that is not proved gone by then stays unclosed in the
    result. Raises `ProviderError` when the account cannot be listed.
    """
    now = ports.clock.now()
    inventory = ports.providers(name).list_billable(Scope(("rental",)), now + policy.call_s)
    if inventory.provider_time is not None:
        ports.clock.learn(inventory.provider_time)
    if inventory.gaps:
        gaps = "; ".join(f"{g.region}/{g.kind}: {g.reason}" for g in inventory.gaps)
        ports.notify(name, "alarm", f"the listing is not complete: {gaps}")
    driven: list[RunState] = []
    problems: list[str] = []
    for item in past_limit(inventory.items, ports.clock.now()):
        if known(item):
            continue
        try:
            driven.append(_end_one(item, ports, policy, patience_s))
        except GpuopsError as error:  # one that cannot be ended must not keep the others billing
            problems.append(f"{item.ref}: {error.message}")
    return tuple(driven), tuple(problems), inventory.gaps


def _end_one(item: Billable, ports: Ports, policy: Policy, patience_s: float) -> RunState:
    run, events = adopt(item, blind_spec(item, ""), ports.clock.now(), ports.random_bytes(8), launched=False)
    if ports.journal.records(run):  # a second rental of the same run: a duplicate, or a second purchase
        run = f"{run}-{item.ref.id}"
    take_on(run, events, ports)
    down = fact("wanted", None, what="closed", cause="past the limit in its mark")
    ports.journal.append_facts(run, (down,), at=ports.clock.now(), wall=ports.clock.wall())
    return drive(run, ports, policy, GUARD, until=_patience(ports.clock, patience_s))[0]


def _patience(clock: Clock, patience_s: float) -> Callable[[RunState], bool]:
    give_up = clock.now() + patience_s
    return lambda state: clock.now() > give_up


def take_on(run: RunId, events: tuple[Event, ...], ports: Ports) -> None:
    """Write the records of an adopted run. Raises `GpuopsError` when the journal has this run already."""
    if ports.journal.records(run):
        raise GpuopsError(f"the journal already has run {run}")
    ports.journal.append_facts(run, events, at=ports.clock.now(), wall=ports.clock.wall())
