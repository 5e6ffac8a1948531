"""The files of the cloud: rentals, volumes, usage. They belong to nobody's process, so the cloud outlives gpuops.

    lock  tokens.json  offers.json  faults.json
    ACCOUNT/rentals/ID/   record.json (state)  end.json (timer, as ordered)  armed.json (timer, as the keeper has it)
                          terminate.json (request)  sshd.log  keeper.log  host/ (the disk and /etc of the host)
    ACCOUNT/volumes/NAME/ record.json  data/
    ACCOUNT/usage/        one usage record per billable, kept for ever

Every file is written by rename. Whoever changes a record reads it again under the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import platformdirs

from gpuops import codec
from gpuops.errors import ProviderError, Unreadable, UsageError
from gpuops.marks import parse_name
from gpuops.values import Mark, Money, Time, VolumeUse

from . import offers
from .processes import Process

T = TypeVar("T")
LOCK_PATIENCE_S = 10.0
RentalState = Literal["provisioning", "running", "shutting-down", "terminated"]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class Rental:
    """One rental as the cloud knows it; `state` is in the cloud's own words."""

    id: str
    account: str
    region: str
    offer: str
    name: str
    mark: Mark | None
    state: RentalState
    created_at: Time
    rate: Money
    volumes: tuple[VolumeUse, ...]
    keeper: Process
    create_s: float
    terminate_s: float
    shown_s: float
    python: str
    startup: str = ""
    image: str = ""
    reason: str = ""
    first: Process | None = None
    """The first process of the host."""
    port: int = 0
    boots: int = 1
    """How often its host was started."""
    login: str = "root"
    isolation: str = ""
    ending_since: Time | None = None
    ended_at: Time | None = None
    host: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Volume:
    """Storage that outlives rentals."""

    id: str
    account: str
    region: str
    uuid: str
    size_gb: float
    created_at: Time
    rate: Money


@dataclass(frozen=True, slots=True)
class Usage:
    """What one billable has cost: the invoice's view, kept after everything else is gone."""

    id: str
    kind: str
    account: str
    region: str
    nonce: str
    rate: Money
    start: Time
    end: Time | None


def default_directory() -> Path:
    """Where the cloud lives when nothing else is said."""
    named = os.environ.get("GPUOPS_LOCAL_CLOUD")
    return Path(named) if named else Path(platformdirs.user_data_dir("gpuops-local-cloud", appauthor=False))


