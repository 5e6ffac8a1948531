"""No secret gets into the journal by way of an error: what an effect or a provider says is cleaned before it is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandcase import Desk, Raising
from runstory import LIST, POLICY, Story, generation, ref

from gpuops.codec import to_json
from gpuops.credentials import REDACTED, Redactor
from gpuops.engine import OPERATOR, advance
from gpuops.errors import CopyError, CredentialsError, HostError, ProviderError, Unreachable
from gpuops.steps import Do
from gpuops.values import Mark, Refused

SECRET = "correct-horse-battery"


class Fetched(Raising):
    """A host whose transfers are always complete."""

    def fetch(self, *_: Any) -> bool:
        return True


def broken(path: Path, story: Story, *, host: Any = None, provider: Any = None, store: Any = None) -> Desk:
    """A desk whose redactor knows the secret and on which calls raise; the rental of the story exists and runs."""
    redactor = Redactor()
    redactor.add(SECRET)
    desk = Desk(path, story.now, story)
    machine = desk.cloud.plant("ours", story.now - 500, Mark("run-1", "abcdefghijkl", "ada", story.state.limit))
    machine.ref = ref("m-1")
    bugs: list[str] = []
    desk.ports = replace(desk.ports, clean=redactor, bug=lambda what, error: bugs.append(what))
    desk.ports = replace(
        desk.ports,
        host=Fetched(desk.ports.host, **(host or {})),
        store=Raising(desk.ports.store, **(store or {})),
        secret=lambda name: "value",
    )
    desk.provider = Raising(desk.provider, **(provider or {}))  # type: ignore[assignment]
    return desk


def recorded(desk: Desk, rule: str) -> str:
    """Take one step of a rule and return what it recorded, as JSON."""
    before = len(desk.records())
    step = advance("run-1", desk.ports, POLICY, OPERATOR)
    assert isinstance(step, Do) and step.name == rule, step
    return json.dumps([r.event.data for r in desk.records()[before:]])


def clean(text: str) -> None:
    assert SECRET not in text and REDACTED in text, text


@pytest.mark.parametrize(
    "error",
    [ProviderError(f"401 for key {SECRET}"), ValueError(f"bad header {SECRET}")],
    ids=lambda e: type(e).__name__,
)
def test_whatever_an_effect_raises_is_recorded_without_secrets(tmp_path: Path, error: Exception) -> None:
    """Said on purpose, or a bug."""
    story = Story().bought().going_down().tell("ending", decision=True, cause="test")
    clean(recorded(broken(tmp_path, story, provider={"terminate": error}), "terminate"))


def test_a_create_call_that_breaks_is_unknown_and_its_error_holds_no_secret(tmp_path: Path) -> None:
    desk = broken(tmp_path, Story().ready_to_buy(), provider={"provision": ValueError(f"POST with {SECRET}: broken")})
    clean(recorded(desk, "buy"))
    assert desk.state().purchases["p1"].life == "unknown" and "ValueError" in desk.state().purchases["p1"].cause


@pytest.mark.parametrize("where", ["prepare", "keys"])
def test_what_breaks_before_the_create_call_was_not_sent_and_its_error_holds_no_secret(
    tmp_path: Path, where: str
) -> None:
    error = {where: ValueError(f"PUT with {SECRET}: broken")}
    desk = broken(tmp_path, Story().ready_to_buy(), **{"host" if where == "keys" else "provider": error})
    clean(recorded(desk, "buy"))
    assert desk.state().purchases["p1"].life == "not_sent" and desk.kinds()[-1] == "attempted"
    assert SECRET not in str(desk.state().attempts)


def ready_to_send() -> Story:
    return Story().bought().checked().wanted("training").tell("listed", preview=to_json(LIST)).approved(LIST.digest)


def sealed() -> Story:
    return Story().launched().going_down().sealed(generation(1))


RECORDED_ALIKE: dict[str, tuple[Callable[[], Story], str, dict[str, Any]]] = {
    "check_host": (lambda: Story().bought(), "check_host", {"host": {"check": HostError(SECRET)}}),
    "check_host again": (lambda: Story().bought(), "check_host", {"host": {"check": Unreachable(SECRET)}}),
    "dry run": (
        lambda: Story().bought().checked().wanted("training"), "transfer", {"host": {"preview": HostError(SECRET)}}
    ),
    "send": (ready_to_send, "transfer", {"host": {"send": HostError(SECRET)}}),
    "launch": (
        lambda: ready_to_send().tell("transferred", files=0, bytes=0), "launch", {"host": {"launch": HostError(SECRET)}}
    ),
    "seal": (lambda: Story().launched().going_down(), "seal", {"host": {"seal": HostError(SECRET)}}),
    "copy": (sealed, "copy g1", {"store": {"publish": CopyError(SECRET)}}),
    "preflight": (
        lambda: Story().wanted("ready").approved(), "buy", {"provider": {"quote": CredentialsError(SECRET)}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", RECORDED_ALIKE)
def test_an_error_that_an_effect_records_itself_holds_no_secret(tmp_path: Path, which: str) -> None:
    make, rule, broken_calls = RECORDED_ALIKE[which]
    assert SECRET not in recorded(broken(tmp_path, make(), **broken_calls), rule)


def test_a_refusal_holds_no_secret(tmp_path: Path) -> None:
    desk = broken(tmp_path, Story().ready_to_buy())

    class Refuses(Raising):
        def provision(self, *_: Any) -> Refused:
            return Refused(f"the key {SECRET} may not create anything", "account")

    desk.provider = Refuses(desk.provider)  # type: ignore[assignment]
    text = recorded(desk, "buy")
    assert "may not create anything" in text and SECRET not in text
