"""What other interfaces of the vendor show of the same account: Filestore, TPU nodes, buckets, and the price list.

Their paths are their own: `/v1/projects/P/locations/-/instances` (file.v1), `/v2/projects/P/locations/-/nodes` (tpu.v2),
`/storage/v1/b` (storage.v1), `/v1/services/S/skus` (cloudbilling.v1). Resources come by the control interface; they can be
listed, read and deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import gcp_prices as prices
from .gcp_answers import Answer, Refusal, json_answer, not_found
from .gcp_catalogue import COMPUTE_SERVICE
from .gcp_faults import Faults
from .gcp_state import Account, Resource

Body = dict[str, Any]
_LOCATED = re.compile(r"/(v1|v2)/projects/([^/]+)/locations/([^/]+)/(instances|backups|nodes)(?:/([^/]+))?")
_OPERATION = re.compile(r"/(v1|v2)/projects/([^/]+)/locations/([^/]+)/operations/([^/]+)")
_SKUS = re.compile(r"/v1/services/([^/]+)/skus")
KINDS = {("v1", "instances"): "filestores", ("v1", "backups"): "filestoreBackups", ("v2", "nodes"): "tpuNodes"}
"""How the account names these kinds; `instances` alone are those of Compute Engine."""
SERVICES = {"filestores": "file", "filestoreBackups": "file", "tpuNodes": "tpu"}


@dataclass(frozen=True)
class Others:
    """The calls of the other interfaces."""

    account: Account
    faults: Faults

    def named(self, verb: str, path: str) -> str:
        """The name of a call for the fault table; empty for paths that are none of ours."""
        if match := _LOCATED.fullmatch(path):
            kind = KINDS.get((match[1], match[4]))
            way = {"GET": "get" if match[5] else "list", "DELETE": "delete"}.get(verb, verb)
            return f"{SERVICES[kind]}.{way}" if kind else ""
        if _OPERATION.fullmatch(path):
            return "file.operation"
        if path == "/storage/v1/b":
            return "storage.list"
        if _SKUS.fullmatch(path) or path == "/v1/services":
            return "billing.skus"
        return ""

    def answer(self, verb: str, path: str, query: Mapping[str, list[str]]) -> Answer:
        """Carry out one call that `named` has a name for."""
        if path == "/v1/services":
            name = f"services/{COMPUTE_SERVICE}"
            service = {"name": name, "serviceId": COMPUTE_SERVICE, "displayName": "Compute Engine"}
            return json_answer({"services": [{**service, "businessEntityName": "businessEntities/GCP"}]})
        if match := _SKUS.fullmatch(path):
            return json_answer(self._skus(match[1], query))
        if path == "/storage/v1/b":
            items = [r.body for r in self.account.listed("buckets")]
            return json_answer({"kind": "storage#buckets", **({"items": items} if items else {})})
        if match := _OPERATION.fullmatch(path):
            return json_answer({"name": path[4:], "done": True})
        match = _LOCATED.fullmatch(path)
        assert match is not None
        kind, place, name = KINDS[match[1], match[4]], match[3], match[5]
        if match[2] not in (self.account.settings.project, "-"):
            raise Refusal(403, "forbidden", f"Permission denied on project {match[2]}")
        if name:
            return json_answer(self._one(verb, kind, place, name, match[4]))
        return json_answer(self._list(kind, place, match[4], query))

    def _skus(self, service: str, query: Mapping[str, list[str]]) -> Body:
        if service != COMPUTE_SERVICE:
            raise not_found(f"services/{service}")
        everything = prices.skus(max(2, self.account.settings.regions))
        first = int(query.get("pageToken", ["0"])[-1] or 0)
        size = min(int(query.get("pageSize", ["5000"])[-1] or 5000), 5000)
        more = str(first + size) if first + size < len(everything) else ""
        return {"skus": everything[first : first + size], "nextPageToken": more}

    def _list(self, kind: str, place: str, field: str, query: Mapping[str, list[str]]) -> Body:
        found = [r for r in self.account.listed(kind) if place in ("-", r.scope) and not self._blind(r.scope)]
        first = int(query.get("pageToken", ["0"])[-1] or 0)
        size = int(query.get("pageSize", ["500"])[-1] or 500)
        body: Body = {field: [r.body for r in found[first : first + size]]} if found else {}
        if missing := self._unread(kind, place):
            body["unreachable"] = missing
        return {**body, "nextPageToken": str(first + size)} if first + size < len(found) else body

    def _unread(self, kind: str, place: str) -> list[str]:
        """Locations that cannot be read, by their full names."""
        places = {f.where.removeprefix("zones/").removeprefix("regions/") for f in self.faults.standing("gap", "*")}
        places |= {f.where.removeprefix("zones/") for f in self.faults.rows if f.kind in ("gap", "unreachable")}
        base = f"projects/{self.account.settings.project}/locations"
        return [f"{base}/{p}" for p in sorted(places) if p != "*" and place in ("-", p)]

    def _blind(self, place: str) -> bool:
        return self.faults.blind(f"zones/{place}") or self.faults.blind(f"regions/{place}")

    def _one(self, verb: str, kind: str, place: str, name: str, field: str) -> Body:
        found = next((r for r in self.account.listed(kind, place) if r.name.rpartition("/")[2] == name), None)
        if found is None:
            raise not_found(f"projects/{self.account.settings.project}/locations/{place}/{field}/{name}")
        if verb == "DELETE":
            self._delete(found)
            return {
                "name": f"projects/{self.account.settings.project}/locations/{place}/operations/{name}",
                "done": False,
            }
        return found.body

    def _delete(self, resource: Resource) -> None:
        resource.body["state"] = "DELETING"
        self.account.later(self.account.settings.stop_s, lambda: self.account.remove(resource))

    def put(self, kind: str, place: str, body: Body) -> Resource:
        """Somebody has made one, by another way. `body` is what is shown; its name becomes the full one."""
        account = self.account
        field = next((path for (_, path), name in KINDS.items() if name == kind), "")
        shown = dict(body)
        if field:
            shown["name"] = f"projects/{account.settings.project}/locations/{place}/{field}/{body['name']}"
            shown.setdefault("state", "READY")
            shown.setdefault("createTime", account.stamp())
        made = account.add(kind, place, kind, {"name": shown["name"]})
        made.body.clear()
        made.body.update(shown)
        return made
