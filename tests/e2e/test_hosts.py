"""Hosts that people really have: each awkward one, with and without rsync, from a plain folder and a git work tree.

docs/reference/hosts.md shows what these lives end with, and each life is held to its row there. After a change on purpose:
`GPUOPS_WRITE_HOSTS=1 pytest tests/e2e/test_hosts.py` writes the rows anew.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e import hands
from e2e.world import POLICY, TRAIN, World
from gpuops_providers.local import isolation

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        isolation.choose("auto") == isolation.PLAIN,
        reason="awkward hosts are made of mounts: bubblewrap does not work here",
    ),
]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hosts.md"
SOURCES = ("directory", "git")
ARRIVED = """
import os, sys
tree = sorted(os.path.relpath(os.path.join(d, n), sys.argv[4]) for d, _, names in os.walk(sys.argv[4]) for n in names)
assert tree == [".gitignore", "model.py", "package/__init__.py"], tree
assert os.environ["CANARY"] == "a secret"
"""
VERDICT = re.compile(r"^(Done: .*|Failed before training: .*|Training \w+; teardown is complete.*)$", re.M)


@dataclass(frozen=True)
class Host:
    """One kind of host. `sent` false: it is refused before anything is sent, so one life tells all there is to tell."""

    name: str
    features: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    place: str = "/workspace"
    exit_code: int = 0
    sent: bool = True
    shown: str = ""
    """Words that somebody who watches the life must see."""


SUDO = {"user": "ubuntu", "sudo": True, "installs": True, "workspace_mode": "0555"}
HOSTS = (
    Host("no tmux", {"missing": ["tmux"]}, shown="tmux missing: training runs in a detached session of its own"),
    Host("python3 only in /opt/conda/bin", {"python": "/opt/conda/bin"}),
    Host(
        "user ubuntu, host.tools: install", SUDO, {"host": {"tools": "install"}}, place="/home/ubuntu/work",
        shown="installed by apt-get with sudo: tmux",
    ),
    Host("noexec /tmp and /dev/shm", {"noexec": ["/tmp", "/dev/shm"]}),
    Host(".bashrc prints", {"bashrc": "echo Welcome to this machine\n"}, shown="the files go as a tar stream"),
    Host(".bashrc sleeps", {"bashrc": "sleep 1\n"}),
    Host(".bashrc changes PATH", {"bashrc": "export PATH=/nowhere\n"}),
    Host("read-only home", {"home": "read-only"}),
    Host("small root disk", {"home_mb": 1}),
    Host("slow start", {"pull_s": 3}, shown="Starting: pulling the image, "),
    Host(
        "restarts once", {"reboots_when": "/workspace/out/step-000002"}, exit_code=6,
        shown="Training ended: interrupted (the host restarted)",
    ),
    Host("user ubuntu, /workspace closed", SUDO, exit_code=4, sent=False),
    Host("no room for outputs", {"workspace_mb": 5}, exit_code=4, sent=False),
    Host(".bashrc hangs", {"bashrc": "sleep 1000\n"}, policy={"ssh_s": 6}, exit_code=4, sent=False),
    Host("a shell and nothing else", {"shell_only": True}, exit_code=4, sent=False),
    Host("image that never comes", {"pull_s": 100_000}, policy={"image_s": 15}, exit_code=4, sent=False),
)  # fmt: skip
CELLS = [(host, rsync) for host in HOSTS for rsync in ((True, False) if host.sent else (True,))]


def transfer(kind: str, world: World, place: str) -> dict[str, Any]:
    """The manifest's entry that sends a source of this kind."""
    if kind == "directory":
        return {"source": "code", "to": f"{place}/code"}
    tree = world.root / "tree"
    (tree / "package").mkdir(parents=True)
    (tree / "cache").mkdir()
    files = {".gitignore": "cache/\n", "model.py": "x = 1\n", "package/__init__.py": "", "cache/big.bin": "ignored"}
    for name, text in files.items():
        (tree / name).write_text(text)
    for command in (
        ["init", "-q"],
        ["add", "."],
        [*"-c user.name=t -c user.email=t@example.org commit -qm one".split()],
    ):
        subprocess.run(["git", *command], cwd=tree, check=True, capture_output=True)
    return {"source": "tree", "to": f"{place}/tree"}


