"""The engine with one safeguard taken out at a time. Each must be caught by an invariant of the simulated world."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from gpuops import copying, engine, guard, hits
from gpuops.codec import to_json
from gpuops.errors import ProviderError
from gpuops.fold import fold
from gpuops.journal import SqliteJournal
from gpuops.names import content_digest
from gpuops.purchase import Work
from gpuops.stages import (
    buy,
    close,
    copy,
    launch,
    limit,
    mirror,
    move_end,
    observe,
    prove_gone,
    resolve,
    resume,
    terminate,
)
from gpuops.state import RunState
from gpuops.steps import Closed, Do, announce, fact
from gpuops.testing import world
from gpuops.testing.faults import Faults, Lives
from gpuops.testing.provider import SimulatedProvider
from gpuops.testing.simulate import Mutant
from gpuops.testing.wires import SimulatedClock
from gpuops.values import Copied, Record, Refused

# `gpuops.stages.buy` and its like are modules here; the package exports nothing
Patch = Callable[[], contextlib.AbstractContextManager[object]]


def swap(owner: Any, name: str, value: Any) -> Patch:
    """Replace one attribute."""
    return lambda: patch.object(owner, name, value)


def rule(old: Any, new: Any) -> Patch:
    """Replace one rule of the engine; the new one keeps its name, which is what rights are given to."""
    new.__name__ = old.__name__
    return lambda: patch.object(engine, "RULES", tuple(new if r is old else r for r in engine.RULES))


def together(*patches: Patch) -> Patch:
    """Several patches at once."""

    @contextlib.contextmanager
    def all_of_them() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in patches:
                stack.enter_context(one())
            yield

    return all_of_them


def advancing(advance: Any) -> Patch:
    """Replace one step of the engine for operators and guard."""
    return together(swap(engine, "advance", advance), swap(guard, "advance", advance))


# --- buying ------------------------------------------------------------------------------------------------------------


def late_intent(run: Any, ports: Any, policy: Any, may: Any, state: Any = None) -> Any:
    state = engine.load(run, ports, state)
    now = ports.clock.now()
    step = engine.decide(state, now, policy, may)
    if not isinstance(step, Do) or step.decision is None or step.decision.kind != "intended":
        return advance(run, ports, policy, may, state)
    record = Record(run, state.version + 1, step.decision, True, now, now)
    events = engine._act(ports, fold([record], state), step)
    ports.journal.append(run, step.decision, expected=state.version, at=now, wall=now)
    ports.journal.append_facts(run, events, at=now, wall=now)
    return step


advance = engine.advance


class Twice:
    """A provider whose create call is sent again when it has no answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def provision(self, order: Any, until: Any) -> Any:
        try:
            return self._inner.provision(order, until)
        except ProviderError:
            return self._inner.provision(order, until)


def retried_create(ports: Any, s: Any, do: Any, purchase_id: str, policy: Any) -> Any:
    inner = ports.providers
    return provision(dataclasses.replace(ports, providers=lambda n: Twice(inner(n))), s, do, purchase_id, policy)


provision = buy._provision


def send_whenever(ports: Any, s: Any, do: Any, purchase_id: str, policy: Any) -> Any:
    p = s.purchases[purchase_id]
    provider = ports.providers(s.spec.provider)
    try:
        answer = provider.provision(buy._order(ports, s, p, ports.clock.now() + 30), ports.clock.now() + 30)
    except ProviderError as error:
        return (fact("unknown", p.id, error=error.message),)
    if isinstance(answer, Refused):
        return (fact("refused", p.id, reason=answer.reason, why=answer.kind),)
    return (fact("created", p.id, created=to_json(answer), via="answer"),)


def unknown_is_gone(ports: Any, s: Any, do: Any, policy: Any) -> Any:
    events = search(ports, s, do, policy)
    return (*events[:-1], fact("not_sent", do.purchase, why="not found")) if events[-1].kind == "searched" else events


search = resolve._search


# --- ending ------------------------------------------------------------------------------------------------------------


def give_up(s: Any, p: Any, now: Any, policy: Any) -> Any:
    return None if p.life == "ending" and p.terminates >= 1 else terminate_one(s, p, now, policy)


terminate_one = terminate._one


def end_at_limit(s: Any, p: Any, now: Any, policy: Any) -> Any:
    if now >= s.limit and s.wanted == "closed":
        return Do("terminate", terminate._send, now + 30, p.id, fact("ending", p.id, cause="limit"))
    return decide_end(s, p, now, policy)


decide_end = terminate._decide


def never_forced(s: Any, now: Any, policy: Any) -> Any:
    step = limit.enforce_limit(s, now, policy)
    return None if isinstance(step, Do) and step.decision and step.decision.kind == "forced" else step


