"""Runs told as records, for tests of the fold and of the rules: `Story().intended().created().state`."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from gpuops.codec import to_json
from gpuops.engine import OPERATOR, decide
from gpuops.fold import fold
from gpuops.names import content_digest
from gpuops.policy import Policy
from gpuops.spec import Spec
from gpuops.state import RunState
from gpuops.steps import Step
from gpuops.testing.faults import Faults
from gpuops.testing.world import spec_of
from gpuops.values import (
    Check,
    Copied,
    Created,
    Device,
    Endpoint,
    Event,
    FileHash,
    Generation,
    HostStatus,
    Mark,
    Money,
    Observation,
    Offer,
    Record,
    Ref,
    Sealed,
    SendList,
    Time,
)

START = 1_000_000.0
DEADLINE, LIMIT = START + 3600, START + 4200
POLICY = Policy()
SPEC = spec_of(Faults())
OFFER = Offer(
    "one", "simulated", "account-1", "region-1", "box", Device("sim", 1, 80), Money(Decimal(2)), 1, START, "test"
)
LIST = SendList((), (), (), 0, "list-digest")
LOG = Generation("telemetry", 0, (FileHash("train.log", 10, "0" * 64),))


def ref(name: str = "m-1") -> Ref:
    return Ref("simulated", "account-1", "region-1", "rental", name)


def generation(number: int, content: str = "a") -> Generation:
    return Generation(f"g{number}", number, (FileHash("weights.bin", 100, content * 64),))


class Story:
    """Records of one run in order; each method tells one more and moves the time on by a second."""

    def __init__(self, spec: Spec = SPEC, **planned: Any) -> None:
        self.now: Time = START
        self.records: list[Record] = []
        self._state: RunState | None = None
        data = {
            "spec": to_json(spec), "seed": "seed", "plan": {}, "plan_digest": "plan", "offer": to_json(OFFER),
            "deadline": DEADLINE, "limit": LIMIT, "account": "account-1", "listing_lag_s": None,
        }  # fmt: skip
        self.tell("planned", None, **{**data, **planned})

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    def tell(self, kind: str, purchase: str | None = "p1", *, decision: bool = False, **data: Any) -> Story:
        """One more record."""
        record = Record("run-1", len(self.records) + 1, Event(kind, data, purchase), decision, self.now, self.now)
        self._state = fold([record], self._state)
        self.records.append(record)
        self.now += 1
        return self

    def wait(self, seconds: float) -> Story:
        """Let time pass."""
        self.now += seconds
        return self

    def at(self, when: Time) -> Story:
        """Go to a time."""
        self.now = when
        return self

    def step(self, may: frozenset[str] = OPERATOR) -> Step:
        """What the engine would do now."""
        return decide(self.state, self.now, POLICY, may)

    # --- the usual chapters

    def wanted(self, what: str, cause: str = "") -> Story:
        return self.tell("wanted", None, decision=True, what=what, cause=cause)

    def approved(self, digest: str = "plan") -> Story:
        return self.tell("approved", None, decision=True, digest=digest)

    def ready_to_buy(self) -> Story:
        return self.wanted("ready").approved().tell("preflight", None, problem="")

    def intended(self, number: int = 1, nonce: str = "") -> Story:
        mark = Mark("run-1", nonce or f"nonce{number}", "ada", self.state.limit)
        return self.tell(
            "intended", f"p{number}", decision=True, mark=to_json(mark), offer=to_json(OFFER), member=0,
            send_before=self.now + 30, deadline=self.state.deadline, limit=self.state.limit,
        )  # fmt: skip

    def created(self, number: int = 1, name: str = "m-1", via: str = "answer", since: Time | None = None) -> Story:
        made = Created(ref(name), since if since is not None else self.now)
        return self.tell("created", f"p{number}", created=to_json(made), via=via)

    def observed(self, state: str = "running", purchase: str = "p1", **more: Any) -> Story:
        endpoint = Endpoint("m-1", 22) if state == "running" else None
        p = self.state.purchases[purchase]
        assert p.ref is not None
        seen = replace(Observation(p.ref, "unknown", ("compute",), endpoint=endpoint), state=state, **more)
        return self.tell("observed", purchase, observation=to_json(seen))

    def checked(self, ok: bool = True) -> Story:
        checks = [to_json(Check("device", "a", "a" if ok else "b", ok))]
        return self.tell("checked", checks=checks, facts={}, boot_id="boot-1")

    def bought(self, nonce: str = "") -> Story:
        return self.ready_to_buy().intended(nonce=nonce).created().observed()

    def launched(self) -> Story:
        self.bought().checked().wanted("training").tell("listed", preview=to_json(LIST)).approved("list-digest")
        self.tell("transferred", files=0, bytes=0).tell("launching", decision=True)
        return self.tell("launched", boot_id="boot-1")

    def status(self, *generations: str, phase: str = "running") -> Story:
        said = HostStatus("running", "boot-1", self.now, generations=generations)
        return self.tell("status", status=to_json(replace(said, phase=phase)))  # type: ignore[arg-type]

    def sealed(self, *found: Generation) -> Story:
        return self.tell("sealed", sealed=to_json(Sealed("completed", 0, "", found, LOG)))

    def copied(self, *what: Generation) -> Story:
        for one in what:
            copy = Copied(one.id, f"/copies/{one.id}", one.bytes, content_digest(one))
            self.tell("copied", copied=to_json(copy), seconds=1)
        return self

    def going_down(self) -> Story:
        return self.wanted("closed", "the user said down")

    def ending(self, purchase: str = "p1") -> Story:
        return self.tell("ending", purchase, decision=True, cause="test").tell("terminated", purchase)
