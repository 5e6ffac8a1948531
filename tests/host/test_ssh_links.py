"""Far and bad links: the whole way of a run works over 50 ms and over losses, with two logins; and over IPv6."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hostcase import RUN, Case
from link import link

from gpuops import argv
from gpuops.ports import no_progress
from gpuops.values import Endpoint


def whole_way(case: Case, tmp_path: Path) -> None:
    """Check, send, launch, seal and fetch."""
    for number in range(40):
        (case.source / f"data-{number}.bin").write_bytes(os.urandom(20_000))
    facts = case.ssh.check(RUN, case.endpoint, case.spec, case.until(60))
    assert next(c.ok for c in facts.checks if c.name == "device")
    approved = case.ssh.preview(RUN, case.endpoint, case.spec, case.until(60))
    assert case.ssh.send(RUN, case.endpoint, case.spec, approved, case.until(60))[0] == 41
    case.launch(STEPS="2")
    case.wait_for(lambda: case.ssh.status(RUN, case.endpoint, case.spec, case.until(60)).phase == "ended")
    sealed = case.ssh.seal(RUN, case.endpoint, case.spec, case.until(60))
    newest = sealed.generations[-1]
    into = tmp_path / "fetched"
    into.mkdir()
    assert case.ssh.fetch(RUN, case.endpoint, case.spec, newest, str(into), case.until(60), no_progress)
    assert (into / "w.bin").stat().st_size == 1000


@pytest.mark.parametrize(("delay_s", "lossy"), [(0.025, 0.0), (0.0, 0.05)], ids=["50 ms", "losses"])
def test_a_run_works_over_a_bad_link(case: Case, tmp_path: Path, delay_s: float, lossy: float) -> None:
    with link((case.host.host, case.host.port), delay_s=delay_s, lossy=lossy) as way:
        case.endpoint = replace(case.endpoint, port=way.port)
        case.ssh.pin(RUN, case.endpoint, case.ssh.keys(RUN)[1].public)
        whole_way(case, tmp_path)
        assert way.connections == 2 == case.host.logins()
        case.ssh.close(RUN)


def test_a_run_works_over_ipv6(case: Case, tmp_path: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        # a kernel without IPv6: that the address is written as ssh and rsync want it has to do
        assert argv.rsync_target(Endpoint("::1", 22, "root"), "/w") == "root@[::1]:/w"
        return
    case.host.stop()
    config = case.host.directory / "sshd_config"
    config.write_text(config.read_text().replace("ListenAddress 127.0.0.1", "ListenAddress ::1"))
    case.host.host = "::1"
    case.host.start()
    case.endpoint = replace(case.endpoint, host="::1")
    case.ssh.pin(RUN, case.endpoint, case.ssh.keys(RUN)[1].public)
    whole_way(case, tmp_path)
