"""`gpuops reconcile`: what is shown, what its exit code says, and what --apply would end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commandcase import Desk
from runstory import LIMIT, START, Story, ref

from gpuops.errors import UsageError
from gpuops.testing.cloud import Machine
from gpuops.values import Mark

NOW = START + 100
NONCE = "abcdefghijkl"
HERE = ("--provider", "simulated")


def closed(story: Story) -> Story:
    story.going_down().ending().tell("gone", decision=True)
    return story.tell("reconciled", None).tell("closed", None, decision=True)


def plant(desk: Desk, name: str, mark: Mark | None, since: float = START + 5) -> Machine:
    """A rental on the account; `name` is its id there."""
    machine = desk.cloud.plant("ours", since, mark)
    machine.ref = ref(name)
    return machine


def everything(path: Path, life: str = "gone") -> Desk:
    """One of each on the account, under the name of its class."""
    known = Story().bought(NONCE)
    if life == "gone":
        closed(known)
    elif life == "retained":
        known.tell("retained", decision=True, until=NOW - 1, reason="a look")
    desk = Desk(path, NOW, known)
    plant(desk, "m-1", Mark("run-1", NONCE, "ada", LIMIT))
    plant(desk, "theirs", Mark("other", "bcdefghijklm", "bob", LIMIT))
    plant(desk, "past", Mark("other", "cdefghijklmn", "bob", START))
    plant(desk, "foreign", None)
    damaged = plant(desk, "damaged", Mark("other", "defghijklmno", "bob", START))
    damaged.name = damaged.name.replace("defghijklmno", "efghijklmnop")
    return desk


def planned(output: str) -> list[str]:
    """The ids in the plan of --apply."""
    return re.findall(r"^  \d+\. simulated/region-1/rental/(\S+)", output, re.MULTILINE)


def test_each_is_listed_with_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = everything(tmp_path).run(monkeypatch, "reconcile", *HERE, "--json")
    items = {i["id"]: i["class"] for i in json.loads(done.stdout)["items"]}
    assert items == {
        "m-1": "orphaned", "theirs": "another operator's", "past": "orphaned", "foreign": "foreign",
        "damaged": "damaged mark",
    }  # fmt: skip
    assert done.exit_code == 5


@pytest.mark.parametrize(("life", "cls"), [("gone", "orphaned"), ("retained", "expired")])
def test_the_plan_of_apply_holds_orphans_and_expired_ones_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: str, cls: str
) -> None:
    desk = everything(tmp_path, life)
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply")
    assert isinstance(done.exception, UsageError) and "nothing was ended" in str(done.exception)
    assert planned(done.output) == ["m-1", "past"]
    assert f"m-1 ({cls}: " in done.output
    assert desk.cloud.deeds == [], "asked first"


def test_a_clone_is_unwanted_and_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody copied our mark: exit code 5, and it is theirs to end."""
    desk = Desk(tmp_path, START + 60_000, closed(Story().bought(NONCE)))
    plant(desk, "copy", Mark("run-1", NONCE, "ada", LIMIT), since=START + 50_000)
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    assert done.exit_code == 5 and planned(done.output) == [] and desk.cloud.deeds == [], done.output


def test_apply_ends_and_proves_an_orphan_and_touches_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = everything(tmp_path)
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    assert done.exit_code == 0, done.output
    assert {d.ref.id for d in desk.cloud.deeds} == {"m-1", "past"}
    assert desk.state().closed and desk.state("other").closed
    assert "reappeared" in desk.kinds()


def test_an_expired_one_is_released_under_its_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = everything(tmp_path, "retained")
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    assert done.exit_code == 0, done.output
    assert "released" in desk.kinds() and desk.state().closed


@pytest.mark.parametrize("where", ["a run that is open", "the run of another orphan"])
def test_an_orphan_whose_mark_names_a_known_run_but_none_of_its_purchases_spoils_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The journal came from a backup, a second rental of a lost run, or somebody wrote our run's name into a mark."""
    desk = Desk(tmp_path, NOW, Story().bought(NONCE))
    if where == "a run that is open":
        plant(desk, "m-1", Mark("run-1", NONCE, "ada", LIMIT))
        plant(desk, "past", Mark("run-1", "cdefghijklmn", "ada", START))
    else:
        plant(desk, "past", Mark("other", "cdefghijklmn", "ada", START))
        plant(desk, "past-2", Mark("other", "defghijklmno", "ada", START))
    desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    for run in desk.ports.journal.runs():
        desk.state(run)


@pytest.mark.parametrize("name", ["../x", "../../x", "a/b"])
def test_a_mark_that_names_no_possible_run_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    desk = Desk(tmp_path / "users" / "home", NOW)
    plant(desk, "past", Mark(name, "cdefghijklmn", "bob", START))
    desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    made = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_dir()}
    assert not {m for m in made if m.endswith(("/x", "/a", "/b")) or m == "x"}, made


def test_what_only_damaged_marks_and_others_leave_is_no_reason_for_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = everything(tmp_path)
    desk.cloud.machines = [m for m in desk.cloud.machines if m.ref.id in ("theirs", "foreign", "damaged")]
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply", "--yes")
    assert done.exit_code == 0 and desk.cloud.deeds == [], done.output


def test_what_is_still_shown_and_free_bills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, NOW, closed(Story().bought(NONCE)))
    plant(desk, "m-1", Mark("run-1", NONCE, "ada", LIMIT)).ended_at = NOW - 1
    done = desk.run(monkeypatch, "reconcile", *HERE)
    assert done.exit_code == 0 and "ended; still shown, free" in done.output, done.output


def test_a_listing_with_gaps_or_none_at_all_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, NOW)
    desk.cloud.blind_regions.add("region-1")
    done = desk.run(monkeypatch, "reconcile", *HERE)
    assert done.exit_code == 3 and "NOT PROVED: simulated region-1 rental: a page could not be read" in done.output
    desk.cloud.credentials_good = False
    done = desk.run(monkeypatch, "reconcile", *HERE)
    assert done.exit_code == 3 and "NOT PROVED: simulated * *: the key was revoked" in done.output


def test_a_known_gap_is_said_and_counts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"region": "region-1", "reason": "not ours", "until": "2100-01-01T00:00:00Z"}
    desk = Desk(tmp_path, NOW, known_gaps=(known,))
    desk.cloud.blind_regions.add("region-1")
    done = desk.run(monkeypatch, "reconcile", *HERE)
    assert done.exit_code == 0 and "a page could not be read (known)" in done.output, done.output


def test_a_purchase_that_was_never_found_is_named_until_it_is_disproved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story().ready_to_buy().intended(nonce=NONCE).tell("unproven", decision=True, why="24 h").going_down()
    desk = Desk(tmp_path, NOW, story.tell("closed", None, decision=True))
    done = desk.run(monkeypatch, "reconcile", *HERE)
    assert (
        done.exit_code == 3
        and f"may bill, not listed: run-1: simulated/region-1/rental with mark {NONCE}" in done.output
    )


def test_apply_goes_on_with_a_teardown_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, NOW, Story().bought(NONCE).going_down().ending())
    plant(desk, "m-1", Mark("run-1", NONCE, "ada", LIMIT))
    done = desk.run(monkeypatch, "reconcile", *HERE, "--apply")
    assert done.exit_code == 0, done.output
    assert "run-1 is going down: going on with it" in done.output and desk.state().closed
