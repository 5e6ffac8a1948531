"""The adapter for Pond, a made-up cloud, as a model: it calls and translates. docs/how-to/adapter.md explains it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import quote as quoted

import httpx

from gpuops.errors import CredentialsError, ProviderError, UsageError
from gpuops.marks import mark_name
from gpuops.provider import CONTAINER, Traits
from gpuops.values import Billable, Created, Gap, Inventory, Need, Observation, Offer, Order, Ref, Refused, Scope, Time

from . import words
from .wire import PondError, Wire, understood

CREDENTIALS = ("POND_TOKEN",)
URL = "https://api.pond.example/v1/"
ACCOUNT_S = 30.0


class PondProvider:
    """One account on Pond."""

    name = "pond"
    traits = Traits(
        idempotency_token=False,
        billing_unit_s=words.BILLING_UNIT_S,
        stopped_bills=(),
        outlives=("volume", "key"),
        listing_lag_s=None,  # Pond promises nothing
        deadline="none",
        end_movable=False,
        host_key_route="injected",
        kinds=("rental", "volume", "key"),
        free_kinds=("key",),
        image=CONTAINER,
    )

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def account(self) -> str:
        """The account of the token, as Pond says it."""
        return self._account(self._wire.now() + ACCOUNT_S)

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """What fits, cheapest first."""
        account, found = self._account(until), []
        for row, at in self._wire.pages("sizes", until):
            with understood("a size"):
                found += [offer for offer in words.offers(row, account, at) if words.fits(offer, need)]
        return tuple(sorted(found, key=lambda offer: offer.rate.amount))

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """The key that lets us in. Its name is the mark, and `PUT` makes one thing of a name."""
        body = {
            "region": order.offer.region,
            "labels": words.labels(order.mark),
            "public_keys": order.ssh_public_keys,
        }
        row, _ = self._wire.call("PUT", f"keys/{mark_name(order.mark)}", until, json=body)
        with understood("a key"):
            return (words.reference("key", row, order.offer.account),)

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """One `POST` with the mark inside."""
        if self._wire.now() >= until:
            return Refused("too late: nothing was sent")
        body = {
            "name": mark_name(order.mark),
            "labels": words.labels(order.mark),
            "size": order.offer.id,
            "region": order.offer.region,
            "image": order.image,
            "disk_gb": order.disk_gb,
            "volumes": {volume.id: volume.mount for volume in order.volumes},
            "key": mark_name(order.mark),
            "host_key": order.host_key.private if order.host_key else None,
            "startup": order.startup,
        }
        try:
            row, _ = self._wire.call("POST", "machines", until, json=body)
        except PondError as error:
            if error.status < 500 and error.word in words.REFUSALS:
                return Refused(error.message, words.REFUSALS[error.word])
            raise  # any other word: a machine may have been made
        with understood("a new machine"):
            ref = words.reference("rental", row, order.offer.account)
            return Created(ref, words.created_at(row), words.rate(row))

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """A look by id."""
        try:
            row, at = self._wire.call("GET", _path(ref), until)
        except PondError as error:
            self._believe(error, ref, until)
            return Observation(ref, "absent", (), raw_state=error.word)
        with understood(str(ref)):
            return words.observation(ref, row, at)

    def terminate(self, ref: Ref, until: Time) -> None:
        """`DELETE`, whatever the kind."""
        try:
            self._wire.call("DELETE", _path(ref), until)
        except PondError as error:
            self._believe(error, ref, until)

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """All kinds in all regions, ours or not. Where a page breaks is a gap; what was read before it is told."""
        account, at = self._account(until), None
        regions = scope.regions or [row["id"] for row, _ in self._wire.pages("regions", until)]
        items: list[Billable] = []
        gaps = [Gap("", kind, "Pond has no such kind") for kind in scope.kinds if kind not in words.PATHS]
        for kind in [kind for kind in words.PATHS if kind in scope.kinds or not scope.kinds]:
            for region in regions:
                try:
                    for row, at in self._wire.pages(words.PATHS[kind], until, region=region):  # noqa: B007
                        with understood(f"a {kind}"):
                            items.append(words.billable(kind, row, account))
                except ProviderError as error:
                    gaps.append(Gap(region, kind, error.message))
        return Inventory(account, scope, tuple(items), tuple(gaps), at)

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Give it the name with another limit, and read that back by a call of its own."""
        row, _ = self._wire.call("GET", _path(ref), until)
        with understood(str(ref)):
            mark = words.mark(row)
        if mark is None:
            raise ProviderError(f"{ref} carries no mark")
        self._wire.call("PUT", _path(ref), until, json={"name": mark_name(replace(mark, limit_at=limit_at))})
        row, _ = self._wire.call("GET", _path(ref), until)
        with understood(str(ref)):
            if moved := words.mark(row):
                return moved.limit_at
        raise ProviderError(f"the mark of {ref} cannot be read back")

    def _account(self, until: Time) -> str:
        row, _ = self._wire.call("GET", "account", until)
        with understood("the account"):
            return str(row["id"])

    def _believe(self, error: PondError, ref: Ref, until: Time) -> None:
        """Raise unless `error` says "not found" to the account of `ref`: a bad token may be answered by 404, too."""
        if error.word != "not_found":
            raise error
        if (account := self._account(until)) != ref.account:
            raise CredentialsError(f"the token belongs to account {account}; {ref} lies on {ref.account}")


def provider(
    settings: Mapping[str, str],
    secret: Callable[[str], str | None],
    now: Callable[[], Time] = time.time,
    client: httpx.Client | None = None,
) -> PondProvider:
    """What the entry point names. It asks nothing of Pond; a token that is missing is told by the first call."""
    if unknown := set(settings) - {"url"}:
        raise UsageError(f"provider pond: unknown setting {', '.join(sorted(unknown))}")
    client = client or httpx.Client(base_url=settings.get("url", URL), headers={"User-Agent": "gpuops-pond"})
    return PondProvider(Wire(client, lambda: secret("POND_TOKEN"), now))


def _path(ref: Ref) -> str:
    return f"{words.PATHS[ref.kind]}/{quoted(ref.id, safe='')}"
