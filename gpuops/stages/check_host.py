"""Check the host: pin its key before the first connection, then compare what is there with what was ordered."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import HostError, HostKeyMismatch, Unreachable
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import TellsHostKey
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Check, Endpoint, Event, Time


def check_host(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Pin and check a rental that runs, until it answered once."""
    p = s.rental
    if p is None or p.life != "created" or s.wanted not in ("ready", "training") or p.work.checked_at is not None:
        return None
    if not p.running or p.endpoint is None:
        return None
    failed = s.failures("check_host", p.id)
    if failed and failed.final:
        return None
    if unfinished(s, p):
        return None
    due = failed.at + policy.ssh_every_s if failed else now
    if due > now:
        return Wait(due, "waiting for the host to answer")
    call_s = policy.checks_s + (policy.install_s if s.spec.host_tools == "install" else 0)
    # no later than the bound on reaching it: a login that hangs must not move the named outcome
    until = bounded(now, call_s, s.limit, (p.work.endpoint_at or now) + policy.ssh_s)
    return Do("check_host", partial(_check, endpoint=p.endpoint, policy=policy), until, p.id)


def unfinished(s: RunState, p: Purchase) -> str:
    """What this provider still needs beside the create call before the host is looked at, in the words of its rule."""
    if "attach" in s.after_create and p.work.attached < {v.id for v in s.spec.volumes}:
        return "attach"
    if "arm" in s.after_create and "provider timer" not in s.layers:
        return "move_end"
    return "admit" if "admit" in s.after_create and not s.spec.allow_from and p.work.admitted_at is None else ""


def _check(ports: Ports, s: RunState, do: Do, endpoint: Endpoint, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    try:
        fingerprint, route = _pin(ports, s, p, endpoint, do.until)
        facts = ports.host.check(s.run, endpoint, s.spec, do.until)
    except HostKeyMismatch as error:
        wrong = Check("host key", "the key that was injected or read from the provider", error.message, False)
        ports.notify(s.run, "alarm", error.message)
        return (fact("checked", p.id, checks=[to_json(wrong)], facts={}, boot_id=""),)
    except Unreachable as error:
        return (attempted("check_host", error.message, p.id),)
    except HostError as error:
        return (attempted("check_host", error.message, p.id, final=True),)
    if late := _mounting(s, p, facts.checks, ports.clock.now(), policy):
        return (attempted("check_host", late, p.id),)
    checks = [to_json(Check("host key", fingerprint, fingerprint, True)), *(to_json(c) for c in facts.checks)]
    return (
        fact("pinned", p.id, fingerprint=fingerprint, route=route),
        fact("checked", p.id, checks=checks, facts=facts.facts, boot_id=facts.boot_id),
    )


def _mounting(s: RunState, p: Purchase, checks: tuple[Check, ...], now: Time, policy: Policy) -> str:
    """What is wrong with a volume that was attached a moment ago: its device and its mount may take a little longer."""
    wrong = next((c for c in checks if not c.ok and c.name.startswith("volume ")), None)
    if wrong is None or "attach" not in s.after_create or now >= (p.work.endpoint_at or now) + policy.ssh_s / 2:
        return ""
    return f"{wrong.name}: expected {wrong.expected}, seen {wrong.seen}"


def _pin(ports: Ports, s: RunState, p: Purchase, endpoint: Endpoint, until: Time) -> tuple[str, str]:
    """Pin the key by the best route there is and return (fingerprint, route).

    Injected: the run made the key itself. Mark or provider: the fingerprint came over the authenticated API and the presented
    key must match it. Otherwise only where the manifest accepts trust on first use in so many words.
    """
    provider = ports.providers(s.spec.provider)
    if provider.traits.host_key_route == "injected" and not s.adopted:
        return ports.host.pin(s.run, endpoint, ports.host.keys(s.run)[1].public), "injected"
    expected, route = p.mark.host_key, "mark"
    if not expected and isinstance(provider, TellsHostKey) and p.ref is not None:
        expected, route = provider.host_key(p.ref, until) or "", "provider"
        if not expected:
            raise Unreachable("the provider does not know the host key yet")
    presented = ports.host.scan(s.run, endpoint, until)
    if expected:
        fingerprint = ports.host.pin(s.run, endpoint, presented)
        if fingerprint != expected:
            raise HostKeyMismatch(f"the host presents {fingerprint}, the {route} says {expected}")
        return fingerprint, route
    if not s.spec.accept_first_use:
        raise HostError("no independent route to the host key, and the manifest does not accept trust on first use")
    return ports.host.pin(s.run, endpoint, presented), "first use"
