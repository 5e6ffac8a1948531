"""The security group of a rental: SSH from named networks, nothing else; and the address of this computer."""

from __future__ import annotations

import ipaddress
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from gpuops.errors import ProviderError, Unreadable
from gpuops.marks import mark_name
from gpuops.values import Order, Time

from . import tags
from .api import Api
from .errors import Answered

SSH = 22
ADDRESS_TIMEOUT_S = 5.0
DUPLICATE_GROUP, DUPLICATE_RULE = "InvalidGroup.Duplicate", "InvalidPermission.Duplicate"
NO_SUCH_RULE = "InvalidPermission.NotFound"


def find(api: Api, region: str, nonce: str, until: Time) -> str:
    """The id of the group with this nonce; empty when there is none. The oldest by id, where there are several."""
    wanted = [{"Name": f"tag:{tags.NONCE}", "Values": [nonce]}]
    pages = api.pages("ec2", region, "describe_security_groups", until, Filters=wanted)
    return min((str(group["GroupId"]) for page in pages for group in page["SecurityGroups"]), default="")


def make(api: Api, order: Order, subnet: str, until: Time) -> str:
    """Make the group of an order, or find it again, and return its id; nothing is admitted by it yet."""
    region = order.offer.region
    if found := find(api, region, order.mark.nonce, until):
        return found
    labels = [{"ResourceType": "security-group", "Tags": tags.tags(order.mark)}]
    words = f"gpuops run {order.mark.run}: SSH from its owner"[:255]
    network: dict[str, Any] = {"VpcId": _network(api, region, subnet, until)} if subnet else {}
    try:
        made = api.call(
            "ec2", region, "create_security_group", until, GroupName=mark_name(order.mark), Description=words,
            TagSpecifications=labels, **network,
        )  # fmt: skip
    except Answered as error:
        if error.aws_code != DUPLICATE_GROUP:
            raise
        # made a moment ago, by an attempt whose answer was lost
        if found := find(api, region, order.mark.nonce, until):
            return found
        raise
    return str(made["GroupId"])


def admit(api: Api, region: str, group: str, sources: Iterable[str], until: Time) -> tuple[str, ...]:
    """Let exactly these networks reach SSH and return what is admitted afterwards, read back."""
    wanted = {str(ipaddress.ip_network(source)) for source in sources}
    rules = _rules(api, region, group, until)
    # the new ones first: a connection that goes on must not be cut off in between
    if new := sorted(wanted - set(_admitted(rules))):
        _change(api, region, "authorize_security_group_ingress", group, [_permission(n) for n in new], until)
    if old := [rule for rule in rules if not _is_wanted(rule, wanted)]:
        _change(api, region, "revoke_security_group_ingress", group, old, until)
    return _admitted(_rules(api, region, group, until))


def caller(url: str, patience_s: float) -> str:
    """The address of this computer as the other side sees it, as a network of one address."""
    try:
        with urllib.request.urlopen(url, timeout=max(0.1, min(patience_s, ADDRESS_TIMEOUT_S))) as answer:
            text = answer.read(100).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ProviderError(f"{url} does not tell this computer's address: {error}") from error
    try:
        return str(ipaddress.ip_network(ipaddress.ip_address(text)))
    except ValueError as error:
        raise Unreadable(f"{url} does not tell an address: {text!r}") from error


def _network(api: Api, region: str, subnet: str, until: Time) -> str:
    answer = api.call("ec2", region, "describe_subnets", until, SubnetIds=[subnet])
    return str(answer["Subnets"][0]["VpcId"])


def _rules(api: Api, region: str, group: str, until: Time) -> list[Mapping[str, Any]]:
    """What lets anybody in, one rule per network or other source."""
    answer = api.call("ec2", region, "describe_security_groups", until, GroupIds=[group])
    found: list[Mapping[str, Any]] = []
    for permission in answer["SecurityGroups"][0]["IpPermissions"]:
        ports = {key: permission[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in permission}
        for key in ("IpRanges", "Ipv6Ranges", "PrefixListIds", "UserIdGroupPairs"):
            found += [{**ports, key: [source]} for source in permission.get(key) or ()]
    return found


def _admitted(rules: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({network for rule in rules if (network := _source(rule)) and _is_ssh(rule)}))


def _is_wanted(rule: Mapping[str, Any], wanted: set[str]) -> bool:
    return _is_ssh(rule) and _source(rule) in wanted


def _is_ssh(rule: Mapping[str, Any]) -> bool:
    return (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort")) == ("tcp", SSH, SSH)


def _source(rule: Mapping[str, Any]) -> str:
    for key, name in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6")):
        if rule.get(key):
            return str(rule[key][0].get(name, ""))
    return ""


def _permission(network: str) -> dict[str, Any]:
    ranges = (
        {"Ipv6Ranges": [{"CidrIpv6": network}]} if ":" in network else {"IpRanges": [{"CidrIp": network}]}
    )  # fmt: skip
    return {"IpProtocol": "tcp", "FromPort": SSH, "ToPort": SSH, **ranges}


def _change(
    api: Api,
    region: str,
    method: str,
    group: str,
    permissions: list[Mapping[str, Any]] | list[dict[str, Any]],
    until: Time,
) -> None:
    try:
        api.call("ec2", region, method, until, GroupId=group, IpPermissions=permissions)
    except Answered as error:
        # done already, by another process or by an attempt whose answer was lost; what is read back decides
        if error.aws_code not in (DUPLICATE_RULE, NO_SUCH_RULE):
            raise
