"""What the conformance suite needs of an adapter's surroundings, and the looks that its tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpuops.errors import GpuopsError
from gpuops.provider import Provider
from gpuops.values import Billable, Created, Inventory, Need, Observation, Order, Ref, Scope, Time, VolumeUse

ANSWER_S = 30.0
"""How long a single call may take."""

BUSY_S = 3.0
"""What a busy computer may add to the time that was given; less than the five seconds that httpx waits by itself."""

STEPS = 60
"""A wait for the cloud looks this many times."""


class NotOfferedError(Exception):
    """This world has no such hook."""


class ConformanceWorld:
    """What the suite needs of an adapter's surroundings; a subclass fills it in."""

    provider: Provider
    need: Need
    """Something that `quote` answers."""
    real_account = False
    settle_s = 5.0
    """Within this time a rental has started, or has ended after a request."""
    other_regions: tuple[str, ...] = ()
    """Regions other than the one that orders go to."""
    speaks_http = False
    """The adapter speaks HTTP: then the hooks under "the wire" are needed, too."""
    refuses_late = False
    """The cloud may accept a create call and refuse it afterwards."""

    def now(self) -> Time:
        """The provider's time."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let this much of the provider's time pass."""
        raise NotImplementedError

    def order(self, ends_in_s: float = 3600.0) -> Order:
        """A fresh order with a nonce of its own that can be filled."""
        raise NotImplementedError

    def lose_answer(self) -> None:
        """The next create is accepted and its answer is lost."""
        raise NotOfferedError

    def error_after_create(self) -> None:
        """The next create is accepted and answered by a server error."""
        raise NotOfferedError

    def refuse_capacity(self) -> None:
        """The next create is refused for lack of capacity."""
        raise NotOfferedError

    def refuse_late(self) -> None:
        """The next create is accepted, and its refusal shows later, with capacity as the reason."""
        raise NotOfferedError

    def hide_new(self, seconds: float) -> None:
        """Listings show a new rental only after this time."""
        raise NotOfferedError

    def ignore_terminate(self) -> None:
        """The next terminate is accepted and nothing happens."""
        raise NotOfferedError

    def gap(self, region: str) -> None:
        """Listings cannot read this region."""
        raise NotOfferedError

    def unknown_word(self, ref: Ref) -> None:
        """The cloud uses a word for the state of `ref` that the adapter has never seen."""
        raise NotOfferedError

    def ending(self, ref: Ref) -> None:
        """The cloud has begun to end `ref`, says so, and does not come to an end."""
        raise NotOfferedError

    def damage_mark(self, ref: Ref) -> None:
        """The check characters in the mark of `ref` fit no more; its nonce can still be read."""
        raise NotOfferedError

    def rename(self, ref: Ref) -> None:
        """A person gives `ref` another name in the console."""
        raise NotOfferedError

    def clone(self, ref: Ref) -> Ref:
        """A person makes another machine with the mark of `ref`, as "launch more like this" does."""
        raise NotOfferedError

    def foreign(self, kind: str = "rental") -> Ref:
        """A billable of this kind that somebody else made, in one of `other_regions` where there are any."""
        raise NotOfferedError

    def volume(self) -> VolumeUse:
        """A volume that exists already where orders go to; needed where volumes outlive rentals."""
        raise NotOfferedError

    def break_credentials(self) -> None:
        """The credentials are good no more."""
        raise NotOfferedError

    # --- the wire

    def cut_connection(self) -> None:
        """The next create is accepted and the connection is cut before its answer."""
        raise NotOfferedError

    def answer_late(self) -> None:
        """The next create is accepted and its answer comes later than anybody waits."""
        raise NotOfferedError

    def throttle(self, retry_after_s: float | None) -> None:
        """All calls are answered by "too many requests", with or without the time to wait."""
        raise NotOfferedError

    def answer_html(self) -> None:
        """All calls are answered by an error page that somebody on the way made."""
        raise NotOfferedError

    def forbid(self) -> None:
        """The credentials are good and lack every right."""
        raise NotOfferedError

    def mask_credentials(self) -> None:
        """The credentials are good no more, and looks at single resources are answered by "not found"."""
        raise NotOfferedError

    def fail_looks(self) -> None:
        """Looks at single resources are answered by a server error; all other calls work."""
        raise NotOfferedError

    def break_pages(self) -> None:
        """Listings have several pages, and no page after the first can be read."""
        raise NotOfferedError


