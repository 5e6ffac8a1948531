"""Moving the limit in a mark: on the instance and on everything else that carries its nonce."""

from __future__ import annotations

import dataclasses

from gpuops.errors import ProviderError
from gpuops.marks import mark_name
from gpuops.values import Ref, Time

from . import tags
from .api import Api
from .tags import Carried


def move(api: Api, ref: Ref, carried: Carried, limit_at: Time, until: Time) -> Time:
    """Rewrite name and limit by one call, and return the limit read back from the instance."""
    if carried.mark is None:
        raise ProviderError(f"{ref} carries no mark that can be read")
    mark = dataclasses.replace(carried.mark, limit_at=limit_at)
    changed = [{"Key": "Name", "Value": mark_name(mark)}, {"Key": tags.LIMIT, "Value": tags.moment(limit_at)}]
    wanted = sorted({ref.id, *_marked(api, ref.region, mark.nonce, until)})
    api.call("ec2", ref.region, "create_tags", until, Resources=wanted, Tags=changed)
    answer = api.call("ec2", ref.region, "describe_instances", until, InstanceIds=[ref.id])
    now = tags.carried(answer["Reservations"][0]["Instances"][0].get("Tags") or ())
    if now.mark is None:
        raise ProviderError(f"the mark of {ref} cannot be read back")
    return now.mark.limit_at


def _marked(api: Api, region: str, nonce: str, until: Time) -> set[str]:
    """Ids of everything in the region with this nonce: disks, interfaces, the group, the spot request."""
    wanted = [{"Name": "key", "Values": [tags.NONCE]}, {"Name": "value", "Values": [nonce]}]
    pages = api.pages("ec2", region, "describe_tags", until, Filters=wanted, MaxResults=500)
    return {str(tag["ResourceId"]) for page in pages for tag in page["Tags"]}
