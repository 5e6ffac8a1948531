"""What things cost now: the Pricing API, the spot price history, and a dated table of the user's for when neither answers.

A price without a source is no price. What the create call starts beside the instance is its disks and one public IPv4 address.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gpuops.errors import GpuopsError, ProviderError, Unreadable, UsageError
from gpuops.values import Time

from .api import Api
from .tags import moment

PRICING_REGION = "us-east-1"
"""It answers for all regions from a few of them (docs.aws.amazon.com/awsaccountbilling, "Using the price list API")."""
HOURS_PER_MONTH = 730
IPV4_PER_HOUR = Decimal("0.005")
"""Each public IPv4 address since 2024-02-01, in every region (AWS News Blog, "Public IPv4 Address Charge")."""
ASSUMED_GB_MONTH = Decimal("0.16")
"""Where no source tells what gp3 costs: more than it was in any region that we know of."""
DISK = "gp3-gb-month"
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Price:
    """USD per unit, and where it was read."""

    amount: Decimal
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """The user's own price table, with the day on which its prices were read."""

    path: Path
    observed: datetime.date
    prices: Mapping[str, Mapping[str, str]]

    def price(self, region: str, what: str, now: Time) -> Price | None:
        """The price of `what` in `region`; None when the table does not know it."""
        said = self.prices.get(region, {}).get(what)
        if said is None:
            return None
        start = datetime.datetime.combine(self.observed, datetime.time(), datetime.UTC).timestamp()
        days = max(0, int((now - start) // DAY_S))
        return Price(_amount(said, str(self.path)), f"price table {self.path.name} of {self.observed}, {days} days old")


@dataclass(frozen=True, slots=True)
class Reading:
    """Where, when and with what prices are read."""

    api: Api
    region: str
    table: Table | None
    now: Time
    until: Time


def read_table(path: Path | None) -> Table | None:
    """The table at `path`. Raises `UsageError` when it cannot be read or does not say of which day it is."""
    if path is None:
        return None
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the price table {path} cannot be read: {error}", next_command=f"mend {path}") from error
    observed = said.pop("observed", None)
    if not isinstance(observed, datetime.date) or isinstance(observed, datetime.datetime):
        raise UsageError(f"{path}: observed is not a day such as 2026-11-30", next_command=f"mend {path}")
    tables = {region: found for region, found in said.items() if isinstance(found, dict)}
    return Table(path, observed, {r: {k: str(v) for k, v in found.items()} for r, found in tables.items()})


def on_demand(reading: Reading, kind: str) -> Price:
    """What an instance costs per hour. Raises `ProviderError` when nobody tells."""
    wanted = {
        "instanceType": kind, "regionCode": reading.region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used", "licenseModel": "No License required",
    }  # fmt: skip
    return _asked(reading, wanted, "Hrs", kind)


def disk_gb_month(reading: Reading) -> Price:
    """What a GB of gp3 costs per month; assumed, and said so, where nobody tells."""
    wanted = {"productFamily": "Storage", "volumeApiName": "gp3", "regionCode": reading.region}
    try:
        return _asked(reading, wanted, "GB-Mo", DISK)
    except ProviderError:
        return Price(ASSUMED_GB_MONTH, "assumed: no source tells")


def spot(reading: Reading, kind: str, zones: Iterable[str]) -> Price:
    """What a spot instance costs per hour in the dearest of `zones`, since the provider chooses the zone.

    The history includes the last change before its start (EC2 API reference, DescribeSpotPriceHistory).
    """
    among = set(zones)
    newest: dict[str, tuple[Time, Decimal]] = {}
    start = datetime.datetime.fromtimestamp(reading.now, datetime.UTC)
    pages = reading.api.pages(
        "ec2", reading.region, "describe_spot_price_history", reading.until, InstanceTypes=[kind], StartTime=start,
        ProductDescriptions=["Linux/UNIX"],
    )  # fmt: skip
    for page in pages:
        for entry in page["SpotPriceHistory"]:
            at, zone = entry["Timestamp"].timestamp(), str(entry["AvailabilityZone"])
            if zone in among and at >= newest.get(zone, (0.0, Decimal(0)))[0]:
                newest[zone] = (at, _amount(entry["SpotPrice"], "the spot price history"))
    if not newest:
        raise ProviderError(f"no spot price of {kind} in {reading.region}")
    at, amount = max(newest.values(), key=lambda said: said[1])
    minutes = max(0, int((reading.now - at) // 60))
    age = f"{minutes} min ago" if minutes < 2 * DAY_S // 60 else f"on {moment(at)}"
    return Price(amount, f"EC2 spot price history, changed {age}, dearest of {', '.join(sorted(newest))}")


def _asked(reading: Reading, wanted: Mapping[str, str], unit: str, what: str) -> Price:
    """The Pricing API first, then the user's table, which says why it was needed."""
    try:
        return _from_api(reading, wanted, unit)
    except GpuopsError as error:
        found = reading.table.price(reading.region, what, reading.now) if reading.table else None
        if found is not None:
            return found
        raise ProviderError(
            f"no price of {what} in {reading.region}: {error.message}",
            next_command="name a price table: prices under [providers.aws] in config.toml (docs/how-to/aws.md)",
        ) from error


def _from_api(reading: Reading, wanted: Mapping[str, str], unit: str) -> Price:
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    pages = reading.api.pages(
        "pricing", PRICING_REGION, "get_products", reading.until, ServiceCode="AmazonEC2", Filters=filters,
        FormatVersion="aws_v1",
    )  # fmt: skip
    try:
        found = [price for page in pages for text in page["PriceList"] for price in _terms(json.loads(text), unit)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"the answer of the Pricing API cannot be read: {error!r}") from error
    if not found:
        raise ProviderError("the Pricing API knows no such product")
    # more than one product fits: the dearest, since nothing says which of them it will be
    amount, effective = max(found)
    return Price(amount, f"AWS Pricing API, in force since {effective[:10]}, read {moment(reading.now)}")


def _terms(product: Mapping[str, Any], unit: str) -> list[tuple[Decimal, str]]:
    """(USD per unit, in force since) of every on-demand price of a product that is more than nothing."""
    found = []
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            said = dimension["pricePerUnit"].get("USD")
            if said is not None and dimension["unit"] == unit and Decimal(said) > 0:
                found.append((Decimal(said), str(term.get("effectiveDate", ""))))
    return found


def _amount(said: Any, where: str) -> Decimal:
    try:
        amount = Decimal(str(said))
    except InvalidOperation as error:
        raise Unreadable(f"{where}: {said!r} is no price") from error
    if not amount.is_finite() or amount <= 0:
        raise Unreadable(f"{where}: {said!r} is no price")
    return amount
