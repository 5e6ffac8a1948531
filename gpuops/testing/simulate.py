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
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from gpuops.testing.faults import FAULTS, START, Faults, draw
from gpuops.testing.invariants import NAMES, story, trace_text
from gpuops.testing.world import World

FIXED_SEEDS = 500
_CHUNK = 5

Catch = tuple[int, str, str]
"""(lives needed, invariant, what was seen)"""


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
    violations: list[tuple[int, str, str]] = field(default_factory=list)
    """(seed, invariant, what was seen)"""
    worst: tuple[float, int] = (0.0, -1)
    """Largest overspend as a part of the stated bound, and its seed."""

    def add(self, other: Result) -> None:
        """Take in the result of other lives."""
        self.lives += other.lives
        self.kills += other.kills
        self.refused_to_dead += other.refused_to_dead
        self.faults += other.faults
        self.checks += other.checks
        self.violations += other.violations
        self.worst = max(self.worst, other.worst)


def live(faults: Faults) -> Result:
    """One life."""
    world = World(faults)
    watch = world.run()
    found = [(faults.seed, name, said) for name, said in watch.violations]
    return Result(
        1, world.kills, world.refused_to_dead, faults.injected(), watch.checks, found, (watch.overspent, faults.seed)
    )


def many(seeds: Iterable[int], jobs: int) -> Result:
    """The lives of many seeds, on `jobs` processes; the result does not depend on their number."""
    total = Result()
    chunks = list(_chunks(list(seeds)))
    if jobs <= 1:
        results: Iterable[Result] = map(_some, chunks)
        for result in results:
            total.add(result)
        return total
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for result in pool.imap_unordered(_some, chunks):
            total.add(result)
    total.violations.sort()
    return total


def _chunks(seeds: list[int]) -> Iterable[list[int]]:
    return (seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK))


def _some(seeds: list[int]) -> Result:
    total = Result()
    for seed in seeds:
        total.add(live(draw(seed)))
    return total


def hunt(mutant: Mutant, first: int = 0) -> Catch | None:
    """Live with a mutant until an invariant that should catch it does: (lives needed, invariant, what was seen)."""
    with mutant.patch():
        for number in range(mutant.lives):
            for _, name, said in live(mutant.world(first + number)).violations:
                if name in mutant.caught_by:
                    return number + 1, name, said
    return None


def shrink(faults: Faults) -> Faults:
    """Take faults out one by one as long as the same invariant is violated."""
    wanted = {name for _, name, _ in live(faults).violations}
    calm = Faults()
    for name in FAULTS:
        less = dataclasses.replace(faults, **{name: getattr(calm, name)})
        if less != faults and wanted & {n for _, n, _ in live(less).violations}:
            faults = less
    return faults


def replay(seed: int, *, shrunk: bool) -> int:
    """Live one seed again and print its trace; the number of violations."""
    faults = draw(seed)
    if shrunk and live(faults).violations:
        faults = shrink(faults)
    world = World(faults)
    watch = world.run()
    print(trace_text(watch, START))
    print(f"\nseed {seed}  {story(faults)}")
    for name, said in watch.violations:
        print(f"VIOLATED {name} ({NAMES[name]}): {said}")
    print(f"{len(watch.violations)} violations; the world ended: {world.scheduler.over or 'the end of time'}")
    return len(watch.violations)


def main(mutants: Mapping[str, Mutant], argv: list[str] | None = None) -> int:
    """The command; returns 1 when something was violated or a mutant lived."""
    options = _options(argv, sorted(mutants))
    if options.seed is not None:
        patch = mutants[options.mutant].patch() if options.mutant else contextlib.nullcontext()
        with patch:
            return int(replay(options.seed, shrunk=options.shrink) > 0)
    began = time.monotonic()
    seeds = list(range(options.lives))
    if options.fresh:
        fresh = random.SystemRandom().randrange(10**6, 10**9)
        print(f"fresh seeds from {fresh}")
        seeds += range(fresh, fresh + options.fresh)
    total = many(seeds, options.jobs)
    took = time.monotonic() - began
    _print(total, took)
    alive = _hunt_all(mutants, options.jobs) if options.mutants else 0
    return int(bool(total.violations) or alive > 0)


def _options(argv: list[str] | None, mutants: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/simulate", description=__doc__)
    parser.add_argument("--lives", type=int, default=FIXED_SEEDS, help="fixed seeds from 0 (default %(default)s)")
    parser.add_argument("--fresh", type=int, default=0, help="further seeds that nobody has seen; they are printed")
    parser.add_argument("--seed", type=int, help="live this one seed and print its trace")
    parser.add_argument("--shrink", action="store_true", help="with --seed: take out faults that do not matter")
    parser.add_argument("--mutant", choices=mutants, help="with --seed: take out one safeguard")
    parser.add_argument("--mutants", action="store_true", help="take out every safeguard in turn and see it caught")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes (default: all cores)")
    return parser.parse_args(argv)


def _print(total: Result, took: float) -> None:
    print(f"lives               {total.lives}")
    print(f"kills               {total.kills}   (calls of dead drivers refused: {total.refused_to_dead})")
    print(f"kinds of faults     {total.faults}   (over all lives)")
    print(f"invariants checked  {sum(total.checks.values())} times")
    for name, number in sorted(total.checks.items()):
        print(f"    {name:<14} {number:>9}   {NAMES[name]}")
    print(f"violations          {len(total.violations)}")
    for seed, name, said in total.violations[:20]:
        print(f"    seed {seed}: {name}: {said}")
    print(f"worst overspend     {total.worst[0]:.0%} of the stated bound, seed {total.worst[1]}")
    print(f"lives per second    {total.lives / took:.1f}")


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


def _hunt_all(mutants: Mapping[str, Mutant], jobs: int) -> int:
    alive = 0
    for name, catch in hunt_all(mutants, jobs):
        alive += catch is None
        print(f"mutant {name:<26} " + (f"caught by '{catch[1]}' in life {catch[0]}" if catch else "LIVES"))
        sys.stdout.flush()
    print(f"mutants caught      {len(mutants) - alive} of {len(mutants)}")
    return alive
