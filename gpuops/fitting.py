"""Whether training can run as the manifest means it: in this environment, on this device, in this time and room. Pure."""

from __future__ import annotations

import re

from gpuops.cost import copy_seconds
from gpuops.policy import Policy
from gpuops.spec import Environment
from gpuops.state import RunState
from gpuops.values import Check, Probed, Surroundings, Time

GB = 1e9
DEVICE_PART = 0.97
"""A probe that needs more of a device than this has nothing left for what a later batch needs more."""
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA release family to the oldest driver that runs it (NVIDIA, CUDA compatibility, minor version compatibility)."""


def runs_as_expected(found: Surroundings, wanted: Environment, driver: str) -> tuple[Check, ...]:
    """Expected against seen. `driver`: the version that the host's driver told; empty: it told none."""
    checks = [Check("python", wanted.python or "any", found.python, _is(found.python, wanted.python))]
    torch = found.torch or found.problem or "not installed"
    if wanted.torch or wanted.cuda or wanted.devices or found.problem:
        checks.append(
            Check("torch", wanted.torch or "importable", torch, bool(found.torch) and _is(found.torch, wanted.torch))
        )
    if wanted.cuda:
        built = found.cuda or "none: a build for CPUs"
        checks.append(Check("cuda of torch", wanted.cuda, built, bool(found.cuda) and _is(found.cuda, wanted.cuda)))
        checks.append(Check("torch.cuda.is_available()", "True", str(found.available), found.available))
    if wanted.devices:
        checks.append(
            Check("devices that torch sees", str(wanted.devices), str(found.devices), found.devices == wanted.devices)
        )
    least = OLDEST_DRIVER.get(_numbers(found.cuda)[0]) if _numbers(found.cuda) else None
    if least and _numbers(driver):
        checks.append(Check(f"driver for CUDA {found.cuda}", f"at least {least}", driver, _numbers(driver)[0] >= least))
    return tuple(checks)


def fits(found: Probed, s: RunState, now: Time, policy: Policy, room_bytes: int) -> tuple[Check, ...]:
    """What the probe needed against what there is. `room_bytes`: free at the destination of copies.

    Figures that the probe did not tell are not judged: a program without heartbeats has no step time.
    """
    ended = "its time was over" if found.timed_out else f"exit {found.exit_code}"
    checks = [Check("probe", "exit 0", ended, found.exit_code == 0 and not found.timed_out)]
    if found.device_bytes and found.device_total_bytes:
        most = found.device_total_bytes * DEVICE_PART
        checks.append(_size("device memory", found.device_bytes, most, "at most"))
    if found.generation_bytes:
        checks.append(_room("room for checkpoints on the host", found.generation_bytes, s, found.free_bytes))
        checks += copies_fit(found.generation_bytes, s, now, policy, room_bytes)
    updates = s.spec.train.max_updates
    if updates and found.step_s:
        takes, left = updates * found.step_s, s.teardown_at(policy) - now
        checks.append(
            Check("training time", f"{_hours(takes)} for {updates:,} updates", f"{_hours(left)} left", takes <= left)
        )
    return tuple(checks)


def copies_fit(size: int, s: RunState, now: Time, policy: Policy, room_bytes: int) -> tuple[Check, ...]:
    """Whether generations of this size find room at their destination, and one of them time before the deadline."""
    rate = (s.rental.work.copy_rate if s.rental else 0.0) or policy.copy_bytes_per_s
    left = s.deadline - now - s.spec.train.grace_s
    takes = copy_seconds(size, rate) + policy.copy_margin_s
    in_time = Check("copy before the deadline", f"{takes:.0f} s", f"{left:.0f} s left", takes <= left)
    return _room("room for copies here", size, s, room_bytes), in_time


def _room(where: str, size: int, s: RunState, free_bytes: int) -> Check:
    """Room for what is kept, and for one more while it is written."""
    needed = size * (s.spec.outputs.keep_last + 1)
    return Check(where, _gb(needed), f"{_gb(free_bytes)} free", needed <= free_bytes)


def forecast(found: Probed, s: RunState, policy: Policy) -> list[str]:
    """The plan, worked out again with measured figures, as lines for a person."""
    lines = [f"it took {_hours(found.seconds)}" if found.seconds >= 60 else f"it took {found.seconds:.1f} s"]
    asked = s.spec.train.probe.updates if s.spec.train.probe else 0
    if found.updates > asked > 0:
        lines.append(
            f"it made {found.updates} updates, {asked} were asked: it may ignore GPUOPS_MAX_UPDATES; give `probe.argv`"
        )
    if not found.step_s:
        lines.append("it wrote no heartbeats: how long an update takes is not known")
    else:
        tokens = f", {found.tokens_per_s:,.0f} tokens/s" if found.tokens_per_s else ""
        lines.append(f"{found.updates} updates, {found.step_s:.3g} s each{tokens}")
    used = f"memory {_gb(found.memory_bytes)}"
    if found.device_bytes:
        used += f", device {_gb(found.device_bytes)} of {_gb(found.device_total_bytes)}"
    lines.append(used)
    if found.generation_bytes:
        takes = copy_seconds(found.generation_bytes, policy.copy_bytes_per_s)
        lines.append(
            f"a checkpoint of {_gb(found.generation_bytes)}, written in {found.write_s:.1f} s; its copy takes about {takes:.0f} s"
        )
    updates, rental = s.spec.train.max_updates, s.rental
    if updates and found.step_s and rental is not None:
        takes = updates * found.step_s
        rate = rental.rate or rental.offer.rate
        lines.append(f"{updates:,} updates take {_hours(takes)} and cost about {rate.times(takes / 3600)}")
    return lines


def _size(name: str, needed: float, most: float, word: str) -> Check:
    return Check(name, f"{word} {_gb(most)}", _gb(needed), needed <= most)


def _is(version: str, wanted: str) -> bool:
    """Whether a version begins with the wanted one, at a dot: 2.13 is 2.13.0+cpu and is not 2.130."""
    return not wanted or re.match(re.escape(wanted) + r"(?![0-9])", version) is not None


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)[:3]]


def _gb(size: float) -> str:
    return f"{size / GB:.2f} GB" if size >= GB else f"{size / 1e6:.1f} MB"


def _hours(seconds: float) -> str:
    minutes = max(seconds, 0.0) / 60
    return f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.1f} min"
