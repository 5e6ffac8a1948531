"""Many simulated lives of the real engine hold every invariant, and every safeguard that is taken out is missed by one."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random

import pytest
from mutants import MUTANTS

from gpuops.testing import crashes
from gpuops.testing.faults import START, Faults, Lives, draw
from gpuops.testing.invariants import NAMES, trace_text
from gpuops.testing.scheduler import Finished, Killed, Life, Scheduler
from gpuops.testing.simulate import FIXED_SEEDS, FRESH_SEEDS, crash_lives, drawn, hunt_all, live, many, shrink
from gpuops.testing.world import World

JOBS = multiprocessing.cpu_count()

pytestmark = [pytest.mark.simulation, pytest.mark.alone, pytest.mark.timeout(1200)]


@pytest.mark.timeout(2400)
def test_every_life_holds_every_invariant() -> None:
    fresh = random.SystemRandom().randrange(10**6, 10**9)
    result = many(drawn((*range(FIXED_SEEDS), *range(fresh, fresh + FRESH_SEEDS))), JOBS)
    assert result.violations == []
    assert result.lives == FIXED_SEEDS + FRESH_SEEDS
    # a world in which nothing goes wrong, or nothing is looked at, proves nothing
    assert result.kills > 100
    assert result.faults > result.lives
    assert {name for name, number in result.checks.items() if number} >= set(NAMES) - {"bug"}


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_kill_anywhere_in_a_scenario_leaves_nothing_behind() -> None:
    """A sample; all points, and crashes of two lives in a row, are lived by `script/simulate --full`."""
    lives = crash_lives(every=23)
    result = many(lives, JOBS)
    assert result.violations == []
    deadly = [name for name, _ in lives if not name.endswith(":asleep")]
    assert result.kills >= 0.9 * len(deadly) > 100


def test_a_crash_is_told_and_understood_again() -> None:
    for crash in [("operator", ((12, "before"),), True), ("guard", ((3, "after"), (7, "after")), True)]:
        assert crashes.parse(crashes.text(crash)) == crash
    assert crashes.parse("operator:4:after:alone") == ("operator", ((4, "after"),), False)
    for wrong in ("nobody:1:before", "operator:1", "operator:x:before", "operator:1:during"):
        with pytest.raises(ValueError):
            crashes.parse(wrong)


@pytest.mark.parametrize("name", [n for n, m in MUTANTS.items() if m.world is not draw])
def test_the_world_made_for_a_mutant_is_harmless_without_it(name: str) -> None:
    found = [v for number in range(2) for v in live(MUTANTS[name].world(number)).violations]
    assert found == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_safeguard_is_missed_when_it_is_taken_out() -> None:
    caught = {name: catch and catch[1] for name, catch in hunt_all(MUTANTS, JOBS)}
    assert {name for name, by in caught.items() if by is None} == set()
    assert all(by in MUTANTS[name].caught_by for name, by in caught.items())


def test_no_mutant_is_caught_while_its_safeguard_is_there() -> None:
    named = {name for mutant in MUTANTS.values() for name in mutant.caught_by}
    assert named <= set(NAMES)
    found = {name for seed in range(20) for _, name, _ in live(draw(seed)).violations}
    assert not found & named


def test_a_calm_life_is_copied_ended_and_closed() -> None:
    world = World(Faults())
    watch = world.run()
    assert watch.violations == []
    assert watch.state is not None and watch.state.closed
    assert watch.state.outcome == "completed"
    assert [p.life for p in watch.state.intents] == ["gone"]
    assert world.scheduler.over == "closed"


@pytest.mark.parametrize("seed", [3, 8, 50])
def test_a_seed_replays_exactly(seed: int) -> None:
    first, second = World(draw(seed)), World(draw(seed))
    traces = [trace_text(world.run(), START) for world in (first, second)]
    assert traces[0] == traces[1]


def test_what_fails_is_shrunk_to_the_faults_that_matter() -> None:
    with MUTANTS["retried create"].patch():
        rough = next(f for f in map(draw, range(200)) if any(n == "one create" for _, n, _ in live(f).violations))
        small = shrink(rough)
        assert any(name == "one create" for _, name, _ in live(small).violations)
    assert small.injected() < rough.injected()


def test_a_dead_driver_changes_nothing_even_from_finally() -> None:
    scheduler = Scheduler(0.0, 100.0, 1000)
    life = Life(scheduler, "operator", kill=(2, "after"))
    done: list[str] = []

    def body() -> None:
        life.point("one", lambda: done.append("one"))
        try:
            life.point("two", lambda: done.append("two"))
        finally:
            with pytest.raises(Killed):
                life.point("from finally", lambda: done.append("three"))
            life.spend(1)

    scheduler.add("operator", body, 0.0)
    scheduler.run()
    assert done == ["one", "two"]
    assert life.refused == 2


def test_the_earliest_actor_runs_and_every_thread_ends() -> None:
    scheduler = Scheduler(0.0, 10.0, 1000)
    seen: list[tuple[str, float]] = []

    def actor(name: str, every: float) -> None:
        while True:
            seen.append((name, scheduler.now))
            scheduler.wait(scheduler.now + every)

    scheduler.add("slow", lambda: actor("slow", 3), 0.0)
    scheduler.add("fast", lambda: actor("fast", 1), 0.0)
    scheduler.run()
    assert [at for _, at in seen] == sorted(at for _, at in seen)
    assert len([n for n, _ in seen if n == "fast"]) == 11
    with pytest.raises(Finished):
        scheduler.finish("test")
        Life(scheduler, "late").alive()


@pytest.mark.parametrize("at", range(5, 16))
def test_a_laptop_that_sleeps_while_buying_buys_nothing_on_waking(at: int) -> None:
    world = World(dataclasses.replace(Faults(), operator=Lives(pauses=((at, 26 * 3600.0),))))
    watch = world.run()
    assert watch.violations == []


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 40, 3))
def test_a_kill_at_any_append_or_effect_leaves_nothing_behind(number: int, kind: str) -> None:
    dead = Lives(kills=((number, kind),))
    world = World(dataclasses.replace(Faults(), operator=dead, deadline_s=1800.0, train_s=300.0))
    watch = world.run()
    assert watch.violations == []
    assert world.kills <= 1
