"""Attach: volumes that exist already join a rental that runs, where the provider attaches them by a call of their own."""

from __future__ import annotations

from functools import partial

from gpuops.errors import GpuopsError, ProviderError
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.provider import AttachesVolumes
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Event, Time, VolumeUse


def attach(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Attach the first volume that is not seen attached and kept yet."""
    p = s.rental
    if "attach" not in s.after_create or p is None or p.life != "created" or s.wanted == "closed" or not p.running:
        return None
    volume = next((v for v in s.spec.volumes if v.id not in p.work.attached), None)
    if volume is None:
        return None
    due = s.due("attach", policy, p.id)
    if due > now:
        return Wait(due, f"attaching volume {volume.id}")
    effect = partial(_attach, volume=volume)
    return Do("attach", effect, bounded(now, policy.call_s, s.limit), p.id, detail=f"attaching volume {volume.id}")


def _attach(ports: Ports, s: RunState, do: Do, volume: VolumeUse) -> tuple[Event, ...]:
    p, provider = s.purchases[do.purchase or ""], ports.providers(s.spec.provider)
    if p.ref is None or not isinstance(provider, AttachesVolumes):
        raise ProviderError(f"volume {volume.id} cannot be attached")
    try:
        provider.attach(p.ref, volume, do.until)
    except GpuopsError as error:
        return (attempted("attach", error.message, p.id),)
    return (fact("attached", p.id, volume=volume.id),)
