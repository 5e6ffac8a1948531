"""The fake price list: SKUs of the form of the Cloud Billing Catalog. Every figure is invented and labelled so.

A quote is a sum: accelerator, core and memory are priced apart, spot apart from on demand (cloud.google.com/skus).
"""

from __future__ import annotations

from typing import Any

from .gcp_catalogue import COMPUTE_SERVICE, REGIONS

LABEL = "invented figure of a fake cloud"
"""Stands in `pricingInfo.summary` of every price."""

_HOURLY = (
    ("Nvidia L4 GPU", "GPU", 0.56),
    ("Nvidia Tesla T4 GPU", "GPU", 0.35),
    ("Nvidia Tesla A100 GPU", "GPU", 2.93),
    ("Nvidia Tesla A100 80GB GPU", "GPU", 3.93),
    ("Nvidia H100 80GB GPU", "GPU", 9.80),
    ("E2 Instance Core", "CPU", 0.022),
    ("N1 Predefined Instance Core", "N1Standard", 0.0316),
    ("G2 Instance Core", "CPU", 0.025),
    ("A2 Instance Core", "CPU", 0.0316),
    ("A3 Instance Core", "CPU", 0.029),
)
_GIB_HOURLY = (
    ("E2 Instance Ram", "RAM", 0.0029),
    ("N1 Predefined Instance Ram", "N1Standard", 0.0042),
    ("G2 Instance Ram", "RAM", 0.0029),
    ("A2 Instance Ram", "RAM", 0.0042),
    ("A3 Instance Ram", "RAM", 0.0025),
)
_GIB_MONTHLY = (
    ("SSD backed Local Storage", "LocalSSD", 0.08),
    ("Storage PD Capacity", "PDStandard", 0.04),
    ("Balanced PD Capacity", "SSD", 0.10),
    ("SSD backed PD Capacity", "SSD", 0.17),
    ("Hyperdisk Balanced Capacity", "SSD", 0.08),
)
SPOT = 0.4
"""A spot price is this part of the other; invented too."""


def skus(regions: int) -> list[dict[str, Any]]:
    """The whole list, in a fixed order."""
    found: list[dict[str, Any]] = []
    for number, region in enumerate(REGIONS[:regions]):
        dearer = 1 + number / 20
        for rows, unit, words in ((_HOURLY, "h", "hour"), (_GIB_HOURLY, "GiBy.h", "gibibyte hour")):
            for text, group, price in rows:
                spot = f"{text} attached to Spot Preemptible VMs" if group == "GPU" else f"Spot Preemptible {text}"
                for name, usage, part in ((text, "OnDemand", 1.0), (spot, "Preemptible", SPOT)):
                    found.append(_sku(len(found), f"{name} running in {region}", "Compute", group, usage, region, unit,
                                      words, price * dearer * part))  # fmt: skip
        for text, group, price in _GIB_MONTHLY:
            found.append(_sku(len(found), f"{text} in {region}", "Storage", group, "OnDemand", region, "GiBy.mo",
                              "gibibyte month", price * dearer))  # fmt: skip
        found.append(_sku(len(found), f"External IP Charge on a Standard VM in {region}", "Network", "IpAddress", "OnDemand",
                          region, "h", "hour", 0.005))  # fmt: skip
    return found


def _sku(
    number: int, text: str, family: str, group: str, usage: str, region: str, unit: str, words: str, price: float
) -> dict[str, Any]:
    sku_id = f"FA{number:02X}-{number * 7919 % 65536:04X}-{number * 104729 % 65536:04X}"
    nanos = round(price * 1e9)
    units, nanos = divmod(nanos, 10**9)
    expression = {
        "usageUnit": unit,
        "usageUnitDescription": words,
        "displayQuantity": 1,
        "tieredRates": [
            {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": str(units), "nanos": nanos}},
        ],
    }
    return {
        "name": f"services/{COMPUTE_SERVICE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": text,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "summary": LABEL,
                "pricingExpression": expression,
                "currencyConversionRate": 1,
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": [region]},
    }
