"""Asking for the end of anything: the call that fits the id, once what would start it again has been cancelled."""

from __future__ import annotations

from gpuops.errors import GpuopsError, ProviderError
from gpuops.values import Ref, Time

from . import listing
from .api import Api
from .errors import Answered, Missing
from .kinds import ENDS

PROTECTED = "OperationNotPermitted"
SCALED_BY = "aws:autoscaling:groupName"
UNDONE = ("UnsuccessfulFleetDeletions", "UnsuccessfulFleetRequests")
"""Where an answer of success lists what it did not do."""


def terminate(api: Api, ref: Ref, until: Time) -> bool:
    """Ask for the end of `ref`; False when it is said not to be there, which needs no asking."""
    begins = max((b for b in ENDS if ref.id.startswith(f"{b}-")), key=len, default="")
    if not begins:
        raise ProviderError(f"{ref} cannot be ended by a call: look at the AWS console")
    trouble = _cancel_first(api, ref, until) if ref.kind == "rental" else None
    service, method, asked = ENDS[begins]
    try:
        answer = api.call(service, ref.region, method, until, **asked(ref.id))
    except Missing:
        return False
    except Answered as error:
        if error.aws_code == PROTECTED and ref.kind == "rental":
            where = f"--region {ref.region} --instance-id {ref.id}"
            unlock = f"aws ec2 modify-instance-attribute {where} --no-disable-api-termination"
            raise ProviderError(
                f"{ref} is protected from termination", may_bill=(str(ref),), next_command=unlock
            ) from error
        raise
    if undone := [entry for key in UNDONE for entry in answer.get(key) or ()]:
        raise ProviderError(f"{ref} was not ended: {undone[0].get('Error')}")
    if trouble:
        raise trouble
    return True


def _cancel_first(api: Api, ref: Ref, until: Time) -> GpuopsError | None:
    """Cancel the spot request behind an instance: one that stays open would start another. Ending goes on without it."""
    try:
        answer = api.call("ec2", ref.region, "describe_instances", until, InstanceIds=[ref.id])
        found = listing.only(answer, ref)
        request = str(found.raw.get("SpotInstanceRequestId") or "") if found else ""
        groups = [tag for tag in (found.raw.get("Tags") or ()) if tag.get("Key") == SCALED_BY] if found else []
        if request:
            api.call("ec2", ref.region, "cancel_spot_instance_requests", until, SpotInstanceRequestIds=[request])
    except Missing:
        return None
    except GpuopsError as error:
        return error
    if groups:
        name = groups[0].get("Value")
        return ProviderError(f"{ref} belongs to the Auto Scaling group {name}, which starts another: end that first")
    return None
