"""The timing sheet of a report: what the records say took how long, and nothing that they do not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from runstory import LIST, LOG, Story, generation

from gpuops.codec import to_json
from gpuops.fold import fold
from gpuops.render import report_lines, status_lines
from gpuops.report import TIMINGS, report, status_line, timings
from gpuops.values import HostStatus

IMAGE = "image: bought until the provider tells an address"
CHECKS = "SSH and checks: address until checked"
FIRST = "first update seen after start"
TAIL = "tail: end requested until proved"


def sheet(story: Story) -> dict[str, float]:
    rows = timings(story.state)
    assert len({r["stage"] for r in rows}) == len(rows)
    return {r["stage"]: r["seconds"] for r in rows}


def beat(story: Story, step: object) -> Story:
    """A status with a heartbeat."""
    said = replace(HostStatus("running", "boot-1", story.now), beat={"step": step})
    return story.tell("status", status=to_json(said))


# The whole life: each chapter comes so many seconds after the one before it; telling moves the time on by one.
LIFE: list[tuple[float, Callable[[Story], Story]]] = [
    (0, lambda s: s.ready_to_buy().intended()),
    (9, lambda s: s.created()),
    (29, lambda s: s.observed("starting").observed()),
    (13, lambda s: s.checked()),
    (100, lambda s: s.wanted("training").tell("listed", preview=to_json(LIST)).approved(LIST.digest)),
    (7, lambda s: s.tell("transferred", files=0, bytes=0)),
    (2, lambda s: s.tell("launching", decision=True)),
    (3, lambda s: s.tell("launched", boot_id="boot-1")),
    (10, lambda s: beat(s, 0)),
    (10, lambda s: beat(s, 1)),
    (500, lambda s: s.tell("ended", outcome="completed")),
    (1, lambda s: s.going_down()),
    (19, lambda s: s.sealed(generation(1))),
    (39, lambda s: s.copied(generation(1), LOG)),
    (0, lambda s: s.ending()),
    (14, lambda s: s.tell("gone", decision=True)),
    (3, lambda s: s.tell("reconciled", None).tell("closed", None, decision=True)),
]
WHOLE = {
    "allocation": 10.0, "dry run": 102.0, "transfer": 9.0, "environment and start": 7.0, "training": 523.0,
    "seal": 22.0, "copy": 42.0, TAIL: 16.0, IMAGE: 31.0, CHECKS: 14.0, FIRST: 22.0,
}  # fmt: skip


def lived(chapters: int | None = None) -> Story:
    story = Story()
    for wait, tell in LIFE[:chapters]:
        tell(story.wait(wait))
    return story


def test_a_whole_life_has_every_row_with_the_seconds_between_its_records() -> None:
    assert sheet(lived()) == WHOLE
    assert {name for name, _, _ in TIMINGS} < set(WHOLE)


def test_a_row_appears_with_the_record_that_ends_it_and_never_changes() -> None:
    seen: list[set[str]] = []
    for chapters in range(len(LIFE) + 1):
        rows = sheet(lived(chapters))
        assert rows.items() <= WHOLE.items()
        seen.append(set(rows))
    appears = {name: next(n for n, rows in enumerate(seen) if name in rows) for name in WHOLE}
    assert appears == {
        "allocation": 2, IMAGE: 3, CHECKS: 4, "dry run": 5, "transfer": 6, "environment and start": 8, FIRST: 10,
        "training": 11, "seal": 13, "copy": 15, TAIL: 16,
    }  # fmt: skip


def test_nothing_is_invented_for_what_did_not_happen() -> None:
    """Refused; never reached; never launched; sealed without a word that training had ended."""
    assert sheet(Story()) == {}
    assert sheet(Story().ready_to_buy().intended().tell("refused", reason="quota")) == {}
    assert set(sheet(Story().bought().going_down().ending().tell("gone", decision=True))) == {"allocation", IMAGE, TAIL}
    assert set(sheet(Story().bought().checked())) == {"allocation", IMAGE, CHECKS}
    assert {"training", "seal", FIRST}.isdisjoint(sheet(Story().launched().going_down().sealed()))
    forced = Story().launched().going_down().tell("forced", decision=True, reason="I have it", by="user").ending()
    assert {"seal", "copy", TAIL}.isdisjoint(sheet(forced))


@pytest.mark.parametrize("step", [0, -1, "many", None, False])
def test_a_heartbeat_that_tells_of_no_update_is_no_first_update(step: object) -> None:
    assert FIRST not in sheet(beat(Story().launched(), step))


def test_the_first_record_of_each_kind_counts() -> None:
    story = lived(8)
    before = sheet(story)
    story.wait(100).checked().observed().tell("transferred", files=0, bytes=0).tell("launched", boot_id="boot-1")
    for name in ("transfer", "allocation", IMAGE):
        assert sheet(story)[name] == before[name]


def test_the_end_of_a_duplicate_is_no_part_of_the_sheet() -> None:
    """The rows are about the rental that the run worked on."""
    story = Story()
    for number, (wait, tell) in enumerate(LIFE):
        tell(story.wait(wait))
        if number == 2:
            now = story.now
            story.created(name="m-2", via="search").ending("p1.m-2").tell("gone", "p1.m-2", decision=True).at(now)
    assert sheet(story) == WHOLE


def test_the_report_carries_the_sheet_as_values_and_as_lines() -> None:
    story = lived()
    document = report(story.state, tuple(story.records), story.now)
    assert {t["stage"]: t["seconds"] for t in document["timings"]} == WHOLE
    lines = [line.strip() for line in report_lines(document)]
    assert f"{TAIL}".ljust(max(map(len, WHOLE))) + "  16.0 s" in lines
    empty = report(Story().state, (), 0)
    assert empty["timings"] == [] and "Time" not in report_lines(empty)


def test_the_sheet_is_the_same_after_reading_the_journal_again() -> None:
    story = lived()
    again = fold(story.records)
    assert again is not None and timings(again) == timings(story.state)


@pytest.mark.parametrize(
    ("story", "typed"),
    [
        (lambda: Story().bought().checked(), "gpuops launch run-1"),
        (lambda: Story().bought(), "gpuops watch run-1"),
        (lambda: Story().launched(), "gpuops watch run-1"),
        (lambda: Story().launched().going_down(), "gpuops watch run-1"),
    ],
)
def test_the_status_of_an_open_run_names_what_to_type(story: Callable[[], Story], typed: str) -> None:
    line = status_line(story().state, 0)
    assert line["next"] == typed
    assert status_lines([line])[-1] == f"  next: {typed}   (or end it: gpuops down run-1)"


def test_the_status_of_a_closed_run_names_nothing_to_type() -> None:
    line = status_line(Story().wanted("closed", "no").tell("closed", None).state, 0)
    assert line["next"] is None and not any("next:" in text for text in status_lines([line]))
