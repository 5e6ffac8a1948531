"""What some providers need beside the create call: volumes attached, the timer set, this computer let in, in this order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from runstory import LIMIT, POLICY, SPEC, Story

from gpuops.errors import ProviderError
from gpuops.stages.attach import attach
from gpuops.stages.check_host import check_host
from gpuops.stages.limit import why_down
from gpuops.stages.move_end import move_end
from gpuops.steps import Do
from gpuops.values import Ref, Time, VolumeUse

WITH_VOLUMES = replace(SPEC, volumes=(VolumeUse("vol-1", "/data"), VolumeUse("vol-2", "/more")))


class Vendor:
    """A provider with all three, that remembers what it was asked for."""

    def __init__(self, here: str = "198.51.100.7/32", problem: str = "") -> None:
        self.here, self.problem = here, problem
        self.attached: list[str] = []
        self.admitted: tuple[str, ...] = ()
        self.traits = SimpleNamespace(deadline="read back")

    def attach(self, ref: Ref, volume: VolumeUse, until: Time) -> None:
        if self.problem:
            raise ProviderError(self.problem)
        self.attached.append(volume.id)

    def set_end(self, ref: Ref, at: Time, until: Time) -> Time:
        return at

    def caller(self, until: Time) -> str:
        return self.here

    def admit(self, ref: Ref, sources: tuple[str, ...], until: Time) -> tuple[str, ...]:
        self.admitted = sources
        return sources


def running(*needs: str, **spec: Any) -> Story:
    """A rental that just runs, of a provider that needs these."""
    story = Story(replace(WITH_VOLUMES, **spec)).wanted("ready").approved()
    story.tell("preflight", None, problem="", timer="read back", after_create=list(needs))
    return story.intended().created().observed()


def do(story: Story, vendor: Vendor) -> str:
    """Let the engine take its next step; its name."""
    step = story.step()
    assert isinstance(step, Do), step
    ports: Any = SimpleNamespace(providers=lambda name: vendor)
    for event in step.effect(ports, story.state, step):
        story.tell(event.kind, event.purchase, **event.data)
    return step.name


def test_volumes_are_attached_then_the_timer_is_set_then_this_computer_is_let_in_then_the_host_is_looked_at() -> None:
    story, vendor = running("attach", "arm", "admit"), Vendor()
    assert [do(story, vendor) for _ in range(4)] == ["attach", "attach", "move_end", "admit"]
    assert vendor.attached == ["vol-1", "vol-2"] and vendor.admitted == ("198.51.100.7/32",)
    assert story.state.layers["provider timer"].at == LIMIT
    step = story.step()
    assert isinstance(step, Do) and step.name == "check_host"


def test_no_timer_is_set_while_a_volume_might_go_with_the_machine() -> None:
    story = running("attach", "arm").tell("attached", volume="vol-1")
    assert move_end(story.state, story.now, POLICY) is None
    story.tell("attached", volume="vol-2")
    assert isinstance(move_end(story.state, story.now, POLICY), Do)


def test_a_timer_that_was_lost_is_set_again() -> None:
    story = running("arm").tell("layer", name="provider timer", grade="read back", at=LIMIT)
    assert move_end(story.state, story.now, POLICY) is None
    assert isinstance(move_end(story.observed().state, story.now, POLICY), Do), "it was not read back"


def test_what_cannot_be_attached_ends_the_rental_with_its_reason() -> None:
    story, vendor = running("attach"), Vendor(problem="vol-1 is in another zone")
    assert do(story, vendor) == "attach"
    assert check_host(story.state, story.now, POLICY) is None, "nothing is looked at"
    since = story.state.purchases["p1"].work.endpoint_at
    assert since is not None
    assert why_down(story.state, since + POLICY.ssh_s - 1, POLICY) == ""
    assert why_down(story.state, since + POLICY.ssh_s, POLICY).endswith("last: vol-1 is in another zone")


def test_a_provider_that_needs_none_of_it_is_asked_for_none() -> None:
    step = running().step()
    assert isinstance(step, Do) and step.name == "check_host"


def test_who_moved_is_let_in_again_after_the_first_failure_to_reach_the_host() -> None:
    story, vendor = running("admit"), Vendor()
    assert do(story, vendor) == "admit"
    vendor.here = "203.0.113.9/32"
    story.tell("attempted", rule="check_host", error="no route")
    assert do(story, vendor) == "admit" and vendor.admitted == ("203.0.113.9/32",)
    assert story.state.purchases["p1"].work.admitted == ("203.0.113.9/32",)


def test_who_did_not_move_moves_no_rule() -> None:
    story, vendor = running("admit").tell("admitted", sources=["198.51.100.7/32"]), Vendor()
    story.tell("attempted", rule="check_host", error="no route")
    assert do(story, vendor) == "admit" and vendor.admitted == ()


def test_networks_that_the_manifest_names_are_let_in_and_nobody_is_asked_for_an_address() -> None:
    step = running("admit", allow_from=("198.51.100.0/24",)).step()
    assert isinstance(step, Do) and step.name == "check_host"


@pytest.mark.parametrize("life", ["ended_elsewhere", "closed"])
def test_nothing_is_attached_to_what_ends(life: str) -> None:
    story = running("attach")
    story = story.going_down() if life == "closed" else story.tell(life, by="somebody")
    assert attach(story.state, story.now, POLICY) is None


def test_an_extension_moves_the_timer_inside_the_machine_before_it_counts() -> None:
    story = running("guest timer").tell("checked", checks=[], facts={}, boot_id="b")
    assert story.state.layers["guest timer"].at == LIMIT
    story.tell("extend_wanted", None, decision=True, deadline=LIMIT + 600, limit=LIMIT + 1200)
    moved = []
    for _ in range(2):
        step = move_end(story.state, story.now, POLICY)
        assert isinstance(step, Do)
        moved.append(step.detail)
        story.tell("layer", name=step.detail.removeprefix("moving the "), grade="read back", at=LIMIT + 1200)
    assert sorted(moved) == ["moving the guest timer", "moving the mark"]
    step = move_end(story.state, story.now, POLICY)
    assert isinstance(step, Do) and step.decision is not None and step.decision.kind == "extended"
