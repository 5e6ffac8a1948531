"""Somebody with OpenSSH in front of a host of a fake cloud: keys, hand-written user-data, and a pinned host key."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ADDRESS, OTHER = "54.214.7.9", "18.156.3.200"
PATIENCE_S = 20.0


def wait(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.03)


def key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path


def indented(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in text.strip().splitlines())


class Client:
    """Somebody with OpenSSH, a key, and the public half of the host key that was injected."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.own, self.host = folder, key(folder / "client"), key(folder / "host")

    def user_data(self, more: str = "") -> str:
        return (
            "#cloud-config\nssh_deletekeys: true\nssh_keys:\n  ed25519_private: |\n"
            + indented(self.host.read_text(), 4)
            + f"  ed25519_public: {self.host.with_suffix('.pub').read_text().strip()}\n"
            + f"ssh_authorized_keys:\n  - {self.own.with_suffix('.pub').read_text().strip()}\n{more}"
        )

    def ssh(
        self, script: str, address: str = ADDRESS, pinned: Path | None = None, user: str = "ubuntu"
    ) -> subprocess.CompletedProcess[str]:
        known = self.folder / "known"
        known.write_text(f"{address} {(pinned or self.host).with_suffix('.pub').read_text()}")
        options = {
            "UserKnownHostsFile": known, "GlobalKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "yes",
            "BatchMode": "yes", "IdentitiesOnly": "yes", "ConnectTimeout": 5,
        }  # fmt: skip
        argv = ["ssh", "-F", "none", "-i", str(self.own)]
        argv += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return subprocess.run(
            [*argv, f"{user}@{address}", "bash -s"], input=script, capture_output=True, text=True, timeout=60
        )

    def says(self, script: str, address: str = ADDRESS) -> str:
        done = self.ssh(script, address)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def refused(address: str = ADDRESS) -> bool:
    try:
        socket.create_connection((address, 22), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def processes_in_this_network() -> set[int]:
    """Every process whose network is that of the calling thread, this one excepted."""
    own = os.readlink("/proc/thread-self/ns/net")
    found = set()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/net") == own:
                found.add(int(name))
        except OSError:
            continue
    return found - {os.getpid()}
