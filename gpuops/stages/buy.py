"""Buy: a fresh preflight, then the intent in the journal, then at most one create call, sent only before `send_before`."""

from __future__ import annotations

import base64
import hashlib
from decimal import Decimal
from functools import partial

from gpuops.codec import to_json
from gpuops.errors import CopyError, CredentialsError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import AdmitsCaller, AttachesVolumes
from gpuops.purchase import Purchase
from gpuops.replacing import intents_left
from gpuops.state import RunState
from gpuops.steps import Ask, Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Created, Event, Mark, Money, Order, Refused, Scope, Time


def buy(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Buy the rental that the approved plan names, when the run has none that may exist."""
    if s.wanted not in ("ready", "training") or s.adopted:
        return None
    rental = s.rental
    if rental is not None and not (rental.doubtful and now > rental.intended_at + policy.search_active_s):
        return None
    if s.plan_digest not in s.approved:
        return Ask("Buy this?", s.plan_digest)
    if s.preflight_final or intents_left(s, policy) <= 0 or s.refused:
        return None
    due = s.due("buy", policy)
    if due > now:
        return Wait(due, "buying again")
    if s.counts_on_guard and s.armed_at is None:
        # a layer that cannot reach the account ends nothing
        silent = (
            f"the guard on this computer did not show within {policy.arm_s:.0f} s that it reaches {s.spec.provider}"
        )
        problem = f"the guard on this computer cannot end it: {s.unarmed}" if s.unarmed else silent
        if not s.unarmed and now < max(s.wanted_at, s.armed_from) + policy.arm_s:
            return Wait(now + policy.ssh_every_s, "waiting for the guard to show that it reaches the provider")
        return Do("buy", partial(_refuse, problem=problem), bounded(now, policy.call_s), detail="preflight")
    fresh = s.preflight_at is not None and now < s.preflight_at + policy.preflight_fresh_s and not s.preflight_problem
    if not fresh or s.preflight_seq < s.last_intent_seq:
        return Do("buy", partial(_preflight, policy=policy), bounded(now, policy.call_s), detail="preflight")
    intent = _intent(s, now, policy)
    effect = partial(_provision, purchase_id=intent.purchase or "", policy=policy)
    return Do("buy", effect, now + policy.send_window_s, intent.purchase, intent, detail="creating")


def _intent(s: RunState, now: Time, policy: Policy) -> Event:
    number = len(s.purchases) + 1
    # derived, not drawn, because a rule is pure; the seed was drawn when the run was planned
    seed = hashlib.sha256(f"{s.seed}/{number}".encode()).digest()
    nonce = base64.b32encode(seed).decode().lower()[:12]
    limit, deadline = s.ends(now)
    mark = Mark(s.run, nonce, s.spec.owner, limit, "")
    return fact(
        "intended", f"p{number}", mark=to_json(mark), offer=to_json(s.offer), member=0,
        send_before=now + policy.send_window_s, deadline=deadline, limit=limit,
    )  # fmt: skip


def _preflight(ports: Ports, s: RunState, do: Do, policy: Policy) -> tuple[Event, ...]:
    """Look before the intent: account, price, a complete listing, room for the copy, money for the time."""
    try:
        provider = ports.providers(s.spec.provider)
        if provider.account() != s.account:
            return (_no(f"the credentials now belong to account {provider.account()}, the plan is for {s.account}"),)
        offers = {(o.id, o.region): o for o in provider.quote(s.spec.need, do.until)}
    except CredentialsError as error:
        return (_no(error.message),)
    offer = offers.get((s.offer.id, s.offer.region))
    if offer is None:
        return (_no(f"{s.offer.id} is no longer offered"),)
    if offer.rate.currency != s.offer.rate.currency or offer.rate.amount > s.offer.rate.amount:
        return (_no(f"the price moved from {s.offer.rate} to {offer.rate} per hour: plan again"),)
    inventory = provider.list_billable(Scope(("rental",), (s.offer.region,)), do.until)
    if inventory.provider_time is not None:
        ports.clock.learn(inventory.provider_time)
    if inventory.gaps:
        return (attempted("buy", "what cannot be listed is not bought: the listing has gaps"),)
    need = s.spec.outputs.expected_bytes * (s.spec.outputs.keep_last + 1)
    try:
        free = ports.store.free_bytes(s.spec.outputs.destination)
    except CopyError as error:
        return (_no(f"the copies have no place: {error.message}"),)
    if free < need:
        return (_no(f"{s.spec.outputs.destination} has {free} bytes free, the copies need {need}"),)
    missing = [name for name in s.spec.secrets if s.replaced and ports.secret(name) is None]
    if missing:
        # another process may have them; a machine that cannot be launched on is not rented
        return (attempted("buy", f"secrets without a value in this process: {', '.join(missing)}"),)
    now = ports.clock.now()
    _, deadline = s.ends(now)
    if deadline <= now:
        return (_no(f"the cap {s.spec.cap} does not pay for the hold at {s.offer.rate} per hour"),)
    after = {
        "attach": bool(s.spec.volumes) and isinstance(provider, AttachesVolumes),
        "arm": provider.traits.end_armed_after_create,
        "admit": isinstance(provider, AdmitsCaller),
        "guest timer": provider.traits.guest_timer,
    }
    return (
        fact(
            "preflight", None, problem="", rate=to_json(offer.rate), timer=provider.traits.deadline,
            after_create=[name for name, needed in after.items() if needed],
        ),
    )  # fmt: skip


def _refuse(ports: Ports, s: RunState, do: Do, problem: str) -> tuple[Event, ...]:
    return (_no(problem),)


def _no(problem: str) -> Event:
    return fact("preflight", None, problem=problem, final=True)


def _provision(ports: Ports, s: RunState, do: Do, purchase_id: str, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[purchase_id]
    provider = ports.providers(s.spec.provider)
    if ports.clock.now() >= p.send_before:
        return _too_late(p)
    try:
        if _decided_at_a_wrong_time(ports, s, do, policy):
            why = "this computer's clock was wrong when it was decided: its times mean something else"
            return (fact("not_sent", p.id, why=why), attempted("buy", why))
        order = _order(ports, s, p, do.until)
        made = provider.prepare(order, do.until)
    except Exception as error:  # nothing was sent: certain, whatever went wrong
        why = ports.clean(str(error))
        return (fact("not_sent", p.id, why=why), attempted("buy", f"preparing failed: {why}"))
    free = to_json(Money(Decimal(0), p.offer.rate.currency))
    parts = tuple(fact("part", p.id, ref=to_json(ref), rate=free, via="prepare") for ref in made)
    return (*parts, *_send(ports, p, order))


def _decided_at_a_wrong_time(ports: Ports, s: RunState, do: Do, policy: Policy) -> bool:
    """The look before the intent was another process's, and this one's own clock had not heard the provider yet."""
    if ports.clock.heard():
        return False
    told = ports.providers(s.spec.provider).list_billable(Scope(("rental",), (s.offer.region,)), do.until).provider_time
    if told is None:
        return False
    before = ports.clock.now()
    ports.clock.learn(told)
    return abs(ports.clock.now() - before) > policy.clock_warn_s


def _send(ports: Ports, p: Purchase, order: Order) -> tuple[Event, ...]:
    # the last look at the clock before money: a laptop that slept since the intent must not buy on waking
    if ports.clock.now() >= p.send_before:
        return _too_late(p)
    try:
        answer = ports.providers(p.offer.provider).provision(order, p.send_before)
    except Exception as error:  # any exception means that the outcome is unknown
        return (fact("unknown", p.id, error=ports.clean(f"{type(error).__name__}: {error}")),)
    if isinstance(answer, Refused):
        return (fact("refused", p.id, reason=answer.reason, why=answer.kind),)
    created: Created = answer
    return (fact("created", p.id, created=to_json(created), via="answer"),)


def _too_late(p: Purchase) -> tuple[Event, ...]:
    return (
        fact("not_sent", p.id, why="too late: the time to send had passed"),
        attempted("buy", "too late to send"),
    )


def _order(ports: Ports, s: RunState, p: Purchase, until: Time) -> Order:
    client_key, host_key = ports.host.keys(s.run)
    provider = ports.providers(s.spec.provider)
    injected = provider.traits.host_key_route == "injected"
    mark = Mark(p.mark.run, p.nonce, p.mark.owner, p.mark.limit_at, host_key.fingerprint if injected else "")
    return Order(
        mark=mark,
        member=p.member,
        offer=p.offer,
        image=s.spec.image,
        disk_gb=s.spec.disk_gb,
        volumes=s.spec.volumes,
        ssh_public_keys=(client_key, *ports.authorized_keys),
        host_key=host_key if injected else None,
        startup="",
        ends_at=p.mark.limit_at,
        allow_from=s.spec.allow_from or ((provider.caller(until),) if isinstance(provider, AdmitsCaller) else ()),
    )
