"""Admit: a firewall of the rental's own lets this computer in. A person moves, and with them the address."""

from __future__ import annotations

from gpuops.errors import GpuopsError, ProviderError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import AdmitsCaller
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Event, Time

_ELSEWHERE = ("admit", "attach", "observe", "survey", "terminate", "prove_gone", "move_end", "enforce_limit")
"""Rules whose failures say nothing about the way to the host."""


def admit(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Compare the addresses before the first connection, and again after every failure to reach the host."""
    p = s.rental
    if "admit" not in s.after_create or s.spec.allow_from or p is None or p.life != "created" or p.endpoint is None:
        return None
    if p.work.admitted_at is not None and _failed_at(s, p) <= p.work.admitted_at:
        return None
    due = s.due("admit", policy, p.id)
    if due > now:
        return Wait(due, "comparing this computer's address with the firewall's")
    return Do("admit", _admit, bounded(now, policy.call_s, s.limit), p.id, detail="comparing addresses")


def _failed_at(s: RunState, p: Purchase) -> Time:
    tried = (a.at for (rule, pid), a in s.attempts.items() if pid == p.id and a.failures and rule not in _ELSEWHERE)
    return max(tried, default=0.0)


def _admit(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    p, provider = s.purchases[do.purchase or ""], ports.providers(s.spec.provider)
    if p.ref is None or not isinstance(provider, AdmitsCaller):
        raise ProviderError("this provider has no firewall to move")
    try:
        here = provider.caller(do.until)
        sources = p.work.admitted if here in p.work.admitted else provider.admit(p.ref, (here,), do.until)
    except GpuopsError as error:
        return (attempted("admit", error.message, p.id),)
    if here not in sources:
        return (attempted("admit", f"the firewall admits {', '.join(sources) or 'nobody'} and not {here}", p.id),)
    return (fact("admitted", p.id, sources=list(sources)),)
