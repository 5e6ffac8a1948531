"""The account of the fake Compute Engine: its resources, its clock, and an agenda of what happens by itself.

Everything is changed under one lock. Time is the cloud's own: real time plus an offset that `advance` moves, so that a deadline
of hours can be reached in a test. What bills, from when to when, is kept in `usage` for ever: the truth that tests compare with.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .gcp_answers import already_exists, not_found
from .gcp_schema import Description

SITE = "https://www.googleapis.com/compute/v1/"
"""Links point to the real vendor, as they do there: a client that followed one would leave the fake."""
_PACIFIC = datetime.timezone(datetime.timedelta(hours=-8))
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Settings:
    """How this cloud behaves when nothing is wrong. Durations in seconds; the real ones are minutes."""

    project: str = "fake-project-1"
    project_number: str = "424242424242"
    regions: int = 2
    pending_s: float = 0.05
    """From acceptance until the operation runs."""
    insert_s: float = 0.15
    """From acceptance until an insert is done; the resource cannot be read before."""
    staging_s: float = 0.1
    """Each of PROVISIONING and STAGING."""
    queue_s: float = 1.0
    """PENDING, of FLEX_START."""
    stop_s: float = 0.15
    """STOPPING and SUSPENDING."""
    change_s: float = 0.05
    """Labels, metadata and the like."""
    guest_s: float = 0.1
    """From RUNNING until the guest has written its host key."""
    replace_s: float = 0.3
    """Until an instance group has made a deleted member again."""
    shortest_run_s: float = 30.0
    longest_run_s: float = 120 * 86400.0
    call_s: float = 0.0
    """Every answer takes this much longer."""
    token_s: int = 3600
    page: int = 500
    gpus_all_regions: float = 16.0
    anonymous: bool = False
    """Answer without an Authorization header."""
    scheduling_while_running: bool = False
    """The vendor's document allows setScheduling for a stopped instance only."""
    hosts: bool = False
    """Each instance has an SSH host of its own."""


@dataclass
class Resource:
    """One resource: `body` is what GET shows."""

    plural: str
    scope: str
    body: dict[str, Any]
    shown_from: float = 0.0
    """When lists begin to show it."""
    hidden: bool = False
    """Its insert is still running: the name is taken, and nothing can be read."""
    number: int = 0
    """In the order of creation."""

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def key(self) -> Key:
        return self.plural, self.scope, self.name


@dataclass
class Usage:
    """What one resource has cost in time; `end` is None while it exists."""

    plural: str
    scope: str
    name: str
    id: str
    labels: dict[str, str]
    start: float
    end: float | None = None


@dataclass(order=True)
class _Due:
    at: float
    number: int
    act: Callable[[], None] = field(compare=False)


