"""Offers: instance types with GPUs, in the regions and zones where they are offered, at prices with a source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, Unreadable
from gpuops.values import Device, Money, Need, Offer, Time

from . import prices
from .api import Api, in_parallel
from .errors import Denied, Missing, Unfit
from .order import Choice, Image, choice, read_image
from .prices import Price, Reading, Table
from .settings import MARKETS, Settings

BILLING_UNIT_S = 60
"""By the second with a minimum of a minute (EC2 pricing page); counted by the minute, which is never less."""
FAMILIES = ("g*", "p*")
"""Names of the families that have GPUs; what of them has none is left out by what DescribeInstanceTypes says."""
DEFAULT_DISK_GB = 100
"""Where neither the manifest nor a known image says how much is needed."""
ARCHITECTURES = ("x86_64", "arm64")


@dataclass(frozen=True, slots=True)
class Kind:
    """An instance type with its devices."""

    name: str
    device: Device
    architecture: str
    markets: tuple[str, ...]
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every region alike."""

    api: Api
    settings: Settings
    account: str
    need: Need
    named: Choice | None
    table: Table | None
    now: Time
    until: Time


def quote(
    api: Api, settings: Settings, account: str, need: Need, now: Time, until: Time, regions: Iterable[str]
) -> tuple[Offer, ...]:
    """Live offers for `need` in `regions`, cheapest first.

    A region that cannot be asked offers nothing; when none could be asked, or no price was told, that is raised.
    """
    named = choice(need.offer) if need.offer else None
    if need.offer and named is None:
        return ()
    question = Question(api, settings, account, need, named, prices.read_table(settings.prices), now, until)
    jobs = [partial(_in_region, question, r) for r in regions if named is None or r == named.region]
    answers = in_parallel(jobs, api.left_s(until)) if jobs else []
    offers = [offer for answer in answers if not isinstance(answer, GpuopsError) for offer in answer]
    errors = [answer for answer in answers if isinstance(answer, GpuopsError)]
    for error in errors:
        if not offers or (isinstance(error, CredentialsError) and not isinstance(error, Denied)):
            raise error
    ceiling = need.max_price_per_hour
    fitting = [offer for offer in offers if ceiling is None or offer.rate.amount <= ceiling]
    return tuple(sorted(fitting, key=lambda offer: (offer.rate.amount, offer.id)))


def kinds(api: Api, region: str, need: Need, named: Choice | None, until: Time) -> list[Kind]:
    """The instance types of a region that have the wanted devices and that some zone offers."""
    wanted = [{"Name": "instance-type", "Values": [named.type] if named else list(FAMILIES)}]
    try:
        types = _every(api, region, "describe_instance_types", "InstanceTypes", until, Filters=wanted)
        read = [kind for entry in types if (kind := _kind(entry)) and _fits(kind, need)]
        if not read:
            return []
        places = _every(
            api, region, "describe_instance_type_offerings", "InstanceTypeOfferings", until, LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [kind.name for kind in read]}],
        )  # fmt: skip
        zones: dict[str, set[str]] = {}
        for place in places:
            zones.setdefault(str(place["InstanceType"]), set()).add(str(place["Location"]))
    except (KeyError, TypeError, IndexError) as error:
        raise Unreadable(f"the instance types of {region} cannot be read: {error!r}") from error
    return [
        Kind(k.name, k.device, k.architecture, k.markets, tuple(sorted(zones[k.name]))) for k in read if k.name in zones
    ]


def resolve(api: Api, region: str, image: str, architecture: str, until: Time) -> Image:
    """The image behind an id or an `ssm:` parameter, as it is now."""
    ident = image
    if image.startswith("ssm:"):
        name = image.removeprefix("ssm:").replace("{architecture}", architecture)
        answer = api.call("ssm", region, "get_parameter", until, Name=name)
        ident = str(answer.get("Parameter", {}).get("Value", ""))
    try:
        found = api.call("ec2", region, "describe_images", until, ImageIds=[ident]).get("Images") or []
    except Missing:
        found = []
    if len(found) != 1:
        raise Unfit(f"there is no image {ident} in {region}")
    try:
        return read_image(found[0])
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the image {ident} cannot be read: {error!r}") from error