class Cloud:
    """One account of the cloud in `directory`."""

    def __init__(self, directory: Path, account: str) -> None:
        if not _NAME.fullmatch(account):
            raise UsageError(f"account {account!r}: lower-case letters, digits and dashes only")
        self.directory = Path(os.path.abspath(directory))
        self.account = account
        self.home = self.directory / account
        for name in ("rentals", "volumes", "usage"):
            (self.home / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def lock(self, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
        """Hold the cloud's lock; raises when it cannot be had in time."""
        give_up = time.monotonic() + patience_s
        with open(self.directory / "lock", "a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise ProviderError(f"the local cloud in {self.directory} is busy: its lock is held") from None
                    time.sleep(0.005)
            yield

    # --- rentals

    def rental_directory(self, rental_id: str) -> Path:
        """The folder of a rental, whether it exists or not; ids that are no ids lead nowhere."""
        return self.home / "rentals" / (rental_id if _NAME.fullmatch(rental_id) else "-")

    def rental(self, rental_id: str) -> Rental | None:
        """One rental; None when there is none, `Unreadable` when its record is damaged."""
        directory = self.rental_directory(rental_id)
        if not directory.is_dir():
            return None
        rental = _read(directory / "record.json", Rental)
        if not isinstance(rental.created_at, float) or rental.id != rental_id:
            raise Unreadable(f"the record of rental {rental_id} is damaged")
        return rental

    def rental_ids(self) -> tuple[str, ...]:
        """Every rental that has a folder, oldest name first."""
        return _entries(self.home / "rentals")

    def add_rental(self, rental: Rental, ends_at: Time) -> None:
        """Make the rental exist: one rename. Call under the lock."""
        new = self.home / "rentals" / f".{rental.id}"
        new.mkdir(mode=0o700)
        self.write_json(new / "record.json", codec.to_json(rental))
        self.write_json(new / "end.json", {"ends_at": ends_at})
        self.write_usage(_usage_of(rental))
        new.rename(self.rental_directory(rental.id))

    def change(self, rental_id: str, how: Callable[[Rental], Rental], patience_s: float = LOCK_PATIENCE_S) -> Rental:
        """Read the rental again, change it and write it, under the lock."""
        with self.lock(patience_s):
            rental = self.rental(rental_id)
            if rental is None:
                raise ProviderError(f"rental {rental_id} does not exist")
            changed = how(rental)
            if changed != rental:
                # Usage first: whoever sees that a rental has ended also finds its bill closed.
                self.write_usage(_usage_of(changed))
                self.write_json(self.rental_directory(rental_id) / "record.json", codec.to_json(changed))
            return changed

    def prune(self, older_than_s: float) -> None:
        """Remove the logs and records of rentals that ended long ago; their usage stays. Call under the lock."""
        for rental_id in self.rental_ids():
            rental = self.rental(rental_id)
            if rental and rental.ended_at and rental.ended_at + max(older_than_s, rental.shown_s) < time.time():
                shutil.rmtree(self.rental_directory(rental_id), ignore_errors=True)

    # --- volumes

    def volume_directory(self, name: str) -> Path:
        """The folder of a volume, whether it exists or not."""
        return self.home / "volumes" / (name if _NAME.fullmatch(name) else "-")

    def volume(self, name: str) -> Volume | None:
        """One volume; None when there is none, `Unreadable` when its record is damaged."""
        directory = self.volume_directory(name)
        return _read(directory / "record.json", Volume) if directory.is_dir() else None

    def volume_ids(self) -> tuple[str, ...]:
        """Every volume that has a folder."""
        return _entries(self.home / "volumes")

    def add_volume(self, name: str, size_gb: float, region: str) -> Volume:
        """Make a volume; its identity lies in its root as `.gpuops-volume`."""
        if not _NAME.fullmatch(name) or region not in offers.REGIONS or size_gb <= 0:
            raise UsageError(f"volume {name!r} of {size_gb} GB in {region!r}: no such name, size or region")
        uuid = "-".join(secrets.token_hex(n) for n in (4, 2, 2, 2, 6))
        volume = Volume(name, self.account, region, uuid, size_gb, time.time(), offers.volume_rate(size_gb))
        with self.lock():
            if self.volume_directory(name).exists():
                raise UsageError(f"volume {name} exists already")
            new = self.home / "volumes" / f".{name}"
            (new / "data").mkdir(parents=True, exist_ok=True, mode=0o755)
            self.write_json(new / "data" / ".gpuops-volume", {"id": name, "uuid": uuid}, mode=0o644)
            self.write_json(new / "record.json", codec.to_json(volume))
            usage = Usage(name, "volume", self.account, region, "", volume.rate, volume.created_at, None)
            self.write_usage(usage, f"volume-{uuid}")
            new.rename(self.volume_directory(name))
        return volume

    def remove_volume(self, volume: Volume) -> None:
        """Delete a volume with its data and close its usage record. Call under the lock."""
        gone = self.home / "volumes" / f".gone-{volume.id}-{secrets.token_hex(3)}"
        self.volume_directory(volume.id).rename(gone)
        usage = Usage(volume.id, "volume", self.account, volume.region, "", volume.rate, volume.created_at, time.time())
        self.write_usage(usage, f"volume-{volume.uuid}")
        shutil.rmtree(gone, ignore_errors=True)

    # --- usage

    def write_usage(self, usage: Usage, name: str = "") -> None:
        """Write one usage record."""
        self.write_json(self.home / "usage" / f"{name or usage.id}.json", codec.to_json(usage))

    def usage(self) -> tuple[Usage, ...]:
        """All usage records, oldest first; raises when one cannot be read."""
        records = [_read(self.home / "usage" / name, Usage) for name in _entries(self.home / "usage")]
        return tuple(sorted(records, key=lambda usage: usage.start))

    # --- small files

    @staticmethod
    def write_json(path: Path, value: Any, mode: int = 0o600) -> None:
        """Write by rename: a reader sees the old content or the new one."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)


def carried(name: str, mark: Mark | None) -> tuple[str, bool]:
    """The nonce from the tags, else from the name; damaged when either is broken or they contradict each other."""
    parsed = parse_name(name)
    if mark is None:
        return (parsed.nonce, parsed.state == "damaged") if parsed else ("", False)
    damaged = parsed is None or parsed.state == "damaged" or parsed.nonce != mark.nonce
    return mark.nonce, damaged


def pulling(rental: Rental) -> str:
    """What takes so long before a host runs."""
    pull_s = float(rental.host.get("pull_s", 0))
    if rental.state != "provisioning" or not pull_s:
        return ""
    part = min(99, int(100 * (time.time() - rental.created_at) / pull_s))
    return f"pulling the image{' ' + rental.image if rental.image else ''}, {part} % (simulated)"


def read_time(path: Path, key: str) -> Time | None:
    """A time out of a small JSON file; None when it is absent or cannot be read."""
    try:
        value = json.loads(path.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _entries(directory: Path) -> tuple[str, ...]:
    """Names in a folder, without those that are just being made or removed."""
    return tuple(sorted(name for name in os.listdir(directory) if not name.startswith(".")))


def _usage_of(rental: Rental) -> Usage:
    nonce = rental.mark.nonce if rental.mark else ""
    return Usage(
        rental.id, "rental", rental.account, rental.region, nonce, rental.rate, rental.created_at, rental.ended_at
    )


def _read(path: Path, kind: type[T]) -> T:
    """Read a record; anything but a good one is an error, never an absence."""
    try:
        return codec.from_json(kind, json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise Unreadable(f"{path.parent.name}/{path.name} of the local cloud cannot be read: {error}") from error
