"""Names and texts that a stranger chose: which of them may become a local path, and how the others are shown."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from gpuops import codec
from gpuops.values import Generation

RANGES_FILE = ".gpuops-ranges"
"""In an attempt directory: which byte ranges have arrived. Never part of a generation."""
MANIFEST_FILE = "MANIFEST.json"
RECORD_FILE = "GPUOPS.json"
TELEMETRY = "telemetry"
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""What may be a run's id: it names a folder here, and comes back from marks that anybody may have written."""
MAX_COMPONENT_BYTES = 255
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def escape(text: str, keep: str = "") -> str:
    """The text with every control, format and surrogate character written as an escape; those in `keep` stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _UNSAFE else _escaped(c) for c in text)


def escape_all(value: Any, keep: str = "") -> Any:
    """`escape` for every string within JSON values."""
    if isinstance(value, str):
        return escape(value, keep)
    if isinstance(value, list):
        return [escape_all(v, keep) for v in value]
    if isinstance(value, dict):
        return {escape(str(k), keep): escape_all(v, keep) for k, v in value.items()}
    return value


def path_problem(path: str) -> str:
    """Why a path from a stranger must not be used below a directory of ours; empty when it may.

    Relative, no `..`, no control characters, valid UTF-8 in composed form, at most 255 bytes for each component, none
    that begins with a dash, not the name that we use ourselves.
    """
    if not path or path.startswith("/"):
        return "it is not relative"
    if any(unicodedata.category(c) in _UNSAFE for c in path):
        return "it has control characters or is not UTF-8"
    if unicodedata.normalize("NFC", path) != path:
        return "its characters are not in composed form"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it has an empty, `.` or `..` component"
        if part.startswith("-"):
            return "a component begins with a dash"
        if len(part.encode()) > MAX_COMPONENT_BYTES:
            return f"a component is longer than {MAX_COMPONENT_BYTES} bytes"
        if part == RANGES_FILE:
            return "the name is reserved"
    return ""


def generation_problem(generation: Generation) -> str:
    """Why a generation must not be written to disk here; empty when it may."""
    if "/" in generation.id or path_problem(generation.id) or generation.id.startswith("."):
        return f"the generation is named {escape(generation.id)!r}"
    seen: set[str] = set()
    directories: set[str] = set()
    for file in generation.files:
        problem = path_problem(file.path)
        if problem:
            return f"{escape(file.path)!r}: {problem}"
        if file.size < 0 or len(file.sha256) != 64 or file.sha256.strip("0123456789abcdef"):
            return f"{escape(file.path)!r}: no size and sha256"
        folded = file.path.casefold()
        if folded in seen:
            return f"{escape(file.path)!r}: two names differ only in upper and lower case"
        seen.add(folded)
        parts = folded.split("/")
        directories.update("/".join(parts[:n]) for n in range(1, len(parts)))
    clash = sorted(seen & directories)
    return f"{escape(clash[0])!r} is a file and a directory" if clash else ""


def content_digest(generation: Generation) -> str:
    """16 hex digits that are equal exactly for equal hash lists."""
    return codec.digest(sorted((f.path, f.size, f.sha256) for f in generation.files))


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
