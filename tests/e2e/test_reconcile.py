"""A provider that lies, and what lies about on the account: never two rentals, never "gone" while it bills, others left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import hands
from e2e.world import POLICY, World

from gpuops.codec import from_json
from gpuops.marks import mark_name
from gpuops.values import Mark

pytestmark = pytest.mark.e2e

SHORT = ["python3", "train.py", "2", "0.2", "2"]


def ran(world: World, exit_code: int, *words: str, **changes: Any) -> str:
    done = world.run("run", str(hands.manifest(world, train=SHORT, **changes)), "--yes")
    assert done.returncode == exit_code, done.stdout
    for word in words:
        assert word in done.stdout, f"{word!r} is not shown:\n{done.stdout}"
    assert world.rentals() == []
    return done.stdout


@pytest.fixture
def other(world: World) -> Iterator[World]:
    """Somebody else's computer on the same account."""
    made = World(world.root / "other", world.home.parent / "other", world.cloud, {"GPUOPS_OWNER": "somebody-else"})
    made.root.mkdir()
    made.configure()
    yield made
    made.end()


# --- a provider that lies ----------------------------------------------------------------------------------------------


def test_a_create_without_an_answer_is_found_by_its_mark_and_never_repeated(world: World) -> None:
    hands.faults(world, lose_answer=1)
    out = ran(world, 0, "The create call has no clear answer", "found by its mark: the create answer was lost")
    assert "Done: training completed" in out
    assert world.creates() == 1, "one create effect"


def test_a_server_error_after_a_create_that_stays_invisible_is_shown_as_billing(world: World) -> None:
    """Accepted, answered by a 500, and not listed for a while: it counts as billing until it is found."""
    hands.faults(world, error_after_create=1, hide_new_s=3)
    path = hands.manifest(world, train=SHORT)
    process = world.start("run", str(path), "--yes")
    hands.until(world, "the answer is lost", lambda s: any(p.life == "unknown" for p in s.purchases.values()))
    shown = world.status()[-1]
    assert shown["may_bill"] and "not found yet" in shown["may_bill"][0]
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0, out
    assert world.creates() == 1 and world.rentals() == []


def test_no_capacity_buys_nothing(world: World) -> None:
    hands.faults(world, refuse_capacity=5)
    ran(world, 4, "The provider refused: no capacity", "Nothing was bought")
    assert world.creates() == 0


def test_sold_out_in_one_region_the_run_goes_on_in_the_next_of_its_plan(world: World) -> None:
    hands.faults(world, refuse_capacity=1)
    shown = ran(world, 0, "if sold out", "The provider refused: no capacity", "Rental bought: local/there/", "Done:")
    assert world.creates() == 1 and shown.count("Rental bought") == 1


def test_ignored_ends_wrong_words_gaps_and_errors_in_one_life(world: World) -> None:
    """Terminates that do nothing, a listing that cannot be read, errors on every call: gone is said only when it is."""
    hands.faults(world, error={"inspect": 2, "list": 1, "quote": 0})
    hands.launched(world, train=SHORT)
    hands.until(world, "training ended", lambda s: bool(s.outcome))
    hands.faults(world, ignore_terminate=2, listing_gap=["here"])
    hands.until(world, "it was asked to end", lambda s: bool(s.rental and s.rental.terminates))
    shown = world.status()[-1]
    assert shown["may_bill"] and shown["phase"] != "closed", "asked for is not gone"
    hands.until(world, "it was asked again", lambda s: bool(s.rental and s.rental.terminates >= 3))
    hands.until(world, "gaps count", lambda s: "the listing has gaps" in str([p.proofs for p in s.purchases.values()]))
    assert world.status()[-1]["may_bill"], "a listing with gaps proves nothing"
    hands.faults(world, lying_status="terminated", ignore_terminate=1)
    time.sleep(2)
    hands.faults(world)
    run = world.closed()
    assert run["may_bill"] == [] and world.rentals() == [] and world.creates() == 1


def test_a_status_that_lies_ends_no_training(world: World) -> None:
    """The provider calls a running rental terminated, and later a word that nobody knows: it trains on and bills."""
    hands.launched(world, train=["python3", "train.py", "40", "0.3", "10"])
    for word in ("terminated", "sleepwalking"):
        hands.faults(world, lying_status=word)
        hands.until(world, f"it was told {word}", lambda s, w=word: s.rental.observation.raw_state == w)
        hands.until(world, "the contradiction is said", lambda s: bool(s.alarms))
        shown = world.status()[-1]
        assert shown["may_bill"] and shown["phase"] == "training", shown
    assert "lists it as billing" in " ".join(shown["alarms"])
    hands.until(world, "training is looked after meanwhile", lambda s: "step-000020" in s.rental.work.copied)
    hands.faults(world)
    done = world.run("watch")
    assert done.returncode == 0, done.stdout
    assert [g.name for g in world.generations()] == ["step-000030", "step-000040"]
    hands.clean(world)


