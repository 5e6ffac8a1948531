"""What goes wrong in one life, drawn from its seed before it begins, so that faults can be dropped one by one."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

START = 1_800_000_000.0
MAX_VISIBILITY_S = 600.0
MAX_OUTAGE_S = 600.0
MAX_LIE_S = 300.0
ECLIPSE_S = 8.0
"""For this long, look and listing may both miss a rental that bills: shorter than the gap between two rounds of a proof."""
ECLIPSE_APART_S = 120.0
ACCEPT_S = 28.0
PAUSE_S = 26 * 3600.0
SENTINEL_EVERY_S = 300.0

Window = tuple[float, float]


@dataclass(frozen=True)
class Lives:
    """The fate of one operator: when each of its lives is killed, and when it sleeps."""

    kills: tuple[tuple[int, str], ...] = ()
    """(n, before or after): each life ends at its n-th append or outside effect; (n, asleep): it sleeps 26 h after it."""
    restart_s: tuple[float, ...] = ()
    """After each kill the user starts it again after this long; shorter than `kills`: not any more."""
    pauses: tuple[tuple[int, float], ...] = ()
    """(n, seconds): asleep at the n-th port call of a life."""
    clock_skew_s: float = 0.0
    wall_skew_s: float = 0.0

    @property
    def asleep_s(self) -> float:
        """How long it sleeps in all."""
        return sum(s for _, s in self.pauses) + PAUSE_S * sum(kind == "asleep" for _, kind in self.kills)


@dataclass(frozen=True)
class Faults:
    """One life. The defaults are a calm one: everything works, one operator, one guard."""

    seed: int = 0
    # what is asked for
    rate: float = 2.0
    cap: float = 12.0
    billing_unit_s: int = 1
    deadline_s: float = 3600.0
    hold_s: float = 600.0
    setup_s: float = 1200.0
    when: str = "ended"
    keep_failed_s: float = 0.0
    mirror: bool = True
    resumes: int = 0
    # what the user does
    style: str = "run"
    """run, detach (after launch), hesitate (never launches), down (wants it closed at `act_s`), force (at `act_s`), extend."""
    act_s: float = 1200.0
    second: bool = False
    second_s: float = 300.0
    # training
    train_s: float = 1500.0
    outcome: str = "completed"
    publish_every_s: float = 240.0
    generation_bytes: int = 200_000_000
    copy_bytes_per_s: float = 20e6
    # the create call
    refusals: int = 0
    create: str = "answered"
    """answered, lost (accepted, no answer), dropped (not accepted, no answer), error (5xx after acceptance), limited, slow."""
    twin: bool = False
    late_refusal: bool = False
    boot_s: float = 40.0
    # what the provider shows
    seen_after_s: float = 0.0
    listed_after_s: float = 0.0
    lag_guaranteed: bool = False
    gap_part: float = 0.0
    lies: tuple[tuple[float, float, str], ...] = ()
    eclipses: bool = False
    outages: tuple[Window, ...] = ()
    limited_part: float = 0.0
    slow_part: float = 0.0
    # ends
    ignored_terminates: int = 0
    terminate_s: float = 5.0
    lost_terminates: int = 0
    timer: str = "fires"
    """none, fires, late, never."""
    reclaim_s: float = 0.0
    reclaims: int = 1
    """So many rentals in a row are taken away, each that long after the last one was made."""
    keeps_disk: bool = False
    """A machine's own disk stays when the machine ends, and bills on."""
    sticky_keys: int = 0
    """So many requests to remove a free object fail: something still uses it."""
    clone_s: float = 0.0
    rename_s: float = 0.0
    """Somebody gives our rental another name at the console; its tag stays."""
    others: bool = False
    # the host and the store
    vanish_s: float = 0.0
    reboot_s: float = 0.0
    unreachable: tuple[Window, ...] = ()
    ignores_stop: bool = False
    rotten: bool = False
    """The newest generation on the host never matches its hash list."""
    corrupt_part: float = 0.0
    broken_part: float = 0.0
    disk_full: tuple[Window, ...] = ()
    # this computer
    asleep: Window = (0.0, 0.0)
    """This computer sleeps: its operators and its guard, wherever they are."""
    guard_keyless: Window = (0.0, 0.0)
    """The guard has no key of this account: it was started without, or the key expired."""
    revoked: Window = (0.0, 0.0)
    """The key is refused for a while, for everybody."""
    journal_full: tuple[Window, ...] = ()
    on_file: bool = False
    sentinel: bool = True
    operator: Lives = field(default_factory=Lives)
    other: Lives = field(default_factory=Lives)
    guard: Lives = field(default_factory=Lives)

    @property
    def calm_from(self) -> float:
        """True time after which nothing new goes wrong, except a pause that is still running."""
        return START + self.deadline_s + self.hold_s + 3 * 3600

    @property
    def longest_pause(self) -> float:
        """The longest time for which the guard on this computer may be asleep or dead."""
        downtime = sum(self.guard.restart_s) + 60.0 * len(self.guard.kills)
        # one that never had the key is no layer, and nothing may be bought
        without_key = self.guard_keyless[1] - self.guard_keyless[0] if self.guard_keyless[0] > 0 else 0.0
        return self.guard.asleep_s + downtime + (self.asleep[1] - self.asleep[0]) + without_key

    def injected(self) -> int:
        """How many kinds of faults this life has."""
        calm = Faults()
        return sum(getattr(self, f) != getattr(calm, f) for f in FAULTS)


