"""What a request to the fake Compute Engine may say: names, types and enumerations of the vendor's discovery document, compact.

`gcp_schema.json` holds only the methods below and the fields that they reach: no text of the vendor, a fortieth of the size. It
is written by this file, from the document `compute.v1.json` in the wheel google-api-python-client:

    python tests/clouds/gcp_schema.py path/to/compute.v1.json      (without a path: of the installed wheel)

A test compares it with the full document where that is installed. The form of a type:

    string boolean integer number any     as in JSON; "string:uint64" is a number written as text
    #Name                                 an object of that name in `schemas`
    []type   {}type                       a list, an object with free keys
    A|B|C                                 one of these words ("A|" when there is one only)
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPACT = Path(__file__).with_name("gcp_schema.json")
_PLAIN = ("string", "boolean", "integer", "number", "any")

INSTANCE = (
    "aggregatedList attachDisk delete detachDisk get getGuestAttributes getSerialPortOutput insert list reset resume "
    "setDeletionProtection setDiskAutoDelete setLabels setMetadata setName setScheduling setTags start stop suspend"
)
LABELLED = "get list insert delete setLabels"
METHODS: dict[str, str] = {
    "instances": INSTANCE,
    "disks": f"aggregatedList {LABELLED}",
    "regionDisks": LABELLED,
    "zoneOperations": "get list wait delete",
    "regionOperations": "get list wait delete",
    "globalOperations": "get list wait delete aggregatedList",
    "projects": "get",
    "zones": "get list",
    "regions": "get list",
    "machineTypes": "get list aggregatedList",
    "acceleratorTypes": "get list aggregatedList",
    "diskTypes": "get list aggregatedList",
    "images": f"{LABELLED} getFromFamily",
    "networks": "get list insert delete",
    "subnetworks": "get list insert delete aggregatedList",
    "firewalls": "get list insert delete patch update",
    "snapshots": LABELLED,
    "regionSnapshots": LABELLED,
    "machineImages": "get list insert delete",
    "instanceTemplates": "get list insert delete aggregatedList",
    "addresses": f"aggregatedList {LABELLED}",
    "globalAddresses": LABELLED,
    "forwardingRules": f"aggregatedList {LABELLED}",
    "globalForwardingRules": LABELLED,
    "instanceGroupManagers": "get list insert delete aggregatedList",
    "regionInstanceGroupManagers": "get list insert delete",
    "reservations": "get list insert delete aggregatedList",
    "futureReservations": "get list insert delete aggregatedList",
    "resourcePolicies": "get list insert delete aggregatedList",
    "routers": "get list insert delete patch update aggregatedList",
    "vpnTunnels": f"aggregatedList {LABELLED}",
    "vpnGateways": f"aggregatedList {LABELLED}",
    "targetVpnGateways": f"aggregatedList {LABELLED}",
    "instantSnapshots": f"aggregatedList {LABELLED}",
    "regionInstantSnapshots": LABELLED,
    "storagePools": "get list insert delete aggregatedList",
    "regionCommitments": "get list insert aggregatedList",
    "nodeGroups": "get list insert delete aggregatedList",
}


@dataclass(frozen=True)
class Method:
    """One call: `query` maps the parameter names to their types; `body` and `answer` name schemas, or are empty."""

    id: str
    verb: str
    path: str
    query: Mapping[str, str]
    body: str
    answer: str

    @property
    def collection(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]


@dataclass(frozen=True)
class Violation:
    """What is wrong with a value: `field` says where, in the vendor's own notation."""

    field: str
    text: str


class Description:
    """The methods and schemas of `gcp_schema.json`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.schemas: Mapping[str, Mapping[str, str]] = document["schemas"]
        self.parameters: Mapping[str, str] = document["parameters"]
        self.methods = {id: Method(id, *fields) for id, fields in document["methods"].items()}
        self._routes = [(m.verb, _pattern(m.path), m) for m in self.methods.values()]

    def route(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """The method for a path below `/compute/v1/`, with the names taken from it; None when there is none."""
        for wanted, pattern, method in self._routes:
            if wanted == verb and (match := pattern.fullmatch(path)):
                return method, match.groupdict()
        return None

    def check(self, kind: str, value: Any, at: str = "resource") -> Iterator[Violation]:
        """Everything in `value` that a `kind` does not allow: unknown names, wrong types, words outside an enumeration."""
        if kind.startswith("#"):
            yield from self._check_object(kind[1:], value, at)
        elif kind.startswith("[]"):
            if not isinstance(value, list):
                yield Violation(at, f"{_shown(value)} is not a list")
                return
            for number, item in enumerate(value):
                yield from self.check(kind[2:], item, f"{at}[{number}]")
        elif kind.startswith("{}"):
            if not isinstance(value, dict):
                yield Violation(at, f"{_shown(value)} is not an object")
                return
            for key, item in value.items():
                yield from self.check(kind[2:], item, f"{at}.{key}")
        elif "|" in kind:
            if value not in kind.strip("|").split("|"):
                yield Violation(at, f"{_shown(value)} is none of {kind.strip('|').replace('|', ', ')[:300]}")
        elif not _fits(kind, value):
            yield Violation(at, f"{_shown(value)} is no {kind.partition(':')[2] or kind}")

    def _check_object(self, name: str, value: Any, at: str) -> Iterator[Violation]:
        if not isinstance(value, dict):
            yield Violation(at, f"{_shown(value)} is not an object")
            return
        fields = self.schemas[name]
        for key, item in value.items():
            if key not in fields:
                yield Violation(at, f'Unknown name "{key}": no such field')
            else:
                yield from self.check(fields[key], item, f"{at}.{key}")


def load() -> Description:
    """The description that the project keeps."""
    return Description(json.loads(COMPACT.read_text()))


def full_document() -> Path | None:
    """The vendor's document, where the wheel that carries it is installed."""
    found = importlib.util.find_spec("googleapiclient")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "discovery_cache" / "documents" / "compute.v1.json"
    return path if path.exists() else None


