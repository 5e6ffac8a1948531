"""What this computer shows, for `doctor` and `plan`: programs, terminal, folders, journal, guard, credentials, clock.

Each look is one function that returns findings and changes nothing.
"""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuops.cli.accounts import found
from gpuops.cli.context import App
from gpuops.cli.leaving import guard_runs
from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.provider import TellsNeeds
from gpuops.registry import credential_names, credential_places
from gpuops.values import Finding, FindingState, Scope

PYTHON = (3, 11)
VERSION_S = 5.0
JOURNAL_S = 5.0
LEAST_FREE = 100_000_000
GOOD_FREE = 1_000_000_000
# command → (Debian package, Homebrew formula, needed, what it is for)
PROGRAMS: dict[str, tuple[str, str, bool, str]] = {
    "ssh": ("openssh-client", "openssh", True, "reaches rented machines"),
    "ssh-keygen": ("openssh-client", "openssh", True, "makes the keys of each run"),
    "ssh-keyscan": ("openssh-client", "openssh", True, "reads the host key of a machine"),
    "rsync": ("rsync", "rsync", True, "sends code and data"),
    "git": ("git", "git", False, "tells which files are ignored; without it ignored files are sent as well"),
}
NETWORKED = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre gpfs beegfs glusterfs fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs".split()
)


def programs(names: tuple[str, ...] = tuple(PROGRAMS)) -> Iterator[Finding]:
    """The programs that gpuops calls on this computer."""
    for name in names:
        package, formula, needed, what_for = PROGRAMS[name]
        found = shutil.which(name)
        if found is None:
            yield Finding(
                name, "missing" if needed else "warning", f"not installed: {what_for}", install(package, formula)
            )
        elif name == "rsync":
            yield _rsync(found)
        else:
            yield Finding(name, "ok", f"{found}: {what_for}")


def _rsync(found: str) -> Finding:
    from gpuops.hostchecks import SAFE_RSYNC, old_rsync

    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
        line = next(iter(done.stdout.splitlines()), "")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        return Finding("rsync", "warning", f"{found} does not tell its version: {error}", install("rsync", "rsync"))
    said = " ".join(line.split()[1:3]) or "an unknown version"
    if old_rsync(line):
        safe = ".".join(map(str, SAFE_RSYNC))
        return Finding(
            "rsync", "warning", f"{said} has known holes towards a hostile machine; {safe} mends them",
            install("rsync", "rsync"),
        )  # fmt: skip
    return Finding("rsync", "ok", f"{said}: sends code and data")


def install(package: str, formula: str) -> str:
    """The command that installs a package on this system, or what to look for."""
    if sys.platform == "darwin":
        return f"brew install {formula}"
    if shutil.which("apt-get"):
        return f"sudo apt-get install {package}"
    return f"install {package} with this system's package manager"


def python() -> Finding:
    """The interpreter."""
    version = sys.version_info[:3]
    text = ".".join(map(str, version))
    if version >= PYTHON:
        return Finding("python", "ok", text)
    wanted = ".".join(map(str, PYTHON))
    return Finding(
        "python", "missing", f"{text}, and gpuops needs {wanted} or newer", f"install python {wanted} or newer"
    )


def terminal() -> Iterator[Finding]:
    """Whether somebody can be asked, and whether the screen shows what is printed."""
    asked = sys.stdin.isatty()
    yield Finding("terminal", "ok", "questions are asked here" if asked else "none here: questions need --yes")
    encoding = (locale.getpreferredencoding(False) or "ascii").lower().replace("-", "")
    if encoding == "utf8":
        yield Finding("locale", "ok", "UTF-8")
    else:
        said = f"{encoding}: letters beyond ASCII are shown as numbers"
        yield Finding("locale", "warning", said, "export LANG=C.UTF-8")


def home(app: App) -> Iterator[Finding]:
    """Where the journal lies: writable, on a disk of this computer, with room."""
    path = app.home.path
    there = nearest(path)
    problem = unwritable(there)
    fix = "export GPUOPS_HOME=a folder of yours on a local disk"
    if problem:
        yield Finding("home", "missing", f"{path} cannot be written ({problem}): the journal lies there", fix)
    else:
        yield Finding("home", "ok", f"{path}" + ("" if there == path else " (made when it is first needed)"))
    kind = file_system(there)
    if kind in NETWORKED:
        said = f"{path} lies on a network file system ({kind}): locks and crash safety of the journal are not certain there"
        yield Finding("local disk", "warning", said, fix)
    elif kind in ("tmpfs", "ramfs"):
        yield Finding("local disk", "warning", f"{path} lies in memory: a restart loses the journal", fix)
    elif kind:
        yield Finding("local disk", "ok", kind)
    free = shutil.disk_usage(there).free
    said = (
        f"{free / 1e9:.1f} GB free for journal and keys; checkpoints need their own room where outputs.copy_to points"
    )
    state: FindingState = "ok" if free >= GOOD_FREE else "warning" if free >= LEAST_FREE else "missing"
    yield Finding(
        "free disk", state, said, "" if state == "ok" else f"make room: du -xh --max-depth=2 {there} | sort -h"
    )


def nearest(path: str | Path) -> Path:
    """The innermost folder on the way to `path` that exists."""
    return next(p for p in (Path(path), *Path(path).parents) if p.exists())


