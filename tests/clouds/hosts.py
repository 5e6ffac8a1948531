"""Hosts of a fake cloud: real OpenSSH in bubblewrap at an address of its own, made from what the create call carried.

A fake turns its vendor's create call into a `Machine` and hands it to a `HostKeeper`. What the vendor's image would do
at its first boot is data, a `FirstBoot`: `cloudconfig` reads one out of cloud-init's user-data; keys that come as
metadata make another. A host ends when it powers off (by `poweroff`, `shutdown` or a unit of its own) or when the keeper
stops it; the keeper says so through `on_end`, and the cloud decides what that means for the bill.

Simulated, and labelled so on the host: the device that nvidia-smi shows, systemd (units are read by a small program),
sudo (nobody has more rights than the others), and disks (memory that is mounted under the name of a block device).
The caller must be in a network of its own (`netns.own_network`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clouds.hostfiles import SYSTEM, bubblewrap, first_process, lay_out
from clouds.machine import Device as Device
from clouds.machine import Disk as Disk
from clouds.machine import File as File
from clouds.machine import FirstBoot as FirstBoot
from clouds.machine import Machine as Machine
from clouds.netns import inside, require_own_network
from gpuops_providers.local import host as local_host
from gpuops_providers.local import isolation
from gpuops_providers.local.processes import MARKER, Process, alive, identify

READY_S = 20.0
POWERED_OFF = "powered off"
DIED = "died"
STOPPED = "stopped from outside"


class HostError(Exception):
    """A host could not be made or changed."""


@dataclass(slots=True)
class _Host:
    machine: Machine
    root: Path
    outer: subprocess.Popen[bytes]
    first: Process
    requests: socket.socket
    ending: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


class HostKeeper:
    """The hosts of one cloud, by name. Every method may be called from any thread."""

    def __init__(self, directory: Path, on_end: Callable[[str, str], None] = lambda name, why: None) -> None:
        require_own_network()
        self._directory = directory
        self._on_end = on_end
        self._hosts: dict[str, _Host] = {}
        self._lock, self._disks = threading.RLock(), threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        self._mounts = _own_mounts(directory)

    def start(self, machine: Machine) -> None:
        """Boot a host and wait until its SSH daemon answers; a host that ran before keeps its disk and its keys.

        Raises `HostError`; nothing is left of the host then.
        """
        with self._lock:
            if machine.name in self._hosts:
                raise HostError(f"{machine.name} runs already")
            root = self._directory / machine.name
            lay_out(root, machine)
            self._hosts[machine.name] = host = _spawn(root, machine, self._mounts.pid)
        for work in (self._serve, self._watch):
            threading.Thread(target=work, args=(host,), daemon=True).start()
        for disk in machine.disks:
            self.attach(machine.name, disk)
        (root / "etc-guest" / "go").touch()
        if not _answers(host):
            self.stop(machine.name)
            raise HostError(f"{machine.name} does not answer: {self.console(machine.name)[-800:]}")

    def stop(self, name: str) -> None:
        """Pull the plug: every process of the host is gone when this returns. Safe to repeat."""
        with self._lock:
            host = self._hosts.get(name)
        if host is not None:
            self._end(host, STOPPED)
            if not host.ended.wait(READY_S):
                raise HostError(f"{name} does not end")

    def wipe(self, name: str) -> None:
        """The host's own disk exists no more; what it printed stays."""
        self.stop(name)
        shutil.rmtree(self._directory / name / "root", ignore_errors=True)

    def attach(self, name: str, disk: Disk) -> None:
        """Let a disk appear in a running host, unmounted. Safe to repeat."""
        host = self._running(name)
        with self._disks:
            self._show(host, disk)

    def _show(self, host: _Host, disk: Disk) -> None:
        held = self._directory / "disks" / disk.id
        if not held.is_dir():
            held.mkdir(parents=True)
            uid, gid = isolation.host_ids()
            options = f"size={disk.size_mb}m,mode=755,uid={uid},gid={gid}"
            self._tool("mount", "-t", "tmpfs", "-o", options, disk.device, str(held))
        shown = host.root / "disks" / os.path.basename(disk.device)
        if not shown.is_dir():
            shown.mkdir()
            self._tool("mount", "--bind", str(held), str(shown))
        links = "; ".join(f"ln -sfn ../../{os.path.basename(disk.device)} '/dev/disk/by-id/{n}'" for n in disk.names)
        # A node of a driver that does not exist, in a file system that opens no devices: it is there to be looked at.
        make = f"test -e {disk.device} || mknod -m 600 {disk.device} b 250 0"
        self._inside(host, f"mkdir -p /dev/disk/by-id; {make}; {links or 'true'}")

    def detach(self, name: str, disk: Disk) -> None:
        """Take a disk away from a running host, mounted or not. Safe to repeat."""
        host = self._running(name)
        names = " ".join(f"'/dev/disk/by-id/{n}'" for n in disk.names)
        script = f"grep ' {disk.device} ' /proc/1/mountinfo | cut -d' ' -f5 | while read -r at; do umount -l $at; done"
        self._inside(host, f"{script}; rm -f {disk.device} {names}")
        shown = host.root / "disks" / os.path.basename(disk.device)
        if shown.is_dir():
            self._tool("umount", "-l", str(shown))
            shown.rmdir()

    def names(self) -> tuple[str, ...]:
        """Hosts that run."""
        with self._lock:
            return tuple(self._hosts)

    def console(self, name: str) -> str:
        """What the host has printed since its first boot, SSH daemon included."""
        try:
            return (self._directory / name / "console").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def host_keys(self, name: str) -> dict[str, str]:
        """Public host keys by their type word (`ssh-ed25519` to base64), empty until the first boot has made them."""
        found = {}
        for path in (self._directory / name / "root" / "etc" / "ssh").glob("ssh_host_*_key.pub"):
            kind, key = path.read_text().split()[:2]
            found[kind] = key
        return found

    def processes(self, name: str) -> bool:
        """Whether the host's first process lives."""
        with self._lock:
            host = self._hosts.get(name)
        return host is not None and alive(host.first)

    def close(self) -> None:
        """Stop every host and drop the disks."""
        for name in self.names():
            self.stop(name)
        assert self._mounts.stdin is not None
        self._mounts.stdin.close()
        self._mounts.wait(READY_S)

    def _running(self, name: str) -> _Host:
        with self._lock:
            host = self._hosts.get(name)
        if host is None:
            raise HostError(f"{name} does not run")
        return host

    def _tool(self, *command: str) -> None:
        done = inside(self._mounts.pid, command)
        if done.returncode:
            raise HostError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")

    def _inside(self, host: _Host, script: str) -> None:
        done = inside(host.first.pid, ["/bin/sh", "-c", script])
        if done.returncode:
            raise HostError(f"{host.machine.name}: {done.stderr.decode(errors='replace').strip()}")

    def _end(self, host: _Host, why: str) -> None:
        host.ending = host.ending or why
        if alive(host.first):
            # PID 1 of the host: the kernel ends every other process in it
            os.kill(host.first.pid, signal.SIGKILL)

    def _watch(self, host: _Host) -> None:
        """Wait for the end of the host, whichever way it comes, and tell it."""
        host.outer.wait()
        name = host.machine.name
        host.requests.close()
        for shown in (host.root / "disks").glob("*"):
            self._tool("umount", "-l", str(shown))
            shown.rmdir()
        with self._lock:
            self._hosts.pop(name, None)
        host.ended.set()
        self._on_end(name, host.ending or DIED)

    def _serve(self, host: _Host) -> None:
        """Do what only the keeper can do for programs on the host: mount a disk, end the machine."""
        while True:
            try:
                connection, _ = host.requests.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    answer = self._asked(host, json.loads(connection.makefile("rb").readline(65536)))
                    connection.sendall(json.dumps(answer).encode() + b"\n")
                except (OSError, ValueError, KeyError, HostError) as error:
                    print(f"{host.machine.name}: {error}", file=sys.stderr)

    def _asked(self, host: _Host, request: Mapping[str, Any]) -> dict[str, str]:
        if "power" in request:
            self._end(host, POWERED_OFF)
            return {}
        device, target = os.path.basename(request["device"]), os.path.normpath("/" + request["at"])
        if request.get("take") == "away":
            done = inside(host.first.pid, ["umount", target])
        else:
            done = inside(host.first.pid, ["mount", "--bind", f"{SYSTEM}/disks/{device}", target])
        return {"error": done.stderr.decode(errors="replace").strip()} if done.returncode else {}


