"""One simulated life: operators, a guard and a blind sentinel run the real engine over simulated ports until the run closes."""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from gpuops.cost import affordable_until
from gpuops.engine import GUARD, OPERATOR, drive, load
from gpuops.errors import GateRefused, GpuopsError, Stale
from gpuops.guard import ARM_EVERY_S, arm, sentinel, tend, waits_for_guard
from gpuops.journal import SqliteJournal
from gpuops.plan import make_plan, planned
from gpuops.policy import Policy
from gpuops.ports import Ports, no_progress
from gpuops.spec import Checks, Outputs, Spec, Teardown, Train
from gpuops.state import RunState
from gpuops.steps import Ask, fact
from gpuops.testing.cloud import NAME, Cloud
from gpuops.testing.faults import SENTINEL_EVERY_S, START, Faults, Lives
from gpuops.testing.host import Hosts, SimulatedHost
from gpuops.testing.invariants import CANARY, Watch
from gpuops.testing.provider import connect
from gpuops.testing.scheduler import Killed, Life, Scheduler
from gpuops.testing.store import SimulatedStore
from gpuops.testing.wires import (
    SIMULATED_POLICY,
    SimulatedClock,
    SimulatedJournal,
    SimulatedLocks,
    SimulatedWire,
)
from gpuops.values import Event, Mark, Money, Need, RunId

RUN = "life-1"
_STEPS = 60_000
_GUARD_LOOKS_S = 30.0
_GUARD_STAYS_S = 3600.0
_PATIENT = dataclasses.replace(SIMULATED_POLICY, wake_s=3600.0)


def spec_of(f: Faults) -> Spec:
    """The spec that the user of this life has."""
    return Spec(
        name="life", owner="ada", provider=NAME, need=Need("sim"), image="", disk_gb=10, volumes=(), checks=Checks(),
        transfers=(), max_total_bytes=0, inputs_sha256="", env=(), secrets=("TOKEN",),
        train=Train(("train",), "/w", resume=f.resumes),
        outputs=Outputs("/out", "/copies", mirror=f.mirror, expected_bytes=f.generation_bytes),
        cap=Money(Decimal(str(f.cap))), deadline_s=f.deadline_s, deadline_at=0, hold_s=f.hold_s, setup_s=f.setup_s,
        teardown=Teardown(when="ended" if f.when == "ended" else "manual", keep_failed_s=f.keep_failed_s),
    )  # fmt: skip