FAULTS: tuple[str, ...] = (
    "refusals", "create", "twin", "late_refusal", "seen_after_s", "listed_after_s", "gap_part", "lies", "eclipses",
    "outages", "limited_part", "slow_part", "ignored_terminates", "terminate_s", "lost_terminates", "timer",
    "reclaim_s", "reclaims", "sticky_keys", "keeps_disk", "clone_s", "rename_s", "others", "vanish_s", "reboot_s", "unreachable",
    "ignores_stop", "rotten", "corrupt_part", "broken_part", "disk_full", "asleep", "guard_keyless", "revoked",
    "journal_full", "second", "operator", "other", "guard", "on_file", "outcome",
)  # fmt: skip
"""The fields that a shrunk life sets back to calm, where the violation stays."""


def draw(seed: int) -> Faults:
    """The life of a seed: how rough it is differs, so that most lives get through some part of the way undisturbed."""
    r = random.Random(f"life {seed}")
    rough = r.choice((0.0, 0.1, 0.2, 0.4, 0.7))
    changes: dict[str, Any] = {"seed": seed, **_asked(r), **_host(r, rough), **_cloud(r, rough), **_ends(r, rough)}
    changes["operator"] = _lives(r, rough, restarts=True)
    changes["other"] = _lives(r, rough, restarts=False)
    guard = _lives(r, rough, restarts=True)
    changes["guard"] = dataclasses.replace(guard, restart_s=tuple(min(s, 300.0) for s in guard.restart_s) + (60.0,) * 3)
    if r.random() < 0.1 * rough:
        changes["guard_keyless"] = (r.choice((0.0, r.uniform(100, 6000))), changes["deadline_s"] + 7200)
    if r.random() < 0.2 * rough:
        begin = r.uniform(0, 6000)
        changes["asleep"] = (begin, begin + r.choice((300.0, 3600.0, PAUSE_S)))
    if r.random() < 0.15 * rough:
        changes["revoked"] = _windows(r, 1, 9000, 1800)[0]
    if r.random() < 0.05 * (rough > 0):
        changes["journal_full"] = _windows(r, 1, 6000, 1800)
    changes["on_file"] = seed % 50 == 0
    changes["sentinel"] = r.random() < 0.7
    return Faults(**changes)


def _asked(r: random.Random) -> dict[str, Any]:
    deadline_s = r.choice((1800.0, 3600.0, 7200.0))
    rate = r.choice((0.5, 2.0, 16.0))
    hold_s = r.choice((300.0, 900.0))
    enough = rate * (deadline_s + hold_s) / 3600
    return {
        "rate": rate,
        "cap": round(enough * r.choice((0.6, 1.0, 1.05, 2.2, 4.0)), 2),
        "billing_unit_s": r.choice((1, 1, 1, 60, 3600)),
        "deadline_s": deadline_s,
        "hold_s": hold_s,
        "setup_s": r.choice((300.0, 1200.0)),
        "when": r.choice(("ended", "ended", "ended", "manual")),
        "keep_failed_s": r.choice((0.0, 0.0, 600.0)),
        "mirror": r.random() < 0.8,
        "resumes": r.choice((0, 0, 1, 2)),
        "style": r.choice(("run", "run", "run", "detach", "hesitate", "down", "down", "force", "extend")),
        "act_s": r.uniform(10, 1.2 * deadline_s),
        "second": r.random() < 0.4,
        "second_s": r.uniform(1, deadline_s),
        "train_s": r.choice((60.0, deadline_s * 0.3, deadline_s * 0.6, deadline_s * 3)),
        "outcome": r.choice(("completed", "completed", "completed", "failed")),
        "publish_every_s": r.choice((45.0, 240.0, 900.0)),
        "generation_bytes": r.choice((2_000_000, 200_000_000, 2_000_000_000)),
        "copy_bytes_per_s": r.choice((8e6, 20e6, 100e6)),
        "boot_s": r.choice((5.0, 40.0, 240.0)),
    }


