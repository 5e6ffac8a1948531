"""Input data fetched on a real host from a real https server that breaks, lies and corrupts: right bytes or a named refusal."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dataserver import DataServer, Made, data_server
from hostcase import RUN, Case

from gpuops.errors import Unreachable
from gpuops.spec import Input
from gpuops.values import InputsSeen

PIECE = 32 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DataServer]:
    with data_server(tmp_path / "server") as data:
        yield data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder on the host; it need not exist."""
    return tmp_path / "h" / "data"


def over_https(server: DataServer, to: Path, made: Made, name: str = "x", **more: Any) -> Input:
    return Input(
        str(to), "https", f"{server.url}/{name}", sha256=more.pop("sha256", made.sha256()), ca=str(server.ca), **more
    )


def bring(case: Case, *inputs: Input, seconds: float = 30, progress: Any = lambda *_: None) -> InputsSeen:
    spec = replace(case.spec, inputs=inputs)
    return case.ssh.bring(RUN, case.endpoint, spec, inputs, case.until(seconds), progress)


def check(path: Path, made: Made) -> None:
    with open(path, "rb") as source:
        assert hashlib.file_digest(source, "sha256").hexdigest() == made.sha256()
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".gpuops")] == []


# --- over https ------------------------------------------------------------------------------------------------------


def test_a_file_is_fetched_in_pieces_and_verified(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 2 * PIECE + 5)
    told: list[tuple[str, float, float]] = []
    seen = bring(
        case, over_https(server, data / "in" / "x.bin", made, bytes=made.size), progress=lambda *t: told.append(t)
    )
    check(data / "in" / "x.bin", made)
    there = seen.done[0]
    assert (there.how, there.bytes, there.sha256, seen.problem) == ("fetched", made.size, made.sha256(), "")
    assert server.requests == 4
    assert told and all(0 <= done <= total == made.size for _, done, total in told)


