"""A rented host: its files, and its first process with an SSH daemon inside."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.errors import ProviderError

from . import awkward, isolation, offers, shims
from .cloud import Cloud, Rental
from .processes import MARKER, Process, identify

READY_S = 10.0
WORKSPACE = awkward.WORKSPACE
HOST_JSON = "/etc/gpuops-host.json"
PATH = "/opt/gpu/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INIT = """
"$1" -D -e -f "$2/sshd_config" &
daemon=$!
[ ! -s "$2/startup" ] || /bin/sh "$2/startup" >"$3" 2>&1 &
wait "$daemon"
"""
"""The host's first process: it takes in orphans, and the host ends when its SSH daemon does."""
_BOUND = ("ld.so.cache", "alternatives", "ssl", "localtime", "resolv.conf")
"""What of this machine's /etc programs need in order to run; nothing that tells about its accounts or keys."""


class HostStartError(ProviderError):
    """The host did not start."""


def build(cloud: Cloud, rental: Rental, keys: Mapping[str, Any]) -> None:
    """Write the host's disk and /etc. `keys`: `host_key` (private half, or none) and `authorized` (public keys)."""
    root = cloud.rental_directory(rental.id) / "host"
    etc, secret = root / "etc", root / "etc" / "gpuops"
    for directory in (root, root / "home", root / "work", root / "bin", root / "python", etc, secret):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    uid, gid = isolation.host_ids()
    _write(etc / "passwd", awkward.accounts(rental.host, uid, gid))
    _write(etc / "group", f"{awkward.user(rental.host)}:x:{gid}:\n")
    _write(etc / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
    _write(etc / "hosts", f"127.0.0.1 localhost {rental.id}\n{_other_hosts()}")
    _write(etc / "hostname", f"{rental.id}\n")
    for name in _BOUND:
        source = Path("/etc") / name
        if source.is_dir():
            (etc / name).mkdir(exist_ok=True)
        elif source.exists():
            _write(etc / name, "")
    product = offers.find(cloud.directory, rental.offer)
    if product is None:
        raise HostStartError(f"the offer {rental.offer} exists no more")
    device = shims.nvidia_smi(offers.shown_device(rental.host, product))
    for name, text in {"bin/nvidia-smi": device, **awkward.programs(rental.host, rental.python)}.items():
        _write(root / name, text, 0o755)
    if bashrc := rental.host.get("bashrc"):
        _write(root / "home" / ".bashrc", str(bashrc))
    _write(secret / "startup", rental.startup)
    _write(secret / "authorized_keys", "".join(key.strip() + "\n" for key in keys["authorized"]))
    _write_host_key(secret / "host_key", keys.get("host_key"))
    if rental.isolation == "bubblewrap":
        for path in (root / "home", root / "work", secret / "host_key", *_volume_roots(cloud, rental)):
            os.chown(path, uid, gid)


def start(cloud: Cloud, rental: Rental) -> tuple[Process, int]:
    """Start the host and wait until SSH answers; returns its first process and the port. Raises `HostStartError`.

    A host that was started before keeps its port and its disk.
    """
    log = cloud.rental_directory(rental.id) / "sshd.log"
    # A free port may be taken by somebody else between looking and using.
    for _ in range(5):
        port = rental.port or _free_port()
        _configure(cloud, rental, port)
        with log.open("ab") as errors:
            spawn = _spawn_plain if rental.isolation == isolation.PLAIN else _spawn
            first = spawn(cloud, rental, errors)
        if _answers(first, port):
            return first, port
        if b"Address already in use" not in log.read_bytes()[-4096:]:
            break
    raise HostStartError(f"the SSH daemon of {rental.id} did not start, see {log}")


def wipe(cloud: Cloud, rental: Rental) -> None:
    """The disk of the host exists no more; logs and the record stay."""
    for link, target in _links(cloud, rental):
        if link.is_symlink() and os.readlink(link) == str(target):
            link.unlink()

    def unlock(function: Any, path: str, error: Any) -> None:
        os.chmod(os.path.dirname(path), stat.S_IRWXU)
        os.chmod(path, stat.S_IRWXU)
        function(path)

    try:
        shutil.rmtree(cloud.rental_directory(rental.id) / "host", onerror=unlock)
    except OSError:
        pass


def real_mount(rental: Rental, mount: str) -> str:
    """Where a volume ordered at `mount` appears: an awkward host may differ."""
    return str(rental.host.get("mounts", {}).get(mount, mount))


def restarts_when(cloud: Cloud, rental: Rental) -> Path | None:
    """The path, outside, whose appearing makes this host restart; None when it does not, or has done so."""
    path = rental.host.get("reboots_when")
    if not path or rental.boots > 1:
        return None
    return cloud.rental_directory(rental.id) / "host" / "work" / os.path.relpath(str(path), WORKSPACE)


def _configure(cloud: Cloud, rental: Rental, port: int) -> None:
    root = cloud.rental_directory(rental.id) / "host"
    plain = rental.isolation == isolation.PLAIN
    etc = root / "etc" if plain else Path("/etc")
    path = PATH.replace("/opt/gpu/bin", str(root / "bin")) if plain else PATH
    workspace = WORKSPACE if not plain else str(root / "work")
    environment = {"PATH": path, "GPUOPS_WORKSPACE": workspace, "GPUOPS_HOST_JSON": str(etc / "gpuops-host.json")}
    if plain:
        # The marker lets a later process find what a dead keeper left; its own home keeps the user's rc files out.
        environment |= {MARKER: rental.id, "HOME": str(root / "home")}
    set_env = " ".join(f'"{key}={value}"' for key, value in environment.items())
    _write(
        root / "etc" / "gpuops" / "sshd_config",
        f"""ListenAddress 127.0.0.1
Port {port}
HostKey {etc}/gpuops/host_key
AuthorizedKeysFile {etc}/gpuops/authorized_keys
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
SetEnv {set_env}
Subsystem sftp internal-sftp
{awkward.server_settings(rental.host, str(root / "bin") if plain else "/opt/gpu/bin")}""",
    )
    volumes = [
        {
            "id": use.id,
            "uuid": volume.uuid,
            "mount": real_mount(rental, use.mount),
            "identity_file": f"{real_mount(rental, use.mount)}/.gpuops-volume",
        }
        for use in rental.volumes
        if (volume := cloud.volume(use.id))
    ]
    published = rental.host.get("ports", [22])
    facts = {
        "rental": rental.id,
        "offer": rental.offer,
        "region": rental.region,
        "isolation": rental.isolation,
        "simulated": True,
        "boot": str(rental.boots),
        "published_ports": published,
        "ports": {str(number): port if number == 22 else number for number in published},
        "volumes": volumes,
        "workspace": workspace,
    }
    _write(root / "etc" / "gpuops-host.json", json.dumps(facts, indent=1) + "\n")


def _other_hosts() -> str:
    """The names that this machine knows by itself: where it reaches a package registry, so does the rental."""
    try:
        lines = Path("/etc/hosts").read_text().splitlines(keepends=True)
    except OSError:
        return ""
    return "".join(line for line in lines if "localhost" not in line)


def _spawn(cloud: Cloud, rental: Rental, errors: Any) -> Process:
    """Start bubblewrap around the host's first process; that process's pid comes back over a pipe."""
    root = cloud.rental_directory(rental.id) / "host"
    argv = [*isolation.base(), "--hostname", rental.id, "--ro-bind", str(root / "etc"), "/etc"]
    for name in _BOUND:
        if (root / "etc" / name).exists():
            argv += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    binds = [("--ro-bind", root / "bin", "/opt/gpu/bin")]
    for prefix in _prefixes(rental.python):
        binds.append(("--ro-bind", Path(prefix), prefix))
        awkward.make_mount_point(rental.host, root / "home", Path(prefix))
    argv += awkward.noexec_mounts(rental.host, root)
    argv += awkward.home_mount(rental.host, root / "home")
    if all(real_mount(rental, use.mount) != WORKSPACE for use in rental.volumes):
        argv += awkward.workspace_mount(rental.host, root / "work")
    for use in sorted(rental.volumes, key=lambda use: use.mount):
        binds.append(("--bind", cloud.volume_directory(use.id) / "data", real_mount(rental, use.mount)))
    for kind, source, target in binds:
        # bubblewrap makes missing parents for root alone, and the host is not root.
        for parent in reversed(Path(target).parents[:-1]):
            argv += ["--perms", "0755", "--dir", str(parent)]
        argv += [kind, str(source), target]
    argv += awkward.further_mounts(rental.host, root)
    for key, value in {"PATH": PATH, "LANG": "C.UTF-8", "HOME": awkward.home(rental.host), MARKER: rental.id}.items():
        argv += ["--setenv", key, value]
    reader, writer = os.pipe()
    argv += ["--chdir", "/", "--info-fd", str(writer), "--", *isolation.drop(_init("/etc/gpuops", "/var/log"))]
    # The environment of bwrap itself is readable inside, at /proc/1/environ: nothing of the caller's goes in.
    subprocess.Popen(
        awkward.outer(rental.host, root, argv),
        env={MARKER: rental.id},
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        pass_fds=(writer,),
        umask=0o022,
    )
    os.close(writer)
    try:
        return _first_process(reader)
    finally:
        os.close(reader)


def _spawn_plain(cloud: Cloud, rental: Rental, errors: Any) -> Process:
    """Start an ordinary SSH daemon: no namespaces, and only links where volumes should be mounted."""
    for link, target in _links(cloud, rental):
        link.symlink_to(target)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    directory = cloud.rental_directory(rental.id)
    child = subprocess.Popen(
        _init(str(directory / "host" / "etc" / "gpuops"), str(directory)),
        env={MARKER: rental.id, "PATH": PATH, "HOME": str(directory / "host" / "home")},
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        cwd="/",
        umask=0o022,
    )
    first = identify(child.pid)
    if first is None:
        raise HostStartError("the SSH daemon ended at once")
    return first


def _init(settings: str, logs: str) -> list[str]:
    daemon = isolation.tool("sshd") or "/usr/sbin/sshd"
    return ["/bin/bash", "-c", _INIT, "host", daemon, settings, f"{logs}/startup.log"]


def _first_process(reader: int) -> Process:
    text, give_up = b"", time.monotonic() + READY_S
    while select.select([reader], [], [], max(0.0, give_up - time.monotonic()))[0]:
        piece = os.read(reader, 4096)
        if not piece:
            break
        text += piece
    try:
        first = identify(int(json.loads(text)["child-pid"]))
    except (ValueError, KeyError) as error:
        raise HostStartError(f"bubblewrap did not start the host: {text!r}") from error
    if first is None:
        raise HostStartError("the host ended at once")
    return first


def _answers(first: Process, port: int) -> bool:
    """Wait until this host, and nobody else, speaks SSH on the port."""
    give_up = time.monotonic() + READY_S
    while time.monotonic() < give_up and identify(first.pid) == first:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return identify(first.pid) == first
        except OSError:
            pass
        time.sleep(0.02)
    return False


def _links(cloud: Cloud, rental: Rental) -> list[tuple[Path, Path]]:
    """Without namespaces a mount is a link."""
    if rental.isolation != isolation.PLAIN:
        return []
    return [(Path(real_mount(rental, use.mount)), cloud.volume_directory(use.id) / "data") for use in rental.volumes]


def _volume_roots(cloud: Cloud, rental: Rental) -> list[Path]:
    return [cloud.volume_directory(use.id) / "data" for use in rental.volumes]


def _prefixes(python: str) -> list[str]:
    """Where the interpreter and its packages live, when that is outside /usr: virtual environment first."""
    code = "import sys; print(sys.prefix); print(sys.base_prefix)"
    try:
        done = subprocess.run([python, "-c", code], env={}, capture_output=True, text=True, timeout=READY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    prefixes = {prefix for prefix in done.stdout.split("\n") if prefix}
    # Some installers put a link to a folder between the environment and the interpreter.
    hop = python
    for _ in range(8):
        if not os.path.islink(hop):
            break
        hop = os.path.join(os.path.dirname(hop), os.readlink(hop))
        prefix = os.path.dirname(os.path.dirname(os.path.normpath(hop)))
        if list(Path(prefix).glob("lib/python3*")):
            prefixes.add(prefix)
    # Outer folders first, so that one inside another is not hidden by it.
    return [prefix for prefix in sorted(prefixes) if prefix != "/" and not (prefix + "/").startswith("/usr/")]


def _write_host_key(path: Path, private: str | None) -> None:
    path.unlink(missing_ok=True)
    if private:
        _write(path, private if private.endswith("\n") else private + "\n", 0o600)
        return
    argv = [isolation.tool("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=READY_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostStartError(f"no SSH host key could be made: {error}") from error


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    path.chmod(mode)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
