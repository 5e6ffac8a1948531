"""Faults of the local cloud on request, for tests: `faults.json` in the cloud directory, read at every call.

    lose_answer         n     the next n creates are accepted and no answer comes
    error_after_create  n     the next n creates are accepted and answered by a server error
    error               {call: n}  the next n calls of that name (account, quote, provision, inspect, terminate, list,
                              charges, set_end, set_mark) do nothing and are answered by a server error
    refuse_capacity     n     the next n creates are refused for lack of capacity
    slow_create_s       s     a rental takes s seconds longer to start
    ignore_terminate    n     the next n terminates are accepted and nothing happens
    hide_new_s          s     a listing does not show rentals younger than s seconds
    lying_status        word  every inspect reports this word of the cloud
    listing_gap         [region, ...]  a listing cannot read these regions
    own_host_key        true  new hosts make their own SSH host key

What was used up is counted in `faults.used.json`; a new faults.json with another content starts from nought.
"""

from __future__ import annotations

import json
from typing import Any

from gpuops import codec
from gpuops.errors import ProviderError

from .cloud import Cloud


class Faults:
    """The faults of one cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._file = cloud.directory / "faults.json"
        self._used_file = cloud.directory / "faults.used.json"

    def setting(self, name: str, default: Any = None) -> Any:
        """The value of a fault that does not wear off."""
        return self._wanted().get(name, default)

    def take(self, name: str, call: str = "") -> bool:
        """Whether a counted fault strikes now; counts it down."""
        key = f"{name}.{call}" if call else name
        if self._count(self._wanted(), name, call) <= 0:
            return False
        with self._cloud.lock():
            wanted = self._wanted()
            used = self._read_used(wanted)
            if used["counts"].get(key, 0) >= self._count(wanted, name, call):
                return False
            used["counts"][key] = used["counts"].get(key, 0) + 1
            self._cloud.write_json(self._used_file, used)
            return True

    def strike(self, call: str) -> None:
        """Raise the server error that was asked for this call."""
        if self.take("error", call):
            raise ProviderError(f"the local cloud answered 503 to {call} (fault switch)")

    def _wanted(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return {}

    def _read_used(self, wanted: dict[str, Any]) -> dict[str, Any]:
        try:
            used = dict(json.loads(self._used_file.read_text()))
        except FileNotFoundError:
            used = {}
        return used if used.get("of") == codec.digest(wanted) else {"of": codec.digest(wanted), "counts": {}}

    @staticmethod
    def _count(wanted: dict[str, Any], name: str, call: str) -> int:
        value = wanted.get(name, {} if call else 0)
        return int(value.get(call, 0) if call else value)
