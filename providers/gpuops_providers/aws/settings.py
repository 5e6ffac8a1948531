"""The settings of the provider, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import UsageError

ADDRESS_URL = "https://checkip.amazonaws.com"
IMAGE = "ssm:/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
"""AWS's own image with NVIDIA's driver (docs.aws.amazon.com/dlami, "Find the ID of a DLAMI"); not tried on an account."""
MARKETS = ("on-demand", "spot")

_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]")
_IMAGE = re.compile(r"ami-[0-9a-f]{8,17}|ssm:/?[\w./{}-]{1,500}")
_SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What config.toml says about this account."""

    profile: str = ""
    region: str = ""
    regions: tuple[str, ...] = ()
    markets: tuple[str, ...] = ("on-demand",)
    image: str = IMAGE
    subnet: str = ""
    user: str = "root"
    scheduler_role: str = ""
    address_url: str = ADDRESS_URL
    prices: Path | None = None
    cost_explorer: bool = False


def read(given: Mapping[str, str]) -> Settings:
    """Check every setting. Raises `UsageError` for what is unknown or cannot mean anything."""
    if unknown := set(given) - set(Settings.__dataclass_fields__):
        raise UsageError(f"provider aws: unknown setting {', '.join(sorted(unknown))}", next_command="edit config.toml")
    _fits(given, "scheduler_role", _ROLE, "the ARN of a role: arn:aws:iam::123456789012:role/name")
    _fits(given, "region", _REGION, "a region such as us-east-1")
    _fits(given, "image", _IMAGE, "ami-… or ssm:/name/of/a/parameter")
    _fits(given, "subnet", _SUBNET, "subnet-…")
    _fits(given, "user", _USER, "a user's name")
    _fits(given, "address_url", re.compile(r"https?://\S+"), "an address that begins with https://")
    regions, markets = _words(given.get("regions", "")), _words(given.get("markets", "on-demand"))
    for region in regions:
        _fits({"regions": region}, "regions", _REGION, "regions such as us-east-1, separated by commas")
    if not markets or set(markets) - set(MARKETS):
        raise _wrong("markets", given["markets"], " or ".join(MARKETS))
    if (paid := given.get("cost_explorer", "no")) not in ("yes", "no"):
        raise _wrong("cost_explorer", paid, "yes or no; each request costs 0.01 USD")
    prices = given.get("prices", "")
    return Settings(
        profile=given.get("profile", ""),
        region=given.get("region", ""),
        regions=regions,
        markets=markets,
        image=given.get("image") or IMAGE,
        subnet=given.get("subnet", ""),
        user=given.get("user") or "root",
        scheduler_role=given.get("scheduler_role", ""),
        address_url=given.get("address_url") or ADDRESS_URL,
        prices=Path(prices).expanduser() if prices else None,
        cost_explorer=paid == "yes",
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _fits(given: Mapping[str, str], key: str, form: re.Pattern[str], meaning: str) -> None:
    if given.get(key) and not form.fullmatch(given[key]):
        raise _wrong(key, given[key], meaning)


def _wrong(key: str, value: str, meaning: str) -> UsageError:
    return UsageError(f"provider aws: {key} is {value!r}, not {meaning}", next_command="edit config.toml")
