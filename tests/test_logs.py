"""`gpuops logs`: the whole log in pieces, from the host and from the copy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.cli import logs
from gpuops.cli.output import Printer
from gpuops.ports import LOG_PIECE
from gpuops.values import Endpoint

AT = Endpoint("host", 22, "root")


class Growing:
    """A host whose log grows at every look at the status, twice; it counts how often it is asked."""

    def __init__(self, parts: list[str]) -> None:
        self.parts, self.text, self.asked = parts, "", 0

    def status(self, *_: Any) -> Any:
        self.text += self.parts.pop(0)
        return SimpleNamespace(phase="running" if self.parts else "ended")

    def log(self, run: str, endpoint: Endpoint, spec: Any, offset: int, until: float) -> tuple[str, int]:
        self.asked += 1
        piece = self.text[offset : offset + LOG_PIECE]
        return piece, offset + len(piece)


def context(host: Growing) -> Any:
    clock = SimpleNamespace(now=lambda: 0.0, sleep_until=lambda at: None)
    policy = SimpleNamespace(call_s=1.0, status_every_s=1.0)
    return SimpleNamespace(
        clock=clock,
        home=SimpleNamespace(policy=policy),
        ports=SimpleNamespace(host=host),
        printer=Printer(as_json=False),
    )


STATE: Any = SimpleNamespace(
    run="r", spec=None, phase="training",
    rental=SimpleNamespace(endpoint=AT, life="created", work=SimpleNamespace(launched_at=1.0)),
)  # fmt: skip


def test_all_of_the_log_is_printed_and_following_leaves_nothing_out(capsys: pytest.CaptureFixture[str]) -> None:
    first = "".join(f"line {n}\n" for n in range(60_000))
    put = Printer(as_json=False).lines
    host = Growing([first + "ha", "lf\n" + "more\n" * 2000, "end"])
    logs._from_host(context(host), STATE, True, put)
    assert capsys.readouterr().out == first + "half\n" + "more\n" * 2000 + "end\n"
    host.asked = 0
    logs._from_host(context(host), STATE, False, put)
    assert capsys.readouterr().out == host.text + "\n"
    assert host.asked == len(host.text) // LOG_PIECE + 1


def test_the_copied_parts_are_printed_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("b\tc\x1b[2J\nnew")
    (tmp_path / "train.log.1").write_text("old\nold ")
    logs._copied(Printer(as_json=False).lines, tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("old\nold b   c") and shown.endswith("\nnew\n") and "\x1b" not in shown
