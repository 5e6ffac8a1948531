"""AWS as a provider: calls and translation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, Unreadable, UsageError
from gpuops.provider import ImageForm, Traits
from gpuops.values import (
    Charge,
    Created,
    Endpoint,
    Finding,
    Inventory,
    Need,
    Observation,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
    VolumeUse,
)

from . import charging, ending, firewall, listing, marking, needs, offers, schedule, volumes
from .api import HOME_REGION, Answer, Api, answered_at, request_id
from .errors import LATE, TAKEN_BACK, Missing, Unfit, refusal
from .kinds import BILLS, KINDS, STOPPED_BILLS, Found
from .order import Image, choice, parameters, unknown_words
from .settings import Settings

VISIBLE_S = 60.0
"""An instance may not be described right after RunInstances: so long that is no sign of its end."""
ACCOUNT_S = 20.0
"""How long asking whose credentials these are may take."""
OVER = ("shutting-down", "terminated")


def traits(settings: Settings) -> Traits:
    """What holds on this account. The end is graded by what can be read back, which takes a scheduler role."""
    timed = bool(settings.scheduler_role)
    return Traits(
        idempotency_token=True,
        billing_unit_s=offers.BILLING_UNIT_S,
        stopped_bills=STOPPED_BILLS,
        outlives=("volume", "schedule", "security-group"),
        # EC2 is eventually consistent and names no bound (EC2 API reference, "Eventual consistency")
        listing_lag_s=None,
        deadline="read back" if timed else "declared",
        end_movable=timed,
        host_key_route="injected",
        kinds=KINDS,
        made_kinds=("volume", "address", "spot-request"),
        free_kinds=("security-group", "schedule"),
        guest_timer=True,
        end_armed_after_create=timed,
        image=ImageForm("machine", r"ami-[0-9a-f]{8}([0-9a-f]{9})?", "ami-0123456789abcdef0"),
    )


class AwsProvider:
    """One account, by the credentials of one profile."""

    name = "aws"

    def __init__(self, settings: Settings, api: Api, now: Callable[[], Time]) -> None:
        """`now`: the clock that `until` is told by."""
        self._settings, self._api, self._now = settings, api, now
        self._known: tuple[int, str] | None = None
        """The account, and by which login it was learned."""
        self._prepared: dict[str, tuple[Order, dict[str, Any]]] = {}
        self._accepted: dict[str, Time] = {}
        """Instances that this process has bought and not seen yet, with the time of the answer."""
        self.traits = traits(settings)
        # As attributes of the instance: what the settings do not allow is not offered at all.
        if settings.scheduler_role:
            self.set_end = self._set_end
        if settings.cost_explorer:
            self.charges = self._charges

    def account(self) -> str:
        """The account behind the credentials, asked anew each time."""
        answer = self._api.call("sts", self._home(), "get_caller_identity", self._now() + ACCOUNT_S)
        try:
            self._known = self._api.logins, str(answer["Account"])
        except KeyError as error:
            raise Unreadable("the answer to whose credentials these are names no account") from error
        return self._known[1]

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """Offers that fit, cheapest first; the image of manifests that name none is resolved here (`terms["image"]`)."""
        if need.region and need.region not in (known := listing.regions(self._api, self._home(), until)[0]):
            there = ", ".join(sorted(region for region, is_on in known.items() if is_on))
            raise UsageError(
                f"AWS has no region {need.region!r}; enabled on this account: {there}",
                next_command="change resources.region in the manifest",
            )
        regions = [need.region] if need.region else self._buying_regions(need, until)
        return offers.quote(self._api, self._settings, self._account(), need, self._now(), until, regions)

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """A security group that lets SSH in from `order.allow_from`, or from this computer where that is empty.

        All that the create call needs to know is looked up here, too: what cannot be asked now is no reason to give up for good.
        """
        sources = order.allow_from or (self.caller(until),)
        group = firewall.make(self._api, order, self._settings.subnet, until)
        admitted = firewall.admit(self._api, order.offer.region, group, sources, until)
        if not admitted:
            raise ProviderError(f"the security group {group} was made and admits nobody")
        try:
            self._prepared[order.mark.nonce] = order, self._wanted(order, group, until)
        except Unfit:
            pass  # said by `provision`, as a refusal
        return (self._ref(order.offer.region, "security-group", group),)

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """One RunInstances. What is looked up before it may fail: then nothing was sent, which is certain."""
        if choice(order.offer.id) is None:
            return Refused(f"{order.offer.id} is no offer of this provider", "invalid")
        try:
            if self._account() != order.offer.account:
                return Refused(f"the credentials belong to account {self._account()}, not to the offer's", "account")
            prepared, wanted = self._prepared.get(order.mark.nonce, (None, {}))
            if prepared != order:
                wanted = self._wanted(order, self._group(order, until), until)
        except CredentialsError as error:
            return Refused(f"nothing was sent: {error.message}", "account")
        except GpuopsError as error:
            return Refused(f"nothing was sent: {error.message}", "invalid")
        if self._api.left_s(until) <= 0:
            return Refused("too late, nothing was sent", "invalid")
        try:
            answer = self._api.call("ec2", order.offer.region, "run_instances", until, once=True, **wanted)
        except GpuopsError as error:
            if refused := refusal(error):
                return refused
            raise
        return self._created(order, answer)

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """What AWS says now."""
        self._own(ref)
        if ref.kind == "rental":
            return self._inspect_instance(ref, until)
        found = listing.look(self._api, ref, until)
        if found is None:
            return self._absent(ref)
        return Observation(ref, found.state, found.bills, created_at=found.since, raw_state=found.word)

    def terminate(self, ref: Ref, until: Time) -> None:
        """Ask for the end. What is in use by something else is an error: ask again once that is gone."""
        self._own(ref)
        if not ending.terminate(self._api, ref, until):
            self._absent(ref)

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """Every kind in every enabled region, side by side."""
        settings = self._settings
        return listing.list_billable(
            self._api, self.name, self._account(), scope, until, home=self._home(), only=settings.regions
        )

    def attach(self, ref: Ref, volume: VolumeUse, until: Time) -> None:
        """Attach a volume to a running instance, and read back that it is there and outlives it."""
        self._own(ref)
        instance, _ = self._living(ref, until)
        volumes.attach(self._api, instance, ref, volume, until)

    def caller(self, until: Time) -> str:
        """This computer's address, as the setting `address_url` sees it."""
        return firewall.caller(self._settings.address_url, self._api.left_s(until))

    def admit(self, ref: Ref, sources: tuple[str, ...], until: Time) -> tuple[str, ...]:
        """Change the rental's own security group."""
        self._own(ref)
        _, found = self._living(ref, until)
        group = firewall.find(self._api, ref.region, found.carried.nonce, until) if found.carried.nonce else ""
        if not group:
            raise ProviderError(f"{ref} has no security group of its own")
        return firewall.admit(self._api, ref.region, group, sources, until)

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Rewrite the limit in the tags of the instance and of all that was made for it."""
        self._own(ref)
        _, found = self._living(ref, until)
        return marking.move(self._api, ref, found.carried, limit_at, until)

    def needs(self, until: Time) -> tuple[Finding, ...]:
        """What this computer and this account must have."""
        return needs.examine(self.account, self._settings)

    # --- what the settings allow

    def _set_end(self, ref: Ref, at: Time, until: Time) -> Time:
        """Arm or move the schedule. Not while the end of the instance would take a volume of somebody's with it."""
        self._own(ref)
        instance, found = self._living(ref, until)
        mark = found.carried.mark
        if mark is None:
            raise ProviderError(f"{ref} carries no mark that can be read: its timer has no name")
        if lost := volumes.lost_with(self._api, instance, ref, mark.nonce, until):
            raise ProviderError(f"the end of {ref} would delete {', '.join(lost)}: the timer is not armed")
        role = self._settings.scheduler_role
        return schedule.arm(self._api, ref.region, ref.id, mark, at, role, until)

    def _charges(self, start: Time, end: Time, until: Time) -> tuple[Charge, ...]:
        """Usage records of the window by nonce, as Cost Explorer has them so far."""
        return charging.charges(self._api, self.name, self._account(), start, end, until)

    # --- translation

    def _inspect_instance(self, ref: Ref, until: Time) -> Observation:
        try:
            answer = self._describe(ref, until)
        except Missing:
            return self._not_shown(ref)
        found = listing.only(answer, ref)
        if found is None:
            return self._not_shown(ref)
        self._accepted.pop(ref.id, None)
        why = found.raw.get("StateReason") or {}
        reason, state = str(why.get("Message") or found.raw.get("StateTransitionReason") or ""), found.state
        if why.get("Code") == TAKEN_BACK:
            reason = f"AWS took the spot instance back ({TAKEN_BACK})"
        if state == "terminal" and why.get("Code") in LATE:
            state = "refused"
        ends_at, trouble = self._ends_at(ref, found, until)
        address = str(found.raw.get("PublicIpAddress") or "")
        endpoint = Endpoint(address, firewall.SSH, self._settings.user) if address and state == "running" else None
        return Observation(
            ref,
            state,
            found.bills,
            reason=reason or trouble,
            endpoint=endpoint,
            created_at=found.since,
            ends_at=ends_at,
            provider_time=answered_at(answer),
            raw_state=found.word,
            request_id=request_id(answer),
            refusal=LATE[str(why["Code"])] if state == "refused" else "",
        )

    def _not_shown(self, ref: Ref) -> Observation:
        absent = self._absent(ref)
        if self._now() < self._accepted.get(ref.id, -VISIBLE_S) + VISIBLE_S:
            return Observation(
                ref, "unknown", BILLS["rental"], reason="accepted, and not shown yet", raw_state="absent"
            )
        return absent

    def _absent(self, ref: Ref) -> Observation:
        """What is not there, said only while the credentials are good for its account: 404 alone proves nothing."""
        if (account := self.account()) != ref.account:
            raise ProviderError(f"{ref} of account {ref.account} is not on account {account}")
        return Observation(ref, "absent", (), raw_state="absent")

    def _ends_at(self, ref: Ref, found: Found, until: Time) -> tuple[Time | None, str]:
        """The armed timer, and why it cannot be read; a look at the instance must not fail for that."""
        if not self._settings.scheduler_role or not found.carried.nonce or found.word in OVER:
            return None, ""
        try:
            return schedule.ends_at(self._api, ref.region, ref.id, found.carried.nonce, until), ""
        except GpuopsError as error:
            return None, f"its timer cannot be read: {error.message}"

    def _group(self, order: Order, until: Time) -> str:
        if group := firewall.find(self._api, order.offer.region, order.mark.nonce, until):
            return group
        raise Unfit("the order has no security group: prepare makes it")

    def _wanted(self, order: Order, group: str, until: Time) -> dict[str, Any]:
        """The parameters of the create call, checked against the service's own model."""
        api, region, settings = self._api, order.offer.region, self._settings
        zone = volumes.zone(api, region, order.volumes, until)
        wanted = parameters(order, self._image(order, until), group, zone, settings.subnet)
        if wrong := list(unknown_words(wanted, api.input_shape("ec2", region, "RunInstances", until))):
            raise Unfit("; ".join(wrong))
        return wanted

    def _image(self, order: Order, until: Time) -> Image:
        ident = order.image or order.offer.terms.get("image", "")
        if not ident:
            why = order.offer.terms.get("image_problem", "the offer names none")
            raise Unfit(f"no image to start from: {why}; write image: ami-… under resources")
        return offers.resolve(self._api, order.offer.region, ident, "", until)

    def _created(self, order: Order, answer: Answer) -> Created:
        try:
            (instance,) = answer["Instances"]
            ident, state = str(instance["InstanceId"]), str(instance["State"]["Name"])
            began = instance.get("LaunchTime")
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"the answer to the create call cannot be read: {error!r}") from error
        if state in OVER:
            # the token was used before: this is what that call made, and it has ended
            raise ProviderError(f"the create call answers with {ident}, which is {state}: nothing new was rented")
        ref = self._ref(order.offer.region, "rental", ident)
        self._accepted[ident] = self._now()
        created_at = began.timestamp() if began is not None else None
        return Created(ref, created_at, order.offer.rate, request_id=request_id(answer))

    def _describe(self, ref: Ref, until: Time) -> Answer:
        return self._api.call("ec2", ref.region, "describe_instances", until, InstanceIds=[ref.id])

    def _living(self, ref: Ref, until: Time) -> tuple[dict[str, Any], Found]:
        found = listing.only(self._describe(ref, until), ref)
        if found is None or found.word in OVER:
            raise ProviderError(f"{ref} is {found.word if found else 'absent'}")
        return dict(found.raw), found

    # --- names

    def _home(self) -> str:
        return self._settings.region or self._api.region() or HOME_REGION

    def _buying_regions(self, need: Need, until: Time) -> list[str]:
        """The region that the offer names, else the settings', else the profile's, else every enabled one."""
        if need.offer and (named := choice(need.offer)):
            return [named.region]
        if chosen := self._settings.region or self._api.region():
            return [chosen]
        enabled, _ = listing.regions(self._api, self._home(), until)
        return [
            r for r, is_on in enabled.items() if is_on and (not self._settings.regions or r in self._settings.regions)
        ]

    def _account(self) -> str:
        """One login belongs to one account."""
        return self._known[1] if self._known and self._known[0] == self._api.logins else self.account()

    def _ref(self, region: str, kind: str, ident: str) -> Ref:
        return Ref(self.name, self._account(), region, kind, ident)

    def _own(self, ref: Ref) -> None:
        """An answer about another account would be worthless: its absence here proves nothing."""
        if (ref.provider, ref.account) != (self.name, self._account()):
            raise ProviderError(f"{ref} of account {ref.account} is not on account {self._account()}")
