"""What `[providers.gcp]` in config.toml may say. All values are strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuops.errors import UsageError

BILLING_KEY = "GCP_BILLING_API_KEY"
"""Name of the secret that reads list prices; a price table does without."""

IMAGE_FAMILY = (
    "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
"""Ubuntu with NVIDIA's driver in it, published by Google's and Canonical's image project. Not confirmed on a real account."""

PROVISIONING = {"standard": "STANDARD", "spot": "SPOT"}
"""Our words in offers and settings → the vendor's `scheduling.provisioningModel`."""

_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_PROJECT = r"([a-z0-9.-]+:)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
IMAGE = rf"projects/{_PROJECT}/global/images/{_NAME}"
"""A concrete image. Unlike a family it cannot come to mean a newer one."""
FAMILY = rf"projects/{_PROJECT}/global/images/family/{_NAME}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a user may choose; empty means the default or the credentials' own."""

    project: str = ""
    zones: tuple[str, ...] = ()
    """Zones and regions that offers may be in; empty: all."""
    provisioning: tuple[str, ...] = ("standard",)
    """Markets that are offered; an offer that a manifest names is found all the same."""
    prices: Path | None = None
    credentials_file: str = ""
    image: str = IMAGE_FAMILY
    boot_disk_gb: int = 50
    """Least size; images with a driver need it."""
    boot_disk_type: str = ""
    """Empty: what fits the machine series."""
    network: str = "global/networks/default"
    subnetwork: str = ""
    address: str = "external"
    user: str = "gpuops"
    service_account: str = ""
    api_endpoint: str = "https://compute.googleapis.com"
    billing_endpoint: str = "https://cloudbilling.googleapis.com"
    filestore_endpoint: str = "https://file.googleapis.com"


_PATTERNS = {
    "project": _PROJECT,
    "image": f"{IMAGE}|{FAMILY}",
    "boot_disk_type": r"[a-z0-9-]+",
    "network": rf"(projects/{_PROJECT}/)?global/networks/{_NAME}",
    "subnetwork": rf"(projects/{_PROJECT}/)?regions/[a-z0-9-]+/subnetworks/{_NAME}",
    "address": "external|internal",
    "user": r"[a-z_][a-z0-9_-]{0,31}",
    "service_account": r"[^@\s]+@[^@\s]+",
}
_ENDPOINTS = ("api_endpoint", "billing_endpoint", "filestore_endpoint")
_OTHERS = ("zones", "regions", "region", "provisioning", "prices", "credentials_file", "boot_disk_gb")


def read(config: Mapping[str, str]) -> Settings:
    """Check the settings. Raises `UsageError` with the name of the wrong one."""
    known = {*_PATTERNS, *_ENDPOINTS, *_OTHERS}
    if unknown := sorted(set(config) - known):
        raise _wrong(f"unknown setting {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    for key, pattern in _PATTERNS.items():
        if key in config and not re.fullmatch(pattern, config[key]):
            raise _wrong(f"{key} = {config[key]!r} does not have the form {pattern}")
    plain = {key: config[key] for key in (*_PATTERNS, "credentials_file") if key in config}
    endpoints = {key: _endpoint(key, config[key]) for key in _ENDPOINTS if key in config}
    models = tuple(_words(config.get("provisioning", "standard")))
    if not models or set(models) - set(PROVISIONING):
        raise _wrong(f"provisioning is a list of {', '.join(PROVISIONING)}")
    size = config.get("boot_disk_gb", "50")
    if not size.isdigit() or not 10 <= int(size) <= 65_536:
        raise _wrong("boot_disk_gb is a whole number from 10 to 65536")
    return Settings(
        zones=tuple(dict.fromkeys(w for key in ("zones", "regions", "region") for w in _words(config.get(key, "")))),
        provisioning=models,
        prices=Path(config["prices"]).expanduser() if config.get("prices") else None,
        boot_disk_gb=int(size),
        **plain,
        **endpoints,
    )


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _endpoint(key: str, text: str) -> str:
    """A private endpoint; plain http only on this computer, since tokens travel with every call."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    loopback = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not loopback):
        raise _wrong(f"{key} = {text!r} is not an https address (http only on this computer itself)")
    return f"{parts.scheme}://{parts.netloc}"


def _wrong(text: str) -> UsageError:
    return UsageError(f"provider gcp: {text}", next_command="mend [providers.gcp] in config.toml")
