"""A hostile host's answers: they become values that are safe to show and to write, or errors."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops import answers
from gpuops.errors import HostError

GOOD: dict[str, Any] = {
    "id": "gen-1", "step": 1, "files": [{"path": "w", "size": 1, "sha256": "0" * 64}], "metric": 0.5, "left_behind": [],
}  # fmt: skip


def changed(**file: Any) -> dict[str, Any]:
    return {**GOOD, "files": [{**GOOD["files"][0], **file}]}


def test_a_good_list_becomes_a_generation() -> None:
    assert answers.generation(GOOD).files[0].path == "w"


@pytest.mark.parametrize(
    "item",
    [
        None, [], "x", {}, {**GOOD, "id": 7}, {**GOOD, "id": "../x"}, {**GOOD, "id": "a/b"}, {**GOOD, "files": None},
        changed(path=None), changed(path="../../x"), changed(path="a\x1b[2J"), changed(size="1"), changed(size=-1),
        changed(size=True), changed(size=1 << 70), changed(sha256="0" * 63), changed(sha256=None), changed(sha256="G" * 64),
        {**GOOD, "files": [GOOD["files"][0], {**GOOD["files"][0], "path": "w/x"}]},
    ],
)  # fmt: skip
def test_a_list_that_must_not_become_paths_is_refused(item: Any) -> None:
    with pytest.raises(HostError):
        answers.generation(item)


def test_a_refused_generation_is_named_and_the_others_stay() -> None:
    sealed = answers.sealed(
        {"outcome": "completed", "exit_code": 0, "reason": "exit 0\x1b]0;x", "telemetry": {**GOOD, "id": "telemetry"},
         "generations": [{**GOOD, "id": "-rf"}, GOOD]}
    )  # fmt: skip
    assert [g.id for g in sealed.generations] == ["gen-1"]
    assert "refused a generation" in sealed.reason and sealed.reason.isprintable()


def test_completed_without_a_usable_generation_is_only_ended() -> None:
    answer = {"outcome": "completed", "generations": [], "telemetry": {**GOOD, "id": "telemetry"}}
    assert answers.sealed(answer).outcome == "ended"


@pytest.mark.parametrize("answer", [{}, {"phase": "fine"}, {"phase": None}])
def test_a_status_that_cannot_be_understood_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(HostError):
        answers.status(answer)


def test_a_status_of_wrong_kinds_becomes_a_harmless_one() -> None:
    status = answers.status(
        {"phase": "running", "boot_id": ["x"], "time": "late", "outcome": "\x1b", "exit_code": "0", "started_at": float("nan"),
         "beat": [1], "generations": ["ok-1", "../x", 7], "log_tail": "a\x1b[31mb\n\x07"}
    )  # fmt: skip
    assert (status.host_time, status.outcome, status.exit_code, status.started_at) == (0.0, "", None, None)
    assert (status.beat, status.generations, status.log_tail) == ({}, ("ok-1",), "a\\x1b[31mb\n\\x07")
