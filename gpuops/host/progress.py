"""Progress of a program that writes no heartbeats, read from the end of what it prints."""

from __future__ import annotations

import re
from typing import Any

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_STEPS = (
    re.compile(
        r"(?<![\w.])(?:global[_ ]?step|step|iter(?:ation)?|update)s?[\"']?\s*[:=#]?\s*\[?(\d{1,15})(?![\w.])",
        re.IGNORECASE,
    ),
    re.compile(r"(?<![\w./])(\d{1,15})/\d{1,15} \["),  # a progress bar of tqdm
)
_FIELDS = {
    "loss": re.compile(rf"(?<![\w.])(?:train(?:ing)?[_ ])?loss[\"']?\s*[:=]?\s*{NUMBER}(?![\w.])", re.IGNORECASE),
    "tps": re.compile(rf"{NUMBER}\s*(?:tokens?|tok)\s*/\s*s(?:ec)?(?!\w)", re.IGNORECASE),
    "lr": re.compile(rf"(?<![\w.])(?:lr|learning[_ ]rate)[\"']?\s*[:=]?\s*{NUMBER}(?![\w.])", re.IGNORECASE),
}
_LINES = 200


def from_log(text: str) -> dict[str, Any]:
    """The last step that is named in `text`, with the nearest loss, rate and tokens per second; empty when none is.

    The forms are those of common training scripts: `step 120 loss 2.31`, `iter 120: loss 2.31`, `{'loss': 2.31, 'step': 120}`
    and progress bars. Words alone prove nothing else: what was published counts.
    """
    found: dict[str, Any] = {}
    for line in reversed(re.split(r"[\r\n]+", text)[-_LINES:]):
        if "step" not in found:
            steps = [match for pattern in _STEPS for match in pattern.finditer(line)]
            if steps:
                found["step"] = int(steps[0][1])
        for name, pattern in _FIELDS.items():
            match = pattern.search(line)
            if match and name not in found:
                found[name] = float(match[1].replace(",", ""))
        if len(found) == len(_FIELDS) + 1:
            break
    return {**found, "source": "log"} if "step" in found else {}
