"""Lives of instances on moto's models: slow changes of state, late visibility, spot requests, schedules that fire, hosts.

moto's own objects stay the truth for everything that they can say; what is missing there is kept here beside them. Every
method is called with the server's lock held.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from clouds.aws_faults import Switches
from clouds.aws_hosts import AwsHosts
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import instances as moto_instances
from moto.ec2.models.elastic_block_store import VolumeAttachment
from moto.ec2.models.instances import InstanceState, StateReason
from moto.ec2.models.spot_requests import SpotInstanceRequest
from moto.ec2.utils import random_spot_request_id

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
UNKNOWN_CODE = 255
BY_USER = "Client.UserInitiatedShutdown"
BY_GUEST = "Client.InstanceInitiatedShutdown"
BY_CAPACITY = "Server.InsufficientInstanceCapacity"
BY_SPOT = "Server.SpotInstanceTermination"
TERMINATE_TARGET = re.compile(r"arn:aws[a-z-]*:scheduler:::aws-sdk:ec2:terminateInstances")
AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)")


@dataclass(slots=True)
class Life:
    """One instance: moto's object, and what moto does not know of it."""

    instance: Any
    region: str
    born_at: float
    state: str = "pending"
    runs_at: float = 0.0
    ends_at: float = 0.0
    forget_at: float = float("inf")
    why: str = ""
    word: str = ""
    spot: Any = None


class BoughtSpot(SpotInstanceRequest):  # type: ignore[misc]
    """The request that RunInstances makes for a spot instance; moto makes one for RequestSpotInstances only."""

    # moto files its models by the name of their module
    __module__ = SpotInstanceRequest.__module__

    def __init__(self, backend: Any, instance: Any, price: str, tags: dict[str, str], at: datetime.datetime) -> None:
        self._bought, self._at = instance, at
        super().__init__(
            backend, random_spot_request_id(), price, instance.image_id, "one-time", None, None, None, None,
            instance.key_name, [], None, instance.instance_type, instance.placement.zone, None, None, False, None,
            {"spot-instances-request": tags}, None, "terminate",
        )  # fmt: skip

    def launch_instance(self) -> Any:
        """It is there already."""
        return self._bought

    @property
    def create_time(self) -> datetime.datetime:  # type: ignore[override]
        """When it was made."""
        return self._at

    @property
    def status(self) -> dict[str, Any]:
        """Code, words and time."""
        return {"Code": self._status_code, "Message": self.status_message, "UpdateTime": self._at}


