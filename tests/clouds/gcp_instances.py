"""What one may do with instances: insert, delete, start and stop, and change what is written on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import gcp_catalogue as catalogue
from . import gcp_disks as disks
from . import gcp_lives as lives
from . import gcp_operations as operations
from .gcp_answers import Refusal, invalid, not_modelled, required
from .gcp_operations import Failure
from .gcp_requests import Call
from .gcp_state import Account, Resource, parse_time, place_of, tail

Body = dict[str, Any]


@dataclass(frozen=True)
class Instances:
    """The calls on instances. `failure` tells what the operation of a call comes to; `ignored` that it does nothing."""

    account: Account
    machines: lives.Machines
    failure: Callable[[Call], Failure | None]
    ignored: Callable[[Call], bool]

    def insert(self, call: Call) -> Body:
        if call.query.get("sourceInstanceTemplate") or call.query.get("sourceMachineImage"):
            raise not_modelled("instances made from templates or machine images")
        account, zone = self.account, call.names["zone"]
        name = disks.check_name(call.body.get("name", ""))
        account.require_free("instances", call.scope, name)
        body = self._new_body(zone, name, call.body)
        body["disks"] = disks.attach_all(account, zone, name, call.body.get("disks", []))
        instance = account.add("instances", call.scope, "instance", body, hidden=True)
        failure = self.failure(call) or self._quota(zone)

        def done() -> None:
            instance.hidden = False
            disks.reveal(account, instance)
            lives.begin(account, self.machines, instance)

        def failed() -> None:
            for shown, disk in disks.of_instance(account, instance):
                if disk.hidden:
                    account.forget(disk)
                else:
                    disks.let_go(account, disk, instance.body["selfLink"])
                del shown
            account.forget(instance)

        return operations.begin(account, call, instance, account.settings.insert_s, done, failure, failed)

    def _new_body(self, zone: str, name: str, wanted: Body) -> Body:
        """What the instance will show."""
        account, scope = self.account, f"zones/{zone}"
        if not wanted.get("machineType"):
            raise required("resource.machineType")
        if place_of(wanted["machineType"], scope) != scope:
            raise invalid("resource.machineType", f"'{wanted['machineType']}' is not in zone {zone}")
        kind = account.get("machineTypes", scope, tail(wanted["machineType"]))
        accelerators = self._accelerators(scope, kind, wanted)
        body: Body = {
            "name": name,
            "machineType": kind.body["selfLink"],
            "status": "PENDING"
            if wanted.get("scheduling", {}).get("provisioningModel") == "FLEX_START"
            else "PROVISIONING",
            "scheduling": scheduling(account, wanted.get("scheduling", {}), bool(accelerators)),
            "networkInterfaces": self._interfaces(scope, wanted.get("networkInterfaces", [])),
            "metadata": _metadata(account, wanted.get("metadata", {})),
            "labelFingerprint": account.fingerprint(),
            "fingerprint": account.fingerprint(),
            "tags": {**wanted.get("tags", {}), "fingerprint": account.fingerprint()},
            "deletionProtection": bool(wanted.get("deletionProtection")),
            "canIpForward": bool(wanted.get("canIpForward")),
            "startRestricted": False,
        }
        for key in (
            "description",
            "serviceAccounts",
            "shieldedInstanceConfig",
            "reservationAffinity",
            "resourcePolicies",
        ):
            if key in wanted:
                body[key] = wanted[key]
        if labels := disks.check_labels(wanted.get("labels", {})):
            body["labels"] = labels
        if accelerators:
            body["guestAccelerators"] = accelerators
        return body

    def _accelerators(self, scope: str, kind: Resource, wanted: Body) -> list[Body]:
        machine = catalogue.machine(kind.name)
        asked = wanted.get("guestAccelerators", [])
        if machine.gpu:
            if asked and tail(asked[0].get("acceleratorType", "")) != machine.gpu:
                raise invalid("resource.guestAccelerators", f"{machine.name} comes with {machine.gpu}")
            link = self.account.link("acceleratorTypes", scope, machine.gpu)
            return [{"acceleratorType": link, "acceleratorCount": machine.gpus}]
        if asked and not machine.name.startswith("n1-"):
            raise invalid("resource.guestAccelerators", f"{machine.name} takes no accelerators")
        found = []
        for item in asked:
            accelerator = self.account.get("acceleratorTypes", scope, tail(item.get("acceleratorType", "")))
            found.append(
                {"acceleratorType": accelerator.body["selfLink"], "acceleratorCount": item["acceleratorCount"]}
            )
        return found

    def _interfaces(self, scope: str, wanted: list[Body]) -> list[Body]:
        if not wanted:
            raise required("resource.networkInterfaces")
        found = []
        for number, item in enumerate(wanted):
            network = tail(item.get("network") or "default")
            self.account.get("networks", "global", network)
            shown = {"kind": "compute#networkInterface", "name": f"nic{number}", "stackType": "IPV4_ONLY"}
            shown |= {
                "network": self.account.link("networks", "global", network),
                "fingerprint": self.account.fingerprint(),
            }
            shown["networkIP"] = f"10.128.{int(self.account.new_id()) % 250}.{int(self.account.new_id()) % 250 + 2}"
            if item.get("accessConfigs"):
                plain = {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "External NAT"}
                shown["accessConfigs"] = [{**plain, "networkTier": "PREMIUM", **a} for a in item["accessConfigs"]]
            found.append(shown)
        return found

    def _quota(self, zone: str) -> Failure | None:
        """Whether the account holds more accelerators than it may, the new instance included."""
        account = self.account
        limit, used = account.settings.gpus_all_regions, sum(catalogue.gpus(account).values())
        return quota_failure("GPUS_ALL_REGIONS", limit, zone.rpartition("-")[0]) if used > limit else None

    def delete(self, call: Call) -> Body:
        instance = self._instance(call)
        if instance.body.get("deletionProtection"):
            why = f"The instance '{instance.name}' is protected against deletion"
            raise Refusal(400, "invalidResourceUsage", why)
        if self.ignored(call):
            return operations.begin(self.account, call, instance, self.account.settings.stop_s, lambda: None)
        failure = self.failure(call)
        if failure is None:
            instance.body["status"] = "STOPPING"
            lives.disarm(instance)

        def done() -> None:
            lives.vanish(self.account, self.machines, instance)

        return operations.begin(self.account, call, instance, self.account.settings.stop_s, done, failure)

    def stop(self, call: Call) -> Body:
        return self._halt(call, "STOPPING", "TERMINATED")

    def suspend(self, call: Call) -> Body:
        return self._halt(call, "SUSPENDING", "SUSPENDED")

    def _halt(self, call: Call, way: str, rest: str) -> Body:
        instance = self._instance(call)
        if instance.body["status"] in lives.ALIVE:
            lives.halt(self.account, self.machines, instance, way, rest)
        return operations.begin(self.account, call, instance, self.account.settings.stop_s, lambda: None)

    def start(self, call: Call) -> Body:
        instance = self._instance(call)
        if instance.body["status"] not in ("TERMINATED", "SUSPENDED", "RUNNING"):
            raise Refusal(400, "resourceNotReady", f"The resource '{instance.body['selfLink']}' is not ready")
        if instance.body["status"] != "RUNNING":
            instance.body["status"] = "PROVISIONING"
            lives.begin(self.account, self.machines, instance)
        return operations.begin(self.account, call, instance, self.account.settings.staging_s, lambda: None)

    resume = start

    def set_labels(self, call: Call) -> Body:
        instance = self._instance(call)
        return set_labels(self.account, call, instance)

    def set_scheduling(self, call: Call) -> Body:
        """Allowed for a stopped instance only, says the vendor's document of this call."""
        account, instance = self.account, self._instance(call)
        if instance.body["status"] not in ("TERMINATED", "SUSPENDED") and not account.settings.scheduling_while_running:
            raise Refusal(400, "resourceNotReady", f"setScheduling needs a stopped instance; '{instance.name}' is not")
        wanted = scheduling(account, call.body, bool(instance.body.get("guestAccelerators")))

        def done() -> None:
            instance.body["scheduling"] = wanted
            lives.disarm(instance)
            if instance.body["status"] == "RUNNING":
                lives.arm(account, self.machines, instance)

        return self._change(call, instance, done)

    def set_metadata(self, call: Call) -> Body:
        instance = self._instance(call)
        _check_fingerprint(call.body.get("fingerprint", ""), instance.body["metadata"]["fingerprint"])
        new = _metadata(self.account, call.body)
        return self._change(call, instance, lambda: instance.body.update(metadata=new))

    def set_tags(self, call: Call) -> Body:
        instance = self._instance(call)
        _check_fingerprint(call.body.get("fingerprint", ""), instance.body["tags"]["fingerprint"])
        new = {**call.body, "fingerprint": self.account.fingerprint()}
        return self._change(call, instance, lambda: instance.body.update(tags=new))

    def set_deletion_protection(self, call: Call) -> Body:
        instance, wanted = self._instance(call), call.query.get("deletionProtection", "true") == "true"
        return self._change(call, instance, lambda: instance.body.update(deletionProtection=wanted))

    def set_disk_auto_delete(self, call: Call) -> Body:
        instance = self._instance(call)
        shown = disks.attachment(instance, call.query.get("deviceName", ""))
        wanted = call.query.get("autoDelete") == "true"
        return self._change(call, instance, lambda: shown.update(autoDelete=wanted))

    def attach_disk(self, call: Call) -> Body:
        account, instance = self.account, self._instance(call)
        if "source" not in call.body:
            raise required("resource.source")
        number = max(shown["index"] for shown in instance.body["disks"]) + 1
        scope = place_of(call.body["source"], call.scope)
        disk = account.get("disks", scope, tail(call.body["source"]))
        if disk.body.get("users") and call.body.get("mode") != "READ_ONLY":
            raise disks.in_use(disk.body["selfLink"], disk.body["users"][0])
        shown = {"kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": call.body.get("mode", "READ_WRITE")}
        shown |= {"index": number, "boot": False, "autoDelete": bool(call.body.get("autoDelete"))}
        shown |= {"deviceName": call.body.get("deviceName") or f"persistent-disk-{number}", "interface": "SCSI"}
        shown |= {"source": disk.body["selfLink"], "diskSizeGb": disk.body["sizeGb"]}

        def done() -> None:
            disks.hold(account, disk, instance.body["selfLink"])
            instance.body["disks"].append(shown)
            if instance.body["status"] == "RUNNING":
                self.machines.attach(instance, shown)

        return self._change(call, instance, done)

    def detach_disk(self, call: Call) -> Body:
        instance = self._instance(call)
        shown = disks.attachment(instance, call.query.get("deviceName", ""))
        if shown["boot"] and instance.body["status"] == "RUNNING":
            raise invalid("deviceName", "the boot disk of a running instance cannot be detached")
        held = [disk for other, disk in disks.of_instance(self.account, instance) if other is shown]

        def done() -> None:
            if instance.body["status"] == "RUNNING":
                self.machines.detach(instance, shown)
            instance.body["disks"].remove(shown)
            for disk in held:
                disks.let_go(self.account, disk, instance.body["selfLink"])

        return self._change(call, instance, done)

    def get_guest_attributes(self, call: Call) -> Body:
        instance = self._instance(call)
        if lives.metadata(instance).get("enable-guest-attributes", "").upper() != "TRUE":
            raise Refusal(404, "notFound", f"guest attributes are not enabled for '{instance.name}'")
        path = call.query.get("queryPath", "") or call.query.get("variableKey", "")
        namespace, _, key = path.partition("/")
        written = self.account.guest.get(instance.body["selfLink"], {})
        items = [
            {"namespace": n, "key": k, "value": value}
            for n, pairs in written.items()
            for k, value in pairs.items()
            if namespace in ("", n) and key in ("", k)
        ]
        if not items:
            raise Refusal(404, "notFound", f"The resource '{path}' of type 'Guest Attribute' was not found")
        link = f"{instance.body['selfLink']}/guestAttributes/{path}"
        shown: Body = {"kind": "compute#guestAttributes", "selfLink": link, "queryPath": path}
        return {**shown, "queryValue": {"items": items}}

    def get_serial_port_output(self, call: Call) -> Body:
        instance = self._instance(call)
        link = instance.body["selfLink"]
        contents = self.machines.console(link) or self.account.console.get(link, "")
        start = int(call.query.get("start", "0"))
        shown = {"kind": "compute#serialPortOutput", "selfLink": f"{instance.body['selfLink']}/serialPort"}
        return {**shown, "contents": contents[start:], "start": str(start), "next": str(len(contents))}

    def _instance(self, call: Call) -> Resource:
        return self.account.get("instances", call.scope, call.target)

    def _change(self, call: Call, instance: Resource, done: Callable[[], None]) -> Body:
        def unless_ignored() -> None:
            if not ignored:
                done()

        ignored = self.ignored(call)
        takes_s = self.account.settings.change_s
        return operations.begin(self.account, call, instance, takes_s, unless_ignored, self.failure(call))


