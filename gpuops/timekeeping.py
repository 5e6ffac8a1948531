"""The provider's time: asked for before anything is decided by a clock, and again before what cannot be undone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuops.codec import to_json
from gpuops.errors import GpuopsError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import fact
from gpuops.values import Event, Observation, Ref, Scope, Time


def look(ports: Ports, s: RunState, p: Purchase, ref: Ref, until: Time) -> tuple[Observation, Event]:
    """One look by id, which also corrects this process's clock; returns it with the fact to record. Raises `GpuopsError`."""
    provider = ports.providers(s.spec.provider)
    seen = provider.inspect(ref, until)
    if seen.provider_time is not None:
        ports.clock.learn(seen.provider_time)
    grade = provider.traits.deadline if provider.traits.deadline in ("read back", "observed to fire") else "declared"
    return seen, fact("observed", p.id, observation=to_json(seen), grade=grade)


def ask_the_time(ports: Ports, s: RunState, p: Purchase, until: Time) -> tuple[Event, ...]:
    """Hear the provider's time by a look at `p`, or by a listing where the look fails. Raises `GpuopsError` when both do."""
    if p.ref is None:
        return ()
    try:
        return (look(ports, s, p, p.ref, until)[1],)
    except Exception:
        inventory = ports.providers(s.spec.provider).list_billable(Scope((p.ref.kind,), (p.ref.region,)), until)
    if inventory.provider_time is None:
        return (fact("time_told", None, at=ports.clock.now(), by="the listing, which tells no time"),)
    ports.clock.learn(inventory.provider_time)
    return (fact("time_told", None, at=inventory.provider_time, by="the listing"),)


def confirmed(s: RunState, p: Purchase, at: Time, patience_s: float) -> bool:
    """The provider itself has said, in a look at `p` or in a listing, that `at` has come.

    One that goes on telling an old time, as behind a cache, is not waited for longer than `patience_s`: the recorder's clock
    went on since the last answer that made sense.
    """
    if s.time_told >= at:
        return True
    if p.observation is None or p.observed_at is None:
        return False
    told = p.observation.provider_time
    return (told if told is not None else p.observed_at) >= at or p.observed_at >= at + patience_s


@dataclass
class ProviderTime:
    """Whether this process has heard the provider's time. Until then it asks again every few seconds.

    This computer may be hours off: ahead, and the limit would seem to have passed; behind, and it would be slept through.
    While the provider does not answer, the time goes on as the journal's last record had it: sealing and copying do not wait.
    """

    told: bool = False
    again_at: Time = -math.inf
    warned: bool = False

    def ask(self, ports: Ports, state: RunState, policy: Policy) -> None:
        """Ask once more, unless it is known, too early, or there is nothing that the provider could be asked about."""
        now = ports.clock.now()
        held = [p.ref for p in state.intents if p.ref is not None and p.life not in ("gone", "refused")]
        if self.told or now < self.again_at or not held or state.closed:
            return
        try:
            seen = ports.providers(state.spec.provider).inspect(held[-1], now + policy.call_s)
        except Exception as error:  # an answer that an adapter cannot read must not stop who ends the bill
            self.again_at = ports.clock.now() + policy.ask_time_every_s
            why = error.message if isinstance(error, GpuopsError) else f"{type(error).__name__}: {error}"
            if not self.warned:
                ports.notify(state.run, "warning", f"the provider's time is not known: {ports.clean(why)}")
            self.warned = True
            return
        self.told = True
        if seen.provider_time is None:
            return
        ports.clock.learn(seen.provider_time)
        off = ports.clock.wall() - seen.provider_time
        if abs(off) > policy.clock_warn_s:
            ports.notify(state.run, "warning", f"this computer's clock is {off:+.0f} s off; the provider's time counts")
