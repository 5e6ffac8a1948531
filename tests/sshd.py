"""A real sshd on 127.0.0.1 for tests: own host key, home directory and log; ended with everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "/usr/sbin/sshd"
NVIDIA_SMI = '#!/bin/sh\necho "NVIDIA A100-SXM4-80GB (simulated), 81920, 550.54.15"\n'


class Sshd:
    """One host: `host`, `port`, `user`, `log`, and `home`, which is the remote HOME."""

    def __init__(self, directory: Path, client_public: str, host_private: str, extra: str = "") -> None:
        self.directory = directory
        self.home = directory / "home"
        self.log = directory / "sshd.log"
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.host, self.port = "127.0.0.1", _free_port()
        self.bin = directory / "bin"
        for path in (self.home, self.bin):
            path.mkdir(parents=True, exist_ok=True)
        (self.bin / "nvidia-smi").write_text(NVIDIA_SMI)
        (self.bin / "nvidia-smi").chmod(0o755)
        # the interpreter itself: a version manager's shim in its place would cost a fifth of a second for each call
        (self.bin / "python3").symlink_to(os.path.realpath(sys.executable))
        self.facts = directory / "host.json"
        self.tell()
        (directory / "authorized_keys").write_text(client_public + "\n")
        key = directory / "host_key"
        key.write_text(host_private)
        key.chmod(0o600)
        tmux = directory / "t"
        tmux.mkdir(mode=0o700, exist_ok=True)
        path = f"{self.bin}:{os.environ['PATH']}"
        (directory / "sshd_config").write_text(
            f"ListenAddress {self.host}\nPort {self.port}\nHostKey {key}\nPidFile none\n"
            f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPrintMotd no\nPrintLastLog no\n"
            f"Subsystem sftp internal-sftp\nLogLevel VERBOSE\nMaxStartups 50\n{extra}\n"
            f"SetEnv HOME={self.home} GPUOPS_HOST_JSON={self.facts} TMUX_TMPDIR={tmux} PATH={path}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Listen; also again after `stop`, with the same key and disk."""
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        command = [SSHD, "-D", "-f", str(self.directory / "sshd_config"), "-E", str(self.log)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection((self.host, self.port), timeout=1).close()
                return
            time.sleep(0.02)
        raise RuntimeError(self.log.read_text())

    def tell(self, **facts: object) -> None:
        """What the provider says about this host."""
        self.facts.write_text(json.dumps({"published_ports": [22], "isolation": "none", "boot": "first", **facts}))

    def logins(self) -> int:
        """How often somebody logged in."""
        return self.log.read_text().count("Accepted publickey")

    def cut(self) -> None:
        """End every open connection; the listener stays."""
        assert self.process is not None
        for pid in _children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the listener, the connections and every process whose HOME is this host's."""
        if self.process is not None:
            self.cut()
            self.process.kill()
            self.process.wait()
            self.process = None
        for _ in range(50):
            left = self.processes()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """Every living process of this host."""
        needle, found = f"HOME={self.home}".encode(), []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                    state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                    if needle in environment and state not in "ZX":
                        found.append(int(name))
        return found


@contextlib.contextmanager
def sshd(directory: Path, client_public: str, host_private: str, extra: str = "") -> Iterator[Sshd]:
    """An `Sshd` that accepts `client_public` and proves `host_private`; ended at the end of the block."""
    host = Sshd(directory, client_public, host_private, extra)
    try:
        yield host
    finally:
        host.stop()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _children(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found
