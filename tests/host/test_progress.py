"""Progress of programs that know nothing of gpuops, read from what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.host.progress import from_log

CASES = sorted((Path(__file__).parents[1] / "cases" / "logs").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_step_and_loss_are_read_from_the_end_of_a_log(path: Path) -> None:
    first, _, text = path.read_text().partition("\n")
    wanted = json.loads(first.removeprefix("# expect "))
    found = from_log(text)
    assert {k: v for k, v in found.items() if k != "source"} == wanted


def test_a_long_line_of_nonsense_is_read_in_no_time() -> None:
    assert from_log("step " * 800 + "=" * 4000) == {}
