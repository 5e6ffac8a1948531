"""Inputs come after what was sent, and training waits for them; what one call brought is never lost by what it did not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runstory import LIST, SPEC, Story

from gpuops.codec import to_json
from gpuops.errors import HostError, Unreachable
from gpuops.narration import narrate
from gpuops.spec import Input
from gpuops.stages.transfer import _bring
from gpuops.steps import Do, Wait
from gpuops.values import Endpoint, Event, InputsSeen, InputThere

FIRST = Input("/data/a", "https", "https://a.example/a", sha256="a" * 64, bytes=10, data=(("licence", "CC0"),))
SECOND = Input("/data/b", "command", argv=("make",), sha256="b" * 64)
SENT = {"files": 3, "bytes": 100, "seconds": 2.0}


def story() -> Story:
    told = Story(replace(SPEC, inputs=(FIRST, SECOND))).bought().checked().wanted("training")
    return told.tell("listed", preview=to_json(LIST)).approved(LIST.digest)


def there(item: Input, how: str = "fetched") -> InputThere:
    return InputThere(item.to, how, 10, item.sha256, 1.0)


class Bringing:
    """A host whose next call brings this."""

    def __init__(self, seen: InputsSeen | Exception) -> None:
        self.seen, self.asked = seen, tuple[Input, ...]()

    def bring(
        self, run: str, endpoint: Any, spec: Any, missing: tuple[Input, ...], until: float, told: Any
    ) -> InputsSeen:
        self.asked = missing
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen


def brought(told: Story, seen: InputsSeen | Exception) -> tuple[tuple[Event, ...], Bringing]:
    """What one call records; the story goes on with it."""
    step, host = told.step(), Bringing(seen)
    assert isinstance(step, Do) and step.detail == "inputs"

    class Free:
        def bulk(self, run: str) -> Any:
            import contextlib

            return contextlib.nullcontext(True)

    ports: Any = type("P", (), {"host": host, "locks": Free(), "progress": None})()
    events = _bring(ports, told.state, step, Endpoint("h", 22))
    for event in events:
        told.tell(event.kind, **event.data)
    return events, host


def test_what_is_sent_comes_first_and_training_waits_for_the_inputs() -> None:
    told = story()
    step = told.step()
    assert isinstance(step, Do) and step.detail == "sending"
    told.tell("sent", **SENT)
    assert told.state.rental and told.state.rental.work.sent is None
    events, host = brought(told, InputsSeen((there(FIRST), there(SECOND, "made"))))
    assert [e.kind for e in events] == ["brought", "transferred"] and host.asked == (FIRST, SECOND)
    assert events[0].data["inputs"][0]["data"] == {"licence": "CC0"}
    assert events[0].data["inputs"][0]["source"] == "https://a.example/a"
    assert events[1].data == {"files": 5, "bytes": 120}
    step = told.step()
    assert isinstance(step, Do) and step.name == "launch"


def test_a_call_that_ran_out_of_time_is_gone_on_with_at_once_and_asks_only_for_the_rest() -> None:
    told = story().tell("sent", **SENT)
    brought(told, InputsSeen((there(FIRST),)))
    _, host = brought(told, InputsSeen((there(SECOND),)))
    assert host.asked == (SECOND,)
    assert told.state.rental and told.state.rental.work.sent == (5, 120)


def test_what_may_be_mended_is_tried_again_later_and_what_came_stays() -> None:
    told = story().tell("sent", **SENT)
    events, _ = brought(told, InputsSeen((there(FIRST),), "/data/b: the server answers 503"))
    assert [e.kind for e in events] == ["brought", "attempted"]
    assert isinstance(told.step(), Wait)
    told.now += 3
    _, host = brought(told, InputsSeen((there(SECOND),)))
    assert host.asked == (SECOND,)


@pytest.mark.parametrize(
    "seen", [InputsSeen((), "/data/a: its sha256 is another", True), HostError("the host refuses")]
)
def test_what_nothing_can_mend_ends_the_attempts(seen: InputsSeen | Exception) -> None:
    told = story().tell("sent", **SENT)
    brought(told, seen)
    told.now += 10_000
    step = told.step()
    assert not (isinstance(step, Do) and step.name == "transfer")


def test_a_broken_connection_is_an_attempt_like_any_other() -> None:
    told = story().tell("sent", **SENT)
    events, _ = brought(told, Unreachable("cut"))
    assert [e.kind for e in events] == ["attempted"] and isinstance(told.step(), Wait)


def test_a_person_reads_how_each_input_came() -> None:
    told = story().tell("sent", **SENT)
    brought(told, InputsSeen((replace(there(FIRST), notes=("one had sha256 c",)), there(SECOND, "made"))))
    lines = [line for record in told.records for line in narrate(record, told.state)]
    assert "Input fetched and verified: /data/a (10 B in 1 s, sha256 aaaaaaaaaaaa…)" in lines
    assert "  on the way: one had sha256 c" in lines
    assert any(line.startswith("Sent and verified by sha256: 3 files") for line in lines)
