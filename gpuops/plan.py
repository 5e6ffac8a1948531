"""The plan: what would be bought, for how long, what ends it, and what survives. Pure; printing is somebody else's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuops.codec import digest, to_json
from gpuops.cost import Upload, accrued, copy_seconds, limit_and_deadline, upload
from gpuops.errors import GateRefused
from gpuops.policy import Policy
from gpuops.provider import ImageForm, Traits
from gpuops.spec import Spec, Timeouts, remarks
from gpuops.state import GUARD_LAYER, Layer
from gpuops.steps import fact
from gpuops.values import Event, Money, Offer, Time

_MOST_OTHERS = 8


@dataclass(frozen=True)
class Lines:
    """What is known on this computer of sending and keeping; None: could not be found out."""

    send_bytes: int | None
    rates: Callable[[str, str], tuple[float, float]]
    """(provider, region) → bytes per second measured last from here, and by the host itself; 0: never measured."""
    free_bytes: int | None = None


@dataclass(frozen=True)
class Plan:
    """One screen of decisions. `lost` means that nothing survives when this computer is off at the limit."""

    offer: Offer
    others: int
    deadline: Time
    limit: Time
    until_deadline: Money
    until_limit: Money
    cap: Money
    layers: tuple[Layer, ...]
    survives: str
    lost: bool
    copy_s: float
    further: tuple[Offer, ...]
    """What is bought instead where the provider has no capacity, one after the other."""
    resume: int
    """How many lost rentals may be replaced without asking again, within the same cap and deadline."""
    simulated: bool
    listing_lag_s: float | None
    timeouts: Timeouts
    notes: tuple[str, ...]
    upload: Upload | None = None
    """None where what would be sent could not be listed."""

    @property
    def digest(self) -> str:
        """What a person approves: offer, price and length, not the moment of asking."""
        length = round(self.limit - self.offer.observed_at, -1)
        return digest(
            {
                "offer": self.offer.id, "rate": to_json(self.offer.rate), "length": length, "cap": to_json(self.cap),
                "resume": self.resume, "further": [[o.id, o.region, to_json(o.rate)] for o in self.further],
            }
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """JSON values for the journal and for `--json`."""
        return {**{k: to_json(v) for k, v in vars(self).items()}, "digest": self.digest}


def make_plan(
    spec: Spec,
    offers: tuple[Offer, ...],
    traits: Traits,
    now: Time,
    policy: Policy,
    *,
    guard: bool,
    accept_loss: str = "",
    lines: Lines | None = None,
) -> Plan:
    """Choose the cheapest offer and lay out the run. Raises `GateRefused` when it should not be bought."""
    if not offers:
        raise nothing_fits(spec)
    if problem := image_problem(spec.image, traits.image):
        raise GateRefused(
            f"{problem}. Nothing was bought.", next_command=f"write {_image_line(traits.image)} in the manifest"
        )
    offer = offers[0]
    wanted = spec.deadline_at or now + spec.deadline_s
    limit, deadline = limit_and_deadline(now, wanted, spec.hold_s, spec.cap, offer.rate, offer.billing_unit_s)
    notes: list[str] = []
    if deadline < wanted - 1:
        notes.append(
            f"the cap {spec.cap} does not pay for the time that the manifest asks for: the deadline was moved forward"
        )
    if deadline <= now + spec.train.grace_s:
        raise GateRefused(
            f"the cap {spec.cap} pays for {(limit - now) / 60:.0f} minutes at {offer.rate} per hour, "
            f"and the hold alone takes {spec.hold_s / 60:.0f}. Nothing was bought.",
            next_command=f"raise budget.cap or lower hold in {spec.manifest_path}, then: gpuops plan {spec.manifest_path}",
        )
    if traits.deadline in ("read back", "observed to fire") and not traits.end_movable:
        notes.append(
            f"{spec.provider}'s own timer cannot be moved: the limit is final, and `gpuops extend` will be refused"
        )
    notes += [*remarks(spec), *_room(spec, lines)]
    layers = _layers(traits, limit, guard=guard)
    if not layers:
        raise GateRefused(
            f"nothing would end this rental when the terminal is gone: {spec.provider} has no timer of its own that is known "
            "to work, and the guard is switched off. Nothing was bought.",
            next_command="set start = true under [guard] in config.toml",
        )
    survives, lost = _survives(spec, policy)
    if lost and not accept_loss:
        raise GateRefused(
            f"if this computer is off at the limit, {survives}. Nothing was bought.",
            next_command=f"switch outputs.mirror on, write outputs to a volume, or: gpuops plan {spec.manifest_path} "
            '--accept-loss "reason"',
        )
    return Plan(
        offer=offer,
        others=len(offers) - 1,
        deadline=deadline,
        limit=limit,
        until_deadline=accrued(offer.rate, now, deadline, offer.billing_unit_s),
        until_limit=accrued(offer.rate, now, limit, offer.billing_unit_s),
        cap=spec.cap,
        layers=layers,
        survives=survives,
        lost=lost,
        copy_s=copy_seconds(spec.outputs.expected_bytes, policy.copy_bytes_per_s),
        further=_further(spec, offers, policy),
        resume=spec.train.resume,
        simulated=traits.simulated,
        listing_lag_s=traits.listing_lag_s,
        timeouts=traits.timeouts,
        notes=tuple(notes),
        upload=_upload(lines, offer, policy),
    )


def planned(spec: Spec, plan: Plan, seed: str) -> Event:
    """The record with which a run begins. `seed`: what the nonces of its purchases are derived from."""
    return fact(
        "planned", None, spec=to_json(spec), seed=seed, plan=plan.as_json(), plan_digest=plan.digest,
        offer=to_json(plan.offer), further=to_json(plan.further), deadline=plan.deadline, limit=plan.limit,
        account=plan.offer.account, listing_lag_s=plan.listing_lag_s, timeouts=to_json(plan.timeouts),
    )  # fmt: skip


def image_problem(image: str, form: ImageForm) -> str:
    """Why a provider cannot start this image, or cannot promise that it is the same tomorrow; empty when it can."""
    if not image:
        return ""
    if form.kind == "none":
        return f"resources.image is {image!r}, and this provider takes no image"
    if not re.fullmatch(form.pattern, image):
        what = "a container by its digest" if form.kind == "container" else "a machine image by its id"
        return f"resources.image is {image!r}, and this provider takes {what}: a name may mean something else tomorrow"
    return ""


def _image_line(form: ImageForm) -> str:
    return "no resources.image" if form.kind == "none" else f"`image: {form.example}` under resources"


def nothing_fits(spec: Spec, others: tuple[Offer, ...] = ()) -> GateRefused:
    """The refusal when no offer fits; `others` are what the provider offers instead."""
    there = list(dict.fromkeys(f"{o.device.count} x {o.device.name} at {o.rate} per hour" for o in others))
    more = f" and {len(there) - _MOST_OTHERS} more" if len(there) > _MOST_OTHERS else ""
    instead = f" It offers {', '.join(there[:_MOST_OTHERS])}{more}." if there else ""
    price = f" below {spec.need.max_price_per_hour} USD per hour" if spec.need.max_price_per_hour else ""
    return GateRefused(
        f"{spec.provider} offers no {spec.need.count} x {spec.need.device} now{price}.{instead} Nothing was bought.",
        next_command=f"change resources in {spec.manifest_path}, or later again: gpuops plan {spec.manifest_path}",
    )


def _further(spec: Spec, offers: tuple[Offer, ...], policy: Policy) -> tuple[Offer, ...]:
    """The next cheapest offers, none of them much dearer; none where the manifest names an offer."""
    most = offers[0].rate.amount * Decimal(str(policy.further_rate))
    fitting = [o for o in offers[1:] if o.rate.amount <= most and o.rate.currency == offers[0].rate.currency]
    if spec.volumes:  # they lie where they are
        fitting = [o for o in fitting if o.region == offers[0].region]
    return () if spec.need.offer else tuple(fitting[: policy.further_offers])


def _upload(lines: Lines | None, offer: Offer, policy: Policy) -> Upload | None:
    if lines is None or lines.send_bytes is None:
        return None
    uplink, downlink = lines.rates(offer.provider, offer.region)
    return upload(lines.send_bytes, uplink, downlink or policy.fetch_bytes_per_s, offer.rate, offer.billing_unit_s)


def _room(spec: Spec, lines: Lines | None) -> list[str]:
    """Whether what is kept of the results, and one more while it is copied, fits at the destination."""
    needed = spec.outputs.expected_bytes * (spec.outputs.keep_last + 1)
    if lines is None or lines.free_bytes is None or needed <= lines.free_bytes:
        return []
    return [
        f"NO ROOM for results at {spec.outputs.destination}: {lines.free_bytes:,} bytes free, {needed:,} needed for "
        f"{spec.outputs.keep_last} generations and one that is being copied"
    ]


def _layers(traits: Traits, limit: Time, *, guard: bool) -> tuple[Layer, ...]:
    """What would end the rental by itself. A timer that was only declared proves nothing and is not counted."""
    layers: list[Layer] = []
    if traits.deadline in ("read back", "observed to fire"):
        layers.append(Layer("provider timer", traits.deadline, limit))
    if guard:
        layers.append(Layer(GUARD_LAYER, "must show that it reaches the account", limit))
    return tuple(layers)


def _survives(spec: Spec, policy: Policy) -> tuple[str, bool]:
    """What is left when this computer is off at the limit: blind layers end rentals, they cannot copy."""
    output = spec.outputs.directory.rstrip("/") + "/"
    volume = next((v for v in spec.volumes if output.startswith(v.mount.rstrip("/") + "/")), None)
    if volume is not None:
        return f"the newest checkpoint survives on volume {volume.id}", False
    if spec.outputs.mirror:
        age = f"every {policy.mirror_every_s:.0f} s while this computer is on"
        return (
            f"the newest checkpoint that was copied by then survives in {spec.outputs.destination} (copied {age}); "
            "later ones ARE LOST",
            False,
        )
    return "the newest checkpoint IS LOST", True