def forced_always(s: Any, now: Any, policy: Any) -> Any:
    for p in s.purchases.values():
        if s.wanted == "closed" and p.life == "created" and not p.work.safe_to_end:
            decision = fact("forced", p.id, reason="limit reached", by="limit")
            return Do("enforce_limit", announce("alarm", "forced"), now + 30, p.id, decision)
    return limit.enforce_limit(s, now, policy)


def trust_absent(p: Any, seen: Any, inventory: Any, again: bool) -> str:
    return "" if seen.state in ("absent", "terminal") else "still there"


def no_gaps(self: Any, scope: Any, until: Any) -> Any:
    return dataclasses.replace(list_billable(self, scope, until), gaps=())


list_billable = SimulatedProvider.list_billable


def close_at_once(s: Any, now: Any, policy: Any) -> Any:
    if s.closed:
        return Closed(s.cause)
    if s.wanted == "closed" and all(
        p.life in ("ending", "unknown", "intended", *close.FINAL) for p in s.purchases.values()
    ):
        return Do("close", announce("info", "closed"), now + 30, decision=fact("closed", None))
    return None


# --- copying -----------------------------------------------------------------------------------------------------------


def unverified(ports: Any, s: Any, p: Any, generation: Any, until: Any, name: str) -> Any:
    attempt = ports.store.attempt(s.run, s.spec.outputs.destination, generation)
    if not ports.host.fetch(s.run, p.endpoint, s.spec, generation, attempt, until, ports.progress):
        return (fact("sliced", p.id, generation=generation.id),)
    copied = Copied(generation.id, attempt, generation.bytes, content_digest(generation))
    return (fact("copied", p.id, copied=to_json(copied), seconds=1),)


class InPlace:
    """A store whose attempts are the published directory itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find(self, run: Any, destination: str, generation: Any) -> None:
        return None

    def attempt(self, run: Any, destination: str, generation: Any) -> str:
        return f"{destination}/{generation.id}"


def in_place(ports: Any, *rest: Any) -> Any:
    return copy_slice(dataclasses.replace(ports, store=InPlace(ports.store)), *rest)


copy_slice = copying.copy_slice


def copying_by(function: Any) -> Patch:
    """Replace the copy of one slice, for teardown and mirror."""
    return together(swap(copy, "copy_slice", function), swap(mirror, "copy_slice", function))


# --- journal, clock, others ----------------------------------------------------------------------------------------------


def append_anyway(self: Any, run: Any, event: Any, *, expected: int, at: Any, wall: Any) -> Any:
    return append(self, run, event, expected=self._last(run), at=at, wall=wall)


append = SqliteJournal.append


def facts_fenced(run: Any, ports: Any, policy: Any, may: Any, state: Any = None) -> Any:
    state = engine.load(run, ports, state)
    now = ports.clock.now()
    step = engine.decide(state, now, policy, may)
    if not isinstance(step, Do):
        return step
    if step.decision is not None:
        record = ports.journal.append(run, step.decision, expected=state.version, at=now, wall=now)
        state = fold([record], state)
    version = state.version
    for event in engine._act(ports, state, step):
        ports.journal.append(run, event, expected=version, at=ports.clock.now(), wall=now)
        version += 1
    return step


def everybody_is_ours(s: Any, items: Any, policy: Any) -> Any:
    nonce = next((p.nonce for p in s.purchases.values()), "")
    return listed(s, [dataclasses.replace(i, nonce=nonce) if i.mark else i for i in items], policy)


listed = hits.listed_events


def clone_is_ours(s: Any, purchase: Any, item: Any, policy: Any) -> Any:
    hit = judge(s, purchase, item, policy)
    return "duplicate" if hit == "clone" else hit


judge = hits.judge


def extend_now(s: Any, now: Any, policy: Any) -> Any:
    if s.extension and s.wanted != "closed":
        decision = fact("extended", None, deadline=s.extension.deadline, limit=s.extension.limit)
        return Do("move_end", announce("info", "extended"), now + 30, decision=decision)
    return move_end.move_end(s, now, policy)


def mark_stays(ports: Any, s: Any, do: Any, name: str, target: float) -> Any:
    """The layer is recorded as moved, and the mark is not touched."""
    if name == "mark":
        return (fact("layer", do.purchase, name=name, grade="read back", at=target),)
    return move_one(ports, s, do, name, target)


move_one = move_end._move


def armed_anyway(ports: Any, state: Any) -> Any:
    """A guard that runs is taken for a layer, whatever its key is worth."""
    if not guard.waits_for_guard(state):
        return state
    event = fact("armed", None, layer="guard on this computer", account=state.account)
    ports.journal.append_facts(state.run, (event,), at=ports.clock.now(), wall=ports.clock.wall())
    return engine.load(state.run, ports, state)


def replaced_at_a_word(s: Any, now: Any, policy: Any) -> Any:
    """The provider says that it ended, and another one is bought before that is proved."""
    p = s.rental
    lost = p is not None and p.life == "ended_elsewhere" and p.work.launching_at is not None and s.wanted == "training"
    return p if lost and len(s.replaced) < s.spec.train.resume else None


def by_this_clock(s: Any, p: Any, at: Any, patience_s: Any) -> bool:
    return True


list_billable = SimulatedProvider.list_billable


def without_disks(self: SimulatedProvider, scope: Any, until: float) -> Any:
    """What the create call made beside the rental is looked for by nobody."""
    found = list_billable(self, scope, until)
    return dataclasses.replace(found, items=tuple(i for i in found.items if i.ref.kind != "disk"))


def no_parts(s: Any, p: Any, now: Any, policy: Any) -> Any:
    return None if p.part_of else decide_end(s, p, now, policy)


def from_the_beginning(s: Any) -> None:
    return None


def no_until(state: Any, now: Any, policy: Any, may: Any) -> Any:
    step = decide(state, now, policy, may)
    return dataclasses.replace(step, until=now + 86_400) if isinstance(step, Do) else step


decide = engine.decide


def leak(ports: Any, s: Any, do: Any) -> Any:
    events = start(ports, s, do)
    return (*events, fact("notified", do.purchase, environment={n: ports.secret(n) for n in s.spec.secrets}))


start = launch._launch


def seen_is_listed(self: RunState, purchase: Any, policy: Any) -> Any:
    return purchase.seen_at if purchase.seen_at is not None else visible_from(self, purchase, policy)


visible_from = RunState.visible_from


# --- worlds in which a rare coincidence is common ----------------------------------------------------------------------------


def sleepy(seed: int) -> Faults:
    """The operator's computer sleeps somewhere between plan and create call."""
    return dataclasses.replace(Faults(seed=seed), operator=Lives(pauses=((5 + seed % 12, 26 * 3600.0),)))


