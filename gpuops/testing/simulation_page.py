"""The page of the documentation that keeps the last whole result of the simulation."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuops.testing.invariants import NAMES
from gpuops.testing.scenarios import SCENARIOS

if TYPE_CHECKING:
    from gpuops.testing.simulate import Catch, Mutant, Result


def page(
    total: Result, crash_number: int, took: float, mutants: Mapping[str, Mutant], caught: Mapping[str, Catch | None]
) -> str:
    """The page that keeps the last whole result."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    rows = [f"| {name} | {total.checks[name]:,} | {said} |" for name, said in NAMES.items()]
    tried = [
        f"| {name} | {catch[1] if catch else 'NOTHING'} | {catch[0] if catch else mutants[name].lives} |"
        for name, catch in sorted(caught.items())
    ]
    told = [f"| {name} | {s.what} | {s.source} |" for name, s in SCENARIOS.items()]
    return "\n".join(
        [
            "# What simulation has shown",
            "The real engine, journal and rules, driven by operators, a guard and a blind sentinel in virtual time. Written by",
            "`script/simulate --record docs/reference/simulation.md`; with `--full` it lives 20,000 seeds and every crash point.",
            "",
            "| | |",
            "|---|---|",
            f"| when, commit | {day}, {commit.stdout.strip() or 'unknown'} |",
            f"| lives | {total.lives:,}, of them {crash_number:,} crash points of {len(SCENARIOS)} scenarios, once and twice |",
            f"| kills, kinds of faults | {total.kills:,}, {total.faults:,} over all lives |",
            f"| violations | **{len(total.violations)}** |",
            f"| worst overspend | {total.worst[0]:.0%} of the stated bound ({total.worst[1]}) |",
            f"| lives per second | {total.lives / took:.1f} |",
            "",
            "## Invariants",
            "| invariant | checked | holds when |",
            "|---|---|---|",
            *rows,
            "",
            "## Safeguards taken out one at a time",
            "| without | caught by | in life |",
            "|---|---|---|",
            *tried,
            "",
            "## Scenarios from public reports",
            "What only one vendor's adapter can get wrong is judged by the conformance kit and that adapter's tests.",
            "",
            "| scenario | what happens | reported in |",
            "|---|---|---|",
            *told,
            "",
        ]
    )
