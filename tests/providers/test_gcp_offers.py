"""Offers and their prices: by the catalog where a key is at hand, otherwise by the user's dated table."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest
from clouds.gcp import GcpCloud
from gcpcase import FAR_ZONE, NEED, ZONE, adapter, cloud, later, server
from gpuops_providers.gcp import catalog, prices
from gpuops_providers.gcp.prices import Shape

from gpuops.errors import GpuopsError, UsageError
from gpuops.values import Need

__all__ = ["cloud", "server"]

TABLE = """
observed = 2026-11-20
source = "made up for a test"

[regions.us-central1.machine]
g2-standard-4 = { standard = "0.70", spot = "0.30" }
n1-standard-4 = { standard = "0.20" }
[regions.us-central1.accelerator]
nvidia-tesla-t4 = { standard = "0.35" }
[regions.us-central1.disk]
pd-balanced = "0.10"
[regions.us-central1.address]
standard = "0.005"
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    return path


def test_a_price_is_the_sum_of_everything_that_the_create_call_starts_to_bill(cloud: GcpCloud) -> None:
    (offer,) = [o for o in adapter(cloud).quote(NEED, later(cloud)) if o.product == "g2-standard-4"]
    # accelerator, 4 cores, 16 GiB, 50 GiB of disk, an address: the fake's invented figures
    expected = 0.56 + 4 * 0.025 + 16 * 0.0029 + 50 * 0.10 / 730 + 0.005
    assert abs(float(offer.rate.amount) - expected) < 0.00001
    assert offer.id == f"g2-standard-4/{ZONE}/standard" and offer.region == ZONE
    assert "Cloud Billing Catalog" in offer.source and "list prices" in offer.source
    assert (offer.device.name, offer.device.memory_gb) == ("NVIDIA L4", 24)


