"""What a host answers, turned into values. Nothing in it is trusted: kinds are checked, texts escaped, names refused."""

from __future__ import annotations

import math
from typing import Any

from gpuops import names
from gpuops.errors import HostError
from gpuops.values import FileHash, Generation, HostStatus, Probed, Sealed, Surroundings

OUTCOMES = ("completed", "interrupted", "failed", "aborted", "ended")
MAX_BYTES = 1 << 60
MAX_STEP = 1 << 53
MAX_REASON = 4000
MAX_PACKAGES = 1000


def status(answer: dict[str, Any]) -> HostStatus:
    """The answer of `status`. Raises `HostError` when it cannot be understood."""
    phase = answer.get("phase")
    if phase not in ("missing", "starting", "running", "ended"):
        raise HostError(f"the host names a phase that there is not: {names.escape(str(phase))[:40]!r}")
    outcome = answer.get("outcome") or ""
    beat = answer.get("beat")
    ids = answer.get("generations")
    return HostStatus(
        phase=phase,
        boot_id=_text(answer.get("boot_id")),
        host_time=_number(answer.get("time")) or 0.0,
        outcome=outcome if outcome in OUTCOMES else "",
        exit_code=_whole(answer.get("exit_code")),
        reason=_text(answer.get("reason"))[:MAX_REASON],
        started_at=_number(answer.get("started_at")),
        ended_at=_number(answer.get("ended_at")),
        beat=names.escape_all(beat) if isinstance(beat, dict) else {},
        # an id that could not be written here is no generation: sealing will name it
        generations=tuple(g for g in ids if isinstance(g, str) and usable_id(g)) if isinstance(ids, list) else (),
        log_tail=names.escape(str(answer.get("log_tail") or ""), "\n\t"),
    )


def sealed(answer: dict[str, Any]) -> Sealed:
    """The answer of `seal`; a generation that cannot be carried is left out and named in the reason."""
    outcome = answer.get("outcome")
    listed = answer.get("generations")
    if outcome not in OUTCOMES or not isinstance(listed, list):
        raise HostError("the host's answer to sealing cannot be understood")
    good, notes = [], [_text(answer.get("reason"))]
    for item in listed:
        try:
            good.append(generation(item))
        except HostError as error:
            notes.append(f"refused a generation: {error.message}")
    if outcome == "completed" and not good:
        outcome = "ended"
    reason = "; ".join(filter(None, notes))[:MAX_REASON]
    return Sealed(outcome, _whole(answer.get("exit_code")), reason, tuple(good), generation(answer.get("telemetry")))


def surroundings(answer: dict[str, Any]) -> Surroundings:
    """The answer of `environment` once it is done. Raises `HostError` when it cannot be understood."""
    seen = answer.get("seen")
    if not isinstance(seen, dict) or not isinstance(seen.get("python"), str):
        raise HostError("the host's answer about the environment of training cannot be understood")
    packages = seen.get("packages")
    listed = [_text(p)[:200] for p in packages if isinstance(p, str)] if isinstance(packages, list) else []
    return Surroundings(
        how=_text(answer.get("how"))[:20],
        reused=answer.get("reused") is True,
        seconds=_number(answer.get("seconds")) or 0.0,
        python=_text(seen["python"])[:100],
        torch=_text(seen.get("torch"))[:100],
        cuda=_text(seen.get("cuda"))[:100],
        available=seen.get("available") is True,
        devices=_whole(seen.get("devices")) or 0,
        packages=tuple(listed[:MAX_PACKAGES]),
        problem=_text(seen.get("torch_error"))[:500],
    )


def probed(answer: dict[str, Any]) -> Probed:
    """The answer of `probe` once it is done; a figure that is no number is none."""

    def size(name: str) -> int:
        return min(max(_whole(answer.get(name)) or 0, 0), MAX_BYTES)

    def number(name: str) -> float:
        return max(_number(answer.get(name)) or 0.0, 0.0)

    return Probed(
        exit_code=_whole(answer.get("exit_code")),
        timed_out=answer.get("timed_out") is True,
        seconds=number("seconds"),
        updates=size("updates"),
        step_s=number("step_s"),
        tokens_per_s=number("tokens_per_s"),
        memory_bytes=size("memory_bytes"),
        device_bytes=size("device_bytes"),
        device_total_bytes=size("device_total_bytes"),
        generation_bytes=size("generation_bytes"),
        write_s=number("write_s"),
        free_bytes=size("free_bytes"),
        log_tail=names.escape(str(answer.get("log_tail") or ""), "\n\t"),
    )


def generation(item: Any) -> Generation:
    """One hash list. Raises `HostError` for anything that must not become a path here."""
    try:
        files = tuple(FileHash(_string(f["path"]), _size(f["size"]), _string(f["sha256"])) for f in item["files"])
        left = tuple(names.escape(_string(n)) for n in item["left_behind"])
        step = min(max(_whole(item["step"]) or 0, 0), MAX_STEP)
        found = Generation(_string(item["id"]), step, files, _number(item["metric"]), left)
    except (KeyError, TypeError, ValueError) as error:
        raise HostError("a hash list of the host cannot be understood") from error
    problem = names.generation_problem(found)
    if problem:
        raise HostError(problem)
    return found


def usable_id(ident: str) -> bool:
    """True for a generation's id that may become a directory here."""
    return not names.generation_problem(Generation(ident, 0, ()))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_BYTES:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    return "" if value is None else names.escape(str(value))


def _number(value: Any) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or math.isnan(value):
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_STEP else None
