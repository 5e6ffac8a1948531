"""EC2 calls that moto does not answer as EC2 does: tokens, terminating, volumes, groups, spot requests."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from clouds import aws_figures as figures
from clouds.aws_wire import Answer, Call, ec2, error
from clouds.aws_world import BY_USER, CODES, World

Forward = Callable[[Call], Answer]
INSTANCE_ID = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
EXEMPT = ("ClientToken", "DryRun", "Placement.AvailabilityZone")
"""What may differ between two sendings of one token (EC2 developer guide, "Ensuring idempotency")."""


class Ec2:
    """The handlers, by action; what has none goes to moto as it is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tokens: dict[tuple[str, str, str], tuple[dict[str, str], str, Answer]] = {}
        self.handlers: dict[str, Callable[[Call, Forward], Answer]] = {
            "RunInstances": self.run_instances,
            "CreateVolume": self.create_volume,
            "TerminateInstances": self.terminate_instances,
            "StopInstances": self.follow,
            "StartInstances": self.follow,
            "DescribeInstances": self.describe_instances,
            "AttachVolume": self.attach_volume,
            "DetachVolume": self.detach_volume,
            "ModifyInstanceAttribute": self.modify_instance,
            "DeleteSecurityGroup": self.delete_security_group,
            "CancelSpotInstanceRequests": self.cancel_spot,
            "DescribeSpotPriceHistory": self.spot_prices,
            "GetConsoleOutput": self.console,
            "DescribeCapacityReservations": self.reservations,
            "DescribeCapacityBlocks": self.reservations,
            **{action: nothing(inner) for action, inner in NOTHING.items()},
        }

    def clear(self) -> None:
        """Forget the tokens."""
        self._tokens.clear()

    def run_instances(self, call: Call, forward: Forward) -> Answer:
        """Same token and parameters: the same instance as it is now. Spot: a request beside the instance."""
        if call.dry_run:
            return forward(call)
        if repeated := self._repeated(call):
            return repeated if isinstance(repeated, Answer) else self._as_it_is(call, forward, repeated[0])
        if refusal := _spot_refusal(call):
            return refusal
        backend = self._world.backend(call.region)
        before = set(backend.reservations)
        answer = forward(call)
        if b"<Code>InvalidInstanceType" in answer.body:
            text = f"Invalid value '{call.form.get('InstanceType')}' for InstanceType."
            return error(call, 400, "InvalidParameterValue", text)
        if answer.status != 200:
            return answer
        (made,) = set(backend.reservations) - before
        explicit = any(key.startswith("NetworkInterface.") for key in call.form)
        ids = []
        for instance in backend.reservations[made].instances:
            life = self._world.born(call.region, instance, _tags(call, "network-interface"), explicit)
            ids.append(instance.id)
            if call.form.get("InstanceMarketOptions.MarketType") == "spot":
                price = call.form.get("InstanceMarketOptions.SpotOptions.MaxPrice", "")
                on_demand = figures.PER_HOUR.get(instance.instance_type, "1.0")
                self._world.bought_as_spot(life, price or on_demand, _tags(call, "spot-instances-request"))
        first = self._as_it_is(call, forward, ",".join(ids))
        self._remember(call, ",".join(ids), first)
        return first

    def create_volume(self, call: Call, forward: Forward) -> Answer:
        """A token makes one volume."""
        if call.dry_run:
            return forward(call)
        if repeated := self._repeated(call):
            return repeated if isinstance(repeated, Answer) else repeated[1]
        answer = forward(call)
        if answer.status == 200:
            self._remember(call, "", answer)
        return answer

    def describe_instances(self, call: Call, forward: Forward) -> Answer:
        """moto does not know the filter `client-token`: it becomes one of instance ids."""
        form = dict(call.form)
        for key, value in call.form.items():
            if re.fullmatch(r"Filter\.\d+\.Name", key) and value == "client-token":
                filter_name = key.removesuffix(".Name")
                asked = [v for k, v in call.form.items() if k.startswith(f"{filter_name}.Value")]
                form = {k: v for k, v in form.items() if not k.startswith(f"{filter_name}.")}
                ids = [i for (_, region, token), (_, made, _) in self._tokens.items() for i in made.split(",")
                       if region == call.region and token in asked] or ["i-00000000000000000"]  # fmt: skip
                form |= {f"{filter_name}.Name": "instance-id"}
                form |= {f"{filter_name}.Value.{number}": ident for number, ident in enumerate(ids, 1)}
        return forward(call.with_form(form))

    def terminate_instances(self, call: Call, forward: Forward) -> Answer:
        """All or nothing: one id that is not there fails the whole call."""
        if call.dry_run:
            return forward(call)
        ids = call.listed("InstanceId")
        for ident in ids:
            if not INSTANCE_ID.fullmatch(ident):
                return error(call, 400, "InvalidInstanceID.Malformed", f'Invalid id: "{ident}"')
        lives = [self._world.lives.get(ident) for ident in ids]
        missing = [i for i, life in zip(ids, lives, strict=True)
                   if life is None or life.region != call.region or self._world.hidden(i)]  # fmt: skip
        if missing:
            text = f"The instance IDs '{', '.join(missing)}' do not exist"
            return error(call, 400, "InvalidInstanceID.NotFound", text)
        there = [life for life in lives if life is not None]
        for life in there:
            if life.instance.disable_api_termination:
                text = f"The instance '{life.instance.id}' may not be terminated. Modify its 'disableApiTermination'"
                return error(call, 400, "OperationNotPermitted", text)
        items = ""
        for life in there:
            before = life.state
            self._world.end(life, BY_USER)
            # also where nothing is going to happen, the answer says that it will
            after = "terminated" if before == "terminated" else "shutting-down"
            items += f"<item><instanceId>{life.instance.id}</instanceId>{_state('currentState', after)}"
            items += f"{_state('previousState', before)}</item>"
        return ec2("TerminateInstances", f"<instancesSet>{items}</instancesSet>")

    def follow(self, call: Call, forward: Forward) -> Answer:
        """moto stops and starts; the world and its hosts follow."""
        answer = forward(call)
        if answer.status == 200:
            for ident in call.listed("InstanceId"):
                self._world.followed(ident)
        return answer

    def attach_volume(self, call: Call, forward: Forward) -> Answer:
        """Same zone, an available volume, a free device name, a running or stopped instance."""
        backend = self._world.backend(call.region)
        volume = backend.volumes.get(call.form.get("VolumeId", ""))
        life = self._world.lives.get(call.form.get("InstanceId", ""))
        if call.dry_run or volume is None or life is None:
            return forward(call)
        device, ident = call.form.get("Device", ""), call.form["VolumeId"]
        if life.state not in ("running", "stopped"):
            text = f"Instance '{life.instance.id}' is not 'running'."
            return error(call, 400, "IncorrectState", text)
        if volume.zone.name != life.instance.placement.zone:
            text = f"The volume '{ident}' is not in the same availability zone as instance '{life.instance.id}'"
            return error(call, 400, "InvalidVolume.ZoneMismatch", text)
        if volume.attachment is not None:
            return error(call, 400, "VolumeInUse", f"{ident} is already attached to an instance")
        if device in life.instance.block_device_mapping:
            text = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
            return error(call, 400, "InvalidParameterValue", text)
        answer = forward(call)
        if answer.status == 200 and self._world.hosts:
            self._world.hosts.attach(life.instance.id, ident)
        return answer

    def detach_volume(self, call: Call, forward: Forward) -> Answer:
        """The host loses the disk too."""
        backend, ident = self._world.backend(call.region), call.form.get("VolumeId", "")
        volume = backend.volumes.get(ident)
        holder = volume.attachment.instance.id if volume is not None and volume.attachment else ""
        answer = forward(call)
        if answer.status == 200 and holder and self._world.hosts:
            self._world.hosts.detach(holder, ident)
        return answer

    def modify_instance(self, call: Call, forward: Forward) -> Answer:
        """moto breaks on a device that is not there."""
        life = self._world.lives.get(call.form.get("InstanceId", ""))
        devices = {v for k, v in call.form.items() if re.fullmatch(r"BlockDeviceMapping\.\d+\.DeviceName", k)}
        missing = devices - set(life.instance.block_device_mapping.keys()) if life else set()
        if missing:
            text = f"No device is currently mapped at {', '.join(sorted(missing))}"
            return error(call, 400, "InvalidInstanceAttributeValue", text)
        return forward(call)

    def delete_security_group(self, call: Call, forward: Forward) -> Answer:
        """Not while an interface uses it."""
        ident = call.form.get("GroupId", "")
        interfaces = self._world.backend(call.region).enis.values()
        if not call.dry_run and any(ident in {group.id for group in nic.group_set} for nic in interfaces):
            return error(call, 400, "DependencyViolation", f"resource {ident} has a dependent object")
        return forward(call)

    def cancel_spot(self, call: Call, forward: Forward) -> Answer:
        """The request is cancelled; its instance runs on."""
        requests = self._world.backend(call.region).spot_instance_requests
        ids = call.listed("SpotInstanceRequestId")
        missing = [ident for ident in ids if ident not in requests]
        if call.dry_run or missing:
            text = f"The spot instance request ID '{', '.join(missing)}' does not exist"
            return forward(call) if call.dry_run else error(call, 400, "InvalidSpotInstanceRequestID.NotFound", text)
        items = ""
        for ident in ids:
            requests[ident].state = "cancelled"
            requests[ident]._status_code = "request-canceled-and-instance-running"
            items += f"<item><spotInstanceRequestId>{ident}</spotInstanceRequestId><state>cancelled</state></item>"
        return ec2(call.action, f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>")

    def spot_prices(self, call: Call, forward: Forward) -> Answer:
        """Invented prices, one per zone, changed a few minutes ago."""
        at = self._world.date().strftime("%Y-%m-%dT%H:%M:00.000Z")
        zones = [f"{call.region}{letter}" for letter in "abc"]
        items = "".join(
            f"<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{figures.spot_price(kind, zone)}</spotPrice><timestamp>{at}</timestamp>"
            f"<availabilityZone>{zone}</availabilityZone></item>"
            for kind in call.listed("InstanceType") for zone in zones
        )  # fmt: skip
        return ec2(call.action, f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/>")

    def reservations(self, call: Call, forward: Forward) -> Answer:
        """Those that a test has switched on."""
        name, begins = ("capacityReservation", "cr-") if "Reservation" in call.action else ("capacityBlock", "cb-")
        ids = [there.partition("/")[2] for there in self._world.switches.reservations
               if there.startswith(f"{call.region}/{begins}")]  # fmt: skip
        at = self._world.date().strftime("%Y-%m-%dT%H:%M:%S.000Z")
        items = "".join(
            f"<item><{name}Id>{ident}</{name}Id><state>active</state><createDate>{at}</createDate></item>"
            for ident in ids
        )
        return ec2(call.action, f"<{name}Set>{items}</{name}Set>")

    def console(self, call: Call, forward: Forward) -> Answer:
        """What the instance's own host has printed."""
        ident = call.form.get("InstanceId", "")
        if self._world.hosts is None or ident not in self._world.lives:
            return forward(call)
        text = base64.b64encode(self._world.hosts.console(ident).encode()).decode()
        at = self._world.date().strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return ec2(call.action, f"<instanceId>{ident}</instanceId><timestamp>{at}</timestamp><output>{text}</output>")

    def _repeated(self, call: Call) -> Answer | tuple[str, Answer] | None:
        """What the token has made already; None for a new one."""
        known = self._tokens.get((call.action, call.region, call.form.get("ClientToken", "")))
        if known is None or not call.form.get("ClientToken"):
            return None
        if known[0] != _fingerprint(call):
            text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            return error(call, 400, "IdempotentParameterMismatch", text)
        return known[1], known[2]

    def _remember(self, call: Call, made: str, answer: Answer) -> None:
        if token := call.form.get("ClientToken"):
            self._tokens[(call.action, call.region, token)] = (_fingerprint(call), made, answer)

    def _as_it_is(self, call: Call, forward: Forward, made: str) -> Answer:
        """The answer of RunInstances with the instances as they are now: what DescribeInstances would say of them."""
        ids = {f"InstanceId.{number}": ident for number, ident in enumerate(made.split(","), 1)}
        form = {"Action": "DescribeInstances", "Version": call.form.get("Version", "2016-11-15"), **ids}
        seen = forward(call.with_form(form))
        inner = re.search(r"<reservationSet>\s*<item>(.*)</item>\s*</reservationSet>", seen.body.decode(), re.DOTALL)
        if seen.status != 200 or inner is None:
            raise RuntimeError(f"moto does not show what it has made: {seen.body[:300]!r}")
        return ec2("RunInstances", inner[1])


def _fingerprint(call: Call) -> dict[str, str]:
    return {key: value for key, value in call.form.items() if key not in EXEMPT}


def _tags(call: Call, kind: str) -> dict[str, str]:
    """Tags that a create call carries for one kind of thing."""
    found = {}
    for key, value in call.form.items():
        match = re.fullmatch(r"TagSpecification\.(\d+)\.ResourceType", key)
        if match and value == kind:
            prefix = f"TagSpecification.{match[1]}.Tag."
            numbers = {k.removeprefix(prefix).split(".")[0] for k in call.form if k.startswith(prefix)}
            found |= {call.form[f"{prefix}{n}.Key"]: call.form.get(f"{prefix}{n}.Value", "") for n in numbers}
    return found


def _spot_refusal(call: Call) -> Answer | None:
    options = "InstanceMarketOptions.SpotOptions."
    if call.form.get("InstanceMarketOptions.MarketType") != "spot":
        return None
    persistent = call.form.get(f"{options}SpotInstanceType") == "persistent"
    if persistent and call.form.get(f"{options}InstanceInterruptionBehavior", "terminate") == "terminate":
        text = "RunInstances only supports a persistent request with the behavior stop or hibernate."
        return error(call, 400, "InvalidParameterCombination", text)
    price = call.form.get(f"{options}MaxPrice")
    kind = call.form.get("InstanceType", "")
    zone = call.form.get("Placement.AvailabilityZone", f"{call.region}a")
    if price and float(price) < float(figures.spot_price(kind, zone)):
        text = f"Your Spot request price of {price} is lower than the minimum required Spot request fulfillment price"
        return error(call, 400, "SpotMaxPriceTooLow", text)
    return None


def _state(name: str, word: str) -> str:
    return f"<{name}><code>{CODES[word]}</code><name>{word}</name></{name}>"


NOTHING = {
    "DescribeReservedInstances": "<reservedInstancesSet/>",
    "ListSnapshotsInRecycleBin": "<snapshotSet/>",
    "ListVolumesInRecycleBin": "<volumeSet/>",
    "ListImagesInRecycleBin": "<imageSet/>",
}
"""Listings that moto has not: empty, in EC2's own form."""


def nothing(inner: str) -> Callable[[Call, Forward], Answer]:
    """A handler that answers with an empty list."""
    return lambda call, forward: ec2(call.action, inner)
