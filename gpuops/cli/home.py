"""Where gpuops keeps its things, and the user's `config.toml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.errors import UsageError
from gpuops.policy import Policy, with_overrides

CONFIG_TABLES = ("policy", "ssh", "guard", "providers", "known_gaps")


@dataclass(frozen=True)
class Home:
    """The directories under `GPUOPS_HOME` and what `config.toml` says."""

    path: Path
    policy: Policy = field(default_factory=Policy)
    providers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    authorized_keys: tuple[str, ...] = ()
    identity_file: str = ""
    guard: bool = True
    jump: Mapping[str, str] = field(default_factory=dict)
    """host, port, user, host_key and identity_file of the host through which rentals are reached; empty: directly."""
    known_gaps: tuple[Mapping[str, str], ...] = ()
    """Gaps in listings that the user knows, each with provider, region, kind, reason and until."""

    @property
    def journal(self) -> Path:
        """The SQLite file."""
        return self.path / "journal.db"

    @property
    def runs(self) -> Path:
        """One directory per run: keys, known_hosts."""
        return self.path / "runs"

    @property
    def runtime(self) -> Path:
        """A short path for control sockets: ssh accepts about 90 characters."""
        import tempfile

        base = os.environ.get("XDG_RUNTIME_DIR") or ""
        if not base or len(base) > 40 or not os.access(base, os.W_OK):
            base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp"
        return Path(base) / f"gpuops-{os.getuid()}"

    @property
    def homes(self) -> Path:
        """One file for each home of this user that drives runs on this computer: see `homes`."""
        return self.runtime / "homes"


def find_home(environ: Mapping[str, str]) -> Home:
    """Read `config.toml` under `GPUOPS_HOME` (default: the platform's data directory). Raises `UsageError`."""
    if environ.get("GPUOPS_HOME"):
        path = Path(environ["GPUOPS_HOME"]).expanduser().absolute()
    else:
        import platformdirs  # only where it is needed: status starts fast

        path = Path(platformdirs.user_data_dir("gpuops", appauthor=False))
    file = path / "config.toml"
    data = _read(file) if file.exists() else {}
    if wrong := sorted(set(data) - set(CONFIG_TABLES)):
        raise UsageError(
            f"{file}: unknown table {', '.join(wrong)}; known: {', '.join(CONFIG_TABLES)}",
            next_command=f"edit {file}",
        )
    try:
        policy = with_overrides(Policy(), data.get("policy", {}))
    except ValueError as error:
        raise UsageError(f"{file}: {error}", next_command=f"edit {file}") from None
    ssh = data.get("ssh", {})
    return Home(
        path=path,
        policy=policy,
        providers=data.get("providers", {}),
        authorized_keys=tuple(ssh.get("authorized_keys", ())),
        identity_file=str(ssh.get("identity_file", "")),
        jump=_jump(file, ssh.get("jump")),
        known_gaps=tuple({k: str(v) for k, v in gap.items()} for gap in data.get("known_gaps", ())),
        guard=bool(data.get("guard", {}).get("start", True)),
    )


def _jump(file: Path, given: Any) -> dict[str, str]:
    """The jump host, whole: one without a key would be trusted by its name. Raises `UsageError`."""
    if not given:
        return {}
    needed = ("host", "user", "host_key", "identity_file")
    if not isinstance(given, dict) or (missing := [key for key in needed if not given.get(key)]):
        raise UsageError(
            f"{file}: [ssh.jump] needs {', '.join(needed if not isinstance(given, dict) else missing)}; host_key is the line "
            "that `ssh-keyscan -t ed25519 HOST` prints, without the name, once its owner has confirmed it",
            next_command=f"mend {file}",
        )
    return {"port": "22", **{key: str(value) for key, value in given.items()}}


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}", next_command=f"edit {file}") from None
