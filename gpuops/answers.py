"""What a host answers, turned into values. Nothing in it is trusted: kinds are checked, texts escaped, names refused."""

from __future__ import annotations

import math
from typing import Any

from gpuops import names
from gpuops.errors import HostError
from gpuops.values import FileHash, Generation, HostStatus, Sealed

OUTCOMES = ("completed", "interrupted", "failed", "aborted", "ended")
MAX_BYTES = 1 << 60
MAX_STEP = 1 << 53
MAX_REASON = 4000


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
