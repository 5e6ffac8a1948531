"""Every place at which a command or the guard of a scenario can die, once and twice, as lives of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuops.testing.faults import Faults, Lives
from gpuops.testing.world import World

AGAIN_AFTER_S = 60.0
SECOND_POINT = 7
"""The second life of a double crash dies at its n-th append or effect: in the middle of finding out what the first one did."""

Crash = tuple[str, tuple[tuple[int, str], ...], bool]
"""(who, kills of its lives, whether the user types the command again)"""


def points(faults: Faults) -> dict[str, int]:
    """How many appends and outside effects command and guard of this life have, when nothing kills them."""
    world = World(faults)
    world.run()
    return {who: world.points.get(who, 0) for who in ("operator", "guard")}


def crashes(faults: Faults, *, every: int = 1, twice: bool = False) -> Iterator[Crash]:
    """Crashes at each `every`-th point, right before and right after it; `twice`: the next life dies, too.

    Once each, this computer's driver also falls asleep there for 26 hours.
    """
    for who, number in points(faults).items():
        for n in range(1, number + 1, every):
            if not twice:
                yield who, ((n, "asleep"),), True
            for kind in ("before", "after"):
                second = ((SECOND_POINT, kind),) if twice else ()
                yield who, ((n, kind), *second), True
                if who == "operator" and not twice:
                    yield who, ((n, kind),), False  # and nobody comes back: the guard goes on alone


def crashed(faults: Faults, crash: Crash) -> Faults:
    """The life with this crash."""
    who, kills, again = crash
    lives = Lives(kills=kills, restart_s=(AGAIN_AFTER_S,) * len(kills) if again else ())
    return replace(faults, operator=lives) if who == "operator" else replace(faults, guard=lives)


def text(crash: Crash) -> str:
    """A crash as an argument of the command line: `operator:12:before`."""
    who, kills, again = crash
    return ":".join([who, *(f"{n}:{kind}" for n, kind in kills)]) + ("" if again else ":alone")


def parse(argument: str) -> Crash:
    """The inverse of `text`. Raises `ValueError`."""
    who, *rest = argument.split(":")
    again = rest[-1:] != ["alone"]
    rest = rest if again else rest[:-1]
    if (
        who not in ("operator", "guard")
        or len(rest) % 2
        or not rest
        or not set(rest[1::2]) <= {"before", "after", "asleep"}
    ):
        raise ValueError(f"{argument!r}: write who:point:before or who:point:after, as in operator:12:before")
    return who, tuple(zip(map(int, rest[::2]), rest[1::2], strict=True)), again
