"""What reaches the terminal is text: whatever a host, a provider or a mark carries. Questions, errors and reports of bugs."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from commandcase import Desk
from hypothesis import given
from hypothesis import strategies as st
from runstory import START, Story, ref

from gpuops.cli import output
from gpuops.cli.context import App
from gpuops.cli.home import Home, find_home
from gpuops.cli.output import Printer, ask, plain, print_error, write_bug
from gpuops.credentials import REDACTED, Redactor
from gpuops.errors import GpuopsError
from gpuops.values import Mark

# Clears the screen, sets the window's title, the one-character form of ESC [, and turns the reading direction round.
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\re\x00f\x7fg\u202eh"
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put standard output on a terminal; inside a test, since capturing replaces it at the beginning of each."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


# --- control characters --------------------------------------------------------------------------------------------------


def test_control_characters_are_shown_as_their_numbers() -> None:
    assert plain("\x1b[2J\x07\x9b\x7f") == "\\x1b[2J\\x07\\x9b\\x7f"
    assert plain("two\nlines, ümläut, 漢字 and ✓") == "two\nlines, ümläut, 漢字 and ✓"
    assert plain("a\rb\tc") == "a\\x0db\\x09c"


@given(st.text())
def test_no_text_at_all_gets_a_control_character_through(text: str) -> None:
    assert not RAW.search(plain(text)), ascii(text)
    plain(text).encode()  # and it can be written


def test_lines_errors_and_questions_are_printed_as_plain_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Printer(as_json=False).line(HOSTILE)
    Printer(as_json=True).line(HOSTILE)
    print_error(GpuopsError(HOSTILE, may_bill=(HOSTILE,), next_command=HOSTILE), "bug", as_json=False)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    ask(HOSTILE)
    out, err = capsys.readouterr()
    assert not RAW.search(out + err), ascii(out + err)
    assert (out + err).count("\\x1b[2J") == 6


def test_a_listing_and_the_plan_of_reconcile_show_hostile_ids_and_owners_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, START + 100)
    for owner, limit in (("bob\x1b[2J", START + 500), ("bob\x1b]0;x\x07", START)):
        machine = desk.cloud.plant("theirs", START, Mark("run\x1b[1m", "abcdefghijkl", owner, limit))
        machine.ref = ref(f"m{limit}\x1b[2J")
    done = desk.run(monkeypatch, "reconcile", "--provider", "simulated", "--apply")
    assert "Would end" in done.output and "\\x1b[2J" in done.output
    assert not RAW.search(done.output), ascii(done.output)


def test_what_a_provider_said_is_told_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that stands in the journal since earlier: the cause, an alarm, a name."""
    story = Story().bought().tell("alarm", message="look\x1b[2J here").wanted("closed", "because\x1b[2J")
    desk = Desk(tmp_path, START + 100, story)
    for command in (("status",), ("report", "run-1")):
        done = desk.run(monkeypatch, *command)
        assert done.exit_code == 0, done.output
        assert not RAW.search(done.output), ascii(done.output)


def test_progress_in_place_is_printed_as_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    printer = Printer(as_json=False)
    printer.progress("copying step\x1b]0;x\x07")
    assert "\x1b]0" not in terminal.getvalue()


def test_a_document_carries_no_control_characters_either(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(as_json=True).document({"id": HOSTILE})
    print_error(GpuopsError(HOSTILE), "bug", as_json=True)
    out = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out), ascii(out)


def test_a_document_is_one_json_value_and_words_go_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=True)
    printer.line("for people")
    printer.document({"id": HOSTILE})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"id": HOSTILE} and err == "for people\n"


def test_a_line_that_changes_in_place_is_cleared_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    printer = Printer(as_json=False)
    printer.progress("10 %")
    printer.line("done")
    assert terminal.getvalue() == "\r\x1b[K10 %\r\x1b[Kdone\n"


