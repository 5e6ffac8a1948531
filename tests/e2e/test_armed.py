"""The guard counts as a layer only when it has shown, from its own process, that it reaches the account."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from e2e import hands
from e2e.world import World

pytestmark = pytest.mark.e2e


def test_a_guard_that_has_not_got_the_key_ends_nothing_so_nothing_is_bought(world: World) -> None:
    """It keeps the environment of the shell that started it; another shell's key does not reach it."""
    world.cloud.mkdir(parents=True, exist_ok=True)
    (world.cloud / "tokens.json").write_text(json.dumps({"default": "good"}))
    guard = subprocess.Popen([sys.executable, "-m", "gpuops", "guard"], env=world.env, cwd=world.root)
    try:
        world.wait("the guard holds its lock", lambda: (world.home / "guard.lock").exists())
        world.extra["LOCAL_TOKEN"] = "good"
        done = world.run("up", str(world.manifest()), "--yes")
        assert done.returncode == 3, done.stdout
        assert "the guard on this computer cannot end it: LOCAL_TOKEN is not good" in done.stdout
        assert "Nothing was bought" in done.stdout and world.creates() == 0
    finally:
        guard.kill()
        guard.wait()
    # the next command starts a guard from its own environment
    done = world.run("up", str(world.manifest()), "--yes")
    assert done.returncode == 0, done.stdout
    assert hands.records(world, "armed") == [{"layer": "guard on this computer", "account": "default"}]
    assert world.run("down").returncode == 0
