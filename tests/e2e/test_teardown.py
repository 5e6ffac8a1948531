"""Transfers, copies and ends that are disturbed: they go on, or what is lost is said, and the bill always stops."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e import hands
from e2e.world import TRAIN, World

from gpuops.locks import FileLocks
from gpuops.names import RANGES_FILE, content_digest
from gpuops.values import FileHash, Generation

pytestmark = pytest.mark.e2e

MB = 1_000_000
BIG = TRAIN.replace('b"o" * 5000', 'b"o" * 120_000_000', 1)
"""Each generation takes a moment to copy."""


def soon(found: Callable[[], list[int]], then: Callable[[list[int]], None], seconds: float = 60) -> threading.Thread:
    """Watch closely in the background and act at the first sight."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if seen := found():
                then(seen)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def watched(world: World) -> Iterator[Callable[[], subprocess.CompletedProcess[str]]]:
    """`watch` looks on from before the block; the result is a function that waits for its end."""
    process = world.start("watch")

    def out() -> subprocess.CompletedProcess[str]:
        text, _ = process.communicate(timeout=90)
        return subprocess.CompletedProcess(["watch"], process.returncode, text, "")

    world.wait("it drives", lambda: FileLocks(world.home / "runs").is_driven(hands.state(world).run))
    yield out


def incoming(world: World) -> list[Path]:
    """Attempts of generations that have begun."""
    return list((world.root / "results").glob("*/.incoming/step-*/" + RANGES_FILE))


# --- sending -----------------------------------------------------------------------------------------------------------


def test_rsync_is_killed_half_way_and_the_connection_cut_while_copying(world: World) -> None:
    path = world.manifest(code=BIG, train=["python3", "train.py", "2", "0.2", "2"])
    with open(world.root / "code" / "zeros.bin", "wb") as file:
        file.truncate(250 * MB)
    assert world.run("up", str(path), "--yes").returncode == 0
    cut: list[int] = []
    rsync = soon(lambda: world.processes("--files-from"), lambda pids: (cut.extend(pids), hands.kill(*pids)))  # type: ignore[func-returns-value]
    sent = world.run("launch", "--yes")
    rsync.join(10)
    assert cut and sent.returncode == 0, sent.stdout
    assert "transfer: " in sent.stdout and "will be tried again" in sent.stdout, "it is said"
    assert "Transferred and verified on the host by sha256: 2 files" in sent.stdout

    def masters() -> list[int]:
        return world.processes("ControlMaster=yes") if incoming(world) else []

    ssh = soon(masters, lambda pids: (cut.extend(pids), hands.kill(*pids)))  # type: ignore[func-returns-value]
    done = world.run("watch")
    ssh.join(10)
    assert len(cut) >= 2 and done.returncode == 0, done.stdout
    assert "Done: training completed" in done.stdout
    assert [g.name for g in world.generations()] == ["step-000002"]
    hands.clean(world)


def test_a_byte_that_changed_on_the_way_is_found_before_anything_starts(world: World) -> None:
    path = world.manifest()
    (world.root / "code" / "zeros.bin").write_bytes(b"")
    os.truncate(world.root / "code" / "zeros.bin", 250 * MB)
    assert world.run("up", str(path), "--yes").returncode == 0
    code = hands.inside(world, "/workspace/code/train.py")

    def flip(_: list[int]) -> None:
        text = code.read_bytes()
        os.utime(code)
        code.write_bytes(text[:100] + b"#" + text[101:])

    thread = soon(lambda: [1] if code.exists() and code.stat().st_size else [], flip)
    done = world.run("launch", "--yes")
    thread.join(10)
    assert done.returncode == 4, done.stdout
    assert "/workspace/code/train.py differs on the host: sha256" in done.stdout
    assert "Failed before training: transfer failed" in done.stdout and "Training started" not in done.stdout
    hands.clean(world)


