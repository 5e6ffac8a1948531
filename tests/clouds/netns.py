"""A network of one's own: nothing but a loopback, to which every address leads.

The public addresses that a fake cloud invents belong to somebody in the real network. In this network namespace they
are all local: no test can reach anybody, a host can listen on any address, and where none listens the connection is
refused. It needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of clone(2)."""
MACHINE = (
    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
)  # fmt: skip
"""A command line in front of another: own mounts and own processes, all of which end when this one is killed."""
TOOL_S = 20.0


class NetworkError(Exception):
    """The addresses of hosts cannot be answered here."""


@functools.cache
def missing() -> str:
    """Why no network of one's own can be had here; empty when it can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "unshare", "nsenter", "bwrap", "sshd"):
        if not shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
            return f"{tool} is not installed"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=TOOL_S, check=False)
    return "" if done.returncode == 0 else f"unshare --net: {done.stderr.decode(errors='replace').strip()}"


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Move the calling thread, and whatever it starts, into a new network for the length of the block.

    A namespace belongs to a thread (setns(2)): other threads of this process stay where they are.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(NEW_NETWORK):
            raise NetworkError(f"unshare: {os.strerror(ctypes.get_errno())}")
        try:
            _run("ip", "link", "set", "lo", "up")
            # every address is this machine's: one on which nobody listens refuses the connection
            _run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo")
            # hosts drop their rights before they listen on port 22
            with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as setting:
                setting.write("0")
            yield
        finally:
            if libc.setns(before, NEW_NETWORK):
                raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(before)


def require_own_network() -> None:
    """Raise `NetworkError` in a network that leads anywhere: there an invented address belongs to somebody."""
    found = [name for _, name in socket.if_nameindex()]
    if found != ["lo"]:
        raise NetworkError(f"not in a network of our own: there are {', '.join(found)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, timeout=TOOL_S, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")


def inside(pid: int, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run `command` among the mounts and processes of `pid`, as root."""
    argv = ["nsenter", "--target", str(pid), "--mount", "--pid", "--", *command]
    # on a host the system's own programs lie elsewhere: those in /usr/bin are the host's
    path = {"PATH": "/opt/usr-sbin:/opt/usr-bin:/usr/sbin:/usr/bin"}
    return subprocess.run(argv, capture_output=True, timeout=TOOL_S, check=False, env=path)