def compact(document: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a discovery document that the fake needs."""
    methods, schemas = {}, {}
    for collection, names in METHODS.items():
        for name in names.split():
            method = document["resources"][collection]["methods"][name]
            query = {key: _type(p) for key, p in method["parameters"].items() if p["location"] == "query"}
            refs = [method.get(way, {}).get("$ref", "") for way in ("request", "response")]
            methods[f"{collection}.{name}"] = [method["httpMethod"], method["path"], dict(sorted(query.items())), *refs]
            for ref in filter(None, refs):
                _collect(document["schemas"], ref, schemas)
    parameters = {key: _type(p) for key, p in document["parameters"].items()}
    schemas = _shared(schemas)
    about = "Written by gcp_schema.py from the discovery document of Compute Engine; see there. Do not edit."
    return {
        "about": about,
        "revision": document["revision"],
        "parameters": dict(sorted(parameters.items())),
        "methods": methods,
        "schemas": dict(sorted(schemas.items())),
    }


def text(document: Mapping[str, Any]) -> str:
    """One line for each method and schema, so that a difference can be read."""
    parts = []
    for key, value in document.items():
        if key in ("methods", "schemas"):
            lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(body)}" for name, body in value.items())
            parts.append(f'"{key}": {{\n{lines}\n}}')
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _collect(all_schemas: Mapping[str, Any], name: str, into: dict[str, Any]) -> None:
    if name in into:
        return
    properties = all_schemas[name].get("properties", {})
    into[name] = {}
    for key, field in properties.items():
        if "properties" in field or "properties" in field.get("items", {}):
            # an object without a name of its own gets one from where it stands
            inner = field if "properties" in field else field["items"]
            all_schemas = {**all_schemas, f"{name}.{key}": inner}
            field = (
                {"$ref": f"{name}.{key}"} if field is inner else {"type": "array", "items": {"$ref": f"{name}.{key}"}}
            )
        into[name][key] = _type(field)
        for ref in re.findall(r"#([\w.]+)", into[name][key]):
            _collect(all_schemas, ref, into)


def _shared(schemas: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Objects without a name of their own that say the same are kept once: hundreds of lists carry the same warning."""
    while True:
        first: dict[str, str] = {}
        same: dict[str, str] = {}
        for name, fields in sorted(schemas.items()):
            if "." in name:
                kept = first.setdefault(json.dumps(fields, sort_keys=True), name)
                same |= {name: kept} if kept != name else {}
        if not same:
            return dict(schemas)
        schemas = {name: _renamed(fields, same) for name, fields in schemas.items() if name not in same}


def _renamed(fields: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {key: re.sub(r"#([\w.]+)", lambda m: f"#{names.get(m[1], m[1])}", kind) for key, kind in fields.items()}


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return f"#{field['$ref']}"
    if field.get("type") == "array" or field.get("repeated"):
        return "[]" + _type(field.get("items", {"type": field["type"]}))
    if field.get("type") == "object":
        return "{}" + _type(field.get("additionalProperties", {"type": "any"}))
    if "enum" in field:
        return "|".join(field["enum"]) + ("|" if len(field["enum"]) == 1 else "")
    written = field["type"] == "string" and field.get("format") in ("int64", "uint64")
    return f"string:{field['format']}" if written else str(field["type"])


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


def _fits(kind: str, value: Any) -> bool:
    if kind == "any":
        return True
    if kind.startswith("string:"):
        return re.fullmatch(r"-?\d{1,20}", str(value)) is not None and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, int) or (kind == "number" and isinstance(value, float))


def _shown(value: Any) -> str:
    return repr(value)[:80]


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else full_document()
    if source is None:
        raise SystemExit("name the document: it is not installed here")
    COMPACT.write_text(text(compact(json.loads(source.read_text()))))
