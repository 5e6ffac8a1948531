"""From a method of the description to what carries it out. Kinds without a life of their own share one way of doing things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import gcp_catalogue as catalogue
from . import gcp_disks as disks
from . import gcp_operations as operations
from .gcp_answers import Refusal, required
from .gcp_faults import Faults
from .gcp_instances import Instances, set_labels
from .gcp_lists import Lists
from .gcp_lives import Machines
from .gcp_requests import Call
from .gcp_state import Account, tail

Body = dict[str, Any]
READY = {
    "disks": "READY",
    "snapshots": "READY",
    "images": "READY",
    "machineImages": "READY",
    "instantSnapshots": "READY",
    "reservations": "READY",
    "resourcePolicies": "READY",
    "addresses": "RESERVED",
    "commitments": "ACTIVE",
    "vpnTunnels": "ESTABLISHED",
    "targetVpnGateways": "READY",
    "nodeGroups": "READY",
}
"""The status of a new resource, where its kind has one."""
OF_THE_SERVER = ("name", "id", "selfLink", "kind", "creationTimestamp", "region", "zone", "network")
"""What no update changes."""


@dataclass(frozen=True)
class Calls:
    """Everything that can be called. Use under the account's lock."""

    account: Account
    faults: Faults
    machines: Machines

    def carry_out(self, call: Call) -> Body:
        """Do it and return the answer. Raises `Refusal`."""
        if call.project != self.account.settings.project and call.method.collection != "images":
            raise Refusal(403, "forbidden", f"Required permission for 'projects/{call.project}'")
        self._known_place(call)
        changing = call.method.answer == "Operation" and "Operations" not in call.method.collection
        if changing and (before := operations.again(self.account, call)) is not None:
            return before
        return self._handler(call)(call)

    def _known_place(self, call: Call) -> None:
        for key in ("zone", "region"):
            place = call.names.get(key)
            known = catalogue.places(self.account.settings, f"{key}s")
            if place is not None and call.method.collection != f"{key}s" and place not in known:
                raise Refusal(400, "invalid", f"Invalid value for field '{key}': unknown {key} '{place}'")

    def _handler(self, call: Call) -> Callable[[Call], Body]:
        method, lists = call.method, Lists(self.account, self.faults)
        if method.collection in ("zones", "regions"):
            return lists.list_places if method.name == "list" else lists.get_place
        if method.collection == "projects":
            return lists.get_project
        if method.collection == "images" and method.name in ("get", "getFromFamily"):
            return lists.image
        if method.collection == "images" and method.name == "list":
            return lists.list_images
        plain = {"get": lists.get, "list": lists.list, "aggregatedList": lists.aggregated, "wait": lists.get}
        if method.name in plain:
            return plain[method.name]
        if method.collection == "instances":
            instances = Instances(self.account, self.machines, self.faults.failure, self.faults.ignored)
            return getattr(instances, _snake(method.name), self._unmodelled)  # type: ignore[no-any-return]
        own = {"insert": self._insert, "delete": self._delete, "setLabels": self._set_labels}
        own |= {"patch": self._patch, "update": self._update}
        return own.get(method.name, self._unmodelled)

    def _unmodelled(self, call: Call) -> Body:
        raise Refusal(501, "notModelledByThisFake", f"this fake does not model {call.method.id}")

    def _insert(self, call: Call) -> Body:
        account = self.account
        name = disks.check_name(call.body.get("name", ""))
        account.require_free(call.plural, call.scope, name)
        body = dict(call.body)
        if body.get("labels"):
            body |= {"labels": disks.check_labels(body["labels"]), "labelFingerprint": account.fingerprint()}
        if call.plural == "disks":
            body |= {"type": account.link("diskTypes", call.scope, tail(body.get("type", "pd-standard")))}
            body.setdefault("sizeGb", "10")
        if call.plural == "firewalls":
            network = tail(body.get("network") or "global/networks/default")
            account.get("networks", "global", network)
            body = {
                "direction": "INGRESS",
                "priority": 1000,
                **body,
                "network": account.link("networks", "global", network),
            }
            if not body.get("allowed") and not body.get("denied"):
                raise required("resource.allowed")
        if call.plural == "addresses":
            body.setdefault("address", f"198.51.100.{int(account.new_id()) % 250 + 1}")
        if call.plural in READY:
            body["status"] = READY[call.plural]
        made = account.add(call.plural, call.scope, kind_of(account, call.method.collection), body, hidden=True)

        def done() -> None:
            made.hidden = False

        def failed() -> None:
            account.forget(made)

        failure = self.faults.failure(call)
        return operations.begin(account, call, made, account.settings.insert_s, done, failure, failed)

    def _delete(self, call: Call) -> Body:
        if "Operations" in call.method.collection:
            self.account.drop(call.plural, call.scope, call.target)
            return {}
        resource = self.account.get(call.plural, call.scope, call.target)
        if call.plural == "disks":
            disks.require_unused(resource)
        if call.plural == "networks":
            users = [r for r in self.account.listed("firewalls") if r.body.get("network") == resource.body["selfLink"]]
            if users:
                raise disks.in_use(resource.body["selfLink"], users[0].body["selfLink"])
        if self.faults.ignored(call):
            return operations.begin(self.account, call, resource, self.account.settings.stop_s, lambda: None)
        failure = self.faults.failure(call)

        def done() -> None:
            self.account.remove(resource)

        return operations.begin(self.account, call, resource, self.account.settings.stop_s, done, failure)

    def _set_labels(self, call: Call) -> Body:
        return set_labels(self.account, call, self.account.get(call.plural, call.scope, call.target))

    def _patch(self, call: Call) -> Body:
        resource = self.account.get(call.plural, call.scope, call.target)
        new = {key: value for key, value in call.body.items() if key not in OF_THE_SERVER}
        takes_s = self.account.settings.change_s
        return operations.begin(self.account, call, resource, takes_s, lambda: resource.body.update(new))

    def _update(self, call: Call) -> Body:
        """Everything is replaced, except where the method is a PATCH by another name."""
        if call.method.verb == "PATCH":
            return self._patch(call)
        resource = self.account.get(call.plural, call.scope, call.target)
        kept = {key: value for key, value in resource.body.items() if key in OF_THE_SERVER}
        new = {**{key: value for key, value in call.body.items() if key not in OF_THE_SERVER}, **kept}

        def done() -> None:
            resource.body.clear()
            resource.body.update(new)

        return operations.begin(self.account, call, resource, self.account.settings.change_s, done)


def kind_of(account: Account, collection: str) -> str:
    """The word for one resource: the name of the schema that `get` answers, with a small first letter."""
    schema = account.description.methods[f"{collection}.get"].answer
    return schema[0].lower() + schema[1:]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
