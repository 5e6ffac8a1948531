"""Training that goes wrong in every way, and checkpoints that are not what they seem: the run still comes down whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
from e2e import hands
from e2e.world import POLICY, TRAIN, World

pytestmark = pytest.mark.e2e

# Publishes two good generations; each test appends what the program does then.
TWO = TRAIN.split("beat = open")[0] + "save(3); save(6)\n"


def ran(world: World, code: str, exit_code: int, *words: str, **changes: Any) -> str:
    """`run` to its end: the exit code, the words, nothing that bills, the log kept, nothing raw on the screen."""
    done = world.run("run", str(hands.manifest(world, code=code, **changes)), "--yes", "--accept-loss", "a test")
    assert done.returncode == exit_code, done.stdout
    for word in words:
        assert word in done.stdout, f"{word!r} is not shown:\n{done.stdout}"
    assert "nothing of this run bills" in done.stdout
    hands.only_printable(done.stdout)
    hands.clean(world)
    assert len(list((world.root / "results").glob("*/telemetry/train.log"))) == 1
    return done.stdout


def names(world: World) -> list[str]:
    return [g.name for g in world.generations()]


# --- how training ends -------------------------------------------------------------------------------------------------


def test_it_fails_at_once(world: World) -> None:
    ran(
        world, "import sys; sys.exit('no such data set')", 6, "Training ended: failed", "exit 1",
        "no complete generation was published", "Training failed; teardown is complete",
    )  # fmt: skip
    assert names(world) == []
    assert "no such data set" in world.run("logs").stdout


def test_it_hangs_and_the_wall_clock_ends_it(world: World) -> None:
    train = {"wall_clock": "3s", "grace": "2s"}
    ran(
        world, TWO + "while not stop: time.sleep(0.1)\n", 6, "Training ended: interrupted",
        "wall clock of the manifest reached", "Training interrupted", train=train,
    )  # fmt: skip
    assert names(world) == ["step-000003", "step-000006"]


def test_it_hangs_without_a_wall_clock_and_the_deadline_ends_it(world: World) -> None:
    """Sealed and copied before the deadline, although the program neither ends nor answers."""
    world.configure(POLICY.replace("copy_margin_s = 3", "copy_margin_s = 8"))
    with hands.at_most(95):
        out = ran(
            world, TWO + "while True: time.sleep(0.1)\n", 6, "Going down: deadline", "ignored SIGTERM for 1 s",
            "Training aborted", deadline="40s", hold="15s", setup="15s", train={"grace": "1s"},
        )  # fmt: skip
    assert names(world) == ["step-000003", "step-000006"]
    assert "FORCED" not in out
    s = hands.state(world)
    assert s.first_at["ending"] < s.deadline, "sealed and copied by the deadline"


def test_it_fills_the_disk(world: World) -> None:
    hands.awkward(world, workspace_mb=30)
    code = TWO + "f = open(out + '/.tmp-big', 'wb')\nwhile True: f.write(b'x' * 100_000); f.flush()\n"
    ran(world, code, 6, "Training ended: failed")
    assert names(world) == ["step-000003", "step-000006"], "what was complete is copied"
    assert "No space left on device" in world.run("logs").stdout


def test_nothing_raw_reaches_the_screen(world: World) -> None:
    """Binary output, escape sequences in the log, in heartbeats and in the names of generations."""
    evil = r"""
evil = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
sys.stdout.buffer.write(bytes(range(256)) * 40 + evil.encode() + b"the end\n"); sys.stdout.flush()
beat = open(os.path.join(out, "heartbeat.jsonl"), "a", buffering=1)
for n in range(12):
    beat.write(json.dumps({"v": 1, "step": evil, "loss": evil, "tps": evil, "state": evil, evil: evil}) + "\n"); time.sleep(0.25)
