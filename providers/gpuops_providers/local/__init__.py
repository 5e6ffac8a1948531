"""A small real cloud on this machine, and its adapter: rentals are hosts behind real OpenSSH, with made-up prices.

Its state lives in a directory and in processes of their own, so that killing gpuops leaves rentals running and billing.
Settings (strings, from the provider's configuration): `directory`, `account`, `create_s`, `terminate_s`, `shown_s`,
`isolation` (auto, bubblewrap or plain) and `python` (the interpreter that rentals find as python3).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuops.errors import UsageError
from gpuops.provider import Provider
from gpuops.values import Time

from .adapter import LocalProvider, Settings
from .cloud import Cloud, Volume, default_directory

__all__ = ["create_volume", "provider"]

CREDENTIALS = ()
"""None, unless a tokens.json in the cloud's directory asks for LOCAL_TOKEN."""

_KEYS = {"directory", "account", "create_s", "terminate_s", "shown_s", "isolation", "python"}


def provider(
    config: Mapping[str, str], secret: Callable[[str], str | None], now: Callable[[], Time] = time.time
) -> Provider:
    """The adapter for one account; `secret` is asked for LOCAL_TOKEN when the cloud wants one, `now` tells money time."""
    if not sys.platform.startswith("linux"):
        raise UsageError("the local provider needs Linux; other providers work here")
    if unknown := set(config) - _KEYS:
        raise UsageError(f"provider local: unknown setting {', '.join(sorted(unknown))}")
    if config.get("isolation", "auto") not in ("auto", "bubblewrap", "plain"):
        raise UsageError("provider local: isolation is auto, bubblewrap or plain")
    defaults = Settings()
    try:
        settings = Settings(
            create_s=float(config.get("create_s", defaults.create_s)),
            terminate_s=float(config.get("terminate_s", defaults.terminate_s)),
            shown_s=float(config.get("shown_s", defaults.shown_s)),
            isolation=config.get("isolation", defaults.isolation),
            python=config.get("python", defaults.python),
        )
    except ValueError as error:
        raise UsageError(f"provider local: {error}") from error
    cloud = Cloud(Path(config.get("directory") or default_directory()), config.get("account", "default"))
    return LocalProvider(cloud, settings, lambda: secret("LOCAL_TOKEN"), now)


def create_volume(
    name: str, size_gb: float, region: str = "here", directory: Path | None = None, account: str = "default"
) -> Volume:
    """Make a volume in the local cloud, as one would beforehand in a real cloud's console."""
    return Cloud(directory or default_directory(), account).add_volume(name, size_gb, region)