def unwritable(folder: Path) -> str:
    """Why nothing can be written into a folder; tried, since permissions alone do not tell of a full disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def file_system(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The kind of file system that holds `path`; empty where the system does not tell."""
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real, best, kind = os.path.realpath(path), "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape") if len(before.split()) > 4 else ""
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best) and after:
            best, kind = point, after.split()[0]
    return kind


def journal(app: App) -> Finding:
    """Whether the journal can be read, within some seconds."""
    from gpuops.journal import examine

    path = app.home.journal
    if not path.exists():
        return Finding("journal", "ok", "none yet: no run was made from this home")
    good, said = examine(path, JOURNAL_S)
    if good:
        return Finding("journal", "ok", said)
    aside = f"mv {path} {path}.damaged && gpuops adopt" if os.access(path, os.R_OK) else f"chmod u+rw {path}"
    return Finding("journal", "missing", f"{path} cannot be used: {said}. What it knew may bill", aside)


def guard(app: App) -> Iterator[Finding]:
    """Whether something on this computer brings open runs down, and whether it can."""
    if not app.home.guard:
        said = "switched off in config.toml: nothing on this computer brings runs down without a terminal"
        yield Finding("guard", "warning", said, f"set start = true under [guard] in {app.home.path / 'config.toml'}")
        return
    try:
        states = app.states(open_only=True) if app.home.journal.exists() else []
    except GpuopsError as error:
        yield Finding("guard", "warning", f"open runs cannot be read: {error.message}", error.next_command)
        return
    if not states:
        yield Finding("guard", "ok", "no run is open; the first command that rents starts it")
    elif not guard_runs(app):
        runs = ", ".join(s.run for s in states)
        yield Finding(
            "guard", "missing", f"not running, and these runs are open: {runs}", f"gpuops watch {states[0].run}"
        )
    else:
        yield Finding("guard", "ok", f"running for {len(states)} open run(s)")
    for state in states:
        if state.unarmed:
            said = f"not armed for {state.run}: {state.unarmed}"
            yield Finding("guard", "missing", said, f"gpuops watch {state.run}")


def credentials(app: App, provider: str, *, needed: bool) -> Iterator[Finding]:
    """Where the secrets of a provider lie: by name, never by value; asks the adapter's text, not the adapter."""
    wanted = credential_names(provider)
    if wanted is None:
        yield Finding(f"{provider} credentials", "ok", "the adapter does not tell which it needs")
    elif not wanted:
        yield _places(provider, needed=needed)
    for name in wanted or ():
        where = app.credentials.where(name)
        if where in ("environment", "keyring"):
            yield Finding(f"{provider} credentials", "ok", f"{name} is in the {where}")
        else:
            said = (
                f"{name}: {where}" if where != "missing" else f"{name} is neither in the environment nor in the keyring"
            )
            state: FindingState = "missing" if needed else "warning"
            yield Finding(f"{provider} credentials", state, said, f"gpuops auth set {name}")


def _places(provider: str, *, needed: bool) -> Finding:
    """Credentials that the vendor's own tools keep."""
    places = credential_places(provider)
    if not places:
        return Finding(f"{provider} credentials", "ok", "needs none")
    if place := found(places, os.environ):
        return Finding(f"{provider} credentials", "ok", f"found by way of {place}")
    state: FindingState = "missing" if needed else "warning"
    said = f"none of {', '.join(places)} is there"
    return Finding(
        f"{provider} credentials", state, said, f"log in with the vendor's own tool: docs/how-to/{provider}.md"
    )


def account(app: App, provider: str) -> Iterator[Finding]:
    """What only the provider can tell: whether the credentials are good, what its adapter needs here, and the time."""
    until = app.clock.now() + app.home.policy.call_s
    adapter = app.provider(provider)
    if isinstance(adapter, TellsNeeds):
        yield from adapter.needs(until)
    try:
        yield Finding("account", "ok", f"the credentials are good: account {adapter.account()}")
        told = adapter.list_billable(Scope(("rental",)), until).provider_time
    except CredentialsError as error:
        names = credential_names(provider) or ("NAME",)
        yield Finding("account", "missing", error.message, error.next_command or f"gpuops auth set {names[0]}")
        return
    except ProviderError as error:
        yield Finding("account", "warning", f"no good answer: {error.message}", f"gpuops doctor --provider {provider}")
        return
    if told is None:
        yield Finding("clock", "ok", "the provider does not tell its time; nothing to compare with")
    else:
        yield clock(time.time() - told, f"{provider}'s time", app.home.policy.clock_warn_s)


def heard_clock(app: App) -> Finding:
    """This computer's clock beside the provider's time as an open run last heard it; nobody is asked."""
    try:
        offset_s = app.journal.clock_offset() if app.home.journal.exists() else 0.0
    except GpuopsError:
        offset_s = 0.0
    if offset_s:
        return clock(-offset_s, "the provider's time, as an open run last heard it", app.home.policy.clock_warn_s)
    return Finding("clock", "ok", "not compared: --provider NAME asks for the provider's time")


def clock(ahead_s: float, beside: str, most_s: float) -> Finding:
    """This computer's clock beside another one."""
    said = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} {beside}"
    if abs(ahead_s) <= most_s:
        return Finding("clock", "ok", said)
    fix = "sudo sntp -sS time.apple.com" if sys.platform == "darwin" else "sudo timedatectl set-ntp true"
    return Finding("clock", "warning", f"{said}: times on screen are wrong; money is counted by the provider's", fix)
