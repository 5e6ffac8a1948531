"""Few logins, lost connections that are said and survived, and secrets that are nowhere but where they must be."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import hands
from e2e.world import POLICY, TRAIN, World

from gpuops.locks import FileLocks

pytestmark = pytest.mark.e2e

CANARY = "canary-7f3e9a51c2d84b60"


def test_at_most_two_logins_from_up_to_training_and_to_the_end(world: World) -> None:
    """One for the checks; one carries everything else, and the guard takes it over from the command."""
    hands.launched(world, train=["python3", "train.py", "12", "0.3", "3"])
    log = hands.directory(world) / "sshd.log"
    assert 1 <= log.read_text().count("Accepted publickey") <= 2, log.read_text()
    world.closed()
    assert log.read_text().count("Accepted publickey") <= 2, log.read_text()
    assert [g.name for g in world.generations()] == ["step-000009", "step-000012"]
    hands.clean(world)


def test_watch_survives_a_lost_connection_and_says_so(world: World) -> None:
    world.configure(POLICY.replace("[policy]", "[policy]\ncall_s = 5"))
    run = hands.launched(world, train=["python3", "train.py", "30", "0.4", "10"])
    process = world.start("watch")
    world.wait("watch drives", lambda: FileLocks(world.home / "runs").is_driven(run))
    hands.until(world, "it is watched", lambda s: s.rental.work.first_update_at)
    # the host answers nobody for a while: its SSH daemon's children die, and a stopped daemon takes no new login
    daemon = hands.in_rental(world, "[listener]")
    assert len(daemon) == 1, daemon
    os.kill(daemon[0], 19)
    try:
        hands.kill(*world.processes("ControlMaster=yes"))
        world.wait(
            "the loss is recorded", lambda: any(d["rule"] == "status" for d in hands.records(world, "attempted")), 60
        )
    finally:
        os.kill(daemon[0], 18)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    assert "Connection to the host lost" in out and "training goes on there, trying again" in out
    assert "Connection to the host is back" in out
    assert "Done: training completed" in out
    hands.clean(world)


# --- secrets -----------------------------------------------------------------------------------------------------------

TELLS = TRAIN.replace(
    "beat = open",
    "import hashlib\nprint('secret', hashlib.sha256(os.environ['CANARY'].encode()).hexdigest(), flush=True)\nbeat = open",
    1,
)


class Sampler(threading.Thread):
    """Looks at every process's arguments on this machine, rentals included, for a word."""

    def __init__(self, word: str) -> None:
        super().__init__(daemon=True)
        self.word, self.stopped, self.looks = word.encode(), threading.Event(), 0
        self.found: list[bytes] = []

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            self.looks += 1
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        line = Path(f"/proc/{name}/cmdline").read_bytes()
                    except OSError:
                        continue
                    if self.word in line:
                        self.found.append(line)


def files(*roots: Path) -> Iterator[Path]:
    for root in roots:
        for directory, names, plain in os.walk(root):
            names[:] = [n for n in names if n not in ("proc", "sys", "usr", "dev", "lib", "lib64", "bin", "sbin")]
            yield from (Path(directory) / n for n in plain)


def holding(word: str, *roots: Path) -> list[str]:
    """Regular files below `roots` that contain the word."""
    found = []
    for path in files(*roots):
        try:
            if path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


def test_a_secret_is_in_trainings_environment_and_nowhere_else(world: World) -> None:
    world.extra["CANARY"] = CANARY
    sampler = Sampler(CANARY)
    sampler.start()
    hands.launched(world, code=TELLS, train=["python3", "train.py", "20", "0.3", "5"], secrets=["CANARY"])
    hands.until(world, "it trains", lambda s: s.rental.work.first_update_at)

    (training,) = [
        p for p in hands.in_rental(world, "train.py") if b"supervisor" not in Path(f"/proc/{p}/cmdline").read_bytes()
    ]
    assert f"CANARY={CANARY}".encode() in Path(f"/proc/{training}/environ").read_bytes().split(b"\0")
    supervisors = hands.in_rental(world, "supervisor.py")
    assert supervisors and not any(CANARY.encode() in Path(f"/proc/{p}/environ").read_bytes() for p in supervisors)
    own = holding(CANARY, world.home, world.cloud, world.root)
    assert own == [], "journal, logs, keys, bug files, the cloud's own records"
    remote = holding(CANARY, *(hands.inside(world, p) for p in ("/root", "/workspace", "/tmp", "/var", "/run", "/etc")))
    assert remote == [], "nothing on the host outside memory"
    assert holding(CANARY, hands.inside(world, "/dev/shm")) == [], "and that file is removed once training has it"

    done = world.run("down")
    sampler.stopped.set()
    sampler.join()
    assert done.returncode == 0, done.stdout
    logs = world.run("logs").stdout
    assert hashlib.sha256(CANARY.encode()).hexdigest() in logs, "training had it"
    report = world.run("report").stdout
    assert CANARY not in done.stdout + logs + report
    assert sampler.looks > 20 and sampler.found == [], "no argument of any process"
    assert holding(CANARY, world.home, world.cloud, world.root) == []
    hands.clean(world)


def test_a_secret_without_a_value_is_refused_before_anything_starts(world: World) -> None:
    done = world.run("run", str(world.manifest(secrets=["NO_SUCH_SECRET"])), "--yes")
    assert done.returncode != 0, done.stdout
    assert "NO_SUCH_SECRET" in done.stdout
    assert world.creates() == 0, "known before money is spent"
    assert done.returncode == 2, done.stdout
