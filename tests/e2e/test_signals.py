"""Signals, closed terminals, stopped processes, two terminals at once, and a journal that cannot be written."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
from e2e.killing.lives import (
    TRAIN,
    appends,
    arm,
    life,
    newest_is_safe,
    nothing_left,
    side_by_side,
)  # fmt: skip
from e2e.killing.terminal import CTRL_C, CTRL_D, Terminal, signalled_while_stopped, wait_stopped
from e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
LONG = ["python3", "train.py", "60", "0.5", "2"]

# point → exit code, rentals ever made, words of the answer
BUYING = {
    "after:preflight": (2, 0, "nothing was bought"),
    "after:intended": (6, 1, "interrupted by the user while buying"),
    "before:created": (6, 1, "interrupted by the user while buying"),
    "after:created": (6, 1, "interrupted by the user while buying"),
    "before:pinned": (6, 1, "interrupted by the user while buying"),
}
LATER = (
    "after:listed", "before:transferred", "after:launching", "after:status", "before:sealed",
    "before:copied", "after:ending", "before:proof",
)  # fmt: skip


def test_a_signal_while_buying_records_what_was_bought_and_tears_it_down(tmp_path: Path) -> None:
    def interrupted(case: tuple[str, int]) -> None:
        point, number = case
        expected, made, words = BUYING[point]
        with life(tmp_path / f"{point}-{number}".replace(":", "-"), [f"stop:cli:{point}"], guard=number != 1) as world:
            command = world.start("run", str(world.manifest(train=TRAIN)), "--yes")
            code, out = signalled_while_stopped(command, number)
            assert code == expected, f"{code}\n{out}"
            assert words in out and "Traceback" not in out, out
            assert world.creates() == made
            assert [r["phase"] for r in world.status()] == ["closed"], out
            nothing_left(world)

    side_by_side([(p, n) for n in SIGNALS for p in BUYING], interrupted)


def test_a_signal_in_any_later_phase_detaches_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Without a guard, so that each phase waits for the next command; the signals take turns over the phases."""

    def a_life(turn: int) -> None:
        with life(tmp_path / f"turn-{turn}", guard=False) as world:
            manifest = str(world.manifest(train=TRAIN))
            for place, point in enumerate(LATER):
                number = SIGNALS[(place + turn) % 3]
                (world.home.parent / "appends").unlink(missing_ok=True)
                arm(world, [f"stop:cli:{point}"])
                code, out = signalled_while_stopped(world.start("run", manifest, "--yes"), number)
                assert code == 5, f"{point} {number}: {code}\n{out}"
                for words in ("may still bill: local/", "provider timer ends it at 20", "next: gpuops", "Traceback"):
                    assert (words in out) is (words != "Traceback"), f"{point} {number}: {words!r}\n{out}"
            (world.home.parent / "appends").unlink()
            arm(world, ["stop:cli:after:gone"])
            code, out = signalled_while_stopped(world.start("run", manifest, "--yes"), SIGNALS[turn])
            # nothing bills any more: it finishes instead of leaving
            assert code == 0 and "Reconcile" in out, f"{code}\n{out}"
            assert world.creates() == 1
            newest_is_safe(world)
            nothing_left(world)

    side_by_side([0, 1, 2], a_life)


@pytest.mark.parametrize("point", ["after:listed", "before:launched", "before:copied"])
def test_the_guard_brings_a_run_down_that_was_left(tmp_path: Path, point: str) -> None:
    with life(tmp_path, [f"stop:cli:{point}"]) as world:
        command = world.start("run", str(world.manifest(train=TRAIN, setup="4s")), "--yes")
        code, out = signalled_while_stopped(command, signal.SIGINT)
        assert code == 5 and "guard" in out, out
        run = world.closed(90)
        if point == "after:listed":
            assert run["outcome"] is None and "not launched" in run["cause"], run
        else:
            assert run["outcome"] == "completed", run
            newest_is_safe(world)
        nothing_left(world)


def test_no_at_the_price_question_buys_nothing(tmp_path: Path) -> None:
    def asked(keys: bytes) -> None:
        with life(tmp_path / keys.hex()) as world, Terminal(world, "run", str(world.manifest(train=TRAIN))) as screen:
            screen.see("Buy this?")
            screen.type(keys)
            assert screen.code() == 2, screen.shown
            assert "nothing was bought" in screen.shown.lower() and "Traceback" not in screen.shown, screen.shown
            assert world.creates() == 0 and [r["phase"] for r in world.status()] == ["closed"]
            nothing_left(world)

    side_by_side([CTRL_C, CTRL_D, b"n\n"], asked)