def prepare(world: World, host: Host, rsync: bool) -> Path:
    """The cloud, the configuration and the manifest of one life; both kinds of source go in the same one."""
    features = dict(host.features)
    if not rsync:
        features["missing"] = [*features.get("missing", []), "rsync"]
    if features.get("installs"):
        features["missing"] = [*features.get("missing", []), "tmux"]
    hands.awkward(world, **features)
    numbers = "".join(f"{name} = {value}\n" for name, value in host.policy.items())
    world.configure(POLICY.replace("[policy]\n", f"[policy]\n{numbers}"))
    world.extra["CANARY"] = "a secret"
    place = host.place
    changes: dict[str, Any] = {
        "transfers": [transfer(kind, world, place) for kind in SOURCES],
        "train": {"argv": ["python3", "train.py", "4", "0.25", "2", f"{place}/tree"], "workdir": f"{place}/code"},
        "outputs": {"directory": f"{place}/out"},
        "secrets": ["CANARY"],
        **host.manifest,
    }
    return hands.manifest(world, code=ARRIVED + TRAIN, **changes)


def row(host: Host, rsync: bool, out: str) -> str:
    """What a life shows, as its row of the page."""
    by = "nothing is sent"
    if "Transferred and verified on the host by sha256" in out:
        by = "a tar stream" if "the files go as a tar stream" in out else "rsync"
    started = re.search(r"Training started in (.*);", out)
    verdict = VERDICT.search(out)
    assert verdict, out
    there = ("yes" if rsync else "no") if host.sent else "either"
    return f"| {host.name} | {there} | {by} | {started[1] if started else '-'} | {host.exit_code} | {verdict[1]} |"


def rows_of(page: str) -> list[str]:
    """The rows of the table that is held to these tests."""
    return [line for line in page.split("<!-- lives -->")[1].splitlines() if line.startswith("| ")][1:]


def key(line: str) -> tuple[str, str]:
    """Which life a row is about."""
    cells = [cell.strip() for cell in line.split("|")]
    return cells[1], cells[2]


def write(line: str) -> None:
    """Put a row into the page, under a lock, because several processes test."""
    with PAGE.open("r+") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        before, table, after = page.read().split("<!-- lives -->")
        head = [x for x in table.splitlines() if x.startswith("|")][:2]
        rows = {key(x): x for x in table.splitlines() if x.startswith("| ")} | {key(line): line}
        wanted = [(h.name, t) for h in HOSTS for t in (("yes", "no") if h.sent else ("either",))]
        lines = [*head, *(rows[k] for k in wanted if k in rows)]
        page.seek(0)
        page.truncate()
        page.write("<!-- lives -->".join([before, "\n" + "\n".join(lines) + "\n", after]))


@pytest.mark.parametrize(("host", "rsync"), CELLS, ids=[f"{h.name}-{'rsync' if r else 'no rsync'}" for h, r in CELLS])
def test_a_host_is_used_as_it_is_or_refused_in_one_sentence(world: World, host: Host, rsync: bool) -> None:
    path = prepare(world, host, rsync)
    done = world.run("run", str(path), "--yes")
    assert done.returncode == host.exit_code, done.stdout
    found = row(host, rsync, done.stdout)
    if os.environ.get("GPUOPS_WRITE_HOSTS"):
        write(found)
    assert found in rows_of(PAGE.read_text()), f"docs/reference/hosts.md does not show:\n{found}\n{done.stdout}"
    assert host.shown in done.stdout, done.stdout
    assert world.status()[-1]["phase"] == "closed"
    assert bool(hands.records(world, "listed")) == host.sent
    if host.sent:
        assert "step-000002" in [g.name for g in world.generations()], "what was trained is copied"
    hands.clean(world)


def test_the_page_shows_these_lives_and_explains_each_host() -> None:
    page = PAGE.read_text()
    wanted = [(h.name, t) for h in HOSTS for t in (("yes", "no") if h.sent else ("either",))]
    assert [key(line) for line in rows_of(page)] == wanted
    for host in HOSTS:
        assert f"**{host.name}**" in page, "explained in words"
