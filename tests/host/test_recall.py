"""What a second computer needs of a host when the journal is lost: the spec, and a shell."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
from hostcase import RUN, Case

from gpuops.errors import HostError


def test_the_host_tells_the_whole_spec(case: Case) -> None:
    assert case.ssh.recall(RUN, case.endpoint, case.until()) is None, "nothing was launched yet"
    case.send()
    case.launch(STEPS="1")
    assert case.ssh.recall(RUN, case.endpoint, case.until()) == replace(case.spec, env=(("STEPS", "1"),))


def test_a_record_that_cannot_be_read_is_no_answer_that_nothing_ran(case: Case) -> None:
    case.send()
    case.launch(STEPS="1")
    (record,) = case.host.home.rglob("run.json")
    for damaged in ("{", json.dumps({"run": RUN}), json.dumps({"spec": {"name": "x"}})):
        record.write_text(damaged)
        with pytest.raises(HostError, match="cannot be read"):
            case.ssh.recall(RUN, case.endpoint, case.until())


def test_the_shell_uses_the_pinned_key_and_nothing_of_the_user(case: Case) -> None:
    command = case.ssh.shell(RUN, case.endpoint)
    assert command[0] == "ssh" and "StrictHostKeyChecking=yes" in command and "-F" in command
    done = subprocess.run(
        [*command, "echo", "it is", "$HOME"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == f"it is {case.host.home}"