def test_broken_connections_are_gone_on_with_where_they_broke(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", PIECE + 1000)
    server.breaks, server.refusals = 3, 2
    seen = bring(case, over_https(server, data / "x", made))
    assert server.broken == 3 and seen.problem == ""
    check(data / "x", made)


def test_one_wrong_byte_leads_to_one_clean_repetition(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", PIECE + 1000)
    server.wrong_bytes = 1
    seen = bring(case, over_https(server, data / "x", made))
    check(data / "x", made)
    assert "had sha256" in seen.done[0].notes[0]


def test_bytes_that_stay_wrong_are_refused_by_both_hashes(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 1000)
    seen = bring(case, over_https(server, data / "x", made, sha256="0" * 64))
    assert seen.final and seen.done == ()
    assert f"sha256 is {made.sha256()}" in seen.problem and "0" * 64 in seen.problem and "2 times" in seen.problem
    assert list(data.iterdir()) == [], "nothing that is wrong is left under any name"


@pytest.mark.parametrize("fault", ["total_lies", "length_lies"])
def test_a_lie_about_lengths_is_noticed_and_the_file_comes_all_the_same(
    case: Case, server: DataServer, data: Path, fault: str
) -> None:
    made = server.add("x", PIECE + 1000)
    setattr(server, fault, 1)
    seen = bring(case, over_https(server, data / "x", made, bytes=made.size))
    check(data / "x", made)
    assert "bytes" in seen.done[0].notes[0]


def test_a_server_that_contradicts_itself_is_noticed_where_nobody_said_the_size(
    case: Case, server: DataServer, data: Path
) -> None:
    made = server.add("x", PIECE + 1000)
    server.total_lies = 1
    seen = bring(case, over_https(server, data / "x", made))
    check(data / "x", made)
    assert "before it said" in seen.done[0].notes[0]


@pytest.mark.parametrize("fault", ["total_lies", "length_lies"])
def test_a_server_that_lies_again_is_refused_by_name(case: Case, server: DataServer, data: Path, fault: str) -> None:
    made = server.add("x", PIECE + 1000)
    setattr(server, fault, 1000)
    seen = bring(case, over_https(server, data / "x", made, bytes=made.size))
    assert seen.final and "the server lies about lengths" in seen.problem
    assert list(data.iterdir()) == []


def test_another_length_than_the_manifest_says_is_refused_by_both(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 1000)
    seen = bring(case, over_https(server, data / "x", made, bytes=2000))
    assert seen.final and "1,000 bytes" in seen.problem and "2,000" in seen.problem


def test_a_server_without_ranges_sends_everything_and_again_after_a_break(
    case: Case, server: DataServer, data: Path
) -> None:
    made = server.add("x", 3_000_000)
    server.ranges, server.breaks = False, 1
    assert bring(case, over_https(server, data / "x", made)).problem == ""
    check(data / "x", made)


def test_an_empty_file_is_a_file(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 0)
    assert bring(case, over_https(server, data / "x", made)).done[0].bytes == 0
    check(data / "x", made)


def test_a_file_that_is_there_is_used_by_its_hash_alone(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 5000)
    wanted = over_https(server, data / "x", made)
    bring(case, wanted)
    before = server.requests
    assert bring(case, wanted).done[0].how == "there already" and server.requests == before
    rotten = bytearray((data / "x").read_bytes())
    rotten[17] ^= 1
    stamps = os.stat(data / "x")
    (data / "x").write_bytes(rotten)
    os.utime(data / "x", ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert bring(case, wanted).done[0].how == "fetched"
    check(data / "x", made)


def test_a_certificate_that_nobody_vouches_for_is_refused(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 100)
    seen = bring(case, replace(over_https(server, data / "x", made), ca=""))
    assert seen.final and "certificate is not accepted" in seen.problem
    assert server.requests == 0


def test_an_answer_that_no_repetition_mends_is_final_at_once(case: Case, server: DataServer, data: Path) -> None:
    seen = bring(case, over_https(server, data / "x", Made(1, 1), "not-there"))
    assert seen.final and "404" in seen.problem and server.requests == 1


def test_a_redirect_to_something_else_than_https_is_refused(case: Case, server: DataServer, data: Path) -> None:
    server.redirect = "http://127.0.0.1:9/x"
    seen = bring(case, over_https(server, data / "x", Made(1, 1)))
    assert seen.final and "not https" in seen.problem


def test_a_server_that_is_gone_may_come_back(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 100)
    server.refusals = 1000
    seen = bring(case, over_https(server, data / "x", made), seconds=40)
    assert not seen.final and "503" in seen.problem
    server.refusals = 0
    assert bring(case, over_https(server, data / "x", made)).problem == ""


def test_a_call_ends_in_time_and_the_next_one_goes_on(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 3 * PIECE)
    server.pause_s = 1.0
    wanted = over_https(server, data / "x", made)
    begun = time.monotonic()
    assert bring(case, wanted, seconds=13) == InputsSeen(())
    assert time.monotonic() - begun < 20, "the file would take 32 s"
    part = next(p for p in data.iterdir() if p.name.endswith(".part"))
    assert part.stat().st_size > 0 and not (data / "x").exists()
    arrived = server.sent
    server.pause_s = 0
    assert bring(case, wanted).problem == ""
    assert server.sent - arrived < made.size - 1_000_000, "what had arrived was not fetched again"
    check(data / "x", made)


def test_a_broken_login_leaves_what_arrived_and_no_process(case: Case, server: DataServer, data: Path) -> None:
    made = server.add("x", 2 * PIECE)
    server.pause_s = 0.2
    wanted = over_https(server, data / "x", made)

    def cut() -> None:
        case.wait_for(lambda: any(p.name.endswith(".part") for p in data.glob(".*")))
        case.host.cut()
        server.pause_s = 0

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(Unreachable):
        bring(case, wanted)
    cutter.join()
    assert bring(case, wanted).problem == ""
    check(data / "x", made)


# --- the other sources -----------------------------------------------------------------------------------------------


def made_by(to: Path, code: str, content: bytes) -> Input:
    return Input(str(to), "command", argv=(sys.executable, "-c", code), sha256=hashlib.sha256(content).hexdigest())


def test_a_command_makes_an_input_whose_hash_must_fit(case: Case, data: Path) -> None:
    seen = bring(case, made_by(data / "x", "import sys; open(sys.argv[1], 'w').write('made')", b"made"))
    assert seen.done[0].how == "made" and (data / "x").read_bytes() == b"made"
    seen = bring(case, made_by(data / "y", "open('{to}', 'w').write('another')", b"made"))
    assert seen.final and "sha256" in seen.problem and not (data / "y").exists()


def test_a_command_that_fails_says_what_it_printed_and_is_tried_three_times(case: Case, data: Path) -> None:
    failing = made_by(data / "x", "raise SystemExit('no such set')", b"made")
    assert [bring(case, failing).final for _ in range(3)] == [False, False, True]
    assert "no such set" in bring(case, failing).problem


def test_a_command_that_does_not_end_is_ended_with_its_children(case: Case, data: Path) -> None:
    slow = made_by(data / "x", "import subprocess; subprocess.run(['sleep', '300'])", b"")
    seen = bring(case, slow, seconds=5)
    assert not seen.final and "did not end in time" in seen.problem


def test_what_lies_on_a_volume_is_verified_and_linked(case: Case, data: Path) -> None:
    data.mkdir()
    (data / "set.bin").write_bytes(b"volume")
    wanted = Input(
        str(data / "here" / "x"), "volume", str(data / "set.bin"), sha256=hashlib.sha256(b"volume").hexdigest()
    )
    assert bring(case, wanted).done[0].how == "found on the volume"
    assert (data / "here" / "x").read_bytes() == b"volume"
    (data / "set.bin").write_bytes(b"rotten")
    seen = bring(case, wanted)
    assert seen.final and "has sha256" in seen.problem


# --- much ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_five_gigabytes_come_right_through_breaks_a_wrong_byte_and_a_lie(
    case: Case, server: DataServer, tmp_path: Path
) -> None:
    with roomy(tmp_path, 7_000_000_000) as folder:
        five_gigabytes(case, server, Path(folder) / "data")


@contextlib.contextmanager
def roomy(fallback: Path, least: int) -> Iterator[str]:
    """A folder in memory, where there is room: a slow disk would be tested instead."""
    memory = "/dev/shm"
    fits = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > least
    with tempfile.TemporaryDirectory(dir=memory if fits else fallback) as folder:
        yield folder


def five_gigabytes(case: Case, server: DataServer, data: Path) -> None:
    sizes = [500_000_000, 1_500_000_000, 2_000_000_000, 1_000_000_000]
    made = [server.add(f"f{n}", size, n) for n, size in enumerate(sizes)]
    server.breaks, server.wrong_bytes, server.total_lies = 5, 1, 1
    wanted = [over_https(server, data / f"f{n}", m, f"f{n}", bytes=m.size) for n, m in enumerate(made)]
    seen = bring(case, *wanted, seconds=250)
    assert seen.problem == "" and sum(there.bytes for there in seen.done) == 5_000_000_000
    assert (server.broken, server.wrong_bytes, server.total_lies) == (5, 0, 0)
    for there, m in zip(seen.done, made, strict=True):
        check(Path(there.to), m)
    notes = [note for there in seen.done for note in there.notes]
    assert any("had sha256" in n for n in notes) and any("bytes" in n for n in notes)
