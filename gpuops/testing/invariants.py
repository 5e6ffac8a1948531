"""What must hold in every life, checked against the truth: the list of the design, each with a name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal

from gpuops.codec import to_json
from gpuops.fold import fold
from gpuops.policy import Policy
from gpuops.state import RunState
from gpuops.testing.cloud import Cloud, Machine
from gpuops.testing.faults import ACCEPT_S, SENTINEL_EVERY_S, Faults
from gpuops.testing.host import Hosts
from gpuops.testing.scheduler import Life
from gpuops.values import Record

CANARY = "canary-7f3a9c"
"""The value of the one secret of every simulated run."""

NAMES: dict[str, str] = {
    "unexplained": "nothing of ours bills when the run is closed, unless a purchase is recorded as unproven",
    "copied first": "no rental is asked to end before its newest generation is copied and verified, unless forced is recorded",
    "forced": "forced is recorded only at the limit, or with the user's reason",
    "spend": "what the provider charges stays within the cap and the stated bound",
    "one create": "at most one create effect per intent",
    "intent first": "the intent is in the journal before its create call takes effect",
    "sent in time": "no create call takes effect later than its time to send allows",
    "gone": "gone, refused and not sent are never recorded while the provider bills",
    "fresh": "no decision is made on a stale version",
    "recorded": "the outcome of an outside effect of a living driver is recorded before its next one",
    "until": "no call may last longer than its step allows",
    "replaced": "a lost rental is replaced only as approved, after it ended for certain, and from the newest verified copy",
    "extended": "an extension counts only when every layer has been moved",
    "secret": "no secret is in the journal",
    "verified": "what is recorded as copied is published and verified, and never changes again",
    "others": "what is not ours is never asked to end, except by a sentinel past the limit in its mark",
    "liveness": "once faults stop every run closes and nothing of ours is left",
    "dead": "a dead driver changes nothing",
    "bug": "no rule and no effect raises what is not an error of gpuops",
}

_LONGEST_S: dict[str, float] = {
    "send": 1_800,
    "preview": 300,
    "seal": 3_930,
    "fetch": 60,
    "fetched": 60,
    "hash": 3_900,
    "restore": 1_800,
    "reach": 1_800,
}


@dataclass
class Watch:
    """Sees every append, call and effect of a life, and keeps what was violated."""

    faults: Faults
    cloud: Cloud
    hosts: Hosts
    policy: Policy
    state: RunState | None = None
    version: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)
    checks: Counter[str] = field(default_factory=Counter)
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    user_forced: bool = False
    overspent: float = 0.0
    """What was charged beyond the cap, as a part of the stated bound."""
    beyond_cap: float = 0.0
    """What was charged beyond the cap, in money; negative below it."""
    _open: dict[Life, str] = field(default_factory=dict)

    def check(self, name: str, holds: bool, said: str) -> None:
        """Count one check, and keep it when it fails."""
        self.checks[name] += 1
        if not holds:
            self.violations.append((name, said))

    def note(self, life: Life, text: str) -> None:
        """One line of the trace."""
        self.trace.append((life.now, life.name, text))

    # --- the journal

    def decided(self, record: Record, expected: int, before: int, life: Life) -> None:
        """A decision was appended."""
        self._open.pop(life, None)
        self.check(
            "fresh", expected == before, f"{record.event.kind} was decided on {expected}, the run is at {before}"
        )
        self._take(record, life)

    def told(self, records: tuple[Record, ...], life: Life) -> None:
        """Facts were appended."""
        self._open.pop(life, None)
        for record in records:
            self._take(record, life)

    def _take(self, record: Record, life: Life) -> None:
        e, now = record.event, life.now
        mark = "decides" if record.decision else "records"
        text = json.dumps(e.data, sort_keys=True)
        self.note(life, f"{mark} {record.seq} {e.kind} {e.purchase or ''} {_short(e.kind, text)}")
        self.check("secret", CANARY not in text, f"the secret is in {e.kind}")
        self.check("dead", not life.dead, f"{life.name} is dead and wrote {e.kind}")
        before = self.state
        self.state = fold([record], self.state)
        self.version = record.seq
        if before is None or self.state is None:
            return
        if e.kind in ("gone", "refused", "not_sent"):
            self._final(record, now)
        elif e.kind == "closed":
            self._closed(now)
        elif e.kind == "forced":
            by_limit = e.data["by"] == "limit"
            # the clock of a driver may be off by rounding, and by its first error until an answer corrects it
            fine = now >= before.limit - 35 if by_limit else self.user_forced
            self.check("forced", fine, f"forced by {e.data['by']} {before.limit - now:.0f} s before the limit")
        elif e.kind == "replaced":
            self._replaced(record, now)
        elif e.kind == "launched":
            self._launched(record)
        elif e.kind == "extended":
            self._extended(now)
        elif e.kind == "copied":
            path = e.data["copied"]["path"]
            self.check("verified", path in self.hosts.verified, f"{path} is recorded as copied and is not published")

    def _final(self, record: Record, now: float) -> None:
        assert self.state is not None
        p = self.state.purchases[record.event.purchase or ""]
        machines = [m for m in self.cloud.machines if m.ref == p.ref] if p.ref else self.cloud.ours(p.nonce)
        billing = [str(m.ref) for m in machines if m.bills(now)]
        self.check(
            "gone", not billing or p.life == "created", f"{p.id} is recorded as {record.event.kind}: {billing} bills"
        )

    def _closed(self, now: float) -> None:
        assert self.state is not None
        unproven = {p.nonce for p in self.state.purchases.values() if p.life == "unproven"}
        left = [str(m.ref) for m in self.cloud.ours() if m.bills(now) and m.nonce not in unproven]
        self.check("unexplained", not left, f"the run is closed and {left} bills")

    def _replaced(self, record: Record, now: float) -> None:
        assert self.state is not None
        lost = self.state.purchases[record.event.purchase or ""]
        machine = self.cloud.find(lost.ref) if lost.ref else None
        self.check("replaced", machine is None or not machine.bills(now), f"{lost.ref} is replaced and bills")
        allowed = self.state.spec.train.resume
        self.check("replaced", len(self.state.replaced) <= allowed, f"replaced more often than {allowed} times")
        copies = [self.hosts.verified[c.path] for c in lost.work.copied.values() if c.path in self.hosts.verified]
        newest = max((g.step for g in copies if g.id != "telemetry"), default=-1)
        chosen = self.hosts.verified[self.state.restore.path].step if self.state.restore else -1
        self.check("replaced", chosen >= newest, f"goes on from step {chosen}, {newest} is copied")

    def _launched(self, record: Record) -> None:
        assert self.state is not None
        p = self.state.purchases[record.event.purchase or ""]
        training = self.hosts.training.get(p.ref.id) if p.ref else None
        if self.state.restore is not None and training is not None and not training.sealed:
            wanted = self.hosts.verified[self.state.restore.path].step + 1
            self.check("replaced", training.first == wanted, f"training begins at {training.first}, not at {wanted}")

    def _extended(self, now: float) -> None:
        assert self.state is not None
        limit = self.state.limit - 2
        for p in self.state.purchases.values():
            machine = self.cloud.find(p.ref) if p.ref and p.life == "created" and not p.twin_of else None
            if machine is None or not machine.bills(now) or machine.mark is None:
                continue
            fine = machine.mark.limit_at >= limit and machine.ends_at >= limit
            self.check("extended", fine, f"{machine.ref}: mark {machine.mark.limit_at - limit:.0f} s off")

    def unwritable(self, life: Life) -> None:
        """An append failed: what was done stays unrecorded, and the driver says so by ending."""
        self._open.pop(life, None)

    # --- calls and effects

    def called(self, to: str, what: str, left: float, life: Life) -> None:
        """A call is about to be made."""
        if to == "disk":
            return
        # the first answer of a provider corrects the clock in the middle of a step
        longest = _LONGEST_S.get(what, self.policy.call_s) + 31
        if what in ("hash", "seal") and self.state is not None:
            # a pass that was cut starts over and gets more time, but never beyond the limit
            longest = max(longest, self.state.limit + 40 - life.now)
        self.check("until", left <= longest, f"{what} may last {left:.0f} s")

    def effect(self, what: str, life: Life) -> None:
        """An outside effect is about to happen."""
        self.check("dead", not life.dead, f"{life.name} is dead and did {what}")
        if what in ("provision", "terminate", "launch", "set_end"):
            earlier = self._open.get(life, "")
            self.check("recorded", not earlier, f"{life.name} did {what}, and {earlier} is not recorded")
            if life.name != "sentinel":
                self._open[life] = what
        if what == "provision":
            intended = self.state is not None and any(p.ref is None for p in self.state.purchases.values())
            self.check("intent first", intended, f"{life.name} sends a create call without an intent in the journal")
        self.note(life, f"does {what}")

    def creates(self, now: float) -> None:
        """Compare every create effect with the journal; called at the end and before each terminate."""
        deeds = [d for d in self.cloud.deeds if d.what == "create"]
        for number in Counter(d.nonce for d in deeds).values():
            self.check("one create", number == 1, f"{number} create effects for one intent")
        known = {p.nonce: p for p in self.state.purchases.values()} if self.state else {}
        for deed in deeds:
            self.check("intent first", deed.nonce in known, f"{deed.ref} was created without an intent")
            if deed.nonce in known:
                late = deed.at - known[deed.nonce].send_before
                self.check("sent in time", late <= ACCEPT_S + 5, f"{deed.ref} was created {late:.0f} s too late")

    def terminating(self, machine: Machine | None, now: float, who: str) -> None:
        """A terminate request is about to arrive."""
        if machine is None or machine.ended_at <= now:
            return
        if machine.whose != "ours" or who == "sentinel":
            past = machine.mark is not None and now > machine.mark.limit_at - 35
            self.check("others", who == "sentinel" and past, f"{who} ends {machine.ref}, which is {machine.whose}")
            return
        newest = self.hosts.newest(machine, now)
        if newest is None or self.state is None:
            return
        forced = any(p.ref == machine.ref and p.work.forced for p in self.state.purchases.values())
        safe = forced or self.hosts.holds(newest)
        unwritable = self.faults.journal_full and now >= self.state.limit - 35
        said = f"{who} ends {machine.ref}, and {newest.id} is nowhere else"
        self.check("copied first", safe or bool(unwritable), said)

    # --- the end

    def finish(self, now: float, why: str) -> None:
        """Everything that can only be said at the end."""
        self.creates(now)
        self.check("verified", not self.hosts.damaged, "; ".join(self.hosts.damaged))
        closed = self.state is None or self.state.closed
        left = [str(m.ref) for m in self.cloud.ours() if m.bills(now)]
        phase = self.state.phase if self.state else "absent"
        left += [str(ref) for ref in self.cloud.keys]
        left += [str(ref) for ref in self.cloud.disks if self.cloud.disk_bills(ref, now)]
        self.check("liveness", closed and not left, f"{why}: the run is {phase}, {left} bills")
        if self.state is not None:
            cost = sum((m.cost(now) for m in self.cloud.ours()), Decimal(0))
            extra = self.overspend_bound()
            bound = self.state.spec.cap.amount + Decimal(str(extra))
            self.beyond_cap = float(cost - self.state.spec.cap.amount)
            self.overspent = self.beyond_cap / max(extra, 0.01)
            self.check("spend", cost <= bound, f"charged {cost:.2f}, cap {self.state.spec.cap}, bound {bound:.2f}")

    def overspend_bound(self) -> float:
        """What may be charged beyond the cap: the stated seconds at the rate, and one begun billing unit of each machine."""
        rate = max([self.faults.rate, *(float(m.rate.amount) for m in self.cloud.ours())])
        hourly = rate * self.faults.billing_unit_s / 3600
        return rate * sum(self.overspend_seconds().values()) / 3600 + hourly * len(self.cloud.ours())

    def overspend_seconds(self) -> dict[str, float]:
        """Seconds beyond the limit, by what may cause them, over all machines of this life.

        After the limit a rental lives until a layer sees it (the fastest that works), plus outages, late visibility, gaps,
        terminates that are ignored or lost, and the time that ending takes. A second machine from one create call is not in
        the cap: it lives until the survey or, with everybody asleep, until its limit.
        """
        f, machines = self.faults, len(self.cloud.ours())
        layer = min(
            {"fires": 5.0, "late": 405.0}.get(f.timer, 1e9),
            2 * SENTINEL_EVERY_S + 240 if f.sentinel else 1e9,
            f.longest_pause + 4 * self.policy.wake_s + 120,
        )
        each = {
            "clock error": 40.0,
            "until a layer looks": layer,
            "outages": sum(b - a for a, b in f.outages) + (f.revoked[1] - f.revoked[0]),
            "late visibility": f.listed_after_s,
            "gaps, limits, slow answers": 900.0 * bool(f.gap_part)
            + 600.0 * bool(f.limited_part)
            + 600.0 * bool(f.slow_part),
            "tail of ending": f.terminate_s + 320.0 * (f.ignored_terminates + f.lost_terminates),
            "calls": 2 * self.policy.call_s,
        }
        seconds = {name: value * machines for name, value in each.items()}
        if f.twin:
            found = self.policy.survey_every_s + 300 + f.longest_pause + f.operator.asleep_s
            alive = min(found, f.deadline_s + f.hold_s)
            seconds["a second machine"] = (alive + sum(each.values())) * machines / 2
        return seconds


def _short(kind: str, text: str) -> str:
    return "" if kind in ("planned", "intended", "sealed", "reconciled") else text[:160]


def trace_text(watch: Watch, start: float) -> str:
    """The trace for a person: seconds since the start, who, what."""
    lines = [f"{at - start:10.2f}  {who:<9} {what}" for at, who, what in sorted(watch.trace, key=lambda t: t[0])]
    return "\n".join(lines)


def story(faults: Faults) -> str:
    """The faults of a life, those that are not calm."""
    calm = to_json(Faults(seed=faults.seed))
    return "  ".join(f"{k}={v}" for k, v in to_json(faults).items() if v != calm[k])
