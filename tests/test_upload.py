"""The plan says what goes over this computer's line, how long that takes and costs, and what the host would fetch faster."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from commandcase import Desk
from runstory import OFFER, SPEC, START, Story

from gpuops.cli.start import _rates
from gpuops.cost import upload
from gpuops.plan import Lines, Plan, make_plan
from gpuops.policy import Policy
from gpuops.render import plan_lines
from gpuops.testing.cloud import Cloud
from gpuops.testing.faults import Faults
from gpuops.testing.provider import DirectLine, connect
from gpuops.values import Money

RATE = Money(Decimal(3))
TRAITS = connect(Cloud(Faults()), DirectLine()).traits


def test_without_a_measurement_only_the_size_is_known() -> None:
    load = upload(10**9, 0.0, 0.0, RATE)
    assert load.cost is None and load.seconds == 0


def test_a_measured_line_gives_time_and_money() -> None:
    load = upload(3_600_000_000, 1e6, 50e6, RATE)
    assert load.seconds == 3600 and load.cost == Money(Decimal(3))
    assert load.fetch_s == 72 and load.fetch_cost and load.fetch_cost.amount < Decimal("0.07")


def test_what_the_host_would_hardly_fetch_faster_is_not_named() -> None:
    assert upload(10_000_000, 1e6, 50e6, RATE).fetch_cost is None
    assert upload(10**9, 60e6, 50e6, RATE).fetch_cost is None


def plan(size: int | None, up: float = 0.0, down: float = 0.0, **spec: Any) -> Plan:
    lines = Lines(size, lambda provider, region: (up, down), free_bytes=10**9)
    return make_plan(replace(SPEC, **spec), (OFFER,), TRAITS, START, Policy(), guard=True, lines=lines)


@pytest.mark.parametrize(
    ("size", "up", "said"),
    [
        (None, 0.0, "cannot be listed now"),
        (5000, 0.0, "5.0 kB; how long it takes is not measured yet"),
        (
            3_600_000_000,
            1e6,
            "3.6 GB takes about 1h at the 1.0 MB/s last measured to simulated/region-1, and costs 2.0000 USD",
        ),
        (3_600_000_000, 1e6, "cheaper if the host fetches it (see `inputs`): about 1m12s"),
    ],
)
def test_the_plan_says_it(size: int | None, up: float, said: str) -> None:
    lines = plan_lines(SPEC, plan(size, up), START)
    shown = " ".join(" ".join(lines).split())  # the screen wraps it
    assert said in shown.partition(" upload ")[2].partition(" copies go to ")[0], lines


def test_results_that_will_not_fit_are_named_before_anything_is_bought() -> None:
    outputs = replace(SPEC.outputs, expected_bytes=400_000_000, keep_last=2)
    assert any("NO ROOM for results" in note for note in plan(1, outputs=outputs).notes)
    outputs = replace(outputs, expected_bytes=300_000_000)
    assert not any("NO ROOM" in note for note in plan(1, outputs=outputs).notes)


def test_the_rate_comes_from_the_newest_run_to_the_same_provider_and_region(tmp_path: Path) -> None:
    story = Story().bought().checked().tell("sent", files=1, bytes=20_000_000, seconds=10.0)
    fetched = {"to": "/a", "how": "fetched", "bytes": 300_000_000, "sha256": "", "seconds": 3.0, "notes": []}
    story.tell("brought", inputs=[fetched]).tell("transferred", files=1, bytes=320_000_000)
    app = Desk(tmp_path, story.now, story).app()
    assert _rates(app, "simulated", "region-1") == (2e6, 1e8)
    assert _rates(app, "simulated", "elsewhere") == (0.0, 0.0)


def test_a_few_bytes_measure_nothing(tmp_path: Path) -> None:
    story = Story().bought().checked().tell("transferred", files=1, bytes=900, seconds=0.1)
    assert _rates(Desk(tmp_path, story.now, story).app(), "simulated", "region-1") == (0.0, 0.0)
