"""The timer on AWS's side: a one-time schedule of EventBridge Scheduler that terminates one instance.

docs.aws.amazon.com/scheduler/latest/UserGuide, "Schedule types" (`at()` has no offset; fires within the minute) and "Universal
targets". It deletes itself after it has fired, and also when all its attempts failed: that it is gone proves nothing.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from gpuops.errors import ProviderError
from gpuops.values import Mark, Time

from .api import Answer, Api
from .errors import Answered, Missing

TARGET = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
ATTEMPTS, OLDEST_S = 185, 86_400
"""The most that the service allows: it goes on trying for a day."""
_AT = "at(%Y-%m-%dT%H:%M:%S)"


def name(nonce: str) -> str:
    """The name of the schedule that belongs to a nonce."""
    return f"gpuops-{nonce}"


def arm(api: Api, region: str, instance: str, mark: Mark, at: Time, role: str, until: Time) -> Time:
    """Make the schedule, or replace it as a whole, and return the time read back by a separate call."""
    wanted = _parameters(instance, mark, at, role)
    try:
        api.call("scheduler", region, "create_schedule", until, **wanted)
    except Answered as error:
        if error.aws_code != "ConflictException":
            raise
        api.call("scheduler", region, "update_schedule", until, **wanted)
    armed = ends_at(api, region, instance, mark.nonce, until)
    if armed is None:
        raise ProviderError(f"the schedule {name(mark.nonce)} was accepted and does not end {instance}")
    return armed


def ends_at(api: Api, region: str, instance: str, nonce: str, until: Time) -> Time | None:
    """When the schedule of this nonce will end `instance`; None when nothing is there that would."""
    try:
        found = api.call("scheduler", region, "get_schedule", until, Name=name(nonce))
    except Missing:
        return None
    return _read(found, instance)


def _parameters(instance: str, mark: Mark, at: Time, role: str) -> dict[str, Any]:
    described = {"run": mark.run, "owner": mark.owner, "limit": int(at)}
    partition = role.split(":")[1]
    return {
        "Name": name(mark.nonce),
        "Description": json.dumps(described)[:512],
        "ScheduleExpression": datetime.datetime.fromtimestamp(int(at), datetime.UTC).strftime(_AT),
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "State": "ENABLED",
        "Target": {
            "Arn": TARGET.replace("arn:aws:", f"arn:{partition}:"),
            "RoleArn": role,
            "Input": json.dumps({"InstanceIds": [instance]}),
            "RetryPolicy": {"MaximumRetryAttempts": ATTEMPTS, "MaximumEventAgeInSeconds": OLDEST_S},
        },
    }


def _read(found: Answer, instance: str) -> Time | None:
    """The time in a schedule that is switched on, ends this very instance, and is told in UTC."""
    target = found.get("Target", {})
    try:
        ended = json.loads(target.get("Input") or "{}").get("InstanceIds")
        at = datetime.datetime.strptime(str(found.get("ScheduleExpression")), _AT).replace(tzinfo=datetime.UTC)
    except (ValueError, AttributeError):
        return None
    sound = (
        found.get("State", "ENABLED") == "ENABLED"
        and found.get("ScheduleExpressionTimezone", "UTC") == "UTC"
        and str(target.get("Arn", "")).endswith(":aws-sdk:ec2:terminateInstances")
        and ended == [instance]
    )
    return at.timestamp() if sound else None
