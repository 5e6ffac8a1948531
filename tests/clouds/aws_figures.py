"""Invented figures of the fake AWS: prices, quotas, images. None of them was read anywhere; they are only plausible."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

SOURCE = "invented for tests"
PER_HOUR = {
    "t3.micro": "0.0104", "g4dn.xlarge": "0.5260", "g5.xlarge": "1.0060", "g5.2xlarge": "1.2120", "g6.xlarge": "0.8048",
    "g5.12xlarge": "5.6720", "p4d.24xlarge": "21.9576", "p5.48xlarge": "55.0400",
}  # fmt: skip
SPOT_SHARE = 0.4
GB_MONTH = "0.0800"
IMAGE_OWNER = "898082745236"
IMAGES = {"x86_64": "ami-0aaaaaaaaaaaaaa01", "arm64": "ami-0aaaaaaaaaaaaaa02"}
"""The image that the public parameter names, by architecture; the same id in every region."""
IMAGE_GB = 75


def spot_price(kind: str, zone: str) -> str:
    """A little different in every zone; zone `b` is the dearest."""
    share = SPOT_SHARE * {"a": 1.0, "b": 1.1}.get(zone[-1], 1.05)
    return f"{float(PER_HOUR.get(kind, '1.0')) * share:.6f}"


def products(filters: Mapping[str, str], now: float) -> list[str]:
    """The price list for Pricing GetProducts: each product is a JSON text."""
    since = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-01T00:00:00Z")
    if filters.get("productFamily") == "Storage":
        attributes = {"volumeApiName": filters.get("volumeApiName", "gp3"), "regionCode": filters.get("regionCode", "")}
        return [_product("Storage", attributes, "GB-Mo", GB_MONTH, since)]
    kind = filters.get("instanceType", "")
    if kind not in PER_HOUR:
        return []
    attributes = {"instanceType": kind, "regionCode": filters.get("regionCode", ""), "operatingSystem": "Linux"}
    return [_product("Compute Instance", attributes, "Hrs", PER_HOUR[kind], since)]


def _product(family: str, attributes: Mapping[str, str], unit: str, usd: str, since: str) -> str:
    dimension = {"unit": unit, "description": SOURCE, "pricePerUnit": {"USD": f"{usd}000000"}, "beginRange": "0"}
    term = {"effectiveDate": since, "priceDimensions": {"SKU.TERM.RATE": dimension}, "termAttributes": {}}
    value: dict[str, Any] = {
        "product": {"productFamily": family, "attributes": {"servicecode": "AmazonEC2", **attributes}, "sku": "SKU"},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"SKU.TERM": term}},
    }
    return json.dumps(value)


QUOTAS = {
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
}
"""Quota codes of EC2 (docs.aws.amazon.com/servicequotas); in vCPUs."""


def quota(code: str, value: float) -> dict[str, Any]:
    """One quota as Service Quotas tells it."""
    return {
        "ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)", "QuotaCode": code,
        "QuotaName": QUOTAS[code], "Value": value, "Unit": "None", "Adjustable": True, "GlobalQuota": False,
    }  # fmt: skip