class World:
    """All instances of the account."""

    def __init__(self, switches: Switches, hosts: AwsHosts | None) -> None:
        self.switches, self.hosts = switches, hosts
        self.offset_s = 0.0
        self.lives: dict[str, Life] = {}
        self.seen: set[str] = set()
        self._fired: set[tuple[str, str, str]] = set()
        self.describing = False
        """Only then are instances hidden: moto itself must always find them."""
        self._teach_moto()

    def now(self) -> float:
        """The cloud's clock."""
        return time.time() + self.offset_s

    def date(self) -> datetime.datetime:
        """The same for moto, which keeps UTC without saying so."""
        return datetime.datetime.fromtimestamp(self.now(), datetime.UTC).replace(tzinfo=None)

    def backend(self, region: str, service: str = "ec2") -> Any:
        """moto's backend."""
        return get_backend(service)[DEFAULT_ACCOUNT_ID][region]

    def born(self, region: str, instance: Any, nic_tags: dict[str, str], explicit_nic: bool) -> Life:
        """Take in an instance that moto has just made."""
        life = Life(instance, region, self.now(), runs_at=self.now() + self.switches.pending_s)
        for nic in instance.nics.values():
            nic.add_tags(nic_tags)
            # moto keeps the interface that nobody asked for; AWS deletes it with the instance
            nic.delete_on_termination = nic.delete_on_termination if explicit_nic else True
        self.lives[instance.id] = life
        if self.switches.refuse_late > 0:
            self.switches = replace(self.switches, refuse_late=self.switches.refuse_late - 1)
            life.why = BY_CAPACITY
        self._show(life)
        return life

    def bought_as_spot(self, life: Life, price: str, tags: dict[str, str]) -> None:
        """Add the spot request that belongs to an instance."""
        backend = self.backend(life.region)
        life.spot = BoughtSpot(backend, life.instance, price, tags, self.date())
        backend.spot_instance_requests[life.spot.id] = life.spot
        life.instance.spot_instance_request_id = life.spot.id
        life.instance.lifecycle = "spot"

    def tick(self) -> None:
        """Let everything happen that is due."""
        now = self.now()
        if self.switches.schedules_fire:
            for region in self.seen:
                self._fire_due(region, now)
        for life in list(self.lives.values()):
            if life.state == "pending" and life.why == BY_CAPACITY:
                self.end(life, BY_CAPACITY)
            if life.state == "pending" and now >= life.runs_at:
                life.state = "running"
                self._boot(life)
            if life.state == "shutting-down" and self.now() >= life.ends_at:
                self._finish(life)
            self._show(life)

    def replaced(self, region: str, name: str, group: str, asked: dict[str, Any]) -> None:
        """UpdateSchedule replaces everything; moto leaves out two fields (EventBridge Scheduler API, UpdateSchedule)."""
        schedule = self.backend(region, "scheduler").schedule_groups[group].schedules[name]
        schedule.state = asked.get("State") or "ENABLED"
        schedule.action_after_completion = asked.get("ActionAfterCompletion") or "NONE"

    def hidden(self, ident: str) -> bool:
        """Whether descriptions leave this instance out: too new, or terminated for long."""
        life = self.lives.get(ident)
        return life is not None and (
            self.now() < life.born_at + self.switches.visible_after_s or self.now() >= life.forget_at
        )

    def end(self, life: Life, why: str) -> bool:
        """Begin to terminate; False when the request was accepted and nothing is going to happen."""
        if life.state in ("shutting-down", "terminated"):
            return True
        if why == BY_USER and self.switches.ignore_terminates > 0:
            self.switches = _less(self.switches)
            return False
        life.state, life.why, life.ends_at = "shutting-down", why, self.now() + self.switches.shutting_down_s
        if self.hosts:
            self.hosts.stop(life.instance.id)
        self._show(life)
        return True

    def powered_off(self, ident: str) -> None:
        """The guest has shut itself down: what that means was said in the create call."""
        life = self.lives.get(ident)
        if life is None or life.state != "running":
            return
        if life.instance.instance_initiated_shutdown_behavior == "terminate":
            self.end(life, BY_GUEST)
        else:
            life.instance.stop()
            life.state = "stopped"

    def followed(self, ident: str) -> None:
        """moto itself has stopped or started an instance."""
        life = self.lives.get(ident)
        if life is None:
            return
        life.state = life.instance._state.name
        if self.hosts and life.state == "stopped":
            self.hosts.stop(ident)
        if life.state == "running":
            self._boot(life)

    def clear(self) -> None:
        """Forget everything; hosts end."""
        if self.hosts:
            self.hosts.clear()
        self.lives.clear()
        self.seen.clear()
        self._fired.clear()
        self.offset_s = 0.0

    def _boot(self, life: Life) -> None:
        if self.hosts is None:
            return
        work = threading.Thread(target=self._booting, args=(life, self.hosts), daemon=True)
        work.start()

    def _booting(self, life: Life, hosts: AwsHosts) -> None:
        """A host starts beside the lock. One that is terminated meanwhile must not stay."""
        try:
            hosts.start(life.instance, self.backend(life.region), life.region)
        except Exception as error:  # the thread's end is here: whatever it is, the server's log tells it
            print(f"{life.instance.id} does not boot: {error}", file=sys.stderr, flush=True)
        if life.state != "running":
            hosts.stop(life.instance.id)

    def _finish(self, life: Life) -> None:
        """What AWS does when an instance is gone: disks and interfaces as they were ordered, the record for a while."""
        life.instance.terminate()
        for nic in life.instance.nics.values():
            if not nic.delete_on_termination:
                nic.instance, nic.attachment_id, nic.status = None, None, "available"
        at = self.date().strftime("%Y-%m-%d %H:%M:%S GMT")
        words = {BY_USER: "User initiated", BY_GUEST: "", BY_SPOT: "Service initiated", BY_CAPACITY: "Server"}[life.why]
        life.instance._reason = f"{words} ({at})" if words else ""
        life.instance.state_reason = StateReason(f"{life.why}: (fake)", life.why)
        life.state, life.forget_at = "terminated", self.now() + self.switches.forget_terminated_s
        if life.spot is not None and life.spot.state != "cancelled":
            life.spot.state = "closed"
            life.spot._status_code = (
                "instance-terminated-by-price" if life.why == BY_SPOT else "instance-terminated-by-user"
            )

    def _show(self, life: Life) -> None:
        life.instance._state = InstanceState(life.word or life.state, UNKNOWN_CODE if life.word else CODES[life.state])

    def _fire_due(self, region: str, now: float) -> None:
        for group in self.backend(region, "scheduler").schedule_groups.values():
            for schedule in list(group.schedules.values()):
                key = (region, schedule.name, schedule.schedule_expression)
                at = due_at(schedule.schedule_expression, schedule.schedule_expression_timezone)
                if at is None or schedule.state != "ENABLED" or key in self._fired:
                    continue
                if now >= at + self.switches.schedule_delay_s:
                    self._fire(region, schedule.target)
                    self._fired.add(key)
                    if schedule.action_after_completion == "DELETE":
                        group.schedules.pop(schedule.name)

    def _fire(self, region: str, target: dict[str, Any]) -> None:
        """Call the target. What fails there vanishes with the schedule, as it does on AWS once its retries run out."""
        if not TERMINATE_TARGET.fullmatch(target["Arn"]):
            return
        for ident in json.loads(target.get("Input") or "{}").get("InstanceIds", ()):
            life = self.lives.get(ident)
            if life is not None and life.region == region and not life.instance.disable_api_termination:
                self.end(life, BY_USER)

    def _teach_moto(self) -> None:
        """Let moto's models tell the cloud's time, the whole attachment, and only visible instances."""
        world = self
        moto_instances.utcnow = world.date
        VolumeAttachment.delete_on_termination = property(_deleted_with_instance)
        whole: Callable[..., list[Any]] = moto_instances.InstanceBackend.all_reservations

        def visible(backend: Any, filters: Any = None) -> list[Any]:
            found = whole(backend, filters)
            if world.describing:
                for reservation in found:
                    reservation.instances = [i for i in reservation.instances if not world.hidden(i.id)]
                found = [reservation for reservation in found if reservation.instances]
            return found

        moto_instances.InstanceBackend.all_reservations = visible


def due_at(expression: str, zone: str) -> float | None:
    """When a one-time schedule fires; None for what is none."""
    match = AT.fullmatch(expression or "")
    if match is None:
        return None
    try:
        return datetime.datetime.fromisoformat(match[1]).replace(tzinfo=ZoneInfo(zone)).timestamp()
    except (ValueError, KeyError):
        return None


def _deleted_with_instance(attachment: Any) -> bool | None:
    device = attachment.instance.block_device_mapping.get(attachment.device)
    return None if device is None else bool(device.delete_on_termination)


def _less(switches: Switches) -> Switches:
    return replace(switches, ignore_terminates=switches.ignore_terminates - 1)
