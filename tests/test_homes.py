"""One user, two homes on one computer: whose run it is is said before it is taken over."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandcase import Desk
from runstory import LIMIT, START, Story, ref

from gpuops.cli.home import Home
from gpuops.cli.homes import elsewhere, remember
from gpuops.errors import UsageError
from gpuops.locks import held
from gpuops.values import Mark, Scope

NOW = START + 100
NONCE = "abcdefghijkl"
HERE = ("--provider", "simulated")


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime folder of this test alone; its path is short, as a control socket needs it."""
    monkeypatch.setenv("GPUOPS_OWNER", "ada")
    with tempfile.TemporaryDirectory(prefix="gr-") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield


def other_home(path: Path, *, closed: bool = False) -> Home:
    """A home that drives run-1."""
    story = Story().bought(NONCE)
    if closed:
        story.going_down().ending().tell("gone", decision=True).tell("reconciled", None).tell(
            "closed", None, decision=True
        )
    home = Desk(path, NOW, story).home
    remember(home)
    return home


def desk(tmp_path: Path, owner: str = "ada") -> Desk:
    """A home that knows nothing, on the account where run-1 is at work."""
    made = Desk(tmp_path / "mine", NOW)
    machine = made.cloud.plant("ours", START, Mark("run-1", NONCE, owner, LIMIT))
    machine.ref = ref("m-1")
    return made


def test_adopt_says_which_other_home_tends_a_run_and_takes_it_only_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mine = other_home(tmp_path / "other"), desk(tmp_path)
    refused = mine.run(monkeypatch, "adopt", *HERE)
    assert isinstance(refused.exception, UsageError) and refused.exception.next_command == "gpuops adopt run-1 --yes"
    assert f"run-1 is tended by your other home {home.path} on this computer" in refused.output
    assert f"GPUOPS_HOME={home.path} gpuops watch run-1" in refused.output
    assert mine.ports.journal.runs() == ()
    taken = mine.run(monkeypatch, "adopt", *HERE, "--yes", "--trust-on-first-use")
    assert "is tended by your other home" in taken.output and mine.ports.journal.runs() == ("run-1",)


def test_a_guard_at_work_there_is_named(tmp_path: Path) -> None:
    home, mine = other_home(tmp_path / "other"), desk(tmp_path)
    (item,) = mine.provider.list_billable(Scope(("rental",)), NOW + 30).items
    assert (found := elsewhere(mine.home, item)) is not None and not found.guarded
    with held(home.path / "guard.lock"):
        assert "whose guard is at work" in str(elsewhere(mine.home, item))


@pytest.mark.parametrize("what", ["closed", "removed", "damaged", "itself"])
def test_a_home_that_does_not_tend_it_is_not_named(tmp_path: Path, what: str) -> None:
    home, mine = other_home(tmp_path / "other", closed=what == "closed"), desk(tmp_path)
    (item,) = mine.provider.list_billable(Scope(("rental",)), NOW + 30).items
    if what == "removed":
        home.path.rename(tmp_path / "gone")
    if what == "damaged":
        for beside in home.path.glob("journal.db-*"):
            beside.unlink()
        home.journal.write_bytes(b"nonsense" * 1000)
    assert elsewhere(home if what == "itself" else mine.home, item) is None


def test_reconcile_calls_ones_own_not_anothers_and_names_adopt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, mine = other_home(tmp_path / "other"), desk(tmp_path)
    done = mine.run(monkeypatch, "reconcile", *HERE)
    assert done.exit_code == 0, done.output
    assert "yours, not here" in done.output and "another operator's" not in done.output
    assert (
        f"yours (ada), unknown to this journal, before its limit; tended by your other home {home.path}" in done.output
    )
    assert "next: gpuops adopt run-1" in done.output


def test_reconcile_leaves_another_operators_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = desk(tmp_path, owner="bob").run(monkeypatch, "reconcile", *HERE)
    assert "another operator's" in done.output and "adopt" not in done.output


def test_a_hint_that_leads_nowhere_is_removed_by_the_next_home(tmp_path: Path) -> None:
    gone = other_home(tmp_path / "other")
    gone.path.rename(tmp_path / "moved")
    remember(Home(tmp_path / "new"))
    assert [hint.read_text() for hint in gone.homes.iterdir()] == [str(tmp_path / "new")]
