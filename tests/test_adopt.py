"""`gpuops adopt`: whose rentals are taken on, under which names, and for how long when nothing but the mark tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commandcase import Desk, Raising
from runstory import START, Story

from gpuops.cli.adopt import RUN_ID
from gpuops.engine import GUARD, decide
from gpuops.errors import Unreachable
from gpuops.steps import Do
from gpuops.testing.cloud import Machine
from gpuops.values import Mark

NOW = START + 100
LIMIT = START + 5000
NONCE = "abcdefghijkl"
FIRST_USE = ("--yes", "--provider", "simulated", "--trust-on-first-use")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A home that knows nothing; its owner is ada, and each host presents a key."""
    monkeypatch.setenv("GPUOPS_OWNER", "ada")
    made = Desk(tmp_path / "users" / "home", NOW)
    made.ports = replace(made.ports, host=Presenting(made.ports.host))
    return made


class Presenting(Raising):
    """A host that presents a well-formed key."""

    def scan(self, run: str, endpoint: object, until: float) -> str:
        return KEY


def plant(desk: Desk, run: str, owner: str = "ada", nonce: str = NONCE, limit: float = LIMIT) -> Machine:
    """A rental on the account that carries such a mark."""
    return desk.cloud.plant("ours", START, Mark(run, nonce, owner, limit))


def folders(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_dir())


def test_only_rentals_of_this_owner_are_taken_on_without_being_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(desk, "mine-1")
    plant(desk, "theirs-1", "bob", "bcdefghijklm")
    done = desk.run(monkeypatch, "adopt", *FIRST_USE)
    assert done.exit_code == 0, done.output
    assert desk.ports.journal.runs() == ("mine-1",)
    assert "left alone: theirs-1 of bob" in done.output
    assert desk.cloud.deeds == []


def test_another_operators_rental_is_taken_on_when_its_run_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(desk, "mine-1")
    plant(desk, "theirs-1", "bob", "bcdefghijklm")
    done = desk.run(monkeypatch, "adopt", "theirs-1", *FIRST_USE)
    assert done.exit_code == 0, done.output
    assert desk.ports.journal.runs() == ("theirs-1",)


@pytest.mark.parametrize("name", ["../x", "x/../../y", "", "-x", "A", "x" * 65, "x y", "x\n", "x\x1b[2J"])
@pytest.mark.parametrize("named", [False, True])
def test_a_mark_that_names_no_possible_run_is_refused_and_touches_no_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, named: bool
) -> None:
    """What a mark says comes from the account; it would become a folder name here."""
    plant(desk, name)
    before = folders(tmp_path)
    arguments = [name] if named and name and not name.startswith("-") else []
    done = desk.run(monkeypatch, "adopt", *arguments, *FIRST_USE)
    assert done.exit_code == 3, done.output
    assert "its mark names no possible run; nothing is done" in done.output and "\x1b" not in done.output
    assert desk.ports.journal.runs() == ()
    assert folders(tmp_path) == before


def test_the_names_that_runs_get_are_possible_ones() -> None:
    for name in ("life-1", "local-demo-20260101-abc123", "0", "a" * 64):
        assert RUN_ID.fullmatch(name), name


@pytest.mark.parametrize("what", ["known", "free", "damaged", "unmarked"])
def test_what_is_known_free_damaged_or_unmarked_is_not_taken_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("GPUOPS_OWNER", "ada")
    desk = Desk(tmp_path, NOW, Story().bought(NONCE))
    machine = plant(desk, "mine-1", nonce=NONCE if what == "known" else "bcdefghijklm")
    if what == "free":
        machine.ended_at = NOW - 1
    elif what == "damaged":
        machine.name = machine.name.replace("bcdefghijklm", "cdefghijklmn")
    elif what == "unmarked":
        machine.mark, machine.name = None, "web"
    done = desk.run(monkeypatch, "adopt", *FIRST_USE)
    assert done.exit_code == 0 and "Nothing to adopt." in done.output, done.output
    assert desk.ports.journal.runs() == ("run-1",)


def test_nothing_is_adopted_without_a_yes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(desk, "mine-1")
    done = desk.run(monkeypatch, "adopt", "--provider", "simulated")
    assert "Not approved" in str(done.exception) and desk.ports.journal.runs() == ()


def test_a_ready_rental_that_was_adopted_blindly_stays_until_the_limit_in_its_mark(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was launched on it and nobody knows its setup time: only its owner's limit ends it."""
    plant(desk, "mine-1")
    done = desk.run(monkeypatch, "adopt", *FIRST_USE)
    assert done.exit_code == 0 and "nothing was launched on it" in done.output, done.output
    state = desk.state("mine-1")
    assert state.spec.setup_s == LIMIT - NOW and state.limit == LIMIT
    assert state.rental is not None and state.rental.work.safe_to_end
    policy = replace(desk.home.policy, copy_margin_s=0)
    for later in (1.0, 1000.0, LIMIT - NOW - state.spec.train.grace_s - 1):
        step = decide(state, NOW + later, policy, GUARD)
        assert not (isinstance(step, Do) and step.decision), (later, step)
    step = decide(state, LIMIT, policy, GUARD)
    assert isinstance(step, Do) and step.decision is not None and step.decision.data["what"] == "closed"


def test_a_host_that_cannot_be_asked_is_held_as_if_training_were_on_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(desk, "mine-1")
    host = Presenting(desk.ports.host, recall=Unreachable("no route to host"))
    desk.ports = replace(desk.ports, host=host)
    done = desk.run(monkeypatch, "adopt", *FIRST_USE)
    assert "the host does not tell what was planned (no route to host)" in done.output, done.output
    rental = desk.state("mine-1").rental
    assert rental is not None and rental.work.launching_at is not None and not rental.work.safe_to_end


def test_a_key_that_nobody_vouches_for_is_not_trusted_by_itself(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(desk, "mine-1")
    done = desk.run(monkeypatch, "adopt", "--yes", "--provider", "simulated")
    assert "nobody vouches for its host key SHA256:" in done.output, done.output
    assert "pinned" not in desk.kinds("mine-1")


def test_a_listing_that_cannot_be_read_is_not_proved(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.cloud.credentials_good = False
    done = desk.run(monkeypatch, "adopt", *FIRST_USE)
    assert done.exit_code == 3 and "NOT PROVED: simulated: the key was revoked" in done.output, done.output
