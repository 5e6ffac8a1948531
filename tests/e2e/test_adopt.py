"""The journal is lost, with every key: another computer adopts what runs, and brings it down whole."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import hands
from e2e.world import POLICY, World

pytestmark = pytest.mark.e2e


@pytest.fixture
def identity(world: World) -> Path:
    """A key of the user's own, which every rental of the first home accepts."""
    key = world.root / "id_user"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True, timeout=20)
    world.configure(POLICY + f'\n[ssh]\nauthorized_keys = ["{key}.pub"]\n')
    return key


@pytest.fixture
def second(world: World, identity: Path) -> Iterator[World]:
    """A second home: credentials, the user's key, nothing else."""
    made = World(world.root, world.home.parent / "second", world.cloud)
    made.configure(POLICY + f'\n[ssh]\nidentity_file = "{identity}"\n')
    yield made
    made.end()


def lose(world: World) -> None:
    """The first computer is gone: its guard, its connections, its journal and its keys."""
    hands.kill(*world.processes())
    shutil.rmtree(world.home)


def test_a_second_home_adopts_watches_seals_copies_and_ends(world: World, second: World) -> None:
    run = hands.launched(world, train=["python3", "train.py", "400", "0.3", "3"])
    hands.until(world, "something is published", lambda s: s.rental.work.status and s.rental.work.status.generations)
    lose(world)
    assert not second.status()
    adopted = second.run("adopt", "--yes")
    assert adopted.returncode == 0, adopted.stdout
    for words in (f"Adopted {run}", "It bills; limit 20", f"copied to {world.root / 'results'}", f"gpuops down {run}"):
        assert words in adopted.stdout, adopted.stdout
    # nothing is interrupted by it: the new guard watches and mirrors
    hands.until(second, "it is watched", lambda s: s.phase == "training" and s.rental.work.first_update_at)
    newest = hands.state(second).rental.work.status.generations[-1]
    hands.until(second, "it is mirrored", lambda s: any(g >= newest for g in s.rental.work.copied), 40)
    assert not second.run("extend", "--by", "-1m").returncode
    shell = second.start("ssh", run)
    shell.communicate(timeout=30)
    assert "Nothing to adopt" in second.run("adopt", "--yes").stdout
    done = second.run("down")
    assert done.returncode == 0, done.stdout
    for words in (
        "Sealed: training interrupted",
        "Copied and verified from disk",
        "round 2 of 2",
        "nothing of this run bills",
    ):
        assert words in done.stdout, done.stdout
    assert "Lost" not in done.stdout
    assert len(world.generations()) == 2 and world.rentals() == [] and world.creates() == 1


def test_without_any_key_it_is_held_and_what_can_be_done_is_said(world: World, second: World, identity: Path) -> None:
    """No access: what it holds is unknown, so it ends at the limit in its mark or by the user's reason, and not before."""
    hands.launched(world, train=["python3", "train.py", "400", "0.3", "3"])
    lose(world)
    second.configure(POLICY)
    adopted = second.run("adopt", "--yes")
    assert adopted.returncode == 0, adopted.stdout
    assert "does not tell what was planned" in adopted.stdout and "--force-unverified" in adopted.stdout
    assert second.status()[-1]["may_bill"] and len(world.rentals()) == 1
    process = second.start("down")
    hands.until(second, "sealing was tried", lambda s: any(rule == "seal" for rule, _ in s.attempts))
    assert len(world.rentals()) == 1, "it may hold the only copy"
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 5, out
    done = second.run("down", "--force-unverified", "the keys are lost")
    assert done.returncode == 0, done.stdout
    assert "FORCED" in done.stdout and world.rentals() == []


def test_another_host_behind_the_address_is_not_adopted_blindly(world: World, second: World) -> None:
    """The mark says which key the host has: one that presents another is never logged in to."""
    hands.faults(world, own_host_key=True)
    path = hands.manifest(world, checks={"on_failure": "hold", "free": "10MB"})
    process = world.start("up", str(path), "--yes")
    hands.until(world, "it is held", lambda s: any(p.work.checked_at for p in s.purchases.values()))
    process.kill()
    process.wait(timeout=20)
    lose(world)
    adopted = second.run("adopt", "--yes")
    assert "the host presents the key SHA256:" in adopted.stdout and "the mark says SHA256:" in adopted.stdout
    assert "Accepted publickey" not in (hands.directory(world) / "sshd.log").read_text()
    done = second.run("down", "--force-unverified", "it is somebody else")
    assert done.returncode == 0 and world.rentals() == [], done.stdout


def test_ready_but_never_launched_needs_no_copy(world: World, second: World) -> None:
    assert world.run("up", str(world.manifest()), "--yes").returncode == 0
    lose(world)
    adopted = second.run("adopt", "--yes")
    assert adopted.returncode == 0 and "nothing was launched on it" in adopted.stdout, adopted.stdout
    done = second.run("down")
    assert done.returncode == 0 and "Nothing of this run bills" in done.stdout, done.stdout
    assert world.rentals() == [] and world.creates() == 1


def test_a_run_that_another_home_on_this_computer_tends_is_not_taken_over_without_a_word(
    world: World, second: World
) -> None:
    run = hands.launched(world, train=["python3", "train.py", "400", "0.3", "3"])
    asked = second.run("adopt")
    assert asked.returncode == 2 and second.status() == [], asked.stdout
    assert f"{run} is tended by your other home {world.home} on this computer, whose guard is at work" in asked.stdout
    seen = second.run("reconcile")
    assert "yours, not here" in seen.stdout and f"next: gpuops adopt {run}" in seen.stdout, seen.stdout
    assert world.run("down").returncode == 0 and world.rentals() == []
