"""Frozen dataclasses to JSON values and back, without pydantic (so that `status` starts fast)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from decimal import Decimal
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Turn a dataclass into plain JSON values: Decimal becomes a string, a tuple a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [to_json(v) for v in items]
    return value


def from_json(kind: type[T], value: Any) -> T:
    """Build `kind` from what `to_json` made. Unknown keys are dropped, so that an older reader copes with a newer record.

    Raises `TypeError` or `KeyError` when a required field is missing.
    """
    return typing.cast(T, _decode(kind, value))


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values (sorted keys, no spaces)."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 of the canonical JSON: what a person approves."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _decode(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], v) for v in value)
        return tuple(_decode(a, v) for a, v in zip(args, value, strict=True))
    if origin is dict:
        return {k: _decode(args[1], v) for k, v in value.items()}
    if origin is typing.Literal:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{f.name: _decode(hints[f.name], value[f.name]) for f in dataclasses.fields(kind) if f.name in value})
    if kind is Decimal:
        return Decimal(value)
    if kind is float and isinstance(value, int):
        return float(value)
    return value
