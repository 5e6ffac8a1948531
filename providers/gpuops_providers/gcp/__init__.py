"""Google Cloud's Compute Engine: machines with GPUs, reached by application default credentials.

`docs/how-to/gcp.md` sets it up. The vendor's library takes seconds to import, so nothing here imports it before the first call.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping

from gpuops.errors import UsageError
from gpuops.provider import Provider
from gpuops.values import Time

from .adapter import GcpProvider
from .api import Api
from .settings import BILLING_KEY, read

__all__ = ["provider"]

CREDENTIALS = ()
"""None: application default credentials. GCP_BILLING_API_KEY may be there, for list prices."""
CREDENTIAL_PLACES = ("GOOGLE_APPLICATION_CREDENTIALS", "~/.config/gcloud/application_default_credentials.json")
"""Where google-auth looks (cloud.google.com/docs/authentication/application-default-credentials)."""


def provider(
    config: Mapping[str, str], secret: Callable[[str], str | None], now: Callable[[], Time] = time.time
) -> Provider:
    """The adapter for one project; `secret` is asked for GCP_BILLING_API_KEY, `now` tells money time."""
    settings = read(config)
    if not _installed():
        raise UsageError(
            "the provider 'gcp' needs google-cloud-compute, which is not installed",
            next_command="pip install google-cloud-compute",
        )
    return GcpProvider(Api(settings, now), settings, lambda: secret(BILLING_KEY), now)


def _installed() -> bool:
    """Whether the library is there, without importing it."""
    try:
        return importlib.util.find_spec("google.cloud.compute_v1") is not None
    except ModuleNotFoundError:
        return False