def _cloud(r: random.Random, rough: float) -> dict[str, Any]:
    def some(part: float = 1.0) -> bool:
        return r.random() < rough * part

    modes = ("lost", "lost", "dropped", "error", "limited", "slow")
    return {
        "refusals": r.choice((1, 3)) if some(0.2) else 0,
        "create": r.choice(modes) if some() else "answered",
        "twin": some(0.5),
        "late_refusal": some(0.1),
        "seen_after_s": r.uniform(0, MAX_VISIBILITY_S) if some(0.5) else 0.0,
        "listed_after_s": r.uniform(0, MAX_VISIBILITY_S) if some(0.7) else 0.0,
        "lag_guaranteed": r.random() < 0.5,
        "gap_part": r.uniform(0, 0.5) if some() else 0.0,
        "lies": tuple(_lie(r) for _ in range(r.randint(1, 4))) if some() else (),
        "eclipses": some(),
        "outages": _windows(r, r.randint(1, 3), 9000, MAX_OUTAGE_S) if some() else (),
        "limited_part": r.uniform(0, 0.3) if some() else 0.0,
        "slow_part": r.uniform(0, 0.2) if some() else 0.0,
        "others": some(),
        "clone_s": r.uniform(1000, 5000) if some(0.5) else 0.0,
        "rename_s": r.uniform(10, 5000) if some(0.3) else 0.0,
    }


def _ends(r: random.Random, rough: float) -> dict[str, Any]:
    def some(part: float = 1.0) -> bool:
        return r.random() < rough * part

    return {
        "ignored_terminates": r.randint(1, 6) if some() else 0,
        "terminate_s": r.choice((0.0, 5.0, 60.0, 300.0)) if some() else 5.0,
        "lost_terminates": r.randint(1, 3) if some() else 0,
        "timer": r.choice(("none", "late", "never")) if some() else "fires",
        "reclaim_s": r.uniform(1, 3000) if some(0.4) or r.random() < 0.2 else 0.0,
        "reclaims": r.choice((1, 1, 2, 3)),
        "sticky_keys": r.choice((1, 5, 40)) if some(0.3) else 0,
        "keeps_disk": some(0.3),
    }


def _host(r: random.Random, rough: float) -> dict[str, Any]:
    def some(part: float = 1.0) -> bool:
        return r.random() < rough * part

    return {
        "vanish_s": r.uniform(1, 5000) if some(0.4) else 0.0,
        "reboot_s": r.uniform(1, 5000) if some(0.3) else 0.0,
        "unreachable": _windows(r, r.randint(1, 4), 6000, 900) if some() else (),
        "ignores_stop": some(0.3),
        "rotten": some(0.3),
        "corrupt_part": r.uniform(0, 0.6) if some() else 0.0,
        "broken_part": r.uniform(0, 0.4) if some() else 0.0,
        "disk_full": _windows(r, 1, 6000, 3000) if some(0.4) else (),
    }


def _lie(r: random.Random) -> tuple[float, float, str]:
    begin = r.uniform(0, 7000)
    return begin, begin + r.uniform(5, MAX_LIE_S), r.choice(("absent", "terminal", "running", "stopped", "unknown"))


def _windows(r: random.Random, number: int, within: float, longest: float) -> tuple[Window, ...]:
    begins = sorted(r.uniform(0, within) for _ in range(number))
    return tuple((b, b + r.uniform(1, longest)) for b in begins)


def _lives(r: random.Random, rough: float, *, restarts: bool) -> Lives:
    kills: tuple[tuple[int, str], ...] = ()
    if r.random() < rough:
        kills = tuple((r.choice((r.randint(1, 12), r.randint(1, 60))), r.choice(("before", "after"))) for _ in range(3))
    kills = kills[: r.randint(0, 3)]
    alive = r.randint(0, len(kills)) if restarts else 0
    pauses: tuple[tuple[int, float], ...] = ()
    if r.random() < rough:
        pauses = ((r.choice((r.randint(1, 25), r.randint(1, 300))), r.choice((90.0, 1200.0, PAUSE_S))),)
    return Lives(
        kills=kills,
        restart_s=tuple(r.choice((2.0, 60.0, 3000.0)) for _ in range(alive)),
        pauses=pauses,
        # a process that starts knows only this computer's clock, which may have been put wrong by hours
        clock_skew_s=r.choice((1.0, 1.0, 240.0)) * r.uniform(-30, 30) * rough,
        wall_skew_s=r.choice((0.0, r.uniform(-7200, 7200))),
    )
