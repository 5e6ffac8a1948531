"""What happens on the host between transfer and launch: the environment is made and looked at, and a few updates are tried."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from gpuops.host import agent, environments, probing
from gpuops.host import facts as host_facts
from gpuops.host.jobs import Job


def environment(request: dict[str, Any]) -> dict[str, Any]:
    """Make the environment of training and look at it; goes on without this connection, and may be asked again."""
    plan = request["plan"]

    def work(log: str) -> dict[str, Any]:
        built = environments.build(plan, log)
        return {**built, "place": environments.place_of(plan), "seen": environments.look(plan)}

    place = environments.place_of(plan)
    job = _job(plan, "environment", [plan["argv"], plan["workdir"], plan["env"], plan["environment"], place])
    return _answer(job, job.ask(work, float(request["wait_s"])))


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Try a few updates and measure them; goes on without this connection, and may be asked again."""
    plan, secrets = request["plan"], request.get("secrets") or {}
    state = agent.prepare({"plan": plan, "avoid": plan["avoid"]})["state"]

    def work(log: str) -> dict[str, Any]:
        found = probing.measure(plan, secrets, log)
        # a program that ignores GPUOPS_OUTPUT_DIR wrote where training will write
        agent.record_before(plan, state)
        return found

    job = _job(plan, "probe", plan)
    return _answer(job, job.ask(work, float(request["wait_s"])))


def _job(plan: dict[str, Any], name: str, key: Any) -> Job:
    state = agent.prepare({"plan": plan, "avoid": plan["avoid"]})["state"]
    content = json.dumps([host_facts.boot_id(), key], sort_keys=True)
    return Job(state, name, hashlib.sha256(content.encode()).hexdigest())


def _answer(job: Job, found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        return {"done": False, "tail": agent.tail(job.log)[-500:]}
    return {"done": True, **found}


OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"environment": environment, "probe": probe}


def main(request: dict[str, Any]) -> None:
    """Answer one request."""
    agent.main(request, OPERATIONS)
