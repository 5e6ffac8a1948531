"""Enforce the limit: decide that a run must go down, and at the limit that it goes down without a verified copy."""

from __future__ import annotations

from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.purchase import HELD, Purchase, Work
from gpuops.replacing import intents_left, replaceable
from gpuops.state import RunState
from gpuops.steps import Do, Step, Wait, announce, bounded, fact, first_due
from gpuops.timekeeping import ask_the_time, confirmed
from gpuops.values import Event, HostStatus, Time

_REACHING = ("attach", "move_end", "admit", "check_host")
"""The rules between an address and a checked host, in their order."""


def enforce_limit(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Wish the run closed when a bound is reached; force the end at the limit."""
    if s.wanted != "closed":
        cause = why_down(s, now, policy)
        asking = _unsure(s, now, policy) if cause else None
        if isinstance(asking, Do):
            return asking
        if cause and asking is None:
            wish = fact("wanted", None, what="closed", cause=cause)
            return Do(
                "enforce_limit", announce("warning", f"going down: {cause}"), bounded(now, policy.call_s), decision=wish
            )
    step = first_due(_end(s, p, now, policy) for p in s.purchases.values())
    return step if isinstance(step, Do) else first_due([step, _next_bound(s, now, policy)])


def _end(s: RunState, p: Purchase, now: Time, policy: Policy) -> Step | None:
    """The end of a retention, or of a rental whose work is not copied at the limit."""
    if p.life == "retained" and now >= min(p.retained_until or 0.0, s.limit):
        said = f"the retention of {p.ref} is over: {p.retained_why}"
        return Do("enforce_limit", announce("warning", said), bounded(now, policy.call_s), p.id, fact("released", p.id))
    if p.life not in ("created", "ended_elsewhere") or p.work.safe_to_end or now < s.limit:
        return None
    asked = s.failures("enforce_limit", p.id)
    unsure = asked is None or asked.failures < policy.confirm_attempts
    if p.ref is not None and unsure and not confirmed(s, p, s.limit, policy.confirm_s):
        # what cannot be undone is not decided by this computer's clock, and without the provider nothing ends anyway
        due = _ask_due(s, p, now, policy)
        if due > now:
            return Wait(due, "the limit seems to be reached: asking the provider for the time")
        return Do("enforce_limit", _ask_the_time, bounded(now, policy.call_s), p.id)
    said = f"limit reached without a verified copy of everything sealed: {p.ref} is ended now"
    decision = fact("forced", p.id, reason="limit reached", by="limit")
    return Do("enforce_limit", announce("alarm", said), bounded(now, policy.call_s), p.id, decision)


def _unsure(s: RunState, now: Time, policy: Policy) -> Step | None:
    """Training would be stopped by the clock, and the provider has not said yet that it is that late."""
    p, bound = s.rental, min(s.teardown_at(policy), s.limit)
    if (
        p is None
        or p.life not in HELD
        or p.work.launching_at is None
        or now < bound
        or confirmed(s, p, bound, policy.confirm_s)
    ):
        return None
    asked = s.failures("enforce_limit", p.id)
    if asked is not None and asked.failures >= policy.confirm_soon:
        return None
    due = _ask_due(s, p, now, policy)
    if due > now:
        return Wait(due, "the deadline seems near: asking the provider for the time")
    return Do("enforce_limit", _ask_the_time, bounded(now, policy.call_s), p.id)


def _ask_due(s: RunState, p: Purchase, now: Time, policy: Policy) -> Time:
    """When to ask again: a provider that goes on telling an old time is not asked without a pause."""
    heard_at = max(p.observed_at or 0.0, s.time_told_at)
    pause = heard_at + policy.ask_time_every_s if heard_at <= now else now
    return max(s.due("enforce_limit", policy, p.id), pause)


def _ask_the_time(ports: Ports, s: RunState, do: Do) -> tuple[Event, ...]:
    told = ask_the_time(ports, s, s.purchases[do.purchase or ""], do.until)
    return tuple(Event(e.kind, e.data, do.purchase) for e in told)


def why_down(s: RunState, now: Time, policy: Policy) -> str:
    """The reason why this run must go down now, or an empty string."""
    rental = s.rental
    if rental is None:
        return _why_not_bought(s, now, policy)
    work = rental.work
    if now >= s.limit:
        return "limit reached"
    if now >= s.teardown_at(policy):
        return "deadline: seal and copy must start now to be complete by it"
    # not already when it is said to have ended: a status may lie, and training would be stopped for nothing
    if rental.life == "gone":
        if replaceable(s, now, policy):
            return ""
        return f"the rental ended without us: {rental.cause or 'nobody said why'}"
    if work.outcome:
        delay = s.spec.teardown.keep_failed_s if work.outcome not in ("completed", "ended") else 0
        due = (work.ended_at or now) + delay
        return f"training {work.outcome}" if s.spec.teardown.when == "ended" and now >= due else ""
    return _beyond(s, work) or _why_not_trained(s, rental, now, policy)


def _beyond(s: RunState, work: Work) -> str:
    """A program that does not know `max_updates` and `max_tokens` is stopped when it tells that it went beyond them."""
    beat = work.status.beat if work.status is not None else {}
    for name, most in (("step", s.spec.train.max_updates), ("tokens", s.spec.train.max_tokens)):
        told = beat.get(name)
        if most and isinstance(told, (int, float)) and told > most:
            return f"training is at {name} {told:,.0f}, and the manifest allows {most:,}"
    return ""


def _why_not_bought(s: RunState, now: Time, policy: Policy) -> str:
    if now >= s.limit:
        return "the time of the plan has passed"
    if s.preflight_final:
        return f"not bought: {s.preflight_problem}"
    if s.refused:
        return f"the provider refused: {s.refused[-1].cause}"
    if intents_left(s, policy) <= 0:
        return f"{len(s.intents)} create calls led to nothing"
    if s.wanted != "nothing" and now >= _buying_since(s) + policy.allocate_s:
        problem = s.failures("buy")
        return f"nothing bought within {policy.allocate_s:.0f} s" + (f": {problem.error}" if problem else "")
    return ""


def _buying_since(s: RunState) -> Time:
    """From when on nothing but the provider was waited for; the first preflight may have put the clock right by hours."""
    own = (s.first_at.get(kind, 0.0) for kind in ("approved", "preflight"))
    return max([s.wanted_at, *own, *(p.replaced_at or 0.0 for p in s.replaced)])


def _why_not_trained(s: RunState, rental: Purchase, now: Time, policy: Policy) -> str:
    work = rental.work
    if rental.doubtful:
        if s.preflight_final:
            return f"the create call's outcome is unknown, and no other is possible: {s.preflight_problem}"
        return "the create call's outcome stayed unknown" if now >= _doubt_ends(rental, policy) else ""
    for name in ("check_host", "transfer", "environment", "probe", "resume", "launch"):
        failed = s.failures(name, rental.id)
        if failed and failed.final and s.spec.checks.on_failure == "down":
            return f"{name.replace('_', ' ')} failed: {failed.error}"
    if rental.life == "ended_elsewhere":
        return ""  # that it is gone is being proved, and nothing is waited for on it
    wrong = _wrong(work)
    if wrong and s.spec.checks.on_failure == "down":
        return f"checks failed: {wrong}"
    bound = next(((at, why) for at, why in _bounds(s, rental, policy) if now >= at), None)
    return bound[1] if bound else ""


def _wrong(work: Work) -> str:
    checks = (*work.checks, *work.environment_checks, *work.probe_checks)
    return "; ".join(f"{c.name}: expected {c.expected}, seen {c.seen}" for c in checks if not c.ok)


def _doubt_ends(p: Purchase, policy: Policy) -> Time:
    """Until then the run searches for an unknown rental and may buy another; afterwards only the search goes on."""
    return p.intended_at + policy.search_active_s + policy.allocate_s


def _bounds(s: RunState, p: Purchase, policy: Policy) -> list[tuple[Time, str]]:
    """Moments at which the present phase has lasted too long, each with its named outcome."""
    work = p.work
    if work.endpoint_at is None:
        said = f"; the provider says: {p.observation.reason}" if p.observation and p.observation.reason else ""
        if work.image_at is not None:
            return [(work.image_at + policy.image_s, f"the image was not there within {policy.image_s:.0f} s{said}")]
        why = f"no running host within {policy.allocate_s:.0f} s of the purchase{said}"
        return [(p.intended_at + policy.allocate_s, why)]
    if work.checked_at is None:
        failed = next((s.failures(rule, p.id) for rule in _REACHING if s.failures(rule, p.id)), None)
        last = f"; last: {failed.error}" if failed else ""
        return [(work.endpoint_at + policy.ssh_s, f"the host was not reached within {policy.ssh_s:.0f} s{last}")]
    if work.launching_at is None:
        if _wrong(work):
            why = f"held {s.spec.setup_s:.0f} s for a look, because checks failed: {_wrong(work)}"
            return [(work.checked_at + s.spec.setup_s, why)]
        if s.wanted == "training":
            return _preparing_bounds(s, work, max(s.wanted_at, work.checked_at), policy)
        return [(work.checked_at + s.spec.setup_s, f"not launched within {s.spec.setup_s:.0f} s of being ready")]
    if work.launched_at is None:
        failed = s.failures("launch", p.id)
        last = f"; last: {failed.error}" if failed else ""
        return [(work.launching_at + policy.launch_s, f"training did not start within {policy.launch_s:.0f} s{last}")]
    due = work.launched_at + policy.first_update_s
    # by a look that was made after it: a computer that slept, or a line that was down, says nothing about training
    if work.status is not None and (work.status_at or 0.0) >= due and _silent(s, work, work.status):
        return [(due, f"training showed no update within {policy.first_update_s:.0f} s of its start")]
    return []


def _silent(s: RunState, work: Work, status: HostStatus) -> bool:
    """Training shows no sign: no update, no generation, and, unless the manifest wants one of these, no line in its log."""
    if work.first_update_at is not None or status.generations or work.outcome:
        return False
    return bool(s.spec.timeouts.first_update_s) or not status.log_tail


def _preparing_bounds(s: RunState, work: Work, begun: Time, policy: Policy) -> list[tuple[Time, str]]:
    """Sending, making the environment and the probe, one after the other."""
    if work.sent_at is None:
        return [(begun + policy.transfer_s, "the transfer took too long")]
    ready = work.sent_at
    if s.spec.environment is not None:
        if work.environment_at is None:
            why = f"the environment of training was not ready within {policy.environment_s:.0f} s"
            return [(ready + policy.environment_s, why)]
        ready = work.environment_at
    probe = s.spec.train.probe
    if probe is not None and work.probed is None and s.restore is None:
        seconds = probe.timeout_s + policy.probe_extra_s
        return [(ready + seconds, f"the probe told nothing within {seconds:.0f} s")]
    return [(ready + policy.transfer_s, "training was not launched")]


def _next_bound(s: RunState, now: Time, policy: Policy) -> Step | None:
    """When to look again, so that no bound is passed asleep."""
    rental = s.rental
    ahead = [(s.limit, "the limit")]
    ahead += [(p.retained_until or 0.0, "the end of a retention") for p in s.purchases.values() if p.life == "retained"]
    if s.wanted == "closed":
        following = min((a for a in ahead if a[0] > now), default=None)
        return Wait(*following) if following else None
    if rental is None:
        ahead += [(_buying_since(s) + policy.allocate_s, "buying")] if s.wanted != "nothing" else []
    else:
        bounds = [(_doubt_ends(rental, policy), "the search")] if rental.doubtful else _bounds(s, rental, policy)
        ahead += [(s.teardown_at(policy), "the start of teardown"), *bounds]
    if rental is not None and rental.work.outcome and s.spec.teardown.when == "ended":
        ahead.append(((rental.work.ended_at or now) + s.spec.teardown.keep_failed_s, "the end of keep_failed"))
    following = min((a for a in ahead if a[0] > now), default=None)
    return Wait(*following) if following else None
