"""Whether a request may be what it is: the route, the parameters and the body, held to the description and to the client's types.

Two judges, since each sees what the other lets pass: the message types of google-cloud-compute know no enumerations in text
fields, and the description knows nothing of what protobuf refuses.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .gcp_answers import Refusal, bad_fields, invalid
from .gcp_schema import Description, Method, Violation

PREFIX = "/compute/v1/"
IMPORT_S = 90.0
"""On a loaded computer the client library takes half a minute to import."""
_GLOBAL_PARAMETERS = ("$alt", "$prettyPrint")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Call:
    """One call that was understood. `names` are the parts of its path."""

    method: Method
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]

    @property
    def scope(self) -> str:
        """`zones/Z`, `regions/R` or `global`."""
        for key in ("zone", "region"):
            if key in self.names and self.method.collection != f"{key}s":
                return f"{key}s/{self.names[key]}"
        return "global"

    @property
    def plural(self) -> str:
        """The kind of resource as paths name it: `instances`, `disks`, `commitments`."""
        return plural(self.method)

    @property
    def target(self) -> str:
        """The name of the one resource that the call is about; empty for lists and inserts."""
        skipped = {"project", "zone", "region"}
        named = [value for key, value in self.names.items() if key not in skipped]
        if not named and self.method.collection in ("zones", "regions"):
            named = [value for key, value in self.names.items() if key != "project"]
        return named[0] if named else ""

    @property
    def project(self) -> str:
        return self.names["project"]


def plural(method: Method) -> str:
    """The kind of resource that a method is about, as paths name it."""
    parts = [part for part in method.path.split("/") if not part.startswith("{")]
    return next((p for p in parts[1:] if p not in ("zones", "regions", "global", "aggregated")), parts[-1])


class MessageTypes:
    """The client library's own message types; imported in the background, for that takes seconds."""

    def __init__(self) -> None:
        self._types: Any = None
        self._ready = threading.Event()
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            self._types = importlib.import_module("google.cloud.compute_v1.types.compute")
        finally:
            self._ready.set()

    def refuse(self, schema: str, text: str) -> str:
        """Why the client's type of that name would not read `text`; empty when it does."""
        if not self._ready.wait(IMPORT_S) or self._types is None:
            raise RuntimeError("google-cloud-compute is not installed: requests cannot be judged by its types")
        try:
            getattr(self._types, schema).from_json(text)
        except Exception as error:  # protobuf raises several kinds, all of them mean no
            return str(error)[:300]
        return ""


def understand(
    description: Description, types: MessageTypes, verb: str, path: str, query: Mapping[str, list[str]], text: str
) -> Call | None:
    """The call that a request makes; None when there is no such path. Raises `Refusal` for what the vendor would not read."""
    found = description.route(verb, path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
    if found is None:
        return None
    method, names = found
    values = {key: each[-1] for key, each in query.items()}
    _check_query(description, method, values)
    return Call(method, names, values, _read_body(description, types, method, text))


def _check_query(description: Description, method: Method, values: Mapping[str, str]) -> None:
    wrong: list[Violation] = []
    for key, value in values.items():
        kind = method.query.get(key) or description.parameters.get(key)
        if key in _GLOBAL_PARAMETERS:
            continue
        if kind is None:
            wrong.append(Violation(key, f'Unknown name "{key}": Cannot bind query parameter'))
        else:
            wrong += description.check(kind, _query_value(kind, value), key)
    if wrong:
        raise bad_fields([(v.field, v.text) for v in wrong])
    request_id = values.get("requestId", "")
    if request_id and (not _UUID.fullmatch(request_id) or not request_id.strip("0-")):
        raise invalid("requestId", f"'{request_id}' is not a UUID, or the zero one")


def _query_value(kind: str, value: str) -> Any:
    if kind == "boolean" and value in ("true", "false"):
        return value == "true"
    if kind in ("integer", "number") and re.fullmatch(r"-?\d{1,10}", value):
        return int(value)
    return value


def _read_body(description: Description, types: MessageTypes, method: Method, text: str) -> dict[str, Any]:
    if not method.body:
        if text.strip():
            raise Refusal(400, "parseError", f"{method.id} takes no body")
        return {}
    try:
        body = json.loads(text or "null")
    except ValueError as error:
        raise Refusal(400, "parseError", f"the body is not JSON: {error}") from None
    wrong = list(description.check(f"#{method.body}", body))
    if wrong:
        raise bad_fields([(v.field, v.text) for v in wrong])
    if why := types.refuse(method.body, text):
        raise Refusal(400, "parseError", f"the client's own type {method.body} does not read this: {why}")
    return dict(body)
