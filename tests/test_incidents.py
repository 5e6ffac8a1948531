"""Public incidents of other tools, replayed in the simulated world: none of them happens here."""

from __future__ import annotations

import pytest

from gpuops.testing.faults import START
from gpuops.testing.scenarios import SCENARIOS
from gpuops.testing.world import World

pytestmark = pytest.mark.simulation


def lived(name: str) -> World:
    """The scenario's life, in which nothing is violated."""
    scenario = SCENARIOS[name]
    world = World(scenario.faults)
    watch = world.run()
    wrong = [v for v in watch.violations if scenario.closes or v[0] != "liveness"]
    assert wrong == [], wrong
    assert not any(m.bills(world.scheduler.latest) for m in world.cloud.ours())
    return world


def creates(world: World) -> int:
    return sum(d.what == "create" for d in world.cloud.deeds)


def alive_s(world: World) -> float:
    """How long our machines billed after the limit of the run, at most."""
    assert world.watch.state is not None
    return max(m.ended_at for m in world.cloud.ours()) - world.watch.state.limit


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_does_not_happen_here(name: str) -> None:
    world = lived(name)
    state = world.watch.state
    assert state is not None and (state.closed or not SCENARIOS[name].closes)


@pytest.mark.parametrize(
    "name",
    ["create: 500 although it was made", "create: answer lost, two of that name", "create: 429 after the launch"],
)
def test_an_ambiguous_create_call_is_searched_for_and_not_repeated(name: str) -> None:
    world = lived(name)
    assert world.watch.state is not None and world.watch.state.outcome == "completed"
    assert creates(world) <= len(world.watch.state.intents)


def test_a_rental_that_is_not_shown_for_minutes_is_found_and_ended() -> None:
    world = lived("create: the read path lags")
    assert all(p.life == "gone" for p in world.watch.state.intents)  # type: ignore[union-attr]


def test_no_capacity_is_said_at_once_and_not_tried_again() -> None:
    world = lived("create: no capacity")
    state = world.watch.state
    assert state is not None and [p.life for p in state.intents] == ["refused"] * 2, "each offer of the plan, once"
    assert [p.offer.id for p in state.intents] == ["one", "two"] and world.cloud.refusals == 2
    assert world.scheduler.latest - START < 120


def test_what_was_ended_by_hand_is_proved_and_nothing_else_is_bought() -> None:
    for name in ("terminated: deleted by hand", "terminated: deleted by hand while it starts"):
        world = lived(name)
        assert creates(world) == 1


def test_requests_to_end_are_repeated_until_it_is_proved() -> None:
    world = lived("terminated: accepted and nothing happens")
    assert sum(d.what == "terminate" and d.ref.kind == "rental" for d in world.cloud.deeds) >= 5


def test_free_objects_of_a_killed_command_are_found_and_removed() -> None:
    world = lived("leftover: killed between key and create call")
    assert world.kills == 1 and world.cloud.keys == {}
    done = [text for _, who, text in world.watch.trace if who == "operator" and text.startswith("does")]
    assert done == ["does prepare"], "it was killed between the two"


def test_a_clone_of_our_mark_is_said_and_not_touched() -> None:
    world = lived("create: answer lost, two of that name")
    clones = {m.ref for m in world.cloud.machines if m.whose == "clone"}
    assert clones and not clones & {d.ref for d in world.cloud.deeds if d.what == "terminate" and d.who != "sentinel"}


def test_a_sentinel_alone_ends_what_two_dead_programs_left() -> None:
    world = lived("leftover: killed before its cleanup")
    assert world.kills >= 1 and 0 <= alive_s(world) < 700


def test_a_machine_that_nobody_uses_goes_down_long_before_the_limit() -> None:
    for name in ("leftover: a machine that nobody uses", "leftover: a machine that never runs"):
        assert alive_s(lived(name)) < -500


def test_others_are_left_alone() -> None:
    world = lived("leftover: of others on the account")
    touched = {d.ref for d in world.cloud.deeds if d.what == "terminate"}
    assert touched and not touched & {m.ref for m in world.cloud.machines if m.whose != "ours"}


def test_a_timer_that_never_fires_is_not_needed() -> None:
    world = lived("deadline: the provider's timer never fires")
    assert alive_s(world) < 60, "the guard ended it"


def test_a_closed_laptop_costs_nothing_beyond_the_limit() -> None:
    assert alive_s(lived("deadline: the laptop is closed")) < 60


def test_the_second_rental_trains_past_the_first_ones_end() -> None:
    world = lived("deadline: resumed, and the old one does not count")
    assert world.watch.state is not None and world.watch.state.outcome == "completed" and creates(world) == 2


def test_an_extension_moves_every_layer() -> None:
    assert any(record == "extended" for _, _, text in lived("deadline: moved by the user").watch.trace
               for record in text.split()[2:3])  # fmt: skip