def inherited(seed: int) -> Faults:
    """One terminal looks and dies; another one, whose clock was never put right, goes on from its look."""
    dead, wrong = Lives(kills=((3, "after"),)), Lives(clock_skew_s=-695.0)
    return Faults(seed=1 + 3 * seed, second=True, second_s=60.0 + seed, operator=dead, other=wrong)


def killed_while_copying(seed: int) -> Faults:
    """The operator dies around the time at which copies are published, and the guard goes on."""
    kills = ((30 + seed % 40, "after"),)
    calm = Faults(
        seed=seed, publish_every_s=45.0, deadline_s=1800.0, train_s=500.0, style="down", act_s=450.0 + seed % 50
    )
    return dataclasses.replace(calm, operator=Lives(kills=kills), broken_part=0.2)


def listed_late(seed: int) -> Faults:
    """A young rental goes down while listings lag behind and its status lies."""
    lies = tuple((float(at), float(at + 60), "terminal") for at in range(100 + seed % 30, 600, 90))
    calm = Faults(seed=seed, style="down", act_s=100.0 + seed, boot_s=5.0, ignored_terminates=6, sentinel=False)
    return dataclasses.replace(calm, listed_after_s=600.0, lies=lies)


def cloned(seed: int) -> Faults:
    """Somebody copies a rental together with its mark while it trains."""
    return Faults(seed=seed, clone_s=1500.0, deadline_s=7200.0, train_s=5000.0, cap=20.0)


def extended(seed: int) -> Faults:
    """The user moves the deadline in the middle of a long training."""
    return Faults(seed=seed, style="extend", act_s=600.0 + seed, train_s=9000.0, cap=50.0)


def wrong_clock(seed: int) -> Faults:
    """The guard's computer is two hours behind, and nothing but the guard ends the rental."""
    calm = Faults(seed=seed, style="detach", train_s=9000.0, cap=2.4, timer="none", sentinel=False)
    return dataclasses.replace(calm, guard=Lives(wall_skew_s=-7000.0), ignores_stop=True)


def twins(seed: int) -> Faults:
    """Every create call makes two machines, and nothing else goes wrong."""
    return Faults(seed=seed, twin=True, deadline_s=7200.0, cap=5.0, train_s=7000.0, hold_s=300.0)


def keyless(seed: int) -> Faults:
    """Nothing but the guard would end the rental, and the guard has no key."""
    calm = Faults(seed=seed, style="detach", train_s=9000.0, cap=2.4, timer="none", sentinel=False, ignores_stop=True)
    return dataclasses.replace(calm, guard_keyless=(0.0, 10_000.0 + seed))


