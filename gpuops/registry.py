"""Finds adapters by name among the entry points `gpuops.providers` and imports only the one that is asked for.

Ours and a third party's come in through the same door. The command line hands its factory what the adapter needs.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from gpuops.errors import UsageError
from gpuops.provider import Provider

GROUP = "gpuops.providers"

Factory = Callable[..., Provider]
"""`(settings, secret, now)`: strings from config.toml, a secret by its name, and the clock that `until` is told by."""
EntryPoints = Iterable[metadata.EntryPoint]


def names(entries: EntryPoints | None = None) -> tuple[str, ...]:
    """The installed adapters' names, sorted; imports none of them."""
    return tuple(sorted({entry.name for entry in _entries(entries)}))


def factory(name: str, entries: EntryPoints | None = None) -> Factory:
    """Import the adapter `name` and return what its entry point names.

    Raises `UsageError` when the name is unknown or ambiguous, or when a library is missing (and says what to install).
    """
    found = {entry.value: entry for entry in _entries(entries) if entry.name == name}
    if not found:
        known = ", ".join(names(entries)) or "none; install gpuops-cli, or run script/setup in a checkout"
        raise UsageError(f"there is no provider {name!r}; known: {known}", next_command="gpuops providers")
    if len(found) > 1:
        # It would be handed credentials: never guess which package is meant.
        who = " and ".join(sorted(f"{entry.value} ({_distribution(entry)})" for entry in found.values()))
        raise UsageError(f"two packages offer a provider {name!r}: {who}; uninstall one of them")
    entry = next(iter(found.values()))
    try:
        loaded = entry.load()
    except ModuleNotFoundError as error:
        raise UsageError(_what_to_install(entry, error)) from error
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the provider {name!r} ({_distribution(entry)}) cannot be loaded: {error}") from error
    if not callable(loaded):
        raise UsageError(f"the provider {name!r} ({_distribution(entry)}): {entry.value} is not a function")
    made: Factory = loaded
    return made


def credential_names(name: str, entries: EntryPoints | None = None) -> tuple[str, ...] | None:
    """The secrets that the adapter `name` says it needs, without importing it; None when it does not say.

    An adapter says so in a constant at the top of its module: `CREDENTIALS = ("RUNPOD_API_KEY",)`.
    """
    return _constant(name, "CREDENTIALS", entries)


def credential_places(name: str, entries: EntryPoints | None = None) -> tuple[str, ...]:
    """Variables, and files that begin with `~`, of which one is there where the vendor's own tools log in.

    An adapter without secrets of its own says so in a constant: `CREDENTIAL_PLACES = ("AWS_PROFILE", "~/.aws/config")`.
    """
    return _constant(name, "CREDENTIAL_PLACES", entries) or ()


def _constant(name: str, constant: str, entries: EntryPoints | None) -> tuple[str, ...] | None:
    """The words of a constant in an adapter's module, read without importing it."""
    for entry in _entries(entries):
        if entry.name != name:
            continue
        try:
            spec = importlib.util.find_spec(entry.module)
            tree = (
                ast.parse(Path(spec.origin).read_text(encoding="utf-8")) if spec and spec.origin else ast.Module([], [])
            )
            for node in tree.body:
                if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [constant]:
                    return tuple(str(word) for word in ast.literal_eval(node.value))
        except (ImportError, OSError, ValueError, SyntaxError):
            return None
    return None


def _entries(entries: EntryPoints | None) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=GROUP) if entries is None else entries)


def _distribution(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _what_to_install(entry: metadata.EntryPoint, error: ModuleNotFoundError) -> str:
    missing = error.name or "a module"
    extras = entry.dist.metadata.get_all("Provides-Extra") or [] if entry.dist is not None else []
    package = f"{_distribution(entry)}[{entry.name}]" if entry.name in extras else missing.partition(".")[0]
    return f"the provider {entry.name!r} needs {missing}, which is not installed: pip install '{package}'"
