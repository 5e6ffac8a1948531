"""Pages of EC2's listings: moto gives most of them whole, whatever was asked for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from xml.etree import ElementTree

from clouds.aws_wire import Answer, Call, error

LISTS = {
    "DescribeInstances": "reservationSet", "DescribeVolumes": "volumeSet", "DescribeSnapshots": "snapshotSet",
    "DescribeImages": "imagesSet", "DescribeNetworkInterfaces": "networkInterfaceSet",
    "DescribeNatGateways": "natGatewaySet", "DescribeSpotInstanceRequests": "spotInstanceRequestSet",
    "DescribeSecurityGroups": "securityGroupInfo", "DescribeTags": "tagSet", "DescribeInstanceTypes": "instanceTypeSet",
    "DescribeInstanceTypeOfferings": "instanceTypeOfferingSet",
}  # fmt: skip
"""The element that holds the entries. DescribeAddresses and DescribeRegions have no pages."""
_TOKEN = "fake-page-"
Forward = Callable[[Call], Answer]


def paged(call: Call, most: int, handler: Callable[[Call, Forward], Answer], forward: Forward) -> Answer:
    """The answer of `handler`, one page of it where a page is asked for or forced by `most`."""
    name, asked = LISTS.get(call.action), int(call.form.get("MaxResults") or 0)
    size = min(filter(None, (most, asked)), default=0)
    token = call.form.get("NextToken", "")
    if name is None or not (size or token) or (asked and call.listed("InstanceId")):
        return handler(call, forward)
    start = 0
    if token:
        try:
            start = int(base64.b64decode(token, validate=True).decode().removeprefix(_TOKEN))
        except (ValueError, binascii.Error):
            return error(call, 400, "InvalidNextToken", "The token is invalid.")
    whole = {k: v for k, v in call.form.items() if k not in ("MaxResults", "NextToken")}
    # moto's own page, where it has one, must not be shorter than the listing
    answer = handler(call.with_form({**whole, "MaxResults": "100000"}), forward)
    return _cut(answer, name, start, start + size if size else None) if answer.status == 200 else answer


def _cut(answer: Answer, name: str, start: int, end: int | None) -> Answer:
    root = ElementTree.fromstring(answer.body)
    prefix = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    entries = root.find(f"{prefix}{name}")
    if entries is None:
        return answer
    every = list(entries)
    for entry in (*every[:start], *(every[end:] if end is not None else ())):
        entries.remove(entry)
    for old in root.findall(f"{prefix}nextToken"):
        root.remove(old)
    if end is not None and end < len(every):
        token = ElementTree.SubElement(root, f"{prefix}nextToken")
        token.text = base64.b64encode(f"{_TOKEN}{end}".encode()).decode()
    ElementTree.register_namespace("", prefix.strip("{}"))
    headers = {key: value for key, value in answer.headers.items() if key.lower() != "content-length"}
    return Answer(answer.status, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), headers)
