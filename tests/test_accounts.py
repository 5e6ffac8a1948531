"""Which accounts are asked when none is named, and that all are asked at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.cli import accounts
from gpuops.cli.accounts import asked, found, listings
from gpuops.errors import ProviderError
from gpuops.values import Inventory, Scope


def app(*, configured: tuple[str, ...] = (), secrets: tuple[str, ...] = ()) -> Any:
    said: list[str] = []
    return SimpleNamespace(
        home=SimpleNamespace(providers={name: {} for name in configured}, policy=SimpleNamespace(call_s=5.0)),
        credentials=SimpleNamespace(secret=lambda name: "s" if name in secrets else None),
        printer=SimpleNamespace(line=said.append), said=said, clock=SimpleNamespace(now=lambda: 0.0),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four adapters: one needs nothing, one a secret, one what the vendor's tool keeps, one does not say."""
    needs = {"free": (), "secret": ("POND_KEY",), "tool": (), "silent": None}
    monkeypatch.setattr(accounts, "installed", lambda: tuple(needs))
    monkeypatch.setattr(accounts, "credential_names", lambda name: needs[name])
    monkeypatch.setattr(accounts, "credential_places", lambda name: ("POND_PROFILE",) if name == "tool" else ())
    monkeypatch.delenv("POND_PROFILE", raising=False)


def test_what_nobody_logs_in_to_is_not_asked_and_that_is_said() -> None:
    context = app()
    assert asked(context, None, []) == ("free", "silent")
    assert "not asked, since nothing here logs in there: secret, tool" in context.said[0]


def test_credentials_of_either_sort_are_a_reason_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POND_PROFILE", "work")
    context = app(secrets=("POND_KEY",))
    assert asked(context, None, []) == ("free", "secret", "tool", "silent") and not context.said


def test_an_account_that_a_run_used_is_asked_although_its_credentials_are_gone() -> None:
    state: Any = SimpleNamespace(spec=SimpleNamespace(provider="tool"))
    assert "tool" in asked(app(), None, [state])


def test_an_account_that_is_configured_is_asked() -> None:
    assert "secret" in asked(app(configured=("secret",)), None, [])


def test_who_names_accounts_gets_exactly_these() -> None:
    assert asked(app(), ["tool", "tool"], []) == ("tool",)


def test_a_place_is_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert found(("A", "~/.pond/config"), {"A": ""}) == ""
    (tmp_path / ".pond").mkdir()
    (tmp_path / ".pond" / "config").write_text("")
    assert found(("A", "~/.pond/config"), {}) == "~/.pond/config"
    assert found(("A", "~/.pond/config"), {"A": "x"}) == "A"


def test_all_accounts_are_asked_at_once_and_an_error_hides_none_of_the_others() -> None:
    together = threading.Barrier(2, timeout=5)

    def listing(name: str) -> Callable[..., Inventory]:
        def answer(scope: Scope, until: float) -> Inventory:
            together.wait()  # both are under way
            if name == "broken":
                raise ProviderError("no answer")
            return Inventory(name, scope, (), ())

        return answer

    context = app()
    context.provider = lambda name: SimpleNamespace(list_billable=listing(name))
    got = dict(listings(context, ("broken", "good"), Scope()))
    assert isinstance(got["broken"], ProviderError) and got["good"] == Inventory("good", Scope(), (), ())
