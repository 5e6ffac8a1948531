"""What a simulated host finds when it starts: its disk, its programs, its SSH daemon's settings, and its mounts."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from clouds.machine import FirstBoot, Machine
from gpuops_providers.local import host as local_host
from gpuops_providers.local import isolation, shims

GUEST = Path(__file__).parent / "guest"
"""Programs that a host runs as if they were its system's."""
SYSTEM = "/opt/guest"
"""Where a host finds what belongs to the simulation."""
_UNIT_TOOLS = ("systemctl", "shutdown", "poweroff", "halt", "reboot", "systemd-run", "journalctl")
_DISK_TOOLS = ("mount", "umount", "mkfs.ext4", "mkfs.xfs", "mkfs", "blkid", "udevadm")
_INIT = """
"$1" {system}/bin/boot.py first
while :; do /usr/sbin/sshd -D -e -f {system}/etc/sshd_config & wait $!; sleep 0.2; done
""".replace("{system}", SYSTEM)
"""The host's first process. Like systemd it starts the SSH daemon again when that ends; it is not the host's life."""
SYSTEM_FOLDERS = ("bin", "sbin")
LOCAL_FOLDERS = ("local/bin", "local/sbin")
"""Below /usr; the host may write into the local ones."""
PATH = local_host.PATH.removeprefix("/opt/gpu/bin:")


def lay_out(root: Path, machine: Machine) -> None:
    """Write what the host finds when it starts."""
    disk, settings = root / "root", root / "etc-guest"
    for path in (root, root / "disks", settings, disk, *(disk / n for n in "etc home root opt srv mnt media".split())):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
    for path in disk.iterdir():
        # those of an earlier start, which bubblewrap does not make twice
        if path.is_symlink():
            path.unlink()
    uid, gid = isolation.host_ids()
    etc = disk / "etc"
    logins = list(machine.boot.accounts) or ["root"]
    # all of a host's processes have one uid; its first name is the login
    lines = [f"{n}:x:{uid}:{gid}:{n}:{_home(n)}:/bin/bash" for n in logins]
    lines += [] if "root" in logins else ["root:x:0:0:root:/root:/bin/bash"]
    _write(etc / "passwd", "\n".join([*lines, "sshd:x:65533:65533::/:/usr/sbin/nologin", ""]))
    _write(etc / "group", "".join(f"{n}:x:{gid}:\n" for n in logins))
    _write(etc / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    _write(etc / "hosts", f"127.0.0.1 localhost {machine.name}\n")
    _write(etc / "hostname", machine.name + "\n")
    for name in local_host._BOUND:
        source = Path("/etc") / name
        if source.is_dir():
            (etc / name).mkdir(exist_ok=True)
        elif source.exists():
            (etc / name).touch()
    for name, text in _programs(machine).items():
        path = root / "programs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, text, 0o755)
    for folder in (*SYSTEM_FOLDERS, *LOCAL_FOLDERS):
        _farm(root / _flat(folder), folder, root / "programs" / folder)
    for folder in LOCAL_FOLDERS:
        os.chown(root / _flat(folder), uid, gid)
    _write(settings / "boot.json", json.dumps(_plain(machine.boot)))
    (settings / "go").unlink(missing_ok=True)
    _write(
        settings / "sshd_config",
        f"""ListenAddress {machine.address}
Port {machine.port}
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
MaxSessions 20
MaxStartups 50
AcceptEnv LANG LC_*
SetEnv PATH={PATH}
Subsystem sftp internal-sftp
""",
    )
    for path in (disk, *disk.rglob("*")):
        if not path.is_symlink():
            os.chown(path, uid, gid)


def bubblewrap(root: Path, machine: Machine) -> list[str]:
    """The command line that puts a host's first process behind its mounts; options and that process come after it."""
    base = isolation.base()
    # the host's own disk first, so that everything else lies on it
    argv = [base[0], "--bind", str(root / "root"), "/", *base[1:], "--hostname", machine.name]
    for name in local_host._BOUND:
        if (root / "root" / "etc" / name).exists():
            argv += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    for how, folders in (("--ro-bind", SYSTEM_FOLDERS), ("--bind", LOCAL_FOLDERS)):
        for folder in folders:
            argv += ["--ro-bind", f"/usr/{folder}", f"/opt/{_flat(folder)}"]
            argv += [how, str(root / _flat(folder)), f"/usr/{folder}"]
    binds = [(GUEST, f"{SYSTEM}/bin"), (root / "etc-guest", f"{SYSTEM}/etc"), (root / "disks", f"{SYSTEM}/disks")]
    binds += [(Path(prefix), prefix) for prefix in local_host._prefixes(sys.executable)]
    for source, target in binds:
        for parent in reversed(Path(target).parents[:-1]):
            argv += ["--perms", "0755", "--dir", str(parent)]
        argv += ["--ro-bind", str(source), target]
    for key, value in {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root"}.items():
        argv += ["--setenv", key, value]
    return [*argv, "--chdir", "/"]


def first_process() -> list[str]:
    """What the host runs as its first process."""
    return ["/bin/bash", "-c", _INIT, "init", os.path.realpath(sys.executable)]


def _programs(machine: Machine) -> dict[str, str]:
    """Scripts in the place of the system's programs: path below /usr to text."""
    found = {f"bin/{name}": shims.python(sys.executable) for name in shims.PYTHONS}
    found["bin/sudo"] = shims.SUDO
    found["bin/cloud-init"] = '#!/bin/sh\n# simulated\necho "status: done"\n'
    for name in _UNIT_TOOLS:
        found[f"bin/{name}"] = found[f"sbin/{name}"] = f'#!/bin/sh\nexec python3 {SYSTEM}/bin/units.py {name} "$@"\n'
    for name in _DISK_TOOLS:
        found[f"bin/{name}"] = found[f"sbin/{name}"] = f'#!/bin/sh\nexec python3 {SYSTEM}/bin/disks.py {name} "$@"\n'
    if machine.device:
        named = dataclasses.replace(machine.device, name=f"{machine.device.name} (simulated)")
        found["bin/nvidia-smi"] = shims.nvidia_smi(dataclasses.asdict(named))
    return found


def _farm(farm: Path, folder: str, own: Path) -> None:
    """A folder that stands in for one below /usr: links to the real programs, and scripts for some."""
    farm.mkdir(exist_ok=True)
    farm.chmod(0o755)
    there = {entry.name for entry in os.scandir(farm)}
    scripts = {path.name: path for path in own.iterdir()} if own.is_dir() else {}
    for name, path in scripts.items():
        shutil.copy2(path, farm / name)
    for entry in os.scandir(f"/usr/{folder}"):
        if entry.name not in scripts and entry.name not in there and entry.name != "nvidia-smi":
            (farm / entry.name).symlink_to(f"/opt/{_flat(folder)}/{entry.name}")


def _flat(folder: str) -> str:
    return "usr-" + folder.replace("/", "-")


def _plain(boot: FirstBoot) -> dict[str, Any]:
    """`boot` for boot.py."""
    value = dataclasses.asdict(boot)
    value["files"] = [{**f, "content": base64.b64encode(f["content"]).decode()} for f in value["files"]]
    value["homes"] = {name: _home(name) for name in boot.accounts}
    return value


def _home(name: str) -> str:
    return "/root" if name == "root" else f"/home/{name}"


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)
