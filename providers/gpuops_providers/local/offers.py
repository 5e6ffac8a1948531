"""What can be rented here: made-up devices at made-up prices.

An offer is a record; `host` is a table of features that its hosts have: an awkward host is a record, not code.

    workspace_mb    /workspace is a tmpfs of this size *
    ports           what the host claims to publish, default [22]
    device          what nvidia-smi shows instead: any of name, memory_mib, count, driver
    mounts          where volumes really appear: {ordered mount: real mount}
    own_host_key    true: the host makes its own SSH host key and ignores the one in the order
    missing         commands that hosts of this offer do not have, such as ["rsync", "tmux"] *
    python          the only folder with python3, such as "/opt/conda/bin", which is not on sshd's PATH *
    user            who logs in instead of root, such as "ubuntu"; home is /home/ubuntu *
    sudo            true: there is a sudo that asks for no password (simulated: it gives no rights) *
    installs        true: there is an apt-get (simulated: it puts back what is `missing`) *
    workspace_mode  /workspace is a folder of somebody else with this mode, such as "0555" *
    noexec          folders from which nothing can be executed, such as ["/tmp", "/dev/shm"] *
    home            "read-only" *
    home_mb         home is a tmpfs of this size *
    bashrc          text of the login's .bashrc
    shell_only      true: the login gives a shell on a terminal and runs no commands
    pull_s          the image is pulled for so long, and the provider says how far it is
    reboots_when    a path below /workspace: once something is there the host restarts, once

Those marked * are made of mounts and need bubblewrap: where it does not work such an offer is refused.

Further offers may lie in `offers.json` in the cloud directory: a list of records with the fields of `Product`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpuops import codec
from gpuops.errors import Unreadable
from gpuops.values import Device, Money, Need, Offer, Time

REGIONS = ("here", "there")
BILLING_UNIT_S = 1
VOLUME_PER_GB_MONTH = Decimal("0.05")
HOURS_PER_MONTH = 730
SOURCE = "made-up prices of the local cloud"


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of rental."""

    id: str
    device: str
    memory_mib: int
    per_hour: Decimal
    count: int = 1
    capacity: int = 4
    regions: tuple[str, ...] = REGIONS
    host: dict[str, Any] = field(default_factory=dict)

    @property
    def device_name(self) -> str:
        """The product name of the device; says that it is simulated."""
        return self.device if "simulated" in self.device else f"{self.device} (simulated)"


PRODUCTS = (
    Product("local.sim-l4", "NVIDIA L4", 23034, Decimal("0.10")),
    Product("local.sim-a100-80", "NVIDIA A100-SXM4-80GB", 81920, Decimal("1.20")),
    Product("local.sim-a100-80x2", "NVIDIA A100-SXM4-80GB", 81920, Decimal("2.40"), count=2),
    Product("local.sim-h100", "NVIDIA H100 80GB HBM3", 81559, Decimal("2.40")),
)


def products(directory: Path) -> tuple[Product, ...]:
    """The products of the cloud in `directory`; its offers.json may replace and add."""
    try:
        records = json.loads((directory / "offers.json").read_text())
        further = tuple(codec.from_json(Product, record) for record in records)
    except FileNotFoundError:
        further = ()
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"offers.json of the local cloud cannot be read: {error}") from error
    replaced = {product.id for product in further}
    return tuple(product for product in PRODUCTS if product.id not in replaced) + further


def find(directory: Path, offer_id: str) -> Product | None:
    """The product with this id."""
    return next((product for product in products(directory) if product.id == offer_id), None)


def fits(product: Product, region: str, need: Need) -> bool:
    """Whether the product in `region` is what was asked for; a device is matched by letters and digits only."""
    wanted = _letters(need.device)
    return (
        (need.offer is None or need.offer == product.id)
        and (need.region is None or need.region == region)
        and need.count == product.count
        and (wanted in ("", "any") or wanted in _letters(product.device_name) or wanted in _letters(product.id))
        and (need.max_price_per_hour is None or product.per_hour <= need.max_price_per_hour)
    )


def offer(product: Product, account: str, region: str, now: Time) -> Offer:
    """The product as the contract's value."""
    return Offer(
        id=product.id,
        provider="local",
        account=account,
        region=region,
        product=product.id.removeprefix("local."),
        device=Device(product.device_name, product.count, round(product.memory_mib / 1024, 1)),
        rate=Money(product.per_hour),
        billing_unit_s=BILLING_UNIT_S,
        observed_at=now,
        source=SOURCE,
        terms={"device": "simulated", "stopped": "a rental that stops exists no more", "volumes": "outlive the rental"},
    )


def volume_rate(size_gb: float) -> Money:
    """What a volume costs per hour."""
    return Money(VOLUME_PER_GB_MONTH).times(size_gb).times(Decimal(1) / HOURS_PER_MONTH)


def shown_device(product_host: Mapping[str, Any], product: Product) -> dict[str, Any]:
    """What nvidia-smi on the host says."""
    true = {
        "name": product.device_name,
        "memory_mib": product.memory_mib,
        "count": product.count,
        "driver": "580.95.05",
    }
    return {**true, **product_host.get("device", {})}


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())
