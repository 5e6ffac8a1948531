"""How well hosts can be kept apart from this machine, found by trying, and the command line that does it."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Isolation = Literal["bubblewrap", "bubblewrap in a user namespace", "plain sshd, best effort"]
PLAIN: Isolation = "plain sshd, best effort"
RENTAL_UID = 60700
"""Who a host's processes are when the cloud runs as root: a number outside the ranges that distributions give out."""
PROBE_S = 10.0
_TOOLS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool(name: str) -> str | None:
    """The absolute path of a program, also where an ordinary user's PATH does not lead."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + _TOOLS)


def choose(wanted: str) -> Isolation:
    """The best isolation that works here; `wanted` is auto, bubblewrap or plain."""
    if wanted == "plain" or not tool("bwrap") or not _probe():
        return PLAIN
    return "bubblewrap" if os.getuid() == 0 else "bubblewrap in a user namespace"


def base() -> list[str]:
    """bwrap with its own PID namespace, host name and IPC, and a read-only /usr."""
    argv = [tool("bwrap") or "bwrap", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--as-pid-1", "--clearenv"]
    if os.getuid() == 0:
        # No user namespace (refused inside a chroot). Only what dropping the uid needs is kept, and dropped with it.
        argv += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for path in [*sorted(Path("/").glob("lib*")), Path("/bin"), Path("/sbin")]:
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for path_name in ("/dev/shm", "/tmp", "/run", "/var", "/var/tmp", "/var/log"):
        argv += ["--perms", "1777", "--tmpfs", path_name]
    return argv


def drop(command: Sequence[str]) -> list[str]:
    """`command` without root's uid and capabilities, when the cloud runs as root."""
    if os.getuid() != 0:
        return list(command)
    number = str(RENTAL_UID)
    return ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--inh-caps", "-all", *command]


def host_ids() -> tuple[int, int]:
    """Uid and gid of the processes inside bubblewrap."""
    return (RENTAL_UID, RENTAL_UID) if os.getuid() == 0 else (os.getuid(), os.getgid())


def plain_login() -> str | None:
    """The only login name that an ordinary user's sshd lets in; None when it has no usable shell."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    return None if Path(entry.pw_shell).name in ("nologin", "false") else entry.pw_name


@functools.cache
def _probe() -> bool:
    """Whether bubblewrap works here as it will be used."""
    argv = [*base(), "--setenv", "PATH", _TOOLS, "--", *drop(["true"])]
    try:
        done = subprocess.run(argv, env={}, capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