def test_a_larger_disk_costs_more(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    small, large = (gcp.quote(dataclasses.replace(NEED, disk_gb=gb), later(cloud))[0].rate for gb in (10, 500))
    assert large.amount - small.amount > Decimal("0.05")


def test_markets_are_different_offers_and_only_those_that_were_asked_for(cloud: GcpCloud) -> None:
    ids = [o.id for o in adapter(cloud).quote(NEED, later(cloud))]
    assert ids and all(i.endswith("/standard") for i in ids)
    both = adapter(cloud, provisioning="standard, spot").quote(NEED, later(cloud))
    spot, standard = (next(o for o in both if o.id.endswith(f"-4/{ZONE}/{m}")) for m in ("spot", "standard"))
    assert spot.rate.amount < standard.rate.amount
    assert "taken away" in spot.terms["market"]
    named = dataclasses.replace(NEED, offer=f"g2-standard-4/{ZONE}/spot")
    assert [o.id for o in adapter(cloud).quote(named, later(cloud))] == [named.offer]


def test_a_region_stands_for_its_zones(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    assert {o.region for o in gcp.quote(Need("L4"), later(cloud))} >= {ZONE, FAR_ZONE}
    assert FAR_ZONE not in {o.region for o in gcp.quote(Need("L4", region="us-central1"), later(cloud))}
    assert {o.region for o in adapter(cloud, zones=FAR_ZONE).quote(Need("L4"), later(cloud))} == {FAR_ZONE}


@pytest.mark.parametrize(
    ("device", "count", "product"),
    [("A100-SXM4-80GB", 1, "a2-ultragpu-1g"), ("A100", 2, "a2-highgpu-2g"), ("L4", 2, "g2-standard-24")],
)
def test_machine_types_come_with_their_devices(cloud: GcpCloud, device: str, count: int, product: str) -> None:
    found = adapter(cloud).quote(Need(device, count, region=ZONE), later(cloud))
    assert product in {o.product for o in found}
    assert {o.device.count for o in found} == {count}


def test_n1_takes_devices_beside_it(cloud: GcpCloud) -> None:
    (offer,) = adapter(cloud).quote(Need("T4", region=ZONE), later(cloud))
    assert offer.id == f"n1-standard-8+nvidia-tesla-t4x1/{ZONE}/standard"
    assert abs(float(offer.rate.amount) - (0.35 + 8 * 0.0316 + 30 * 0.0042 + 50 * 0.10 / 730 + 0.005)) < 0.00001


def test_without_a_key_the_table_counts_and_its_age_is_shown(cloud: GcpCloud, table: Path) -> None:
    found = adapter(cloud, key=False, prices=str(table)).quote(NEED, later(cloud))
    (offer,) = found
    assert abs(float(offer.rate.amount) - (0.70 + 5 / 730 + 0.005)) < 0.00001
    assert "2026-11-20" in offer.source and "days old" in offer.source and "made up for a test" in offer.source


def test_what_has_no_price_is_not_offered(cloud: GcpCloud, table: Path) -> None:
    gcp = adapter(cloud, key=False, prices=str(table))
    assert [o.region for o in gcp.quote(Need("L4"), later(cloud)) if o.region == FAR_ZONE] == []
    with pytest.raises(UsageError, match="no price for a2-ultragpu-1g in us-central1") as told:
        gcp.quote(Need("A100-SXM4-80GB", region="us-central1"), later(cloud))
    assert str(table) in told.value.next_command


def test_without_any_prices_nothing_is_offered(cloud: GcpCloud) -> None:
    with pytest.raises(UsageError, match="no prices") as told:
        adapter(cloud, key=False).quote(NEED, later(cloud))
    assert "GCP_BILLING_API_KEY" in told.value.next_command


def test_the_key_stands_in_no_address(cloud: GcpCloud) -> None:
    adapter(cloud).quote(NEED, later(cloud))
    (entry, *_) = cloud.log("billing.skus")
    assert cloud.api_key not in entry["query"] and cloud.api_key not in entry["path"]


def test_a_price_list_that_cannot_be_read_is_an_error(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    for fault in ("cut", "error", "html"):
        cloud.faults(**{fault: {"call": "billing.skus"}})
        with pytest.raises(GpuopsError) as told:
            gcp.quote(NEED, later(cloud))
        assert cloud.api_key not in str(told.value)


def test_offers_are_found_where_the_vendor_takes_the_filter(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    gcp.quote(NEED, later(cloud))
    asked = [entry["query"] for entry in cloud.log("machineTypes.aggregatedList")]
    assert "filter=" in asked[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("regions = {}", "observed"),
        ("observed = 2026-11-20", "no table"),
        ("observed = [", "table"),
        (TABLE.replace('"0.70"', '"seventy"'), "not a price"),
        (TABLE.replace('"0.70"', '"-1"'), "not a price"),
    ],
)
def test_a_table_that_is_wrong_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        prices.read(path).machine(Shape("g2-standard-4", 4, 16, "nvidia-l4", 1), "us-central1", "standard")


def sku(
    description: str, price: str, usage: str = "OnDemand", unit: str = "h", region: str = "r1"
) -> dict[str, object]:
    """One row of the catalog; every figure is invented."""
    units, _, nanos = price.partition(".")
    money = {"currencyCode": "USD", "units": units, "nanos": int(nanos.ljust(9, "0"))}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}]}
    return {
        "description": description, "category": {"usageType": usage}, "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": expression}],
    }  # fmt: skip


def listed(*rows: dict[str, object]) -> catalog.Catalog:
    return catalog.read(lambda query: {"skus": list(rows)}, lambda: 0.0)


def test_of_two_prices_the_dearer_counts() -> None:
    found = listed(sku("External IP Charge on a Standard VM", "0.1"), sku("External IP Charge on a Standard VM", "0.3"))
    assert found.address("r1", "standard") == Decimal("0.3")
    assert found.address("r2", "standard") is None


def test_a_price_of_another_kind_is_never_taken() -> None:
    rows = [
        sku("Commitment v1: G2 Instance Core in Americas for 1 Year", "0.001", "Commit1Yr"),
        sku("Reserved G2 Instance Core in Americas", "0.9"),
        sku("G2 Custom Instance Core running in Americas", "0.9"),
        sku("G2 Instance Core running in Americas", "0.02"),
        sku("Spot Preemptible G2 Instance Core running in Americas", "0.01", "Preemptible"),
        sku("G2 Instance Ram running in Americas", "0.001", unit="GiBy.h"),
        sku("Nvidia L4 GPU running in Americas", "0.5"),
    ]
    shape = Shape("g2-standard-4", 4, 16, "nvidia-l4", 1)
    assert listed(*rows).machine(shape, "r1", "standard") == Decimal("0.596")
    assert listed(*rows).machine(shape, "r1", "spot") is None, "memory has no spot price there"
    assert listed(*rows[:-1]).machine(shape, "r1", "standard") is None


def test_a_catalog_that_does_not_end_is_an_error() -> None:
    with pytest.raises(GpuopsError, match="did not end"):
        catalog.read(lambda query: {"skus": [], "nextPageToken": "more"}, lambda: 0.0)