def test_more_than_max_total_is_refused_in_a_sentence(world: World) -> None:
    path = world.manifest(max_total="1MB")
    (world.root / "code" / "data.bin").write_bytes(b"d" * 2 * MB)
    done = world.run("run", str(path), "--yes")
    assert done.returncode == 4, done.stdout
    assert "bytes would be sent, max_total allows 1,000,000; the biggest: data.bin" in done.stdout
    assert not hands.records(world, "transferred")
    hands.clean(world)


def sealed_as(folder: Path) -> Generation:
    """A generation on the rental as its seal will describe it."""
    files = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        files.append(FileHash(path.name, len(data), hashlib.sha256(data).hexdigest()))
    return Generation(folder.name, 3, tuple(files))


def test_a_byte_that_changed_in_a_copy_is_found_and_fetched_again(world: World) -> None:
    """An attempt claims to be complete, and one byte of it is wrong: it is thrown away, and the next one is verified."""
    code = TRAIN.split("beat = open")[0] + "save(3)\nwhile not stop: time.sleep(0.1)\n"
    run = hands.launched(world, code=code, outputs={"mirror": False})
    world.wait("it is published", lambda: hands.published(world))
    generation = sealed_as(hands.inside(world, "/workspace/out/step-000003"))
    digest = content_digest(generation)
    attempt = world.root / "results" / run / ".incoming" / f"step-000003.{digest[:12]}"
    attempt.mkdir(parents=True)
    record = [json.dumps({"content": digest})]
    for index, file in enumerate(generation.files):
        data = hands.inside(world, f"/workspace/out/step-000003/{file.path}").read_bytes()
        if file.path == "weights.bin":
            data = data[:77] + bytes([data[77] ^ 1]) + data[78:]
        (attempt / file.path).write_bytes(data)
        record.append(json.dumps([index, 0, file.size]))
    (attempt / RANGES_FILE).write_text("\n".join(record) + "\n")
    done = world.run("down")
    assert done.returncode == 0, done.stdout
    assert "step-000003: weights.bin has sha256" in done.stdout, "it is found, and said"
    (copy,) = world.generations()
    assert sealed_as(copy).files[-1] == generation.files[-1] and generation.files[-1].path == "weights.bin"
    hands.clean(world)


# --- copying -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """A destination without room: a tiny file system as root, else a folder that may not be written to."""
    place = world.root / "small"
    place.mkdir()
    if os.getuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=True, timeout=20)
    else:
        place.chmod(0o500)
    yield place
    if os.getuid() == 0:
        subprocess.run(["umount", "-l", place], check=True, timeout=20)
    else:
        place.chmod(0o700)


def give_room(place: Path) -> None:
    if os.getuid() == 0:
        subprocess.run(["mount", "-o", "remount,size=50m", place], check=True, timeout=20)
    else:
        place.chmod(0o700)


SHORT = ["python3", "train.py", "3", "0.2", "3"]


def test_a_full_disk_holds_the_rental_until_there_is_room(world: World, small_disk: Path) -> None:
    hands.launched(world, train=SHORT, outputs={"copy_to": "small"})
    hands.until(
        world,
        "a copy failed twice",
        lambda s: any("copy" in rule and a.failures > 1 for (rule, _), a in s.attempts.items()),
    )
    held = world.status()[-1]
    assert held["may_bill"] and held["phase"] == "sealed"
    assert len(world.rentals()) == 1, "held: it may have the only copy"
    give_room(small_disk)
    done = world.run("watch")
    assert done.returncode == 0, done.stdout
    assert "no space at" in world.run("report").stdout or os.getuid()
    assert (small_disk / held["id"] / "step-000003" / "weights.bin").stat().st_size == 131_072
    hands.clean(world)


def test_a_full_disk_until_the_limit_is_forced_then_and_not_before(world: World, small_disk: Path) -> None:
    path = hands.manifest(world, train=SHORT, outputs={"copy_to": "small"}, deadline="18s", hold="8s", setup="15s")
    done = world.run("run", str(path), "--yes")
    assert done.returncode == 6, done.stdout
    for words in (
        "no space at" if not os.getuid() else "cannot write to",
        "Lost: sealed but not copied: step-000003",
        "telemetry",
    ):
        assert words in done.stdout, done.stdout
    s = hands.state(world)
    forced = hands.records(world, "forced")
    elsewhere = [d["by"] for d in hands.records(world, "ended_elsewhere")]
    assert [d["by"] for d in forced] == ["limit"] or elsewhere == ["ended by its own timer"]
    assert s.first_at.get("forced", s.limit) >= s.limit and s.first_at.get("ending", s.limit) >= s.limit - 1
    hands.clean(world)