os.rename(os.path.join(out, "step-000006"), os.path.join(out, "step-" + evil + "9"))
sys.exit(evil + "bad end")
"""
    out = ran(world, TWO + evil, 6, "  step \\x1b", "\\x1b", "refused a generation")
    assert "step-000003" in names(world), "and the generation that can be carried is copied"
    for arguments in (("logs",), ("report",), ("status", "--all")):
        shown = world.run(*arguments).stdout
        hands.only_printable(shown)
    assert "the end" in world.run("logs").stdout and "owned" in out


def test_exit_0_without_any_generation_is_no_success(world: World) -> None:
    code = "import os; os.makedirs(os.environ['GPUOPS_OUTPUT_DIR'] + '/.tmp-1'); print('all fine')"
    ran(world, code, 6, "Sealed: training ended (exit code 0", "no complete new generation", "Training ended; teardown")
    assert names(world) == []


def test_training_goes_on_from_a_generation(world: World) -> None:
    """A copy travels back, and the program gets its path both ways; one that is not there is refused before it starts."""
    code = TRAIN.replace(
        "first = 0\n", "first = 0\nprint('resumed', sys.argv[4:], os.environ.get('GPUOPS_RESUME'))\n", 1
    )
    back = world.root / "back" / "step-000006"
    back.mkdir(parents=True)
    (back / "state.json").write_text('{"step": 6}')
    transfers = [{"source": "code", "to": "/workspace/code"}, {"source": "back", "to": "/workspace/back"}]
    path = hands.manifest(world, code=code, transfers=transfers, train=["python3", "train.py", "3", "0.2", "3"])
    done = world.run("run", str(path), "--yes", "--resume", "/workspace/back/step-000006")
    assert done.returncode == 0, done.stdout
    assert names(world) == ["step-000009"]
    assert "resumed ['--resume', '/workspace/back/step-000006'] /workspace/back/step-000006" in world.run("logs").stdout
    missing = world.run("run", str(path), "--yes", "--resume", "step-000099")
    assert missing.returncode == 6, missing.stdout
    assert "there is no generation to resume from at /workspace/out/step-000099" in missing.stdout
    assert world.rentals() == []


# --- what it leaves ----------------------------------------------------------------------------------------------------

DAMAGE = r"""
save(9); save(12); save(15); save(18); save(21)
def there(step, name): return os.path.join(out, f"step-{step:06d}", name)
os.truncate(there(9, "weights.bin"), 1000)
with open(there(12, "weights.bin"), "r+b") as f:
    f.seek(5000); byte = f.read(1); f.seek(5000); f.write(bytes([byte[0] ^ 1]))
os.unlink(there(15, "optimizer.bin"))
os.unlink(there(18, "MANIFEST.json"))
open(there(21, "MANIFEST.json"), "w").write('{"files": [')
os.makedirs(os.path.join(out, ".tmp-24"))
"""


def test_whatever_is_damaged_the_newest_complete_one_is_found(world: World) -> None:
    """Truncated, a flipped bit, a missing file, half published, a torn list: each is passed over, and that is said."""
    load = ["python3", "-c", "import os, sys; sys.exit('step-000006' in sys.argv[1])", "{generation}"]
    out = ran(
        world, TWO + DAMAGE, 0,
        "step-000009: weights.bin has 1000 bytes instead of 131072", "step-000012: weights.bin differs",
        "step-000015: optimizer.bin is missing", "step-000021: its MANIFEST.json cannot be used",
        "step-000006: the load command ended with 1",
        outputs={"mirror": False, "load_check": load},
    )  # fmt: skip
    assert "passed over" in out
    # the one that loads is the checkpoint; the newest whole one comes along, because the host is gone afterwards
    assert names(world) == ["step-000003", "step-000006"]
    assert re.search(r"checkpoint +\S+/step-000003", out), out


def test_a_damaged_newest_one_does_not_keep_the_whole_ones_from_being_mirrored(world: World) -> None:
    code = TWO + DAMAGE + "while not stop: time.sleep(0.1)\n"
    hands.launched(world, code=code)
    hands.until(world, "the newest whole one is mirrored", lambda s: "step-000006" in s.rental.work.copied)
    assert [g.name for g in world.generations()] == ["step-000006"]
    done = world.run("down")
    assert done.returncode == 0, done.stdout
    hands.clean(world)


def test_nothing_complete_means_no_verified_result(world: World) -> None:
    code = TWO + DAMAGE + "import shutil\nfor n in (3, 6): shutil.rmtree(there(n, ''))\n\n"
    out = ran(world, code, 6, "no complete generation was published", "Training ended; teardown is complete")
    assert names(world) == [] and "Copied and verified from disk: step" not in out