# --- what lies about ---------------------------------------------------------------------------------------------------


def change(world: World, rental: Path, **changes: Any) -> None:
    """Rewrite the cloud's record of a rental, as its owner could in a console."""
    record = json.loads((rental / "record.json").read_text())
    record.update(changes)
    (rental / ".new").write_text(json.dumps(record))
    (rental / ".new").rename(rental / "record.json")


def marked(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    mark = from_json(Mark, {**record["mark"], **changes})
    return {"mark": {**record["mark"], **changes}, "name": mark_name(mark)}


def rentals_of(world: World) -> dict[str, Path]:
    found = {}
    for path in (world.cloud / "default" / "rentals").glob("r-*"):
        record = json.loads((path / "record.json").read_text())
        if record["state"] != "terminated":
            found[record["mark"]["owner"] if record["mark"] else ""] = path
    return found


def classes(world: World, *arguments: str) -> dict[str, str]:
    return {i["id"]: i["class"] for i in world.json("reconcile", *arguments)["items"]}


def test_each_class_is_told_apart_and_only_ours_is_ended(world: World, other: World) -> None:
    subprocess.run(
        [sys.executable, "-m", "gpuops_providers.local", "volume", "create", "data", "--gb", "1",
         "--directory", str(world.cloud)],
        env=world.env, check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    mine = {**world.extra, "GPUOPS_OWNER": "me"}
    world.extra.update(mine)
    assert other.run("up", str(other.manifest(setup="4m")), "--yes").returncode == 0
    assert world.run("up", str(world.manifest()), "--yes").returncode == 0
    theirs, ours = rentals_of(world)["somebody-else"], rentals_of(world)["me"]
    assert classes(world) == {ours.name: "pending", theirs.name: "another operator's", "data": "foreign"}

    # their limit has passed: any sentinel, and reconcile --apply, may end it; before that nobody touches it
    assert world.run("reconcile", "--apply", "--yes").returncode == 0
    assert set(rentals_of(world)) == {"me", "somebody-else"}
    hands.kill(*other.processes("guard"))
    record = json.loads((theirs / "record.json").read_text())
    change(world, theirs, **marked(record, limit_at=time.time() - 60))
    shown = world.run("reconcile")
    assert shown.returncode == 5 and "past the limit in its mark" in shown.stdout, shown.stdout
    assert "gpuops reconcile --apply" in shown.stdout
    refused = world.run("reconcile", "--apply")
    assert refused.returncode == 2 and "Would end, in this order" in refused.stdout, refused.stdout
    assert set(rentals_of(world)) == {"me", "somebody-else"}, "asked first"
    ended = world.run("reconcile", "--apply", "--yes")
    assert ended.returncode == 0 and "round 2 of 2" in ended.stdout, ended.stdout
    assert set(rentals_of(world)) == {"me"}

    # kept on purpose, it bills as meant; when its time is over it goes down by itself
    kept = world.run("retain", "small", "--reason", "look at it", "--for", "8s")
    assert kept.returncode == 0 and "Kept until" in kept.stdout, kept.stdout
    assert "nothing of this run bills" not in kept.stdout.lower() and "still shown, free" not in kept.stdout
    assert classes(world)[ours.name] == "retained"
    assert world.run("reconcile").returncode == 0
    assert any(run["may_bill"] for run in world.status())
    world.wait("the expiry ends it", lambda: not any(run["may_bill"] for run in world.status()), 60)
    assert set(rentals_of(world)) == set()

    # or when it is released
    assert world.run("up", str(world.manifest()), "--yes", "--new").returncode == 0
    assert world.run("retain", "small", "--reason", "again", "--for", "90s").returncode == 0
    released = world.run("release", "small")
    assert released.returncode == 0 and "round 2 of 2" in released.stdout, released.stdout
    assert set(rentals_of(world)) == set() and world.run("reconcile").returncode == 0


def test_what_training_left_is_copied_before_a_rental_is_kept(world: World) -> None:
    path = world.manifest(train=["python3", "train.py", "3", "0.1", "3"], teardown={"when": "manual"})
    assert world.run("up", str(path), "--yes").returncode == 0
    assert world.run("launch", "--yes").returncode == 0
    world.wait("training ended", lambda: world.status()[-1]["outcome"], 60)
    kept = world.run("retain", "small", "--reason", "look at it", "--for", "60s")
    assert kept.returncode == 0, kept.stdout
    assert [g.name for g in world.generations()] == ["step-000003"] and len(world.rentals()) == 1
    assert world.run("release", "small").returncode == 0
    assert world.rentals() == []


def test_an_orphan_of_ours_is_found_again_and_ended(world: World) -> None:
    """The run is closed, and its rental bills again: exit 5 with the command, and --apply ends it under the old run."""
    world.configure(POLICY.replace('shown_s = "1"', 'shown_s = "600"'))
    path = hands.manifest(world)
    assert world.run("up", str(path), "--yes").returncode == 0
    before = hands.rental(world)
    second = world.cloud / "default" / "rentals" / before["id"]
    done = world.run("down")
    assert done.returncode == 0, done.stdout
    # the cloud brings it back to life: a keeper without processes of its own is a record only
    sleeper = subprocess.Popen(["sleep", "300"], env={"GPUOPS_LOCAL_RENTAL": before["id"]}, start_new_session=True)
    try:
        started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]
        first = {**before["first"], "pid": sleeper.pid, "started": int(started)}
        change(world, second, **{**before, "first": {k: first[k] for k in before["first"]}, "state": "running"})
        shown = world.run("reconcile")
        assert (
            shown.returncode == 5
            and "orphaned" in shown.stdout
            and "the journal says gone, but it bills" in shown.stdout
        )
        ended = world.run("reconcile", "--apply", "--yes")
        assert ended.returncode == 0, ended.stdout
    finally:
        sleeper.kill()
        sleeper.wait()
    assert world.rentals() == [] and world.run("reconcile").returncode == 0


def test_a_sentinel_with_nothing_but_credentials_ends_what_is_past_its_mark(world: World, other: World) -> None:
    world.extra["GPUOPS_OWNER"] = "me"
    assert other.run("up", str(other.manifest(setup="4m")), "--yes").returncode == 0
    assert world.run("up", str(world.manifest(setup="4m")), "--yes").returncode == 0
    hands.kill(*other.processes("guard"), *world.processes("guard"))
    ours = rentals_of(world)["me"]
    empty = World(world.root / "empty", world.home.parent / "empty", world.cloud)
    empty.root.mkdir()
    empty.configure()
    nothing = empty.run("guard", "--once")
    assert nothing.returncode == 0 and len(rentals_of(world)) == 2, nothing.stdout
    change(world, ours, **marked(json.loads((ours / "record.json").read_text()), limit_at=time.time() - 5))
    ended = empty.run("guard", "--once")
    assert ended.returncode == 0 and "past its limit, ended and proved gone" in ended.stdout, ended.stdout
    assert set(rentals_of(world)) == {"somebody-else"}, "before its limit nobody touches it"
    down = other.run("down")
    assert down.returncode == 0, down.stdout


# --- moving the end ----------------------------------------------------------------------------------------------------


def test_the_end_moves_in_both_directions_in_every_layer(world: World) -> None:
    world.configure(POLICY.replace("[policy]", "[policy]\ncall_s = 5"))
    run = hands.launched(world, train=["python3", "train.py", "400", "0.3", "50"])
    place = hands.directory(world)
    told = hands.inside(world, f"/root/.gpuops/{run}/deadline")

    def ends() -> tuple[float, float, float, float]:
        limit = hands.state(world).limit
        timer = json.loads((place / "armed.json").read_text())["ends_at"]
        return (
            limit,
            timer,
            json.loads((place / "record.json").read_text())["mark"]["limit_at"],
            float(told.read_text()),
        )

    limit, timer, mark, host = ends()
    assert abs(timer - limit) < 2 and abs(mark - limit) < 2 and abs(host - (limit - 60 - 4)) < 2
    assert not (said := world.run("extend", "--by", "3m")).returncode, said.stdout
    world.wait("the host follows", lambda: abs(ends()[3] - host - 180) < 2, 20)
    for before, after in zip((limit, timer, mark), ends()[:3], strict=True):
        assert abs(after - before - 180) < 2
    assert "every layer was read back" in said.stdout

    too_far = world.run("extend", "--by", "10h")
    assert too_far.returncode == 3 and "pays until" in too_far.stdout, too_far.stdout
    hands.faults(world, error={"set_end": 50})
    stuck = world.run("extend", "--by", "1m")
    hands.faults(world)
    assert stuck.returncode == 3, stuck.stdout
    assert "not every layer has moved, so the old limit" in stuck.stdout and "Rental bought" not in stuck.stdout
    world.wait(
        "the guard went on trying",
        lambda: abs(ends()[1] - limit - 240) < 2 and hands.state(world).extension is None,
        60,
    )

    assert not (said := world.run("extend", "--by", "-4m")).returncode, said.stdout
    assert abs(hands.state(world).limit - limit) < 2, "to shorten, the journal comes first"
    world.wait(
        "the layers follow",
        lambda: all(abs(a - b) < 2 for a, b in zip(ends(), (limit, timer, mark, host), strict=True)),
        30,
    )
    done = world.run("down")
    assert done.returncode == 0, done.stdout
    hands.clean(world)