def test_the_user_may_give_up_a_copy_with_a_reason(world: World, small_disk: Path) -> None:
    hands.launched(world, train=SHORT, outputs={"copy_to": "small"})
    hands.until(world, "a copy failed", lambda s: any(rule.startswith("copy") for rule, _ in s.attempts))
    done = world.run("down", "--force-unverified", "the disk is broken")
    assert done.returncode == 0, done.stdout
    assert "FORCED: ending without a verified copy (the disk is broken)" in done.stdout
    assert "Lost: sealed but not copied: step-000003" in done.stdout and "nothing of this run bills" in done.stdout
    assert json.loads(json.dumps(hands.records(world, "forced")))[0] == {"reason": "the disk is broken", "by": "user"}
    assert "the disk is broken" in world.run("report").stdout
    hands.clean(world)


# --- hosts that die ----------------------------------------------------------------------------------------------------


def test_the_host_dies_while_it_trains(world: World) -> None:
    hands.launched(world, train=["python3", "train.py", "400", "0.3", "3"])
    hands.until(world, "two are mirrored", lambda s: len([g for g in s.rental.work.copied if g.startswith("step")]) > 1)
    with watched(world) as out:
        hands.kill(hands.rental(world)["first"]["pid"])
    done = out()
    assert done.returncode == 6, done.stdout
    for words in (
        "The rental ended without us: ",
        "Training interrupted",
        "nothing of this run bills",
        "checkpoint  ",
    ):
        assert words in done.stdout, f"{words!r} is not shown:\n{done.stdout}"
    copies = [g.name for g in world.generations()]
    (checkpoint,) = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("  checkpoint  ")]
    assert checkpoint.endswith(copies[-1]), done.stdout
    assert "Lost: whatever came after step-" in done.stdout or "and whatever came after it; step-" in done.stdout
    hands.clean(world)


def test_the_host_dies_while_it_is_copied(world: World) -> None:
    code = BIG.replace(
        "if step % every == 0 or stop: save(step)", "if step == 2: save(step)\n    if step == 6: save(step)"
    )
    hands.launched(world, code=code, train=["python3", "train.py", "6", "0.7", "1"])
    hands.until(world, "the first one is mirrored", lambda s: "step-000002" in s.rental.work.copied)
    first = world.generations()[0]
    pid = hands.rental(world)["first"]["pid"]
    killer = soon(
        lambda: [1] if any(p.parent.name.startswith("step-000006") for p in incoming(world)) else [],
        lambda _: hands.kill(pid),
    )
    done = world.run("watch")
    killer.join(10)
    assert done.returncode == 6, done.stdout
    assert "step-000006" in done.stdout.split("Lost: ")[-1], done.stdout
    assert [g.name for g in world.generations()] == ["step-000002"] and (
        first / "optimizer.bin"
    ).stat().st_size == 120 * MB
    hands.clean(world)


def test_the_timer_of_the_rental_dies_and_that_is_said(world: World) -> None:
    """What keeps the rental is killed: it runs on without a timer. Training goes on, the lost layer is named, it ends."""
    hands.launched(world, train=["python3", "train.py", "20", "0.5", "5"])
    hands.until(world, "the timer was read back", lambda s: "provider timer" in s.layers)
    hands.kill(hands.rental(world)["keeper"]["pid"])
    hands.until(world, "the lost layer is noticed", lambda s: "provider timer" not in s.layers)
    shown = world.status()[-1]
    assert any("timer" in a for a in shown["alarms"]) and "provider timer" not in [x["name"] for x in shown["layers"]]
    done = world.run("watch")
    assert done.returncode == 0, done.stdout
    assert [g.name for g in world.generations()] == ["step-000015", "step-000020"]
    hands.clean(world)
