"""Argument lists for ssh, rsync and their helpers. A command is a value; one other place runs it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from gpuops.errors import HostError
from gpuops.values import Endpoint

_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,252}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
ALIVE_INTERVAL_S, ALIVE_COUNT = 5, 3
PERSIST_S = 600
MAX_CONTROL_PATH = 87
"""ssh adds 17 characters while it binds the socket, and a socket path ends at 108."""
DEFAULT_EXCLUDES = (
    ".git", ".hg", ".svn", ".env", ".env.*", "*.env", ".envrc", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".tox", ".nox", ".venv", "venv", "node_modules", ".ipynb_checkpoints", ".DS_Store",
    ".ssh", ".aws", ".config/gcloud", ".netrc", ".gnupg", ".npmrc", ".pypirc",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", ".gpuops-partial",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Login:
    """How one run reaches its host: everything is the run's own, nothing the user's."""

    endpoint: Endpoint
    identity: str
    known_hosts: str
    key_type: str
    control: str
    jump: Login | None = None
    """The host through which this one is reached: pinned like every other, with an identity of its own."""


def check_endpoint(endpoint: Endpoint) -> None:
    """Raise `HostError` for an address that a program could take for an option or a command."""
    if not _HOST.fullmatch(endpoint.host) or not _USER.fullmatch(endpoint.user) or not 0 < endpoint.port < 65536:
        raise HostError(f"not an address for SSH: {endpoint.user!r} {endpoint.host!r} {endpoint.port!r}")


def known_hosts_line(endpoint: Endpoint, public_key: str) -> str:
    """The one line of a run's known_hosts file. Port 22 is written without brackets, as ssh looks it up."""
    kind, blob = public_key.split()[:2]
    name = endpoint.host if endpoint.port == 22 else f"[{endpoint.host}]:{endpoint.port}"
    return f"{name} {kind} {blob}\n"


def keygen(path: str, comment: str) -> list[str]:
    """Make an ed25519 key without passphrase."""
    return ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path]


def keyscan(endpoint: Endpoint, timeout_s: int) -> list[str]:
    """Ask a host for its ed25519 key, without any proof."""
    check_endpoint(endpoint)
    return ["ssh-keyscan", "-T", str(timeout_s), "-p", str(endpoint.port), "-t", "ed25519", endpoint.host]


def options(login: Login) -> list[str]:
    """The options of every ssh call: only the run's key and known_hosts, no agent, no forwarding, no user config."""
    pairs = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": _quoted(login.identity),
        "UserKnownHostsFile": _quoted(login.known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "VerifyHostKeyDNS": "no",
        "HostKeyAlgorithms": _algorithms(login.key_type),
        "PreferredAuthentications": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "CanonicalizeHostname": "no",
        "Tunnel": "no",
        "ServerAliveInterval": str(ALIVE_INTERVAL_S),
        "ServerAliveCountMax": str(ALIVE_COUNT),
        "TCPKeepAlive": "yes",
        "LogLevel": "ERROR",
    }
    return ["-F", "none", *[item for key, value in pairs.items() for item in ("-o", f"{key}={value}")]]


def through(login: Login) -> list[str]:
    """Carry the bytes of a connection to this host over its jump host; empty when it is reached directly."""
    if login.jump is None:
        return []
    check_endpoint(login.endpoint)
    return [
        "ssh", *options(login.jump), "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ConnectTimeout=20",
        "-W", f"[{login.endpoint.host}]:{login.endpoint.port}", *_target(login.jump),
    ]  # fmt: skip


def _proxied(login: Login) -> list[str]:
    """The option that sends a new login over the jump host; a shell reads it, and percent signs are ssh's."""
    return ["-o", f"ProxyCommand={_percent(shlex.join(through(login)))}"] if login.jump else []


def master(login: Login, timeout_s: int) -> list[str]:
    """Log in once and stay in the background as the connection that all others share."""
    return [
        "ssh", *options(login), "-o", f"ConnectTimeout={max(1, timeout_s)}", "-o", "ControlMaster=yes",
        "-o", f"ControlPath={_percent(login.control)}", "-o", f"ControlPersist={PERSIST_S}", "-N", "-f",
        *_proxied(login), *_target(login),
    ]  # fmt: skip


def client(login: Login) -> list[str]:
    """ssh over the shared connection only. The proxy command fails on purpose: without a master, no new login."""
    return [
        "ssh", *options(login), "-o", "ControlMaster=no", "-o", f"ControlPath={_percent(login.control)}",
        "-o", "ProxyCommand=/bin/false",
    ]  # fmt: skip


def execute(login: Login, command: str) -> list[str]:
    """Run a fixed command on the host; values never stand in it, they go over stdin."""
    return [*client(login), "-T", *_target(login), command]


