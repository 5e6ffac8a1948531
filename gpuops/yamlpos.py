"""YAML that remembers where everything stood, and that a hostile or careless file cannot blow up.

Every scalar stays the text that was written (`1.50` keeps its zero, `no` is no boolean); an empty one, `null`
and `~` mean *not given*. Refused: duplicate keys, tags, more than one document, too many aliases, too deep, too large.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuops.errors import ManifestError

MAX_BYTES = 1_000_000
MAX_ALIASES = 50
MAX_DEPTH = 12
MAX_NODES = 20_000
"""Counted after aliases are followed, so that a few lines cannot expand into gigabytes."""

KeyPath = tuple[str | int, ...]

_CORE_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


class _TextLoader(yaml.SafeLoader):
    """A loader without implicit types: `yes`, `1:30` and `0123` stay what was typed."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML declares it on the class)


@dataclass
class Document:
    """Plain values and the line (from 1) of every key path."""

    file: str
    value: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    written: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """Where a part that was laid over another one really stands."""

    def line(self, path: KeyPath) -> int:
        """The line of `path`, or of the nearest parent that was written."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def shown(self, path: KeyPath) -> str:
        """The key at `path` as it is written in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.written:
                path = (*self.written[path[:length]], *path[length:])
                break
        return key_text(path)


def overlaid(document: Document, at: KeyPath) -> Document:
    """The document with the mapping at `at` laid over its top level: mappings key by key, everything else as a whole."""
    block: Any = document.value
    for part in at:
        block = block[part]
    lines, written = dict(document.lines), dict(document.written)

    def lay(old: dict[str, Any], new: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        result = dict(old)
        for key, value in new.items():
            here, there = (*path, key), (*at, *path, key)
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = lay(result[key], value, here) if both else value
            if not both:
                written[here] = there
                lines.update({p[len(at) :]: line for p, line in document.lines.items() if p[: len(there)] == there})
        return result

    return Document(document.file, lay(document.value, block, ()), lines, written)


def key_text(path: KeyPath) -> str:
    """Write a key path the way people do: `transfers[0].source`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read(path: Path) -> Document:
    """Read one YAML file. Raises `ManifestError` with file and line for everything that is not plain, small YAML."""
    file = str(path)
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"cannot read the manifest: {error.strerror or error}", file=file, line=1) from None
    if len(data) > MAX_BYTES:
        raise ManifestError(f"the manifest is larger than {MAX_BYTES:,} bytes", file=file, line=1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError("the manifest is not valid UTF-8", file=file, line=line) from None
    try:
        _check_events(text, file)
        node = yaml.compose(text, Loader=_TextLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "cannot be read"
        raise ManifestError(f"not valid YAML: {what}", file=file, line=mark.line + 1 if mark else 1) from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise ManifestError(f"not valid YAML: {getattr(error, 'reason', error)}", file=file, line=line) from None
    if not isinstance(node, yaml.MappingNode):
        raise ManifestError("a manifest is a mapping: lines of the form `key: value`", file=file, line=1)
    document = Document(file)
    document.value = _Walk(document).visit(node, ())
    return document


def _check_events(text: str, file: str) -> None:
    """Bound depth and aliases on the flat event stream, before anything recursive looks at the file."""
    depth = aliases = documents = 0
    for event in yaml.parse(text, Loader=_TextLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise ManifestError(f"nested more than {MAX_DEPTH} levels deep", file=file, line=line)
        if aliases > MAX_ALIASES:
            raise ManifestError(f"more than {MAX_ALIASES} aliases (*name)", file=file, line=line)
        if documents > 1:
            raise ManifestError("more than one document (---) in the file", file=file, line=line)


class _Walk:
    """Turns nodes into values, counts them, and notes their lines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0

    def visit(self, node: yaml.Node, path: KeyPath) -> Any:
        """The value of `node`, which stands at `path`."""
        line = node.start_mark.line + 1
        self.document.lines.setdefault(path, line)
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            top = path[:2]
            raise self._error("aliases make the manifest endless or far too large", self.document.line(top), top)
        if node.tag not in _CORE_TAGS:
            raise self._error(f"tags such as {node.tag.rpartition(':')[2] or node.tag!r} are not accepted", line, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.visit(item, (*path, index)) for index, item in enumerate(node.value)]
        plain = getattr(node, "style", None) is None
        return None if plain and node.value in ("", "~", "null", "Null", "NULL") else node.value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                raise self._error("a key must be plain text", line, path)
            key = key_node.value
            here = (*path, key)
            if key in seen:
                raise self._error(f"given twice; first in line {seen[key]}", line, here)
            seen[key] = line
            self.document.lines.setdefault(here, line)
            value = self.visit(value_node, here)
            # Not given and given without a value mean the same: the default, or "is required".
            if value is not None:
                values[key] = value
        return values

    def _error(self, message: str, line: int, path: KeyPath) -> ManifestError:
        return ManifestError(message, file=self.document.file, line=line, key=key_text(path))
