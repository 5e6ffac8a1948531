"""Many simulated lives: run them on all cores, shrink what fails, and print what was proved."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from gpuops.testing import crashes
from gpuops.testing.faults import FAULTS, START, Faults, draw
from gpuops.testing.invariants import NAMES, Watch, story, trace_text
from gpuops.testing.scenarios import SCENARIOS
from gpuops.testing.simulation_page import page
from gpuops.testing.world import World

FIXED_SEEDS = 2_000
FRESH_SEEDS = 100
FULL_SEEDS = 20_000
_CHUNK = 5
_TELLING = ("decides", "does", "is killed", "says", "gives up", "clones")

Catch = tuple[int, str, str]
"""(lives needed, invariant, what was seen)"""
Named = tuple[str, Faults]
"""A life and the arguments with which it is lived again."""


@dataclass(frozen=True)
class Mutant:
    """The engine with one safeguard taken out, the invariants that may catch it, and within how many lives."""

    patch: Callable[[], AbstractContextManager[object]]
    caught_by: tuple[str, ...]
    lives: int = 200
    world: Callable[[int], Faults] = draw
    """The life of a seed: a mutant that only a rare coincidence shows gets worlds in which it is common."""


@dataclass
class Result:
    """What some lives showed."""

    lives: int = 0
    kills: int = 0
    refused_to_dead: int = 0
    faults: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, str, str]] = field(default_factory=list)
    """(arguments to live it again, invariant, what was seen)"""
    worst: tuple[float, str] = (0.0, "")
    """Largest overspend as a part of the stated bound, and the arguments to live it again."""

    def add(self, other: Result) -> None:
        """Take in the result of other lives."""
        self.lives += other.lives
        self.kills += other.kills
        self.refused_to_dead += other.refused_to_dead
        self.faults += other.faults
        self.checks += other.checks
        self.violations += other.violations
        self.worst = max(self.worst, other.worst)


def live(faults: Faults, name: str = "") -> Result:
    """One life."""
    world = World(faults)
    watch = world.run()
    found = [(name or seed_name(faults), broken, said) for broken, said in watch.violations]
    worst = (watch.overspent, name or seed_name(faults))
    return Result(1, world.kills, world.refused_to_dead, faults.injected(), watch.checks, found, worst)


def seed_name(faults: Faults) -> str:
    """The arguments that live a drawn life again."""
    return f"--seed {faults.seed}"


def drawn(seeds: Iterable[int]) -> list[Named]:
    """The lives of these seeds."""
    return [(f"--seed {seed}", draw(seed)) for seed in seeds]


def many(lives: Sequence[Named], jobs: int) -> Result:
    """Live all of these, on `jobs` processes; the result does not depend on their number."""
    total = Result()
    chunks = [lives[i : i + _CHUNK] for i in range(0, len(lives), _CHUNK)]
    with contextlib.ExitStack() as stack:
        if jobs <= 1:
            results: Iterator[Result] = map(_some, chunks)
        else:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(jobs))
            results = pool.imap_unordered(_some, chunks)
        for result in results:
            total.add(result)
    total.violations.sort()
    return total


def _some(lives: Sequence[Named]) -> Result:
    total = Result()
    for name, faults in lives:
        total.add(live(faults, name))
    return total


def crash_lives(*, every: int = 1, twice: bool = False, names: Iterable[str] = SCENARIOS) -> list[Named]:
    """The lives of all crash points of these scenarios (those that somebody is left to close)."""
    found: list[Named] = []
    for name in names:
        scenario = SCENARIOS[name]
        if scenario.closes:
            for crash in crashes.crashes(scenario.faults, every=every, twice=twice):
                told = f"--scenario '{name}' --kill {crashes.text(crash)}"
                found.append((told, crashes.crashed(scenario.faults, crash)))
    return found


def hunt(mutant: Mutant, first: int = 0) -> Catch | None:
    """Live with a mutant until an invariant that should catch it does: (lives needed, invariant, what was seen)."""
    with mutant.patch():
        for number in range(mutant.lives):
            for _, name, said in live(mutant.world(first + number)).violations:
                if name in mutant.caught_by:
                    return number + 1, name, said
    return None


def hunt_all(mutants: Mapping[str, Mutant], jobs: int) -> Iterable[tuple[str, Catch | None]]:
    """Hunt every mutant, on `jobs` processes; yields (name, catch) as they are done."""

    def work(names: multiprocessing.Queue[str | None], found: multiprocessing.Queue[tuple[str, Catch | None]]) -> None:
        while (name := names.get()) is not None:
            found.put((name, hunt(mutants[name])))

    fork = multiprocessing.get_context("fork")  # patches cannot be sent to a process, only inherited
    names, found = fork.Queue(), fork.Queue()
    workers = [fork.Process(target=work, args=(names, found), daemon=True) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for name in (*mutants, *[None] * jobs):
        names.put(name)
    for _ in mutants:
        yield found.get()
    for worker in workers:
        worker.join()


def shrink(faults: Faults) -> Faults:
    """Take faults out one by one as long as the same invariant is violated."""
    wanted = {name for _, name, _ in live(faults).violations}
    calm = Faults()
    for name in FAULTS:
        less = dataclasses.replace(faults, **{name: getattr(calm, name)})
        if less != faults and wanted & {n for _, n, _ in live(less).violations}:
            faults = less
    return faults


def replay(faults: Faults, *, shrunk: bool) -> int:
    """Live one life again and print its trace; the number of violations."""
    if shrunk and live(faults).violations:
        faults = shrink(faults)
    world = World(faults)
    watch = world.run()
    print(trace_text(watch, START))
    print(f"\nseed {faults.seed}  {story(faults)}")
    for name, said in watch.violations:
        print(f"VIOLATED {name} ({NAMES[name]}): {said}")
    print(f"{len(watch.violations)} violations; the world ended: {world.scheduler.over or 'the end of time'}")
    return len(watch.violations)


def main(mutants: Mapping[str, Mutant], argv: list[str] | None = None) -> int:
    """The command; returns 1 when something was violated or a mutant lived."""
    options = _options(argv, sorted(mutants))
    if (one := _one(options)) is not None:
        patch = mutants[options.mutant].patch() if options.mutant else contextlib.nullcontext()
        with patch:
            return int(replay(one, shrunk=options.shrink) > 0)
    began = time.monotonic()
    lives, crash_number = _chosen(options)
    total = many(lives, options.jobs)
    took = time.monotonic() - began
    _print(total, crash_number, took)
    _print_worst(total)
    caught: dict[str, Catch | None] = {}
    if options.mutants or options.full:
        caught = _hunt_all(mutants, options.jobs)
    if options.record:
        options.record.write_text(page(total, crash_number, took, mutants, caught))
    return int(bool(total.violations) or None in caught.values())


def _options(argv: list[str] | None, mutants: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/simulate", description=__doc__)
    parser.add_argument(
        "--lives", type=int, help=f"fixed seeds from 0 (default {FIXED_SEEDS:,}; {FULL_SEEDS:,} with --full)"
    )
    parser.add_argument(
        "--fresh", type=int, default=FRESH_SEEDS, help="seeds that nobody has seen (default %(default)s)"
    )
    parser.add_argument("--crashes", type=int, metavar="N", help="also each N-th crash point of every scenario")
    parser.add_argument(
        "--full", action="store_true", help="more seeds, all crash points, crashes of two lives, all mutants"
    )
    parser.add_argument("--mutants", action="store_true", help="take out every safeguard in turn and see it caught")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes (default: all cores)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the result down as a page of the documentation"
    )
    again = parser.add_argument_group("one life again, with its trace")
    again.add_argument("--seed", type=int, help="the life of this seed")
    again.add_argument("--scenario", choices=sorted(SCENARIOS), help="the life of this scenario")
    again.add_argument("--kill", type=crashes.parse, help="with --scenario: who dies where, such as operator:12:before")
    again.add_argument("--shrink", action="store_true", help="take out faults that do not matter")
    again.add_argument("--mutant", choices=mutants, help="with one safeguard taken out")
    return parser.parse_args(argv)


def _one(options: argparse.Namespace) -> Faults | None:
    """The life that was asked for by name."""
    if options.seed is not None:
        return draw(options.seed)
    if options.scenario is not None:
        faults = SCENARIOS[options.scenario].faults
        return crashes.crashed(faults, options.kill) if options.kill else faults
    return None


def _chosen(options: argparse.Namespace) -> tuple[list[Named], int]:
    """All lives of this call, and how many of them are crash points."""
    number = options.lives if options.lives is not None else FULL_SEEDS if options.full else FIXED_SEEDS
    lives = drawn(range(number))
    if options.fresh:
        fresh = random.SystemRandom().randrange(10**6, 10**9)
        print(f"fresh seeds from    {fresh}")
        lives += drawn(range(fresh, fresh + options.fresh))
    crash: list[Named] = []
    if options.full or options.crashes:
        crash = crash_lives(every=options.crashes or 1)
        crash += crash_lives(every=options.crashes or 1, twice=True) if options.full else []
    return [*lives, *crash], len(crash)


def _print(total: Result, crash_number: int, took: float) -> None:
    print(f"lives               {total.lives}   (of them {crash_number} crash points of {len(SCENARIOS)} scenarios)")
    print(f"kills               {total.kills}   (calls of dead drivers refused: {total.refused_to_dead})")
    print(f"faults injected     {total.faults} kinds, over all lives")
    print(f"invariants checked  {sum(total.checks.values())} times")
    for name, number in sorted(total.checks.items()):
        print(f"    {name:<14} {number:>9}   {NAMES[name]}")
    print(f"violations          {len(total.violations)}")
    for again, name, said in total.violations[:20]:
        print(f"    {name}: {said}\n        script/simulate {again} --shrink")
    print(f"lives per second    {total.lives / took:.1f}   ({took:.0f} s)")


def _print_worst(total: Result) -> None:
    """The life that spent most of the bound beyond its cap: the terms of that bound, and what was decided and done."""
    part, again = total.worst
    if not again:
        return
    print(f"worst overspend     {part:.0%} of the stated bound: script/simulate {again}")
    words = again.split(" --")
    faults = draw(int(words[0].split()[1])) if again.startswith("--seed") else None
    if faults is None:
        return
    watch: Watch = World(faults).run()
    bound = watch.overspend_bound()
    terms = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in watch.overspend_seconds().items() if seconds)
    print(
        f"    charged {watch.beyond_cap:+.4f} beyond its cap, bound {bound:.4f} at {faults.rate} per hour from: {terms}"
    )
    told = [line for line in trace_text(watch, START).splitlines() if any(word in line for word in _TELLING)]
    for line in told[:60]:
        print(f"    {line[:150]}")


def _hunt_all(mutants: Mapping[str, Mutant], jobs: int) -> dict[str, Catch | None]:
    caught: dict[str, Catch | None] = {}
    for name, catch in hunt_all(mutants, jobs):
        caught[name] = catch
        print(f"mutant {name:<44} " + (f"caught by '{catch[1]}' in life {catch[0]}" if catch else "LIVES"))
        sys.stdout.flush()
    print(f"mutants caught      {len(mutants) - list(caught.values()).count(None)} of {len(mutants)}")
    return caught
