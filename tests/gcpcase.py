"""What tests of the gcp adapter share: the adapter against a fake cloud, and orders for it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from clouds.gcp import GcpCloud
from clouds.gcp_case import cloud, server
from gpuops_providers.gcp import provider
from gpuops_providers.gcp.adapter import GcpProvider

from gpuops.marks import new_nonce
from gpuops.values import Created, Mark, Need, Offer, Order, Ref, VolumeUse

__all__ = ["cloud", "server"]

ZONE, OTHER_ZONE, FAR_ZONE = "us-central1-a", "us-central1-b", "europe-west4-a"
IMAGE_FAMILY = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
NEED = Need("L4", region=ZONE)
PATIENCE_S = 30.0


def adapter(cloud: GcpCloud, now: Callable[[], float] | None = None, key: bool = True, **settings: str) -> GcpProvider:
    """The adapter, with every address that of the fake."""
    config = {
        "project": cloud.project,
        "credentials_file": str(cloud.key_file),
        "image": IMAGE_FAMILY,
        "api_endpoint": cloud.address,
        "billing_endpoint": cloud.address,
        "filestore_endpoint": cloud.address,
        **settings,
    }
    made = provider(
        {name: value for name, value in config.items() if value},
        lambda name: cloud.api_key if key and name == "GCP_BILLING_API_KEY" else None,
        now or cloud.now,
    )
    assert isinstance(made, GcpProvider)
    return made


def offered(cloud: GcpCloud, made: GcpProvider, model: str = "standard", need: Need = NEED) -> Offer:
    """The cheapest offer of a market."""
    offers = made.quote(need, later(cloud))
    return next(offer for offer in offers if offer.id.endswith(f"/{model}"))


def order(cloud: GcpCloud, offer: Offer, ends_in_s: float = 3600.0, **changes: Any) -> Order:
    """A fresh order with a nonce of its own."""
    limit = float(int(cloud.now() + ends_in_s))
    mark = Mark("l4-20261130-abcd", new_nonce(os.urandom(8)), "ada@example.org", limit)
    made = Order(mark, 0, offer, "", 60, (), ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== ada",), None, "", limit)
    return dataclasses.replace(made, **changes)


def bought(cloud: GcpCloud, made: GcpProvider, wanted: Order | None = None) -> Ref:
    """A rental that runs."""
    answer = made.provision(wanted or order(cloud, offered(cloud, made)), later(cloud))
    assert isinstance(answer, Created), answer
    cloud.wait(lambda: cloud.there().get(answer.ref.id, {}).get("status") == "RUNNING", "RUNNING")
    return answer.ref


def later(cloud: GcpCloud) -> float:
    """Until when a call of these tests may take."""
    return cloud.now() + PATIENCE_S


def volume(cloud: GcpCloud, name: str = "datasets", zone: str = ZONE) -> VolumeUse:
    """A disk that somebody made beforehand."""
    cloud.put("disks", f"zones/{zone}", name=name, sizeGb="100", type=f"zones/{zone}/diskTypes/pd-balanced")
    return VolumeUse(name, "/data")