def lost(seed: int) -> Faults:
    """The provider takes the rental away in the middle of training; another one may be bought."""
    lies = ((700.0 + seed, 900.0 + seed, "terminal"),) if seed % 2 else ()
    calm = Faults(seed=seed, resumes=1, deadline_s=7200.0, cap=8.0, train_s=3000.0, lies=lies)
    return dataclasses.replace(calm, reclaim_s=1000.0 + seed, gap_part=0.5 * (seed % 2))


def ahead(seed: int) -> Faults:
    """The guard starts on a computer that is two hours ahead, while the provider does not answer."""
    calm = Faults(seed=seed, style="detach", deadline_s=7200.0, train_s=9000.0, cap=9.0, unreachable=((900.0, 9000.0),))
    away = Lives(kills=((20 + seed % 20, "after"),), restart_s=(600.0,) * 4, clock_skew_s=7200.0)
    return dataclasses.replace(calm, guard=away, outages=((600.0, 2400.0),), mirror=False)


MUTANTS: dict[str, Mutant] = {
    "late intent": Mutant(advancing(late_intent), ("intent first",)),
    "retried create": Mutant(swap(buy, "_provision", retried_create), ("one create",)),
    "send_before ignored": Mutant(swap(buy, "_provision", send_whenever), ("sent in time",), 50, sleepy),
    "another one's look believed at any time": Mutant(
        swap(buy, "_decided_at_a_wrong_time", lambda *a: False), ("sent in time",), 20, inherited
    ),
    "unknown = gone": Mutant(swap(resolve, "_search", unknown_is_gone), ("gone",)),
    "give up on terminate": Mutant(swap(terminate, "_one", give_up), ("liveness", "spend"), 400),
    "terminate first": Mutant(swap(Work, "safe_to_end", property(lambda self: True)), ("copied first",)),
    "forced unrecorded": Mutant(
        together(swap(terminate, "_decide", end_at_limit), rule(limit.enforce_limit, never_forced)),
        ("copied first",),
        400,
    ),
    "forced always": Mutant(rule(limit.enforce_limit, forced_always), ("forced",)),
    "one-round proof": Mutant(swap(prove_gone, "proved", lambda p, policy: any(r.ok for r in p.proofs)), ("gone",)),
    "gap counted as complete": Mutant(swap(SimulatedProvider, "list_billable", no_gaps), ("gone", "unexplained"), 400),
    "404 trusted": Mutant(swap(prove_gone, "doubt", trust_absent), ("gone",)),
    "seen counts as listed": Mutant(swap(RunState, "visible_from", seen_is_listed), ("gone",), 100, listed_late),
    "closed without proof": Mutant(rule(close.close, close_at_once), ("unexplained",)),
    "no verification": Mutant(copying_by(unverified), ("verified",)),
    "copy in place": Mutant(copying_by(in_place), ("verified",), 200, killed_while_copying),
    "stale version accepted": Mutant(swap(SqliteJournal, "append", append_anyway), ("fresh",)),
    "facts fenced": Mutant(advancing(facts_fenced), ("recorded",)),
    "wall clock": Mutant(
        swap(SimulatedClock, "now", lambda self: self._life.now + self._wall), ("spend",), 20, wrong_clock
    ),
    "another operator's adopted": Mutant(swap(hits, "listed_events", everybody_is_ours), ("others",)),
    "clone ended": Mutant(swap(hits, "judge", clone_is_ours), ("others",), 20, cloned),
    "no survey": Mutant(swap(observe, "_survey", lambda s, p, now, policy: None), ("spend",), 20, twins),
    "extended before read-back": Mutant(rule(move_end.move_end, extend_now), ("extended",), 20, extended),
    "mark not moved on extend": Mutant(swap(move_end, "_move", mark_stays), ("extended",), 20, extended),
    "layer counted though its credential expired": Mutant(
        together(swap(guard, "arm", armed_anyway), swap(world, "arm", armed_anyway)), ("spend", "liveness"), 20, keyless
    ),
    "replaced at a word": Mutant(swap(resume, "replaceable", replaced_at_a_word), ("replaced",), 40, lost),
    "replaced from the beginning": Mutant(swap(resume, "newest_copy", from_the_beginning), ("replaced",), 20, lost),
    "disks forgotten": Mutant(swap(SimulatedProvider, "list_billable", without_disks), ("liveness",)),
    "parts forgotten": Mutant(swap(terminate, "_decide", no_parts), ("liveness",)),
    "limit by this computer's clock": Mutant(swap(limit, "confirmed", by_this_clock), ("forced",), 60, ahead),
    "effect past its until": Mutant(swap(engine, "decide", no_until), ("until",)),
    "secret leaked": Mutant(swap(launch, "_launch", leak), ("secret",)),
}
