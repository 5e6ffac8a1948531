"""What tests do behind gpuops's back: to the cloud, to a rental, to its processes and to what it holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from e2e.world import World

from gpuops.fold import fold
from gpuops.journal import SqliteJournal
from gpuops.state import RunState


def faults(world: World, **switches: Any) -> None:
    """Set the cloud's fault switches; without any, all are off."""
    world.cloud.mkdir(parents=True, exist_ok=True)
    _write(world.cloud / "faults.json", switches)


def awkward(world: World, **host: Any) -> None:
    """The cloud's A100 has awkward hosts from now on."""
    world.cloud.mkdir(parents=True, exist_ok=True)
    offer = {
        "id": "local.sim-a100-80", "device": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "per_hour": "1.20",
        "host": host,
    }  # fmt: skip
    _write(world.cloud / "offers.json", [offer])


def rental(world: World) -> dict[str, Any]:
    """The cloud's own record of the newest rental."""
    records = [json.loads(p.read_text()) for p in (world.cloud / "default" / "rentals").glob("r-*/record.json")]
    return max(records, key=lambda r: float(r["created_at"]))


def directory(world: World) -> Path:
    """The cloud's folder of the newest rental: its logs stay after its end."""
    return world.cloud / "default" / "rentals" / str(rental(world)["id"])


def inside(world: World, path: str) -> Path:
    """A path as the rental's processes see it."""
    found = rental(world)
    if found["isolation"].startswith("plain"):
        return Path(path)
    return Path(f"/proc/{found['first']['pid']}/root") / path.lstrip("/")


def in_rental(world: World, word: str) -> list[int]:
    """Processes of the newest rental with `word` in argv; its first process is not among them."""
    found = rental(world)
    marker = f"GPUOPS_LOCAL_RENTAL={found['id']}".encode()
    pids = []
    for pid in (int(n) for n in os.listdir("/proc") if n.isdigit()):
        with contextlib.suppress(OSError):
            if word.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes() or pid == found["first"]["pid"]:
                continue
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            same_space = os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{found['first']['pid']}/ns/pid")
            plain = found["isolation"].startswith("plain")
            if marker in environ or (same_space and not plain):
                pids.append(pid)
    return pids


def state(world: World) -> RunState:
    """The newest run, from the journal."""
    journal = SqliteJournal(world.home / "journal.db")
    found = fold(journal.records(journal.runs()[-1]))
    assert found is not None
    return found


def records(world: World, kind: str) -> list[dict[str, Any]]:
    """The data of all records of one kind of the newest run."""
    journal = SqliteJournal(world.home / "journal.db")
    return [r.event.data for r in journal.records(journal.runs()[-1]) if r.event.kind == kind]


def manifest(world: World, **changes: Any) -> Path:
    """Like `world.manifest`, but a mapping changes only the keys that it names within its section."""
    plain = {k: v for k, v in changes.items() if not isinstance(v, dict)}
    path = world.manifest(**plain)
    document = yaml.safe_load(path.read_text())
    for section, keys in changes.items():
        if isinstance(keys, dict):
            document[section] = {**document.get(section, {}), **keys}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def launched(world: World, **changes: Any) -> str:
    """`up` and `launch` a short life and return the run's id."""
    path = manifest(world, **changes)
    for arguments in (("up", str(path), "--yes", "--accept-loss", "a test"), ("launch", "--yes")):
        done = world.run(*arguments)
        assert done.returncode == 0, done.stdout
    return state(world).run


def until(world: World, what: str, condition: Any, timeout: float = 40) -> None:
    """Wait until the newest run's state fulfils a condition."""
    runs = lambda: (world.home / "journal.db").exists() and SqliteJournal(world.home / "journal.db").runs()  # noqa: E731
    world.wait(what, lambda: runs() and condition(state(world)), timeout)


def published(world: World, count: int = 1) -> bool:
    """The training on the rental has published at least so many generations."""
    return len(list(inside(world, "/workspace/out").glob("step-*"))) >= count


def clean(world: World) -> None:
    """Nothing bills, by the cloud's own word, and one create call led to one rental."""
    assert world.rentals() == []
    assert world.creates() <= 1


def kill(*pids: int) -> None:
    """SIGKILL for exactly these."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def only_printable(text: str) -> None:
    """Nothing raw reached the screen."""
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), ascii(text)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """What is bounded must be seen to be bounded."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


def _write(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)
