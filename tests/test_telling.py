"""What a person reads while a run is followed: each moment once, what matters first, and of which run and machine it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commandcase import Desk
from runstory import LOG, SPEC, START, Story
from test_output import on_terminal
from test_replacing import lost_in_training, replaced, second

from gpuops.cli import output
from gpuops.cli.driving import Teller
from gpuops.cli.output import fitting
from gpuops.codec import to_json
from gpuops.names import content_digest
from gpuops.policy import Policy
from gpuops.render import progress_line
from gpuops.steps import Wait
from gpuops.values import Copied, HostStatus, Sealed

NOW = START + 300


def beat(story: Story, step: int) -> Story:
    """The host tells an update."""
    said = HostStatus(
        "running", "boot-1", story.now, beat={"step": step, "loss": 2.5, "tps": 58366.0}, generations=("g1",)
    )
    return story.tell("status", status=to_json(said))


def tell(desk: Desk, *stories: Story) -> None:
    """A command that reads the journal once for each story, which begins where the one before ended."""
    teller = Teller(desk.app(), 0)
    for story in stories:
        for record in story.records[teller.seen :]:
            desk.ports.journal.append_facts("run-1", (record.event,), at=record.at, wall=record.wall)
        teller(story.state, Wait(0, "test"))


def test_progress_that_two_processes_saw_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(Desk(tmp_path, NOW), beat(beat(Story().launched(), 1), 2))
    assert capsys.readouterr().out.count("training  ") == 1


def test_lines_of_progress_come_no_faster_than_the_command_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk, story = Desk(tmp_path, NOW), beat(Story().launched(), 1)
    teller = Teller(desk.app(), 0)
    for _ in range(4):  # the guard and this command, twice each
        for record in story.records[teller.seen :]:
            desk.ports.journal.append_facts("run-1", (record.event,), at=record.at, wall=record.wall)
        teller(story.state, Wait(0, "test"))
        desk.clock.at += Policy().status_every_s / 2
        beat(story, 2)
    assert capsys.readouterr().out.count("training  ") == 2


def test_time_left_and_cost_stand_first_and_survive_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    line = progress_line(beat(Story().launched(), 1129).state, NOW, Policy())
    assert [part.split()[0] for part in line.split("  ")][:3] == ["training", line.split("  ")[1].split()[0], "cost"]
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(output, "_columns", lambda: 80)
    output.Printer(as_json=False).progress(line)
    shown = terminal.getvalue().rpartition("\x1b[K")[2]
    assert len(shown) < 80 and " left  cost " in shown and "step 1129" in shown
    assert line.startswith(shown) and line[len(shown) :].startswith("  "), "no part is cut in the middle"


def test_a_line_is_cut_between_its_parts_and_one_long_part_at_the_edge() -> None:
    assert fitting("one  two  three", 12) == "one  two"
    assert fitting("one  two", 8) == "one  two"
    assert fitting("a-single-long-part", 8) == "a-single"


def closed(desk_path: Path) -> Desk:
    story = Story().bought().going_down().ending().tell("gone", decision=True)
    story.tell("reconciled", None).tell("closed", None, decision=True)
    return Desk(desk_path, NOW, story)


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_command_without_a_name_says_which_closed_run_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    done = closed(tmp_path).run(monkeypatch, command)
    assert "No run is open; this is the last one: run-1, closed." in done.output
    named = closed(tmp_path / "other").run(monkeypatch, command, "run-1")
    assert "No run is open" not in named.output


def test_with_json_the_note_goes_beside_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = closed(tmp_path).run(monkeypatch, "report", "--json")
    assert json.loads(done.stdout)["id"] == "run-1" and "No run is open" in done.stderr


def copy_log(story: Story, purchase: str, folder: Path, text: str) -> None:
    """The log of one machine lies here as a verified copy."""
    folder.mkdir()
    (folder / "train.log").write_text(text)
    copied = Copied("telemetry", str(folder), 10, content_digest(LOG))
    story.tell("copied", purchase, copied=to_json(copied), seconds=1)


@pytest.mark.parametrize("first_copied", [True, False])
def test_logs_after_a_replacement_tell_of_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_copied: bool
) -> None:
    story = lost_in_training(replace(SPEC, train=replace(SPEC.train, resume=2)))
    if first_copied:
        copy_log(story, "p1", tmp_path / "one", "from the first machine\n")
    second(replaced(story)).tell("launching", "p2", decision=True).tell("launched", "p2", boot_id="boot-2")
    story.tell("sealed", "p2", sealed=to_json(Sealed("completed", 0, "", (), LOG)))
    copy_log(story, "p2", tmp_path / "two", "from the second machine\n")
    lines = Desk(tmp_path / "home", NOW, story).run(monkeypatch, "logs").output.splitlines()
    first = "from the first machine" if first_copied else "its log was lost with it"
    assert lines == [
        "--- machine 1 of 2: simulated/region-1/rental/m-1", first,
        "--- machine 2 of 2: simulated/region-1/rental/m-2", "from the second machine",
    ]  # fmt: skip
