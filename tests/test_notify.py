"""Telling a person never fails, never leaks, and never lets a host's text drive the terminal."""

from __future__ import annotations

import io
from pathlib import Path

from gpuops import notify


def test_levels_are_words() -> None:
    stream = io.StringIO()
    tell = notify.Writer(stream)
    tell("r1", "info", "bought")
    tell("r1", "warning", "slow")
    tell("r1", "alarm", "still billing")
    assert stream.getvalue() == "r1: bought\nr1: warning: slow\nr1: ALARM: still billing\n"


def test_control_characters_are_shown_and_not_sent() -> None:
    stream = io.StringIO()
    notify.Writer(stream)("r1", "info", "a\x1b[2Jb\nc\u202ed")
    assert stream.getvalue() == "r1: a\\x1b[2Jb c\\u202ed\n"


def test_messages_are_cleaned_of_secrets() -> None:
    stream = io.StringIO()
    notify.Writer(stream, clean=lambda text: text.replace("hunter2", "***"))("r1", "info", "key hunter2")
    assert stream.getvalue() == "r1: key ***\n"


def test_a_closed_stream_is_no_reason_to_fail() -> None:
    stream = io.StringIO()
    stream.close()
    notify.Writer(stream)("r1", "alarm", "x")


def test_the_file_is_private_and_keeps_the_time(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "notices.log"
    tell = notify.FileLog(path, wall=lambda: 1_796_104_800.0)
    tell("r1", "alarm", "x")
    tell("r1", "info", "y")
    assert path.read_text() == "2026-12-01T06:00:00Z r1: ALARM: x\n2026-12-01T06:00:00Z r1: y\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    notify.FileLog(tmp_path / "in the way" / "log", wall=lambda: 0.0)("r1", "info", "x")


def test_everybody_is_told_and_nobody_is_fine() -> None:
    first, second = io.StringIO(), io.StringIO()
    notify.everybody(notify.Writer(first), notify.nobody, notify.Writer(second))("r1", "info", "x")
    assert first.getvalue() == second.getvalue() == "r1: x\n"