def _in_region(q: Question, region: str) -> list[Offer]:
    found = kinds(q.api, region, q.need, q.named, q.until)
    if not found:
        return []
    reading = Reading(q.api, region, q.table, q.now, q.until)
    disk = prices.disk_gb_month(reading)
    images = {kind.architecture: _image(q, region, kind.architecture) for kind in found}
    offers, problems = [], []
    for kind in found:
        for market in (q.named.market,) if q.named else q.settings.markets:
            if market not in kind.markets:
                continue
            try:
                price = _price(reading, kind, market)
            except CredentialsError:
                raise
            except ProviderError as error:
                problems.append(error)
                continue
            image, trouble = images[kind.architecture]
            terms = _terms(kind, market, price, disk, _disk_gb(q.need, image), image, trouble)
            offers.append(_offer(q, region, kind, market, price, disk, terms))
    if problems and not offers:
        raise problems[0]
    return offers


def _price(reading: Reading, kind: Kind, market: str) -> Price:
    if market == "spot":
        return prices.spot(reading, kind.name, kind.zones)
    return prices.on_demand(reading, kind.name)


def _image(q: Question, region: str, architecture: str) -> tuple[Image | None, str]:
    """The image for manifests that name none, and why there is none: a manifest may name its own all the same."""
    try:
        return resolve(q.api, region, q.settings.image, architecture, q.until), ""
    except (Denied, ProviderError) as error:
        return None, error.message


def _disk_gb(need: Need, image: Image | None) -> int:
    """What is priced: what was asked for, and never less than the image of manifests that name none needs."""
    return max(math.ceil(need.disk_gb), image.total_gb if image else 0) or DEFAULT_DISK_GB


def _terms(
    kind: Kind, market: str, price: Price, disk: Price, disk_gb: int, image: Image | None, trouble: str
) -> dict[str, str]:
    terms = {
        "market": market,
        "zones": ", ".join(kind.zones),
        "architecture": kind.architecture,
        "disk_gb": str(disk_gb),
        "disk": f"{disk_gb} GB gp3 at {disk.amount} USD per GB and month ({disk.source}); it ends with the instance",
        "address": f"one public IPv4 address at {prices.IPV4_PER_HOUR} USD per hour",
        "stopped": "disks bill on; gpuops never stops, it terminates",
        "image": image.id if image else "",
    }
    if trouble:
        terms["image_problem"] = trouble
    if market == "spot":
        terms["spot_price"] = f"{price.amount:f}"
        terms["interruption"] = "AWS may take it back, with two minutes' notice at best; paid is this price at most"
    return {key: value for key, value in terms.items() if value}


def _offer(
    q: Question, region: str, kind: Kind, market: str, price: Price, disk: Price, terms: dict[str, str]
) -> Offer:
    disks = disk.amount * int(terms["disk_gb"]) / prices.HOURS_PER_MONTH
    rate = (price.amount + disks + prices.IPV4_PER_HOUR).quantize(Decimal("0.0001"), rounding="ROUND_UP")
    return Offer(
        id=str(Choice(kind.name, region, market)),
        provider="aws",
        account=q.account,
        region=region,
        product=kind.name,
        device=kind.device,
        rate=Money(rate),
        billing_unit_s=BILLING_UNIT_S,
        observed_at=q.now,
        source=price.source,
        terms=terms,
    )


def _kind(entry: Mapping[str, Any]) -> Kind | None:
    """An entry of DescribeInstanceTypes; None for one without GPUs, or with several kinds of them."""
    gpus = (entry.get("GpuInfo") or {}).get("Gpus") or []
    if len(gpus) != 1:
        return None
    (gpu,) = gpus
    memory_gb = round(gpu.get("MemoryInfo", {}).get("SizeInMiB", 0) / 1024, 1)
    device = Device(f"{gpu.get('Manufacturer', '')} {gpu['Name']}".strip(), int(gpu.get("Count", 0)), memory_gb)
    known = entry.get("ProcessorInfo", {}).get("SupportedArchitectures") or ()
    architecture = next((a for a in ARCHITECTURES if a in known), ARCHITECTURES[0])
    markets = tuple(m for m in MARKETS if m in entry.get("SupportedUsageClasses", ()))
    return Kind(str(entry["InstanceType"]), device, architecture, markets, ())


def _fits(kind: Kind, need: Need) -> bool:
    """Whether these are the devices that were asked for; compared by letters and digits only."""
    wanted = _letters(need.device)
    named = wanted in _letters(kind.device.name) or wanted in _letters(kind.name)
    return kind.device.count == need.count and (wanted in ("", "any") or named)


def _letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _every(api: Api, region: str, method: str, key: str, until: Time, **asked: Any) -> list[Mapping[str, Any]]:
    return [entry for page in api.pages("ec2", region, method, until, **asked) for entry in page[key]]
