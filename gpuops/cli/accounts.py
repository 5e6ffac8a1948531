"""Which accounts a command asks that names none, and what they list, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuops.cli.context import App
from gpuops.errors import GpuopsError
from gpuops.registry import credential_names, credential_places
from gpuops.registry import names as installed
from gpuops.state import RunState
from gpuops.values import Inventory, Scope


def asked(app: App, named: list[str] | None, states: list[RunState]) -> tuple[str, ...]:
    """The providers that are named; otherwise those that a run used, that are configured, or whose credentials lie here.

    What is left out is said: it cannot bill by way of gpuops, but somebody may have expected to see it.
    """
    if named:
        return tuple(dict.fromkeys(named))
    used = {s.spec.provider for s in states} | set(app.home.providers)
    chosen = tuple(name for name in installed() if name in used or _may_log_in(app, name, os.environ))
    left_out = [name for name in installed() if name not in chosen]
    if left_out:
        app.printer.line(f"not asked, since nothing here logs in there: {', '.join(left_out)} (--provider NAME asks)")
    return chosen


def _may_log_in(app: App, name: str, environ: Mapping[str, str]) -> bool:
    """Whether credentials of this provider lie on this computer, as far as that shows without importing its adapter."""
    secrets, places = credential_names(name), credential_places(name)
    if secrets is None or not (secrets or places):
        return True
    return any(app.credentials.secret(secret) is not None for secret in secrets) or bool(found(places, environ))


def found(places: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The first of these variables and files that is there; empty when none is."""
    for place in places:
        is_file = place.startswith("~")
        if Path(place).expanduser().exists() if is_file else environ.get(place):
            return place
    return ""


def listings(app: App, names: tuple[str, ...], scope: Scope) -> Iterator[tuple[str, Inventory | GpuopsError]]:
    """What each account lists, all asked at once: importing one vendor's library is slower than another one's answer."""

    def ask(name: str) -> Inventory | GpuopsError:
        try:
            return app.provider(name).list_billable(scope, app.clock.now() + app.home.policy.call_s)
        except GpuopsError as error:
            return error

    app.clock.now()  # made once, before threads ask for it
    if len(names) < 2:
        yield from ((name, ask(name)) for name in names)
        return
    with ThreadPoolExecutor(len(names), "gpuops-account") as pool:
        yield from zip(names, pool.map(ask, names), strict=True)
