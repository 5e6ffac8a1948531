"""The shared rate limit: bounded, in order, across processes, and never in the way of an end."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import RateLimited
from gpuops.limits import Limit, Limited
from gpuops.provider import MovesEnd, TellsCharges
from gpuops.values import Created, Device, Inventory, Mark, Money, Need, Offer, Order, Ref, Refused, Scope

REF = Ref("simulated", "a", "here", "rental", "i-1")
OFFER = Offer("o", "simulated", "a", "here", "p", Device("A100", 1, 80), Money(Decimal(1)), 1, 0, "test")
ORDER = Order(Mark("r", "n", "ada", 9), 0, OFFER, "", 0, (), (), None, "", 9)


class VirtualClock:
    """Money time and wall time are an hour apart, so that mixing them up shows."""

    def __init__(self) -> None:
        self.at = 10_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + 3600

    def learn(self, provider_time: float) -> None:
        raise AssertionError("not called")

    def heard(self) -> bool:
        return True

    def sleep_until(self, at: float) -> None:
        self.slept.append(round(at - self.at, 3))
        self.at = max(self.at, at)


class Adapter:
    """Notes its calls; has a timer but no usage records."""

    name = "simulated"
    traits: Any = "traits"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("set_mark", "host_key", "charges") or name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            return Created(REF) if name == "provision" else name

        return call

    def set_end(self, ref: Ref, at: float, until: float) -> float:
        self.calls.append(("set_end", ref, at, until))
        return at


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def limit(tmp_path: Path, clock: VirtualClock) -> Limit:
    return Limit(tmp_path / "limits" / "account.json", calls=3, per_s=10, clock=clock)


def test_calls_within_the_limit_do_not_wait(limit: Limit, clock: VirtualClock) -> None:
    for _ in range(3):
        limit.take(clock.at + 1)
    assert clock.slept == []


def test_further_calls_wait_for_the_window(limit: Limit, clock: VirtualClock) -> None:
    times = []
    for _ in range(9):
        limit.take(clock.at + 100)
        times.append(clock.at - 10_000)
        clock.at += 1
    assert times == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_waiting_ends_at_until_with_how_long_it_would_take(limit: Limit, clock: VirtualClock) -> None:
    for _ in range(3):
        limit.take(clock.at + 1)
    with pytest.raises(RateLimited) as caught:
        limit.take(clock.at + 5)
    assert caught.value.retry_after_s == 10 and clock.slept == []


def test_who_gives_up_takes_no_slot(limit: Limit, clock: VirtualClock) -> None:
    for _ in range(3):
        limit.take(clock.at + 1)
    for _ in range(50):
        with pytest.raises(RateLimited):
            limit.take(clock.at + 5)
    limit.take(clock.at + 10)
    assert clock.at == 10_010


def test_the_reserve_is_kept_for_ending(tmp_path: Path, clock: VirtualClock) -> None:
    limit = Limit(tmp_path / "f", calls=3, per_s=10, clock=clock, reserve=1)
    limit.take(clock.at), limit.take(clock.at)
    with pytest.raises(RateLimited):
        limit.take(clock.at)
    limit.take(clock.at, urgent=True)
    assert clock.slept == []


@pytest.mark.parametrize("content", [b"", b"{torn", b'{"a": 1}', b'["x"]', b"\xff"])
def test_a_torn_file_counts_as_empty(limit: Limit, clock: VirtualClock, content: bytes) -> None:
    limit.path.parent.mkdir()
    limit.path.write_bytes(content)
    limit.take(clock.at)
    assert json.loads(limit.path.read_bytes()) == [clock.wall()]


def test_slots_far_in_the_future_are_a_clock_that_was_set_back(limit: Limit, clock: VirtualClock) -> None:
    limit.path.parent.mkdir()
    limit.path.write_text(json.dumps([clock.wall() + 1e6] * 3))
    limit.take(clock.at)
    assert clock.slept == []


def test_a_file_that_cannot_be_written_limits_nobody(tmp_path: Path, clock: VirtualClock) -> None:
    (tmp_path / "file").write_text("in the way")
    limit = Limit(tmp_path / "file" / "account.json", calls=1, per_s=10, clock=clock)
    for _ in range(5):
        limit.take(clock.at)
    assert clock.slept == []


def test_a_lock_that_is_never_released_delays_by_a_second_and_no_more(limit: Limit, clock: VirtualClock) -> None:
    limit.take(clock.at)
    with limit.path.open("rb+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        began = clock.at
        limit.take(clock.at + 60)
    assert clock.at - began <= 1.01


# --- the wrapper ---------------------------------------------------------------------------------------------------


def test_the_wrapper_passes_calls_on_unchanged(limit: Limit, clock: VirtualClock) -> None:
    adapter = Adapter()
    wrapped = Limited(adapter, Limit(limit.path, 100, 1, clock))  # type: ignore[arg-type]
    until = clock.at + 5
    wrapped.account()
    wrapped.quote(Need("A100"), until)
    wrapped.prepare(ORDER, until)
    assert wrapped.provision(ORDER, until) == Created(REF)
    wrapped.inspect(REF, until)
    wrapped.terminate(REF, until)
    listed: Inventory | str = wrapped.list_billable(Scope(), until)
    assert listed == "list_billable" and (wrapped.name, wrapped.traits) == ("simulated", "traits")
    assert adapter.calls == [
        ("account",), ("quote", Need("A100"), until), ("prepare", ORDER, until), ("provision", ORDER, until),
        ("inspect", REF, until), ("terminate", REF, until), ("list_billable", Scope(), until),
    ]  # fmt: skip


def test_the_wrapper_has_exactly_the_optional_protocols_of_the_adapter(limit: Limit, clock: VirtualClock) -> None:
    wrapped = Limited(Adapter(), limit)  # type: ignore[arg-type]
    assert isinstance(wrapped, MovesEnd) and not isinstance(wrapped, TellsCharges)
    assert wrapped.set_end(REF, 20_000, until=clock.at + 1) == 20_000


def test_a_create_without_a_slot_was_certainly_not_sent(limit: Limit, clock: VirtualClock) -> None:
    adapter = Adapter()
    wrapped = Limited(adapter, limit)  # type: ignore[arg-type]
    for _ in range(3):
        limit.take(clock.at)
    answer = wrapped.provision(ORDER, clock.at + 1)
    assert isinstance(answer, Refused) and "nothing was sent" in answer.reason and adapter.calls == []


# --- across processes ------------------------------------------------------------------------------------------------


class RealClock:
    def now(self) -> float:
        return time.time()

    def wall(self) -> float:
        return time.time()

    def learn(self, provider_time: float) -> None:
        raise AssertionError("not called")

    def heard(self) -> bool:
        return True

    def sleep_until(self, at: float) -> None:
        time.sleep(max(0.0, at - time.time()))


def _worker(path: Path, count: int, results: Any) -> None:
    limit = Limit(path, calls=5, per_s=0.5, clock=RealClock())
    for _ in range(count):
        limit.take(time.time() + 60)
        results.put(time.time())


def test_processes_share_one_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path / "shared", 8, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    moments = sorted(results.get(timeout=30) for _ in range(24))
    for worker in workers:
        worker.join(timeout=30)
    slots = json.loads((tmp_path / "shared").read_text())
    assert slots == sorted(slots)
    # 24 calls at 5 in half a second cannot take less than four whole windows; slots, not wake-ups, are what is limited.
    assert moments[-1] - moments[0] >= 4 * 0.5 - 0.1