def offered(world: ConformanceWorld, hook: Callable[[], object]) -> None:
    """Call a hook; without it a test on a real account is skipped, and any other fails."""
    try:
        hook()
    except NotOfferedError:
        if not world.real_account:
            raise
        pytest.skip("a real account has no such switch")


def listed(world: ConformanceWorld, scope: Scope | None = None) -> Inventory:
    """A listing now."""
    return world.provider.list_billable(scope or Scope(), world.now() + ANSWER_S)


def seen(world: ConformanceWorld, ref: Ref) -> Observation:
    """An inspection now."""
    return world.provider.inspect(ref, world.now() + ANSWER_S)


def by_nonce(world: ConformanceWorld, nonce: str) -> list[Billable]:
    """What carries the nonce, searched as the engine searches: rentals, every region, no gap."""
    inventory = listed(world, Scope(("rental",)))
    assert not inventory.gaps
    return [item for item in inventory.items if item.nonce == nonce]


def the_one(world: ConformanceWorld, nonce: str) -> Billable:
    """The rental that carries the nonce, where there must be exactly one."""
    found = by_nonce(world, nonce)
    assert len(found) == 1, f"the listing shows {len(found)} rentals with the nonce {nonce}, one was made: {found}"
    return found[0]


def pass_lag(world: ConformanceWorld) -> None:
    """Let the guaranteed listing lag pass."""
    world.advance(world.provider.traits.listing_lag_s or 0.0)


def ordered(world: ConformanceWorld, ends_in_s: float = 3600.0) -> Order:
    """A fresh order with its free objects made, as the engine makes them before it buys."""
    order = world.order(ends_in_s)
    world.provider.prepare(order, world.now() + ANSWER_S)
    return order


def unknown(world: ConformanceWorld, order: Order, answer_s: float = ANSWER_S) -> None:
    """Buy where nobody can know what came of it, and insist that the adapter raises."""
    try:
        answer = world.provider.provision(order, world.now() + answer_s)
    except GpuopsError:
        return
    pytest.fail(f"nobody can know what came of this create call, and the adapter says {answer}")


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Insist that what happens inside is over after `seconds` of real time, with room for a busy computer."""
    begun = time.monotonic()
    yield
    took_s = time.monotonic() - begun
    assert took_s < seconds + BUSY_S, f"it took {took_s:.1f} s, and {seconds:g} s were given"


def created(world: ConformanceWorld, order: Order) -> Ref:
    """Buy and insist."""
    answer = world.provider.provision(order, world.now() + ANSWER_S)
    assert isinstance(answer, Created), answer
    return answer.ref


def wait_for(world: ConformanceWorld, condition: Callable[[], bool], what: str) -> None:
    """Advance until the condition holds, at most for the world's settling time."""
    for _ in range(STEPS):
        if condition():
            return
        world.advance(world.settle_s / STEPS)
    pytest.fail(f"{what} did not happen within {world.settle_s} s")


def gone(world: ConformanceWorld, ref: Ref, nonce: str) -> bool:
    """One round of the proof: inspect and a complete listing agree that nothing bills."""
    if seen(world, ref).state not in ("terminal", "absent"):
        return False
    return not any(item.bills for item in by_nonce(world, nonce))


def blind(world: ConformanceWorld, scope: Scope | None = None) -> bool:
    """Whether a listing says that it does not see everything: it fails, or it names gaps."""
    try:
        return bool(listed(world, scope).gaps)
    except GpuopsError:
        return True