def test_a_terminal_that_is_gone_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open(os.devnull, "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    output._write(closed, "x")
    assert ask("Go on?", closed) is False


# --- questions -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """A terminal on standard input, and a way to type on it."""
    master, slave = pty.openpty()
    tty.setcbreak(slave)  # no echo, no waiting for the line to be complete
    stdin = os.fdopen(slave, "r")
    monkeypatch.setattr(sys, "stdin", stdin)
    yield lambda keys: os.close(master) if keys == b"gone" else _type(master, keys)
    stdin.close()
    try:
        os.close(master)
    except OSError:
        pass


def _type(master: int, keys: bytes) -> None:
    os.write(master, keys)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (b"y\n", True), (b"Y\n", True), (b"yes\n", True), (b" YES \n", True), (b"no\n", False), (b"n\n", False),
        (b"\n", False), (b"yes please\n", False), (b"yn\n", False), ("ÿ\n".encode(), False),
    ],
)  # fmt: skip
def test_only_y_and_yes_are_a_yes(keyboard: Callable[[bytes], None], keys: bytes, answer: bool) -> None:
    keyboard(keys)
    asked = io.StringIO()
    assert ask("End these?", asked) is answer
    assert asked.getvalue() == "End these? [y/N]: "


def test_a_terminal_that_hangs_up_is_a_no(keyboard: Callable[[bytes], None]) -> None:
    keyboard(b"gone")
    assert ask("End these?", io.StringIO()) is False


@pytest.mark.parametrize("typed", ["", "no\n", "y\n"])
def test_the_end_of_the_input_is_a_no(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, typed.encode())
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert ask("End these?", io.StringIO()) is (typed == "y\n")
        assert ask("End these?", io.StringIO()) is False


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None])
def test_an_input_that_cannot_be_waited_for_is_a_no(monkeypatch: pytest.MonkeyPatch, stdin: TextIO | None) -> None:
    if stdin is None:
        stdin = open(os.devnull)  # noqa: SIM115
        stdin.close()
    monkeypatch.setattr(sys, "stdin", stdin)
    assert ask("End these?", io.StringIO()) is False


# --- reports of bugs -------------------------------------------------------------------------------------------------------

SECRET = "correct-horse-battery"
SHAPED = "hf_" + "a1B2c3D4e5" * 4


def bug(text: str, cause: str = "") -> Exception:
    """An error that was raised where a local variable holds a secret."""

    def deep(value: str) -> None:
        local = value * 2  # noqa: F841
        raise ValueError(f"cannot use {text}") from (KeyError(cause) if cause else None)

    try:
        deep(SECRET)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_report_of_a_bug_holds_no_secret_and_no_local_value(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    path = Path(write_bug("run-1 seal", bug(f"{SECRET} and {SHAPED}", SECRET), tmp_path, redactor))
    text = path.read_text()
    assert "run-1 seal" in text and "ValueError: cannot use" in text and "in deep" in text
    assert SECRET not in text and SHAPED not in text and text.count(REDACTED) >= 3
    assert path.parent == tmp_path and path.stat().st_mode & 0o777 == 0o600


def test_without_known_values_a_report_still_holds_nothing_that_looks_like_a_secret(tmp_path: Path) -> None:
    text = Path(write_bug("command", bug(SHAPED, SHAPED), tmp_path)).read_text()
    assert SHAPED not in text and SECRET not in text


def test_a_report_that_cannot_be_written_is_no_second_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write_bug("command", bug("x"), tmp_path / "file").startswith("(could not be written: ")


def test_an_effect_that_breaks_is_reported_without_the_secrets_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of the real ports: what was read as a secret is known to the redactor that writes it."""
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    app = App(Home(tmp_path), Printer(as_json=False))
    assert app.ports.secret("TOKEN") == SECRET
    app.ports.bug("run-1 seal", bug(SECRET))
    (report,) = tmp_path.glob("gpuops-bug-*.txt")
    assert SECRET not in report.read_text() and REDACTED in report.read_text()
    assert app.ports.clean(f"the host says {SECRET}") == f"the host says {REDACTED}"
    assert SECRET not in capsys.readouterr().out


def test_a_command_that_breaks_is_reported_without_the_secrets_that_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuops.cli import main

    def broken(**_: object) -> None:
        value = App(find_home(os.environ), Printer(as_json=False)).credentials.secret("TOKEN")
        raise ValueError(f"cannot use {value}")

    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path))
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setattr("gpuops.cli.providers.make_app", broken)
    monkeypatch.setattr(sys, "argv", ["gpuops", "providers"])
    with pytest.raises(SystemExit):
        main()
    (report,) = tmp_path.glob("gpuops-bug-*.txt")
    assert SECRET not in report.read_text()


def test_a_bug_about_a_name_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    name = os.fsdecode(b"step-\xff")
    path = write_bug("run-1 copy", bug(name), tmp_path)
    assert "step-" in Path(path).read_text()
