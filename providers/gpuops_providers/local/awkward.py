"""What makes a host awkward: an offer's `host` record, turned into files and mounts. `offers` explains each feature."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import shims

NEEDS_BUBBLEWRAP = frozenset(
    "workspace_mb workspace_mode missing python user sudo installs noexec home home_mb".split()
)
"""Features that are made of mounts: without bubblewrap an offer that has one is refused."""
WORKSPACE = "/workspace"
_USR_LOCAL = "/usr/local/bin"
_MOUNTS_NOEXEC = """
while [ "$1" != -- ]; do mount -t tmpfs -o noexec,nosuid,nodev,mode=1777 tmpfs "$1" || exit; shift; done
shift
exec "$@"
"""


def unmet(host: Mapping[str, Any]) -> str:
    """The features that need bubblewrap, in words; empty when there are none."""
    return ", ".join(sorted(name for name in host if name in NEEDS_BUBBLEWRAP))


def user(host: Mapping[str, Any]) -> str:
    """Who logs in."""
    return str(host.get("user", "root"))


def home(host: Mapping[str, Any]) -> str:
    """The home of whoever logs in."""
    return "/root" if user(host) == "root" else f"/home/{user(host)}"


def accounts(host: Mapping[str, Any], uid: int, gid: int) -> str:
    """/etc/passwd: all processes have one uid, and its name is that of the login."""
    lines = [f"{user(host)}:x:{uid}:{gid}:{user(host)}:{home(host)}:/bin/bash"]
    lines += [] if user(host) == "root" else ["root:x:0:0:root:/root:/bin/bash"]
    return "\n".join([*lines, "sshd:x:65533:65533::/:/usr/sbin/nologin", ""])


def programs(host: Mapping[str, Any], interpreter: str) -> dict[str, str]:
    """Further programs: folder below the host's disk and name, to the text of a script."""
    found = {f"{'python' if host.get('python') else 'bin'}/{name}": shims.python(interpreter) for name in shims.PYTHONS}
    for feature, name, text in (
        ("sudo", "sudo", shims.SUDO), ("installs", "apt-get", shims.APT_GET), ("shell_only", "shell-only", shims.SHELL_ONLY),
    ):  # fmt: skip
        if host.get(feature):
            found[f"bin/{name}"] = text
    return found


def server_settings(host: Mapping[str, Any], programs_at: str) -> str:
    """Lines for sshd_config."""
    return f"ForceCommand {programs_at}/shell-only\n" if host.get("shell_only") else ""


def home_mount(host: Mapping[str, Any], source: Path) -> list[str]:
    """How the login's home appears; bubblewrap's arguments."""
    # bubblewrap makes missing parents for root alone, and the host is not root
    parent = [] if user(host) == "root" else ["--perms", "0755", "--dir", os.path.dirname(home(host))]
    if megabytes := host.get("home_mb"):
        return [*parent, *_memory(home(host), float(megabytes), "0777")]
    return [*parent, "--ro-bind" if host.get("home") == "read-only" else "--bind", str(source), home(host)]


def make_mount_point(host: Mapping[str, Any], disk: Path, target: Path) -> None:
    """Make the folder `target`, when it lies in the home, on the home's `disk`: read-only inside, it takes no new ones."""
    if Path(home(host)) not in target.parents:
        return
    for part in target.relative_to(home(host)).parts:
        disk /= part
        disk.mkdir(exist_ok=True)
        disk.chmod(0o755)


def workspace_mount(host: Mapping[str, Any], source: Path) -> list[str]:
    """How /workspace appears."""
    if megabytes := host.get("workspace_mb"):
        return _memory(WORKSPACE, float(megabytes), "1777")
    if mode := host.get("workspace_mode"):
        return ["--perms", str(mode), "--tmpfs", WORKSPACE]
    return ["--bind", str(source), WORKSPACE]


def further_mounts(host: Mapping[str, Any], root: Path) -> list[str]:
    """What hides commands and moves python."""
    argv: list[str] = []
    missing = set(host.get("missing", ())) | (set(shims.PYTHONS) if host.get("python") else set())
    if missing:
        argv += _without(root, missing)
        argv += ["--perms", "1777", "--tmpfs", _USR_LOCAL]
    if place := host.get("python"):
        argv += ["--perms", "0755", "--dir", os.path.dirname(place), "--ro-bind", str(root / "python"), str(place)]
    return argv


def noexec_mounts(host: Mapping[str, Any], root: Path) -> list[str]:
    """Folders that are closed to programs."""
    mounts = [("--bind", str(_noexec(root, number)), str(path)) for number, path in enumerate(host.get("noexec", ()))]
    return [part for mount in mounts for part in mount]


def outer(host: Mapping[str, Any], root: Path, argv: list[str]) -> list[str]:
    """`argv` (bubblewrap) with what has to be done around it: it makes no file system noexec itself, but keeps one so."""
    places = [_noexec(root, number) for number, _ in enumerate(host.get("noexec", ()))]
    if not places:
        return argv
    for place in places:
        place.mkdir(exist_ok=True)
    own = ["-m"] if os.getuid() == 0 else ["-Urm"]
    # a further user namespace would make this user root inside
    same = [] if os.getuid() == 0 else ["--uid", str(os.getuid()), "--gid", str(os.getgid())]
    command = [argv[0], *same, *argv[1:]]
    return ["unshare", *own, "/bin/sh", "-c", _MOUNTS_NOEXEC, "host", *map(str, places), "--", *command]


def _noexec(root: Path, number: int) -> Path:
    return root / f"noexec-{number}"


def _memory(path: str, megabytes: float, mode: str) -> list[str]:
    return ["--perms", mode, "--size", str(int(megabytes * 1_000_000)), "--tmpfs", path]


def _without(root: Path, missing: set[str]) -> list[str]:
    """Hide commands: /usr/bin becomes a folder of links to the rest. (Masked ones could still be found.)"""
    farm = root / "usr-bin"
    farm.mkdir(exist_ok=True)
    farm.chmod(0o755)
    for entry in os.scandir("/usr/bin"):
        if entry.name not in missing and not (farm / entry.name).is_symlink():
            (farm / entry.name).symlink_to(f"/opt/usr-bin/{entry.name}")
    return ["--ro-bind", "/usr/bin", "/opt/usr-bin", "--ro-bind", str(farm), "/usr/bin"]
