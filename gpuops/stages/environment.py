"""Environment: make on the host what training runs in, and compare what is found there with what the manifest expects."""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import HostError, Unreachable
from gpuops.fitting import runs_as_expected
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Endpoint, Event, Time


def environment(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Once everything was sent, and until it is there: the host goes on with it while nobody asks."""
    p = s.to_prepare
    if s.spec.environment is None or p is None or p.endpoint is None or p.work.environment_at is not None:
        return None
    failed = s.failures("environment", p.id)
    if failed and failed.final:
        return None
    due = s.due("environment", policy, p.id)
    if due > now:
        return Wait(due, "asking for the environment again")
    effect = partial(_prepare, endpoint=p.endpoint)
    return Do("environment", effect, bounded(now, policy.bulk_slice_s, s.limit, s.deadline), p.id)


def _prepare(ports: Ports, s: RunState, do: Do, endpoint: Endpoint) -> tuple[Event, ...]:
    wanted = s.spec.environment
    if wanted is None:
        return ()
    try:
        found = ports.host.environment(s.run, endpoint, s.spec, do.until)
    except Unreachable as error:
        return (attempted("environment", error.message, do.purchase),)
    except HostError as error:
        return (attempted("environment", error.message, do.purchase, final=True),)
    if isinstance(found, str):
        return (fact("building", do.purchase, tail=found),)
    driver = s.purchases[do.purchase or ""].work.facts.get("driver", "")
    checks = [to_json(c) for c in runs_as_expected(found, wanted, driver)]
    return (fact("environment", do.purchase, found=to_json(found), checks=checks),)
