"""What this machine must have to rent itself out, found by looking: changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from gpuops.values import Finding

from . import isolation

# command → (Debian package, what it is for)
PROGRAMS = {
    "sshd": ("openssh-server", "every rental is reached through a real SSH server of its own"),
    "ssh-keygen": ("openssh-client", "each rental has a host key"),
    "tmux": ("tmux", "training runs in it on the rental"),
    "rsync": ("rsync", "receives code and data on the rental"),
    "ps": ("procps", "finds the processes of a rental"),
    "findmnt": ("util-linux", "shows a rental's mounts"),
    "setsid": ("util-linux", "keeps a rental apart from the terminal"),
}


def examine(wanted: str) -> tuple[Finding, ...]:
    """Each program, and how well rentals are kept apart from this machine; `wanted` is the setting `isolation`."""
    return (*_programs(), _isolation(wanted))


def _programs() -> Iterator[Finding]:
    for name, (package, what_for) in PROGRAMS.items():
        found = isolation.tool(name)
        if found:
            yield Finding(name, "ok", f"{found}: {what_for}")
        else:
            yield Finding(name, "missing", f"not installed: {what_for}", _install(package))


def _isolation(wanted: str) -> Finding:
    how = isolation.choose(wanted)
    if how != isolation.PLAIN:
        return Finding("isolation", "ok", f"{how}: a rental sees no file of yours")
    why = "as config.toml asks" if wanted == "plain" else (
        "bubblewrap does not work on this machine" if isolation.tool("bwrap") else "bubblewrap is not installed"
    )  # fmt: skip
    said = f"{how} ({why}): training runs beside your own processes, with your files in reach"
    fix = "" if wanted == "plain" or isolation.tool("bwrap") else _install("bubblewrap")
    return Finding("isolation", "warning", said, fix)


def _install(package: str) -> str:
    """How to install it where the Debian name fits; elsewhere the name alone."""
    if shutil.which("apt-get"):
        return f"sudo apt-get install {package}"
    return f"install {package} with this system's package manager"
