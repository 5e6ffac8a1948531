"""Secrets from the environment or the keyring, and a filter that keeps them out of every text.

The keyring library is handed in (the command line imports it when needed): a machine without one works as well, from
the environment alone. Names are printed, values never.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Mapping
from typing import Literal, Protocol
from urllib.parse import quote

from gpuops.errors import CredentialsError
from gpuops.shapes import CONTEXT_SHAPES, VALUE_SHAPES

SERVICE = "gpuops"
REDACTED = "[redacted]"
# Shorter values are words and numbers; replacing them would shred the text and hide nothing.
_SHORTEST = 6

Place = Literal["environment", "keyring", "missing", "keyring cannot be read"]


class KeyringLike(Protocol):
    """The three functions of the `keyring` module. It raises `RuntimeError` where the machine has no keyring at all."""

    def get_password(self, service_name: str, username: str) -> str | None:
        """The stored value, or None."""
        ...

    def set_password(self, service_name: str, username: str, password: str) -> None:
        """Store a value."""
        ...

    def delete_password(self, service_name: str, username: str) -> None:
        """Remove a value; raises when there is none."""
        ...


class Redactor:
    """Replaces secrets in texts: known ones by value, others by shape. Also a filter for `logging` handlers."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        """Never let this value through again, nor its quoted, JSON and base64 forms, nor its single lines."""
        pieces = [value, *value.splitlines()]
        forms = {form for piece in pieces for form in _forms(piece.strip())}
        self._values |= {form for form in forms if len(form) >= _SHORTEST}
        # The longest first: a value that contains another one must go as a whole.
        longest_first = sorted(self._values, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(REDACTED, text)
        text = VALUE_SHAPES.sub(REDACTED, text)
        return CONTEXT_SHAPES.sub(lambda match: next(g for g in match.groups() if g is not None) + REDACTED, text)

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite a log record, its traceback included; always lets it pass."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # a message that does not fit its arguments must not raise from a handler
            text = f"{record.msg} {record.args}"
        record.msg, record.args = self(text), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
        record.exc_text = self(record.exc_text) if record.exc_text else None
        record.stack_info = self(record.stack_info) if record.stack_info else None
        return True


PROCESS = Redactor()
"""Knows every secret that this process has read."""


def _forms(value: str) -> tuple[str, ...]:
    encoded = base64.b64encode(value.encode()).decode().rstrip("=")
    return value, quote(value, safe=""), json.dumps(value)[1:-1], encoded, encoded.translate(str.maketrans("+/", "-_"))


class Credentials:
    """Looks secrets up: `$GPUOPS_<NAME>`, then `$<NAME>`, then the keyring. A value found is redacted from then on."""

    def __init__(
        self, environ: Mapping[str, str], backend: KeyringLike | None = None, redactor: Redactor | None = None
    ) -> None:
        self.environ = environ
        self.backend = backend
        self.redactor = redactor or Redactor()

    def secret(self, name: str) -> str | None:
        """The value, or None when it is nowhere. Raises `CredentialsError` when a keyring cannot be read."""
        value = self._from_environment(name) or self._from_keyring(name)
        if value:
            self.redactor.add(value)
        return value or None

    def where(self, name: str) -> Place:
        """Where `secret` would find it, in words for a person."""
        if self._from_environment(name):
            return "environment"
        try:
            return "keyring" if self._from_keyring(name) else "missing"
        except CredentialsError:
            return "keyring cannot be read"

    def store(self, name: str, value: str) -> None:
        """Put a value into the keyring, and read it back. Raises `CredentialsError`, which says what else to do."""
        _check_name(name)
        if not value.strip():
            raise CredentialsError(f"{name}: the value is empty")
        self.redactor.add(value)
        if self.backend is None:
            raise self._no_keyring(name)
        try:
            self.backend.set_password(SERVICE, name, value)
            kept = self.backend.get_password(SERVICE, name)
        except RuntimeError:
            raise self._no_keyring(name) from None
        # Backends raise what they like; none of it may carry the value to the screen, so the cause is cut off.
        except Exception as error:
            raise CredentialsError(f"{name} could not be stored: the keyring says {type(error).__name__}") from None
        if kept != value:
            raise CredentialsError(f"{name} was accepted by the keyring but not kept; set ${name} instead")

    def delete(self, name: str) -> bool:
        """Remove a value from the keyring; returns False when it was not there."""
        if not self._from_keyring(name) or self.backend is None:
            return False
        try:
            self.backend.delete_password(SERVICE, name)
        except Exception as error:
            raise CredentialsError(f"{name} could not be removed: the keyring says {type(error).__name__}") from None
        return True

    def headless(self) -> bool:
        """Whether this machine has no keyring, so that only the environment counts."""
        if self.backend is None:
            return True
        try:
            self.backend.get_password(SERVICE, "probe")
        except RuntimeError:
            return True
        except Exception:  # there is one; that it is locked is said where a secret is read
            return False
        return False

    def _from_environment(self, name: str) -> str | None:
        _check_name(name)
        return self.environ.get(f"GPUOPS_{name}") or self.environ.get(name)

    def _from_keyring(self, name: str) -> str | None:
        _check_name(name)
        if self.backend is None:
            return None
        try:
            return self.backend.get_password(SERVICE, name)
        except RuntimeError:  # no keyring on this machine
            return None
        except Exception as error:
            raise CredentialsError(
                f"{name}: the keyring cannot be read ({type(error).__name__}); unlock it, or set ${name}"
            ) from None

    def _no_keyring(self, name: str) -> CredentialsError:
        return CredentialsError(
            f"{name} cannot be stored: this machine has no keyring. Set ${name} or $GPUOPS_{name} in the environment, "
            "for example from a file that only you can read"
        )


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
        raise CredentialsError(f"{name!r} is not the name of a secret: letters, digits and _")
