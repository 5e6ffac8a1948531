"""The local cloud as a provider: calls and translation."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuops
from gpuops import codec
from gpuops.errors import CredentialsError, ProviderError, Unreadable
from gpuops.marks import mark_name
from gpuops.provider import Traits
from gpuops.values import (
    Billable,
    Charge,
    Created,
    Endpoint,
    Finding,
    Gap,
    Inventory,
    Money,
    Need,
    Observation,
    ObservedState,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
)

from . import needs, offers, processes
from .cloud import Cloud, Rental, Usage, Volume, carried, pulling, read_time
from .faults import Faults
from .keeper import HOST_DIED, TERMINATED, close

STATES: dict[str, ObservedState] = {
    "provisioning": "starting",
    "running": "running",
    "shutting-down": "ending",
    "terminated": "terminal",
}
"""The cloud's words. Any other word is unknown, which counts as billing."""

ARM_S = 3.0
"""How long a keeper may take to confirm a moved timer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long the cloud takes, and how its hosts are made."""

    create_s: float = 1.0
    terminate_s: float = 1.5
    shown_s: float = 30.0
    isolation: str = "auto"
    python: str = sys.executable


class LocalProvider:
    """One account of the local cloud."""

    name = "local"
    traits = Traits(
        idempotency_token=False,
        billing_unit_s=offers.BILLING_UNIT_S,
        stopped_bills=(),
        outlives=("volume",),
        listing_lag_s=0.0,
        deadline="observed to fire",
        end_movable=True,
        host_key_route="injected",
        kinds=("rental", "volume"),
        simulated=True,
    )

    def __init__(
        self, cloud: Cloud, settings: Settings, token: Callable[[], str | None], now: Callable[[], Time] = time.time
    ) -> None:
        """`now`: the clock that `until` is told by; the cloud's own is this computer's."""
        self._cloud, self._settings, self._token, self._now = cloud, settings, token, now
        self._faults = Faults(cloud)

    def account(self) -> str:
        """The account's name, once the token is found good."""
        self._enter("account", None)
        return self._cloud.account

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """Offers that fit, cheapest first."""
        self._enter("quote", until)
        now = time.time()
        found = [
            offers.offer(product, self._cloud.account, region, now)
            for product in offers.products(self._cloud.directory)
            for region in product.regions
            if offers.fits(product, region, need)
        ]
        return tuple(sorted(found, key=lambda offer: offer.rate.amount))

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """Nothing: this cloud needs no free objects."""
        return ()

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """Hand the order to a new keeper, which accepts or refuses it in one step and outlives this process."""
        try:
            self._enter("provision", None)
        except CredentialsError as error:
            return Refused(str(error), "account")
        if self._left_s(until) < 0:
            return Refused("too late, nothing was sent", "invalid")
        if self._faults.take("refuse_capacity"):
            return Refused("no capacity (fault switch)", "capacity")
        answer = self._send(order, until)
        if "created" not in answer:
            return Refused(answer["refused"], answer["kind"])
        if self._faults.take("lose_answer"):
            raise ProviderError("no answer to the create call (fault switch)")
        if self._faults.take("error_after_create"):
            raise ProviderError("the local cloud answered 500 to the create call (fault switch)")
        ref = self._ref(order.offer.region, "rental", answer["created"])
        return Created(ref, answer["created_at"], order.offer.rate, request_id=answer["created"])

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """What the cloud, and the processes themselves, say now."""
        self._enter("inspect", until)
        self._own(ref)
        if ref.kind == "volume":
            volume = self._cloud.volume(ref.id)
            state: ObservedState = "running" if volume else "absent"
            created = volume.created_at if volume else None
            return Observation(
                ref, state, ("storage",) if volume else (), created_at=created, provider_time=time.time()
            )
        found = self._cloud.rental(ref.id) if ref.kind == "rental" else None
        rental = self._settled(found) if found else None
        if rental is None or self._forgotten(rental):
            return Observation(ref, "absent", (), provider_time=time.time(), raw_state="absent")
        word = str(self._faults.setting("lying_status", rental.state))
        state = STATES.get(word, "unknown")
        keeper_gone = rental.state != "terminated" and not processes.alive(rental.keeper)
        armed = read_time(self._cloud.rental_directory(ref.id) / "armed.json", "ends_at")
        endpoint = Endpoint("127.0.0.1", rental.port, rental.login) if rental.port and state == "running" else None
        return Observation(
            ref,
            state,
            () if state == "terminal" else ("compute",),
            reason="its keeper is dead: it runs on without a timer"
            if keeper_gone
            else rental.reason or pulling(rental),
            endpoint=endpoint,
            created_at=rental.created_at,
            ends_at=None if keeper_gone else armed,
            provider_time=time.time(),
            raw_state=word,
            fetching_image=state == "starting" and bool(pulling(rental)),
        )

    def terminate(self, ref: Ref, until: Time) -> None:
        """Ask the rental's keeper to end it, or delete the volume. A volume that is in use is an error."""
        self._enter("terminate", until)
        self._own(ref)
        if self._faults.take("ignore_terminate"):
            return
        if ref.kind == "volume":
            self._delete_volume(ref.id)
            return
        directory, now = self._cloud.rental_directory(ref.id), time.time()
        if ref.kind != "rental" or not directory.is_dir():
            return
        # First, so that a rental whose record is damaged ends all the same.
        self._cloud.write_json(directory / "terminate.json", {"at": now})

        def ending(found: Rental) -> Rental:
            if found.state == "terminated":
                return found
            since = found.ending_since or now
            return dataclasses.replace(found, state="shutting-down", reason=TERMINATED, ending_since=since)

        rental = self._cloud.change(ref.id, ending)
        if rental.state != "terminated" and not processes.alive(rental.keeper):
            self._spawn("end", ref.id).communicate(timeout=max(1.0, self._left_s(until)))

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """Every rental and volume of the account; a record that cannot be read is a gap."""
        self._enter("list", until)
        blind = tuple(str(region) for region in self._faults.setting("listing_gap", ()))
        kinds = [kind for kind in self.traits.kinds if not scope.kinds or kind in scope.kinds]
        gaps = [
            Gap(region, kind, "the listing failed (fault switch)")
            for region in blind
            for kind in kinds
            if not scope.regions or region in scope.regions
        ]
        gaps += [Gap("", kind, "this cloud has no such kind") for kind in scope.kinds if kind not in self.traits.kinds]
        items: list[Billable] = []
        if "rental" in kinds:
            self._list("rental", self._cloud.rental_ids(), self._rental_item, items, gaps)
        if "volume" in kinds:
            self._list("volume", self._cloud.volume_ids(), self._volume_item, items, gaps)
        shown = [i for i in items if i.ref.region not in blind and (not scope.regions or i.ref.region in scope.regions)]
        return Inventory(self._cloud.account, scope, tuple(shown), tuple(gaps), time.time())

    def set_end(self, ref: Ref, at: Time, until: Time) -> Time:
        """Move the rental's timer and return what its keeper has confirmed."""
        self._enter("set_end", until)
        rental = self._living(ref)
        directory = self._cloud.rental_directory(rental.id)
        self._cloud.write_json(directory / "end.json", {"ends_at": at})
        give_up = time.time() + min(ARM_S, self._left_s(until))
        while time.time() < give_up:
            armed = read_time(directory / "armed.json", "ends_at")
            if armed == at:
                return armed
            time.sleep(0.02)
        raise ProviderError(f"the timer of {ref} did not confirm the new end")

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Rewrite the limit in the tags and in the name."""
        self._enter("set_mark", until)
        rental = self._living(ref)

        def moved(now: Rental) -> Rental:
            if now.mark is None:
                raise ProviderError(f"{ref} carries no mark")
            mark = dataclasses.replace(now.mark, limit_at=limit_at)
            return dataclasses.replace(now, mark=mark, name=mark_name(mark))

        self._cloud.change(rental.id, moved)
        again = self._cloud.rental(rental.id)
        if again is None or again.mark is None:
            raise ProviderError(f"the mark of {ref} cannot be read back")
        return again.mark.limit_at

    def charges(self, start: Time, end: Time, until: Time) -> tuple[Charge, ...]:
        """The usage records that overlap the window."""
        self._enter("charges", until)
        now = time.time()
        records = [usage for usage in self._cloud.usage() if usage.start < end and (usage.end or now) > start]
        return tuple(self._charge(usage, now) for usage in records)

    def needs(self, until: Time) -> tuple[Finding, ...]:
        """What rentals on this machine are made of."""
        return needs.examine(self._settings.isolation)

    # --- translation

    def _charge(self, usage: Usage, now: Time) -> Charge:
        seconds = -(-((usage.end or now) - usage.start) // offers.BILLING_UNIT_S) * offers.BILLING_UNIT_S
        kind = "compute" if usage.kind == "rental" else "storage"
        ref = self._ref(usage.region, usage.kind, usage.id)
        return Charge(ref, usage.nonce, usage.start, usage.end, usage.rate.times(seconds / 3600), kind)

    def _rental_item(self, rental_id: str) -> Billable | None:
        rental = self._cloud.rental(rental_id)
        if rental is None:
            return None
        rental = self._settled(rental)
        if time.time() - rental.created_at < float(self._faults.setting("hide_new_s", 0.0)) or self._forgotten(rental):
            return None
        over = rental.state == "terminated"
        nonce, damaged = carried(rental.name, rental.mark)
        return Billable(
            self._ref(rental.region, "rental", rental.id),
            rental.name,
            None if damaged else rental.mark,
            () if over else ("compute",),
            rental.created_at,
            Money(rental.rate.amount * 0) if over else rental.rate,
            nonce=nonce,
            damaged=damaged,
        )

    def _volume_item(self, volume_id: str) -> Billable | None:
        volume: Volume | None = self._cloud.volume(volume_id)
        if volume is None:
            return None
        ref = self._ref(volume.region, "volume", volume.id)
        return Billable(ref, volume.id, None, ("storage",), volume.created_at, volume.rate)

    def _list(
        self,
        kind: str,
        ids: tuple[str, ...],
        read: Callable[[str], Billable | None],
        items: list[Billable],
        gaps: list[Gap],
    ) -> None:
        for item_id in ids:
            try:
                if item := read(item_id):
                    items.append(item)
            except Unreadable as error:
                gaps.append(Gap("", kind, str(error)))

    def _ref(self, region: str, kind: str, item_id: str) -> Ref:
        return Ref(self.name, self._cloud.account, region, kind, item_id)

    # --- effects

    def _enter(self, call: str, until: Time | None) -> None:
        """What every call goes through first: the time, the token, and the faults that were asked for."""
        if until is not None and self._left_s(until) < 0:
            raise ProviderError(f"too late for {call}: nothing was sent")
        tokens = self._cloud.directory / "tokens.json"
        if tokens.exists():
            try:
                good = json.loads(tokens.read_text()).get(self._cloud.account)
            except (ValueError, AttributeError) as error:
                raise Unreadable(f"tokens.json of the local cloud cannot be read: {error}") from error
            if good is None or self._token() != good:
                raise CredentialsError(f"LOCAL_TOKEN is not good for account {self._cloud.account} of the local cloud")
        self._faults.strike(call)

    def _left_s(self, until: Time) -> float:
        """Seconds until then, by the clock of whoever said it."""
        return until - self._now()

    def _own(self, ref: Ref) -> None:
        """An answer about another account would be worthless: its absence here proves nothing."""
        if (ref.provider, ref.account) != (self.name, self._cloud.account):
            raise ProviderError(f"{ref} of account {ref.account} is not on account {self._cloud.account}")

    def _living(self, ref: Ref) -> Rental:
        self._own(ref)
        rental = self._cloud.rental(ref.id)
        if rental is None or rental.state in ("shutting-down", "terminated"):
            raise ProviderError(f"{ref} is {rental.state if rental else 'absent'}")
        if not processes.alive(rental.keeper):
            raise ProviderError(f"the keeper of {ref} is dead: it has no timer any more")
        return rental

    def _settled(self, rental: Rental) -> Rental:
        """The rental after a look at its processes: without any it has ended, whatever its record says."""
        if rental.state == "terminated" or processes.alive(rental.keeper):
            return rental
        if processes.of_rental(rental.id, rental.first):
            return rental
        return close(self._cloud, rental, rental.reason or HOST_DIED)

    def _forgotten(self, rental: Rental) -> bool:
        """What has ended is shown for a while and then no more."""
        return rental.ended_at is not None and time.time() > rental.ended_at + rental.shown_s

    def _delete_volume(self, volume_id: str) -> None:
        volume = self._cloud.volume(volume_id)
        if volume is None:
            return
        with self._cloud.lock():
            for rental_id in self._cloud.rental_ids():
                rental = self._cloud.rental(rental_id)
                if rental and rental.state != "terminated" and any(use.id == volume_id for use in rental.volumes):
                    raise ProviderError(f"volume {volume_id} is in use by rental {rental_id}")
            self._cloud.remove_volume(volume)

    def _send(self, order: Order, until: Time) -> dict[str, Any]:
        """The one create call. Whatever goes wrong after the keeper was started is unknown."""
        settings, left_s = dataclasses.asdict(self._settings), self._left_s(until)
        order_json = codec.to_json(order)
        request = json.dumps({"order": order_json, "until": time.time() + left_s, **settings}).encode()
        keeper = self._spawn("accept")
        try:
            answer = keeper.communicate(request, timeout=max(0.1, left_s))[0]
        except subprocess.TimeoutExpired as error:
            keeper.kill()
            raise ProviderError("no answer to the create call in time") from error
        try:
            return dict(json.loads(answer))
        except ValueError as error:
            raise ProviderError(f"the answer to the create call cannot be read: {answer!r}") from error

    def _spawn(self, action: str, *further: str) -> subprocess.Popen[bytes]:
        """Start a keeper in its own session; of the caller's environment only the way to its modules goes along."""
        argv = [sys.executable, "-m", f"{__package__}.keeper", action, str(self._cloud.directory), self._cloud.account]
        roots = dict.fromkeys((str(Path(gpuops.__file__).parents[1]), str(Path(__file__).parents[2])))
        return subprocess.Popen(
            [*argv, *further],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={
                "PYTHONPATH": os.pathsep.join(roots),
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": os.environ.get("HOME", "/"),
            },
            start_new_session=True,
        )
