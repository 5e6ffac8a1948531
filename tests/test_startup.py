"""Help, status and the guard's parent start without anything heavy. Asserts the set of modules, never milliseconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "boto3", "botocore", "google", "paramiko", "fabric", "invoke", "cryptography", "keyring", "httpx", "pydantic", "rich",
    "yaml", "numpy", "click", "gpuops_providers",
}  # fmt: skip

LOOK = """
import json, sys, threading
sys.argv = ["gpuops", *json.loads(sys.argv[1])]
{before}
from gpuops.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
print("\\n" + json.dumps([code, sorted({{m.split(".")[0] for m in sys.modules}})]))
"""


def modules(home: Path, *arguments: str, before: str = "") -> tuple[int, set[str]]:
    env = {**os.environ, "GPUOPS_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(before=before), json.dumps(arguments)], env=env, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    code, names = json.loads(done.stdout.strip().splitlines()[-1])
    return code, set(names)


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["status", "--json"], ["--version"]])
def test_help_and_status_load_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    code, loaded = modules(tmp_path, *arguments)
    assert code == 0
    assert not loaded & HEAVY


def test_the_guards_parent_loads_nothing_heavy(tmp_path: Path) -> None:
    # the journal is removed under it, which is one of its reasons to end; not before it is there, however slow the machine is
    before = f"""
import os, time
journal = {str(tmp_path / "journal.db")!r}
def remove():
    for _ in range(400):
        time.sleep(0.1)
        if os.path.exists(journal):
            time.sleep(1)
            return os.unlink(journal)
threading.Thread(target=remove).start()
"""
    code, loaded = modules(tmp_path, "guard", before=before)
    assert code == 0
    assert not loaded & HEAVY


def test_help_that_nobody_reads_to_the_end_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from gpuops.cli import main; import sys; sys.argv = [\"gpuops\"]; main()' | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