def set_labels(account: Account, call: Call, resource: Resource) -> Body:
    """Replace the labels of anything; the fingerprint must be the one that was read."""
    _check_fingerprint(call.body.get("labelFingerprint", ""), resource.body.get("labelFingerprint", ""))
    labels = disks.check_labels(call.body.get("labels", {}))
    new = {"labels": labels, "labelFingerprint": account.fingerprint()}

    def done() -> None:
        resource.body.update(new)
        if resource.key in account.usage:
            account.usage[resource.key].labels = dict(labels)

    return operations.begin(account, call, resource, account.settings.change_s, done)


def scheduling(account: Account, wanted: Body, accelerated: bool) -> Body:
    """What scheduling will show; refuses what cannot be."""
    settings, field = account.settings, "resource.scheduling"
    model = wanted.get("provisioningModel", "SPOT" if wanted.get("preemptible") else "STANDARD")
    spot = model == "SPOT"
    shown: Body = {
        "provisioningModel": model,
        "preemptible": spot,
        "automaticRestart": wanted.get("automaticRestart", not spot),
        "onHostMaintenance": wanted.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE"),
    }
    if spot and shown["automaticRestart"]:
        raise invalid(f"{field}.automaticRestart", "a spot instance cannot be restarted")
    if accelerated and shown["onHostMaintenance"] != "TERMINATE":
        raise invalid(f"{field}.onHostMaintenance", "an instance with accelerators cannot migrate: TERMINATE")
    limited = [key for key in ("maxRunDuration", "terminationTime") if key in wanted]
    if len(limited) == 2:
        raise invalid(field, "maxRunDuration and terminationTime exclude each other")
    if limited and "instanceTerminationAction" not in wanted:
        raise invalid(f"{field}.instanceTerminationAction", f"{limited[0]} needs a termination action")
    if model == "FLEX_START" and not limited:
        raise invalid(field, "FLEX_START needs maxRunDuration")
    if "maxRunDuration" in wanted:
        seconds = int(wanted["maxRunDuration"].get("seconds", 0))
        if not settings.shortest_run_s <= seconds <= settings.longest_run_s:
            raise invalid(f"{field}.maxRunDuration", f"{seconds} s is outside 30 s to 120 days")
        shown["maxRunDuration"] = {"seconds": str(seconds)}
    if "terminationTime" in wanted:
        try:
            ahead = parse_time(wanted["terminationTime"]) - account.now()
        except ValueError as error:
            raise invalid(f"{field}.terminationTime", str(error)) from None
        if not 0 < ahead <= settings.longest_run_s:
            raise invalid(f"{field}.terminationTime", "not within the next 120 days")
        shown["terminationTime"] = wanted["terminationTime"]
    if "instanceTerminationAction" in wanted:
        shown["instanceTerminationAction"] = wanted["instanceTerminationAction"]
    elif spot:
        shown["instanceTerminationAction"] = "STOP"
    return shown


def quota_failure(metric: str, limit: float, region: str) -> Failure:
    """What an operation says that a quota ended."""
    info = {"metricName": "compute.googleapis.com/gpus_all_regions", "limitName": metric, "limit": limit}
    details = [{"quotaInfo": {**info, "dimensions": {"region": region}}}]
    return Failure("QUOTA_EXCEEDED", 403, f"Quota '{metric}' exceeded. Limit: {limit} globally.", details)


def _metadata(account: Account, wanted: Body) -> Body:
    keys = [item.get("key", "") for item in wanted.get("items", [])]
    if len(set(keys)) != len(keys) or not all(keys):
        raise invalid("resource.metadata.items", "keys must be there once each")
    total = sum(len(item.get("key", "")) + len(item.get("value", "")) for item in wanted.get("items", []))
    if total > 512 * 1024:
        raise invalid("resource.metadata", "more than 512 KB")
    shown: Body = {"kind": "compute#metadata", "fingerprint": account.fingerprint()}
    return {**shown, "items": wanted["items"]} if wanted.get("items") else shown


def _check_fingerprint(given: str, current: str) -> None:
    if given != current:
        raise Refusal(412, "conditionNotMet", "the fingerprint is not the current one: read again")
