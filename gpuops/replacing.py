"""When a lost rental may be replaced, what the next one goes on from, and how often a run may buy."""

from __future__ import annotations

from gpuops.policy import Policy
from gpuops.purchase import Purchase
from gpuops.state import RunState
from gpuops.values import Copied, Time


def intents_left(s: RunState, policy: Policy) -> int:
    """How many more create calls the run may decide on; each replacement brings its own, and so does each further offer."""
    return policy.intents_max + len(s.replaced) - len([p for p in s.intents if not p.passed])


def replaceable(s: RunState, now: Time, policy: Policy) -> Purchase | None:
    """The rental that was lost and may be replaced now, or None.

    Only where the approved manifest says so, as often as it says, only when the lost one is proved gone, and only while cap
    and deadline leave time that is worth a machine. A program that failed by itself is not run again.
    """
    p = s.rental
    if p is None or p.life != "gone" or s.wanted != "training" or s.adopted or s.plan_digest not in s.approved:
        return None
    if len(s.replaced) >= s.spec.train.resume or p.work.outcome not in ("", "interrupted"):
        return None
    _, deadline = s.ends(now)
    return p if deadline - now >= policy.replace_least_s else None


def newest_copy(s: RunState) -> Copied | None:
    """The newest generation of the run that has a verified copy."""
    for p in reversed(s.intents):
        published = p.work.status.generations if p.work.status else ()
        # what the host showed is ordered by step; a copy that it no longer shows is older
        known = [c for g, c in p.work.copied.items() if g != "telemetry" and g not in published]
        known += [p.work.copied[g] for g in published if g in p.work.copied]
        if known:
            return known[-1]
    return None