def test_no_at_the_dry_run_question_says_what_bills(tmp_path: Path) -> None:
    def asked(keys: bytes) -> None:
        with life(tmp_path / keys.hex()) as world:
            manifest = str(world.manifest(train=TRAIN, setup="6s"))
            assert world.run("up", manifest, "--yes").returncode == 0
            with Terminal(world, "launch", "small") as screen:
                screen.see("Send these files?")
                screen.type(keys)
                assert screen.code() == 5, screen.shown
                for words in ("may still bill: local/", "unless it is launched", "next: gpuops"):
                    assert words in screen.shown, f"{words!r}\n{screen.shown}"
            assert world.closed()["outcome"] is None
            nothing_left(world)

    side_by_side([CTRL_C, CTRL_D, b"n\n"], asked)


def test_a_question_that_nobody_answers_does_not_bill_beyond_setup(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        assert world.run("up", str(world.manifest(train=TRAIN, setup="4s")), "--yes").returncode == 0
        with Terminal(world, "launch", "small") as screen:
            screen.see("Send these files?")
            assert "not launched" in world.closed()["cause"]
            screen.type(b"y\n")
            assert screen.code() in (0, 4), screen.shown
        nothing_left(world)


def test_a_second_ctrl_c_leaves_at_once_and_says_what_bills(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        world.cloud.mkdir(parents=True, exist_ok=True)
        (world.cloud / "faults.json").write_text('{"slow_create_s": 5, "ignore_terminate": 2}')
        with Terminal(world, "up", str(world.manifest(train=TRAIN)), "--yes") as screen:
            screen.see("Rental bought")
            screen.type(CTRL_C)
            screen.see("tearing it down")
            screen.see("Terminating")
            begun = time.monotonic()
            screen.type(CTRL_C)
            assert screen.code() == 5, screen.shown
            assert time.monotonic() - begun < 10
            for words in ("left at once", "may still bill: local/", "next: gpuops"):
                assert words in screen.shown, f"{words!r}\n{screen.shown}"
        world.closed(90)
        nothing_left(world)


def test_a_closed_terminal_leaves_the_run_to_the_guard(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        with Terminal(world, "run", str(world.manifest(train=TRAIN)), "--yes") as screen:
            screen.see("Training started")
            screen.close()
            assert screen.code() == 5
        assert world.closed()["outcome"] == "completed"
        newest_is_safe(world)
        nothing_left(world)


def test_a_terminal_that_fails_without_a_signal_does_not_stop_the_run(tmp_path: Path) -> None:
    """Under nohup a closed window is no signal; every write fails."""
    with life(tmp_path, guard=False) as world:
        gone, end = os.pipe()
        os.close(gone)
        import subprocess
        import sys

        command = subprocess.Popen(
            [sys.executable, "-m", "gpuops", "run", str(world.manifest(train=TRAIN)), "--yes"], env=world.env,
            cwd=world.root, stdin=subprocess.DEVNULL, stdout=end, stderr=end, start_new_session=True,
        )  # fmt: skip
        os.close(end)
        assert command.wait(timeout=90) == 0
        newest_is_safe(world)
        nothing_left(world)


def test_leaving_watch_and_logs_is_free(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        assert world.run("up", str(world.manifest(train=LONG)), "--yes").returncode == 0
        assert world.run("launch", "small", "--yes").returncode == 0
        for command, seen in ((("watch", "small"), "training"), (("logs", "small", "--follow"), "step")):
            for number in SIGNALS:
                with Terminal(world, *command) as screen:
                    screen.see(seen)
                    if number == signal.SIGINT:
                        screen.type(CTRL_C)
                    else:
                        screen.process.send_signal(number)
                    assert screen.code() == 0, f"{command} {number}\n{screen.shown}"
                    assert "goes on" in screen.shown and "Traceback" not in screen.shown, screen.shown
        assert world.status()[0]["phase"] == "training"
        done = world.run("down", "small")
        assert done.returncode == 0, done.stdout
        assert world.generations()
        nothing_left(world)


def test_a_stopped_command_is_overtaken_by_the_guard(tmp_path: Path) -> None:
    with life(tmp_path, ["stop:cli:after:status"]) as world:
        command = world.start("run", str(world.manifest(train=TRAIN)), "--yes")
        wait_stopped(command.pid)
        assert world.closed(90)["outcome"] == "completed"
        newest_is_safe(world)
        command.send_signal(signal.SIGCONT)
        out, _ = command.communicate(timeout=60)
        assert command.returncode == 0, out
        nothing_left(world)


def test_a_command_stopped_while_it_seals_does_not_cost_the_checkpoint(tmp_path: Path) -> None:
    """It holds the lock for bulk work, and would hold it until the limit."""
    with life(tmp_path) as world:
        outputs = {
            "directory": "/workspace/out", "copy_to": "results", "mirror": False,
            "load_check": ["python3", "-c", "import time; time.sleep(2)"],
        }  # fmt: skip
        arguments = ["run", str(world.manifest(train=TRAIN, outputs=outputs)), "--yes", "--accept-loss", "a test"]
        command = world.start(*arguments)
        world.wait("training has ended", lambda: "status+ended" in appends(world, "cli"))
        world.wait("sealing", lambda: _held(world, "bulk.lock"))
        command.send_signal(signal.SIGSTOP)
        run = world.closed(120)
        assert run["outcome"] == "completed", run
        newest_is_safe(world)
        command.send_signal(signal.SIGCONT)
        out, _ = command.communicate(timeout=60)
        assert command.returncode == 0, out
        newest_is_safe(world)
        nothing_left(world)


def _held(world: World, name: str) -> bool:
    for file in (world.home / "runs").glob(f"*/{name}"):
        with file.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def test_watch_in_one_terminal_and_down_in_another(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        assert world.run("up", str(world.manifest(train=LONG)), "--yes").returncode == 0
        assert world.run("launch", "small", "--yes").returncode == 0
        with Terminal(world, "watch", "small") as screen:
            screen.see("step")
            down = world.run("down", "small")
            assert down.returncode == 0, down.stdout
            # training was stopped by a wish, so it is not complete for somebody who watched it
            assert screen.code() == 6, screen.shown
            for words in ("asked for by the user", "Closed", "interrupted"):
                assert words in screen.shown, screen.shown
        assert world.generations()
        nothing_left(world)


def test_the_same_command_twice_at_once_buys_once(tmp_path: Path) -> None:
    with life(tmp_path) as world:
        manifest = str(world.manifest(train=TRAIN))
        commands = [world.start("run", manifest, "--yes") for _ in range(3)]
        out = [process.communicate(timeout=120)[0] for process in commands]
        assert [p.returncode for p in commands] == [0, 0, 0], "\n\n".join(out)
        assert world.creates() == 1 and len(world.status()) == 1
        newest_is_safe(world)
        nothing_left(world)


def test_nothing_is_bought_while_the_intent_cannot_be_made_durable(tmp_path: Path) -> None:
    def refused(point: str) -> None:
        with life(tmp_path / point.replace(":", "-"), [point], guard=False) as world:
            done = world.run("run", str(world.manifest(train=TRAIN)), "--yes")
            assert done.returncode == 3, f"{done.returncode}\n{done.stdout}"
            for words in ("the journal cannot be", "nothing was bought", "next: "):
                assert words in done.stdout.lower(), done.stdout
            assert world.creates() == 0 and world.rentals() == []

    side_by_side(["full:cli:before:planned", "full:cli:before:intended"], refused)


def test_nothing_is_bought_while_a_stopped_process_holds_the_journal(tmp_path: Path) -> None:
    with life(tmp_path, ["stop:cli:before:planned"], guard=False) as world:
        holder = world.start("run", str(world.manifest(train=TRAIN)), "--yes")
        wait_stopped(holder.pid)
        arm(world, [])
        done = world.run("run", str(world.manifest(train=TRAIN)), "--yes")
        assert done.returncode == 3 and "nothing was bought" in done.stdout.lower(), done.stdout
        assert world.creates() == 0
        holder.kill()
        holder.communicate()
        assert world.run("run", str(world.manifest(train=TRAIN)), "--yes").returncode == 0
        assert world.creates() == 1
        nothing_left(world)


def test_a_full_disk_while_something_bills_is_exit_5(tmp_path: Path) -> None:
    with life(tmp_path, ["full:cli:before:launching"], guard=False) as world:
        manifest = str(world.manifest(train=TRAIN))
        done = world.run("run", manifest, "--yes")
        assert done.returncode == 5, f"{done.returncode}\n{done.stdout}"
        for words in ("the journal cannot be", "may still bill: local/", "provider timer ends it at", "next: "):
            assert words in done.stdout.lower(), done.stdout
        arm(world, [])
        assert world.run("run", manifest, "--yes").returncode == 0
        assert world.creates() == 1
        newest_is_safe(world)
        nothing_left(world)


@pytest.mark.parametrize("how", ["full", "locked"])
def test_past_the_limit_terminate_goes_out_without_the_journal(tmp_path: Path, how: str) -> None:
    """The cloud's own timer is dead as well, so that only gpuops can end it."""
    points = ["full:child:before:*"] if how == "full" else ["stop:cli:before:launching"]
    with life(tmp_path, points) as world:
        flag = tmp_path / "full"
        world.extra["GPUOPS_TEST_WHILE"] = str(flag)
        if how == "locked":
            flag.touch()
        manifest = world.manifest(train=TRAIN, deadline="20s", hold="3s")
        command = world.start("run" if how == "locked" else "up", str(manifest), "--yes")
        if how == "locked":
            wait_stopped(command.pid)
        else:
            out, _ = command.communicate(timeout=60)
            assert command.returncode == 0, out
            flag.touch()  # not before: a guard that cannot write is no layer, and nothing would be bought
        _kill_keeper(world)
        world.wait("the rental is ended", lambda: world.rentals() == [], 90)
        assert world.status()[0]["phase"] != "closed"
        flag.unlink()
        command.kill()
        command.communicate()
        world.closed(120)
        nothing_left(world)


def _kill_keeper(world: World) -> None:
    import json

    record = next((world.cloud / "default" / "rentals").glob("r-*/record.json"))
    os.kill(json.loads(record.read_text())["keeper"]["pid"], signal.SIGKILL)