class Account:
    """One project. Call everything under `lock`."""

    def __init__(self, settings: Settings, description: Description, lock: threading.RLock) -> None:
        self.lock = lock
        self.settings = settings
        self.description = description
        self.resources: dict[Key, Resource] = {}
        self.usage: dict[Key, Usage] = {}
        self.past_usage: list[Usage] = []
        self.guest: dict[str, dict[str, dict[str, str]]] = {}
        """What guests have written, by link of the instance: namespace, key, value."""
        self.console: dict[str, str] = {}
        self.request_ids: dict[tuple[str, str], str] = {}
        self.offset_s = 0.0
        self.hide_s: Callable[[str, str, str], float] = lambda plural, scope, name: 0.0
        """Until lists show a new resource."""
        self._agenda: list[_Due] = []
        self._numbers = itertools.count()
        self._order: dict[str, list[Key]] = {}
        self._random = random.Random()

    # --- time

    def now(self) -> float:
        """The cloud's own time."""
        return time.time() + self.offset_s

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something when this much of the cloud's time has passed."""
        heapq.heappush(self._agenda, _Due(self.now() + seconds, next(self._numbers), act))

    def tick(self) -> None:
        """Do everything that is due, in order."""
        while self._agenda and self._agenda[0].at <= self.now():
            heapq.heappop(self._agenda).act()

    def next_due(self, most: float) -> float:
        """Seconds until something is due; at least a moment, at most `most`."""
        return max(0.001, min(most, self._agenda[0].at - self.now() + 0.001)) if self._agenda else most

    def stamp(self, at: float | None = None) -> str:
        """A time as the vendor writes it: with milliseconds and the offset of its own coast."""
        moment = datetime.datetime.fromtimestamp(self.now() if at is None else at, _PACIFIC)
        return moment.isoformat(timespec="milliseconds")

    # --- names

    def new_id(self) -> str:
        """A number as the vendor gives to everything."""
        return str(self._random.randrange(10**18, 9 * 10**18))

    def fingerprint(self) -> str:
        """What changes with every change."""
        return self._random.randbytes(8).hex() + "="

    def link(self, plural: str, scope: str, name: str) -> str:
        """The full link of a resource."""
        return f"{SITE}projects/{self.settings.project}/{scope}/{plural}/{name}"

    def short(self, plural: str, scope: str, name: str) -> str:
        """The link as messages write it."""
        return f"projects/{self.settings.project}/{scope}/{plural}/{name}"

    # --- resources

    def get(self, plural: str, scope: str, name: str) -> Resource:
        """A resource that can be read; raises the vendor's 404."""
        found = self.resources.get((plural, scope, name))
        if found is None or found.hidden:
            raise not_found(self.short(plural, scope, name))
        return found

    def require_free(self, plural: str, scope: str, name: str) -> None:
        """The name must not be taken, not even by an insert that still runs."""
        if (plural, scope, name) in self.resources:
            raise already_exists(self.short(plural, scope, name))

    def add(self, plural: str, scope: str, kind: str, body: dict[str, Any], hidden: bool = False) -> Resource:
        """A new resource, with what the server fills in; it bills from now on."""
        name = body["name"]
        body.setdefault("id", self.new_id())
        body |= {"kind": f"compute#{kind}", "creationTimestamp": self.stamp()}
        body["selfLink"] = self.link(plural, scope, name)
        area, _, place = scope.partition("/")
        if place:
            body[area[:-1]] = f"{SITE}projects/{self.settings.project}/{scope}"
        made = Resource(plural, scope, body, self.now() + self.hide_s(plural, scope, name), hidden, next(self._numbers))
        self.resources[made.key] = made
        self._order.pop(plural, None)
        self.usage[made.key] = Usage(plural, scope, name, body["id"], dict(body.get("labels", {})), self.now())
        return made

    def remove(self, resource: Resource) -> None:
        """It exists no more, and bills no more."""
        if self.resources.get(resource.key) is resource:
            del self.resources[resource.key]
            self._order.pop(resource.plural, None)
            usage = self.usage.pop(resource.key)
            usage.end = self.now()
            self.past_usage.append(usage)
            self.guest.pop(resource.body.get("selfLink", ""), None)

    def drop(self, plural: str, scope: str, name: str) -> None:
        """Remove what never cost anything: an operation."""
        if self.resources.pop((plural, scope, name), None) is not None:
            self._order.pop(plural, None)

    def forget(self, resource: Resource) -> None:
        """An insert that failed: as if it had never been."""
        self.remove(resource)
        self.past_usage = [u for u in self.past_usage if u.id != resource.body["id"]]

    def listed(self, plural: str, scope: str | None = None) -> Iterator[Resource]:
        """What lists show, in their order, which is that of the names."""
        if plural not in self._order:
            self._order[plural] = sorted(key for key in self.resources if key[0] == plural)
        for key in self._order[plural]:
            if scope is not None and key[1] != scope:
                continue
            found = self.resources[key]
            if not found.hidden and found.shown_from <= self.now():
                yield found


def tail(reference: str) -> str:
    """The last part of a reference: a name."""
    return reference.rstrip("/").rpartition("/")[2]


def place_of(reference: str, default: str) -> str:
    """The scope that a full or partial reference names: `zones/Z`, `regions/R`, `global`."""
    parts = reference.split("/")
    for area in ("zones", "regions"):
        if area in parts[:-2]:
            return f"{area}/{parts[parts.index(area) + 1]}"
    return "global" if "global" in parts else default


def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 text; raises ValueError."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} names no offset")
    return moment.timestamp()