@dataclass
class World:
    """Everything that one life needs."""

    faults: Faults
    policy: Policy = SIMULATED_POLICY
    kills: int = 0
    points: dict[str, int] = field(default_factory=dict)
    """Where a kill could strike, by actor: appends and outside effects of its longest life."""
    refused_to_dead: int = 0
    _holders: dict[RunId, Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        f = self.faults
        # a plan may be made as late as its user's computer wakes
        horizon = f.calm_from + 24 * 3600 + f.longest_pause + f.operator.asleep_s + 12 * 3600
        self.scheduler = Scheduler(START, horizon, _STEPS)
        self.random = random.Random(f"chances {f.seed}")
        self.cloud = Cloud(f, random=self.random)
        self.hosts = Hosts(self.cloud, f, self.random)
        self.watch = Watch(f, self.cloud, self.hosts, self.policy)
        self.cloud.watching = self.watch.terminating
        self._busy = 0
        self._directory = tempfile.TemporaryDirectory() if f.on_file else None
        path = str(Path(self._directory.name) / "journal.db") if self._directory else ":memory:"
        self._path, self._shared = path, None if self._directory else SqliteJournal(path)

    def run(self) -> Watch:
        """Live this life and say what was violated."""
        f = self.faults
        if f.others:
            self.cloud.plant("another operator's", START, Mark("other-1", "abcdefghijkl", "bob", START + 90_000))
            self.cloud.plant("foreign", START, None)
        self._add_operator("operator", f.operator, START + 1, self._operate)
        if f.second:
            self._add_operator("other", f.other, START + f.second_s, self._assist)
        self.scheduler.add("guard", lambda: self._lives("guard", f.guard, self._guard, again=True), START + 2)
        if f.clone_s:
            self.scheduler.add("somebody", self._clone, START + f.clone_s)
        if f.sentinel:
            self.scheduler.add("sentinel", lambda: self._lives("sentinel", Lives(), self._sentinel), START + 100)
        try:
            self.scheduler.run()
        except Exception as error:
            self.watch.check("bug", False, f"{type(error).__name__}: {error}")
        self.watch.finish(self.scheduler.latest, self.scheduler.over or "the end of time")
        if self._directory:
            self._directory.cleanup()
        return self.watch

    # --- lives

    def _add_operator(self, name: str, lives: Lives, at: float, body: Callable[[Ports, Life], None]) -> None:
        self._busy += 1

        def live() -> None:
            try:
                self._lives(name, lives, body)
            finally:
                self._busy -= 1

        self.scheduler.add(name, live, at)

    def _lives(self, name: str, lives: Lives, body: Callable[[Ports, Life], None], *, again: bool = False) -> None:
        """One life after the other: a kill ends one, the user or the system may start the next."""
        f = self.faults
        for number in range(len(lives.kills) + 3):
            kill = lives.kills[number] if number < len(lives.kills) else None
            pauses = dict(lives.pauses) if number == 0 else {}
            asleep = (START + f.asleep[0], START + f.asleep[1]) if name != "sentinel" else (0.0, 0.0)
            life = Life(self.scheduler, name, kill=kill, pauses=pauses, asleep=asleep)
            ports, close = self._ports(life, lives)
            try:
                body(ports, life)
                return
            except Killed:
                self.kills += 1
                self.watch.note(life, "is killed")
                if not again and number >= len(lives.restart_s):
                    return
                wait = lives.restart_s[number] if number < len(lives.restart_s) else 60.0
            except GpuopsError as error:
                self.watch.note(life, f"gives up: {error.message}")
                wait = 30.0
                if not again and number >= 2:
                    return
            finally:
                self.refused_to_dead += life.refused
                self.points[name] = max(life.points, self.points.get(name, 0))
                close()
            self.scheduler.wait(self.scheduler.now + wait)

    def _ports(self, life: Life, lives: Lives) -> tuple[Ports, Callable[[], None]]:
        clock = SimulatedClock(life, lives)
        journal = self._shared or SqliteJournal(self._path)

        def wire(to: str) -> SimulatedWire:
            return SimulatedWire(life, clock, self.faults, self.random, self.watch, to)

        provider = connect(self.cloud, wire("provider"))

        def notify(run: RunId, level: str, message: str) -> None:
            life.alive()
            if level != "info":
                self.watch.note(life, f"says {level}: {message}")

        def bug(what: str, error: BaseException) -> None:
            self.watch.check("bug", False, f"{what}: {type(error).__name__}: {error}")

        ports = Ports(
            clock=clock,
            journal=SimulatedJournal(journal, life, self.faults, self.watch if life.name != "sentinel" else None),
            providers=lambda name: provider,
            host=SimulatedHost(self.hosts, wire("host")),
            store=SimulatedStore(self.hosts, wire("disk")),
            notify=notify,
            locks=SimulatedLocks(self._holders, life),
            secret=lambda name: CANARY,
            random_bytes=lambda n: self.random.randbytes(n),
            progress=no_progress,
            bug=bug,
        )
        return ports, (lambda: None) if self._shared else journal.close

    # --- what each actor does

    def _operate(self, ports: Ports, life: Life) -> None:
        """Like `gpuops run`, `up`, `launch` and `down` typed by one user."""
        f = self.faults
        if not ports.journal.records(RUN) and not self._plan(ports):
            return
        act_at = START + f.act_s if f.style in ("down", "force", "extend") else math.inf

        def go(until: Callable[[RunState], bool]) -> RunState:
            policy = self.policy if act_at < math.inf else _PATIENT
            state, _ = drive(
                RUN, ports, policy, OPERATOR, answer=lambda s, ask: _approve(ports, ask),
                until=lambda s: s.closed or until(s) or ports.clock.now() >= act_at,
            )  # fmt: skip
            return state

        state = go(lambda s: s.rental is not None and s.rental.work.checks_ok)
        if f.style != "hesitate" and ports.clock.now() < act_at:
            _wish(ports, "training")
            state = go(lambda s: s.rental is not None and s.rental.work.launched_at is not None)
        if f.style in ("detach", "hesitate"):
            return
        state = go(lambda s: False)
        if state.closed:
            return
        self._act(ports, state)
        act_at = math.inf
        go(lambda s: False)

    def _plan(self, ports: Ports) -> bool:
        f, now = self.faults, ports.clock.now()
        spec, provider = spec_of(f), ports.providers(NAME)
        try:
            offers = provider.quote(spec.need, now + self.policy.call_s)
            now = ports.clock.now()
            plan = make_plan(spec, offers, provider.traits, now, self.policy, guard=True, accept_loss="simulated")
        except GateRefused:
            return False
        events = (planned(spec, plan, f"seed-{f.seed}"), fact("wanted", None, what="ready"))
        ports.journal.append_facts(RUN, events, at=now, wall=ports.clock.wall())
        return True

    def _act(self, ports: Ports, state: RunState) -> None:
        """What the user does at the chosen moment."""
        if self.faults.style == "extend":
            rental = state.rental
            if state.wanted == "closed" or rental is None or rental.life != "created":
                return
            now, rate = ports.clock.now(), rental.rate or rental.offer.rate
            left = state.spec.cap + state.spent(now).times(-1)
            last = affordable_until(now, left, rate, rental.offer.billing_unit_s)
            limit = min(state.limit + 1800, last)
            if limit > state.limit:
                deadline = limit - state.spec.hold_s
                _decide(ports, lambda s: fact("extend_wanted", None, deadline=deadline, limit=limit))
            return
        _wish(ports, "closed", "the user said down")
        if self.faults.style == "force":
            self.watch.user_forced = True
            for p in load(RUN, ports).purchases.values():
                if p.life in ("created", "ended_elsewhere") and not p.work.safe_to_end:
                    _decide(ports, _forced_by_user(p.id))

    def _assist(self, ports: Ports, life: Life) -> None:
        """Another terminal: `watch` on the same run, or `down`."""
        while not ports.journal.records(RUN):
            ports.clock.sleep_until(ports.clock.now() + 60)
            if life.now > START + 7200:
                return
        if self.faults.seed % 3 == 0:
            _wish(ports, "closed", "the other user said down")
        drive(RUN, ports, _PATIENT, OPERATOR, until=lambda s: s.closed, answer=lambda s, a: _approve(ports, a))

    def _guard(self, ports: Ports, life: Life) -> None:
        """The local guard: for ever, one run after the other, and what it cannot do now it does later."""
        due, seen = 0.0, -1
        while True:
            # as the parent does: a child starts when something is due, or when somebody else wrote
            news = seen != self.watch.version and not self._busy
            if ports.journal.runs(open_only=True) and (news or ports.clock.now() >= due):
                try:
                    due = self._tend(ports)
                except GpuopsError as error:
                    due = ports.clock.now() + _GUARD_LOOKS_S
                    self.watch.note(life, f"guard's child ends: {error.message}")
                seen = self.watch.version
            if self._over(ports, life.now):
                self.scheduler.finish("closed")
            ports.clock.sleep_until(ports.clock.now() + _GUARD_LOOKS_S)

    def _tend(self, ports: Ports) -> float:
        """One child of the guard; in most lives one that stays, which saves folding the run again and again."""
        if self.faults.seed % 10 == 0:
            return tend(RUN, ports, self.policy, lambda r: self._busy > 0, arms=True)
        if self.watch.state is not None and waits_for_guard(self.watch.state):
            arm(ports, load(RUN, ports))
        stop = ports.clock.now() + _GUARD_STAYS_S

        def enough(s: RunState) -> bool:
            return s.closed or ports.clock.now() > stop or waits_for_guard(s)

        state, _ = drive(RUN, ports, _PATIENT, GUARD, until=enough)
        return ports.clock.now() + (ARM_EVERY_S if waits_for_guard(state) else 1)

    def _clone(self) -> None:
        """Somebody copies a rental of ours together with its mark, as soon as there is one that is old enough."""
        while True:
            now = self.scheduler.now
            ours = [m for m in self.cloud.ours() if m.created_at + 1000 < now and m.mark is not None and m.bills(now)]
            if ours:
                clone = self.cloud.plant("clone", now, ours[0].mark, ours[0].name)
                self.watch.trace.append((now, "somebody", f"clones {ours[0].ref} as {clone.ref}"))
                return
            self.scheduler.wait(now + 60)

    def _over(self, ports: Ports, now: float) -> bool:
        idle = self._busy == 0 and not ports.journal.runs(open_only=True) and not self.cloud.pending
        return idle and not any(m.bills(now) for m in self.cloud.ours())

    def _sentinel(self, ports: Ports, life: Life) -> None:
        """A machine elsewhere that has credentials and nothing else: a fresh journal each time."""
        memory = SqliteJournal(":memory:")
        while True:
            if memory.runs():
                memory.close()
                memory = SqliteJournal(":memory:")
            blind = _with_journal(ports, SimulatedJournal(memory, life, Faults(), None))
            try:
                sentinel(NAME, blind, self.policy, lambda item: False, patience_s=200.0)
            except GpuopsError as error:
                self.watch.note(life, f"sentinel: {error.message}")
            ports.clock.sleep_until(ports.clock.now() + SENTINEL_EVERY_S)


def _with_journal(ports: Ports, journal: SimulatedJournal) -> Ports:
    return Ports(**{**vars(ports), "journal": journal})


def _approve(ports: Ports, ask: Ask) -> bool:
    _decide(ports, lambda s: fact("approved", None, digest=ask.digest))
    return True


def _wish(ports: Ports, what: str, cause: str = "") -> None:
    _decide(ports, lambda s: fact("wanted", None, what=what, cause=cause))


def _forced_by_user(purchase: str) -> Callable[[RunState], Event]:
    return lambda s: fact("forced", purchase, reason="the user said so", by="user")


def _decide(ports: Ports, make: Callable[[RunState], Event]) -> None:
    """As a command does: on the newest version, again while others are faster."""
    for _ in range(20):
        state = load(RUN, ports)
        try:
            ports.journal.append(
                RUN, make(state), expected=state.version, at=ports.clock.now(), wall=ports.clock.wall()
            )
            return
        except Stale:
            continue
