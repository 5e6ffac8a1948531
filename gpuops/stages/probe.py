"""Probe: a few updates before the real ones, and what does not fit is not launched."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import CopyError, HostError, Unreachable
from gpuops.fitting import fits, forecast
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Endpoint, Event, Time


def probe(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Once the environment is as expected; a rental that replaces another one is not measured again."""
    p = s.to_prepare
    if (
        s.spec.train.probe is None
        or p is None
        or p.endpoint is None
        or p.work.probed is not None
        or s.restore is not None
    ):
        return None
    if s.spec.environment is not None and not p.work.environment_ok:
        return None
    failed = s.failures("probe", p.id)
    if failed and failed.final:
        return None
    due = s.due("probe", policy, p.id)
    if due > now:
        return Wait(due, "asking for the probe again")
    effect = partial(_probe, endpoint=p.endpoint, policy=policy)
    return Do("probe", effect, bounded(now, policy.bulk_slice_s, s.limit, s.deadline), p.id)


def _probe(ports: Ports, s: RunState, do: Do, endpoint: Endpoint, policy: Policy) -> tuple[Event, ...]:
    p = s.purchases[do.purchase or ""]
    secrets = {name: ports.secret(name) or "" for name in s.spec.secrets}
    try:
        found = ports.host.probe(s.run, endpoint, s.spec, secrets, do.until)
        if isinstance(found, str):
            return (fact("probing", p.id, tail=found),)
        room = ports.store.free_bytes(s.spec.outputs.destination)
    except (Unreachable, CopyError) as error:
        return (attempted("probe", error.message, p.id),)
    except HostError as error:
        return (attempted("probe", error.message, p.id, final=True),)
    checks = [to_json(c) for c in fits(found, s, ports.clock.now(), policy, room)]
    return (fact("probed", p.id, found=to_json(found), checks=checks, forecast=forecast(found, s, policy)),)