def control(login: Login, what: str) -> list[str]:
    """Ask the master: `check`, `stop` or `exit`."""
    return [*client(login), "-O", what, *_target(login)]


def interactive(login: Login) -> list[str]:
    """A login shell for a person, with the same pinned key and nothing of the user's configuration."""
    return [
        "ssh",
        *options(login),
        "-o",
        "ControlMaster=no",
        "-o",
        f"ControlPath={_percent(login.control)}",
        *_proxied(login),
        "-t",
        *_target(login),
    ]


def rsync_list(source: str, target: str, excludes: tuple[str, ...], follow: bool, remote_shell: str = "") -> list[str]:
    """A dry run that names everything, changed or not: kind, size and name, all unusual bytes escaped."""
    shell = ["-e", remote_shell] if remote_shell else []
    return [
        "rsync", "-n", "-ii", "-rlpt", "-s", "--no-devices", "--no-specials",
        *(["--copy-unsafe-links"] if follow else []), "--out-format=%i|%l|%n", "--timeout=30", "--mkpath",
        *shell, *[f"--exclude={e}" for e in excludes],
        source.rstrip("/") + "/", target,
    ]  # fmt: skip


def rsync_send(source: str, target: str, list_file: str, follow: bool, remote_shell: str) -> list[str]:
    """Send exactly the files of `list_file` (names ended by NUL), resuming; nothing on the host is ever deleted."""
    return [
        "rsync", "-lpt", "-s", "--no-devices", "--no-specials", *(["--copy-unsafe-links"] if follow else []),
        "--partial-dir=.gpuops-partial", "--timeout=30", "--mkpath", "--from0", f"--files-from={list_file}",
        "-e", remote_shell, source.rstrip("/") + "/", target,
    ]  # fmt: skip


def pack(source: str, list_file: str) -> list[str]:
    """Write exactly the files of `list_file` (names ended by NUL) as one stream; no extra files of a Mac among them."""
    return [
        "env", "COPYFILE_DISABLE=1", "tar", "-b", "128", "-cf", "-", "-C", source, "--no-recursion", "--null",
        "-T", list_file,
    ]  # fmt: skip


def unpack(login: Login, destination: str) -> list[str]:
    """Read such a stream on the host; files belong to whoever logs in."""
    where = shlex.quote(destination)
    return execute(login, f"mkdir -p -- {where} && exec tar -xopf - -C {where}")


def rsync_target(endpoint: Endpoint, path: str) -> str:
    """`user@host:/path`, an IPv6 address in brackets."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.user}@{host}:{path}"


def remote_shell(login: Login) -> str:
    """The ssh command as rsync's `-e` reads it: split at spaces, single quotes, a doubled quote stands for one."""
    port = ["-p", str(login.endpoint.port)]
    return " ".join(
        a if re.fullmatch(r"[\w@%+=:,./-]+", a) else "'" + a.replace("'", "''") + "'" for a in [*client(login), *port]
    )


def rsync_version() -> list[str]:
    """Ask this computer's rsync for its version."""
    return ["rsync", "--version"]


def git(repository: str, *words: str, ceiling: str = "") -> list[str]:
    """git in one checkout, whatever the caller's environment says of others; `ceiling` stops the search for one above it.

    The filters of LFS do not run: they would fetch contents with the user's credentials.
    """
    clean = [w for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX") for w in ("-u", name)]
    stop = [f"GIT_CEILING_DIRECTORIES={ceiling}"] if ceiling else []
    lfs = ["-c", "filter.lfs.smudge=cat", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"]
    return ["env", *clean, "GIT_OPTIONAL_LOCKS=0", *stop, "git", *lfs, "-C", repository, *words]


def git_ignored(source: str) -> list[str]:
    """What git ignores below `source`, ended by NUL; a whole directory is one entry."""
    return ["git", "-C", source, "ls-files", "-oi", "--exclude-standard", "--directory", "-z"]


def rsync_literal(path: str) -> str:
    """An exclude pattern that matches exactly this path below the source."""
    if re.search(r"[*?\[]", path):
        path = re.sub(r"([*?\[\\])", r"\\\1", path)
    return "/" + path


def _target(login: Login) -> list[str]:
    check_endpoint(login.endpoint)
    return ["-p", str(login.endpoint.port), "-l", login.endpoint.user, "--", login.endpoint.host]


def _algorithms(key_type: str) -> str:
    return "rsa-sha2-512,rsa-sha2-256" if key_type == "ssh-rsa" else key_type


def _quoted(path: str) -> str:
    """A path in an ssh option: quotes keep spaces together, percent signs are doubled."""
    return '"' + _percent(path) + '"'


def _percent(path: str) -> str:
    return path.replace("%", "%%")
