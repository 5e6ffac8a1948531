"""The prices that this process knows: read by the best route there is, and again after an hour."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from gpuops.errors import UsageError
from gpuops.values import Money, Time

from . import catalog, marks, prices
from .api import Api
from .kinds import VOLUME
from .places import GLOBAL, last, region_of
from .prices import Prices
from .settings import BILLING_KEY, Settings

FRESH_S = 3600.0


class Book:
    """List prices where a key is at hand, otherwise the user's table."""

    def __init__(self, api: Api, settings: Settings, key: Callable[[], str | None], now: Callable[[], Time]) -> None:
        """`key`: the API key for the Cloud Billing Catalog, if there is one."""
        self._api, self._settings, self._key, self._now = api, settings, key, now
        self._prices: Prices | None = None
        self._read_at = 0.0

    def read(self, until: Time) -> Prices:
        """Prices of now. Raises `UsageError` when there is no way to any."""
        key, now = self._key(), self._now()
        if self._prices is not None and abs(now - self._read_at) < FRESH_S:
            return self._prices
        if key:
            url = f"{self._settings.billing_endpoint}/v1/services/{catalog.SERVICE}/skus"
            self._prices = catalog.read(lambda query: self._api.catalog(url, key, until, query), self._now)
        elif self._settings.prices is not None:
            self._prices = prices.read(self._settings.prices)
        else:
            raise UsageError(
                "no prices of Google Cloud: nothing is offered at a price that nobody has seen",
                next_command=f"gpuops auth set {BILLING_KEY}, or prices = FILE under [providers.gcp] in config.toml",
            )
        self._read_at = now
        return self._prices

    def mend(self) -> str:
        """What the user does about a price that is missing."""
        if self._settings.prices is not None and not self._key():
            return f"add it to {self._settings.prices}"
        return f"name a price table with it under [providers.gcp], and take {BILLING_KEY} away"

    def rate_of(self, kind: str, item: Any, location: str) -> Money:
        """What one listed item costs, as far as it is known without another call; 0 where no price was ever read."""
        if self._prices is None and self._settings.prices is not None and not self._key():
            self._prices, self._read_at = prices.read(self._settings.prices), self._now()
        known = self._prices
        if known is None or location == GLOBAL:
            return Money(Decimal(0))
        found: Decimal | None = None
        if kind == VOLUME:
            each = known.disk(last(item.type_), region_of(location))
            found = each * int(item.size_gb) if each is not None else None
        elif kind == "address":
            found = known.address(region_of(location), "standard")
        return marks.exact(Money(found or Decimal(0), known.currency))
