"""`guard --once` as cron calls it: bounded, and its exit code and words say what may still bill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.world import World
from localcloud import LocalCloud

from gpuops.inventory import adopt, blind_spec
from gpuops.journal import SqliteJournal
from gpuops.values import Ref, Scope

pytestmark = pytest.mark.e2e


@pytest.fixture
def local() -> Iterator[LocalCloud]:
    made = LocalCloud()
    yield made
    made.close()


@pytest.fixture
def computer(world: World, local: LocalCloud) -> World:
    """A computer on the local cloud that starts no guard by itself."""
    return replace(world, cloud=local.directory)


def past_its_limit(local: LocalCloud) -> Ref:
    """A rental whose mark says that its time is over; its own timer lets it run on."""
    order = local.order()
    return local.rent(replace(order, mark=replace(order.mark, limit_at=float(int(time.time()) - 60))))


def known(home: Path, local: LocalCloud, ref: Ref) -> str:
    """Let the journal know the rental as that of an open run."""
    items = local.provider.list_billable(Scope(("rental",)), time.time() + 15).items
    item = next(i for i in items if i.ref == ref)
    run, events = adopt(item, blind_spec(item, ""), time.time(), b"12345678", launched=False)
    SqliteJournal(home / "journal.db").append_facts(run, events, at=time.time(), wall=time.time())
    return run


def test_a_run_past_its_limit_that_ignores_its_end_is_exit_5_with_its_name(computer: World, local: LocalCloud) -> None:
    ref = past_its_limit(local)
    run = known(computer.home, local, ref)
    local.faults(ignore_terminate=1)
    first = computer.run("guard", "--once", timeout=60)
    assert first.returncode == 5, first.stdout
    assert f"may still bill: {ref}" in first.stdout and "next: gpuops guard --once" in first.stdout
    assert local.listed("rental") == [ref]

    def again() -> bool:
        last = computer.run("guard", "--once", timeout=60)
        assert last.returncode in (0, 5), last.stdout
        return last.returncode == 0

    computer.wait("later visits end and prove it", again)
    assert local.listed("rental") == []
    assert [(s["id"], s["phase"], s["may_bill"]) for s in computer.status()] == [(run, "closed", [])]


def test_an_account_that_cannot_be_listed_is_exit_3_and_nothing_is_called_proved(
    computer: World, local: LocalCloud
) -> None:
    ref = past_its_limit(local)
    local.faults(error={"list": 1})
    blind = computer.run("guard", "--once", timeout=60)
    assert blind.returncode == 3, blind.stdout
    assert "NOT PROVED: local: the local cloud answered 503 to list" in blind.stdout
    assert local.listed("rental") == [ref]
    seen = computer.run("guard", "--once", timeout=60)
    assert seen.returncode == 0 and "ended and proved gone" in seen.stdout, seen.stdout
    assert local.listed("rental") == []