def _own_mounts(directory: Path) -> subprocess.Popen[bytes]:
    """A process with mounts of its own that lives as long as its standard input; all disks are mounted among them.

    What is mounted below `directory` there appears inside the hosts as well, and nowhere on this machine.
    """
    script = 'mount --bind "$0" "$0" && mount --make-shared "$0" && echo ready && exec cat'
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, str(directory)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        raise HostError("no mounts of our own")
    return holder


def _spawn(root: Path, machine: Machine, mounts: int) -> _Host:
    requests = root / "etc-guest" / "keeper"
    requests.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    # a short name: socket paths are limited to 107 bytes
    descriptor = os.open(requests.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/keeper")
    finally:
        os.close(descriptor)
    requests.chmod(0o666)
    listener.listen()
    reader, writer = os.pipe()
    argv = [*bubblewrap(root, machine), "--info-fd", str(writer), "--", *isolation.drop(first_process())]
    with (root / "console").open("ab") as console:
        outer = subprocess.Popen(
            ["nsenter", "--target", str(mounts), "--mount", "--", *argv],
            # readable inside at /proc/1/environ: nothing of the caller's
            env={MARKER: machine.name},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            pass_fds=(writer,),
            umask=0o022,
            start_new_session=True,
        )
    os.close(writer)
    try:
        first = local_host._first_process(reader)
    except local_host.HostStartError as error:
        outer.kill()
        listener.close()
        raise HostError(f"{machine.name}: {error} {(root / 'console').read_text(errors='replace')[-800:]}") from error
    finally:
        os.close(reader)
    give_up = time.monotonic() + READY_S
    # until then its mounts are still those of this machine
    while _command(first) == "bwrap" and time.monotonic() < give_up:
        time.sleep(0.01)
    return _Host(machine, root, outer, first, listener)


def _command(process: Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return ""


def _answers(host: _Host) -> bool:
    """Wait until this host speaks SSH at its address."""
    give_up = time.monotonic() + READY_S
    while time.monotonic() < give_up and alive(host.first):
        try:
            with socket.create_connection((host.machine.address, host.machine.port), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return identify(host.first.pid) == host.first
        except OSError:
            pass
        time.sleep(0.03)
    return False
