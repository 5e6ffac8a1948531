"""What AWS has charged so far, from Cost Explorer: by day, about a day late, and 0.01 USD for each request.

It tells by tag only once `gpuops:nonce` is switched on as a cost allocation tag (docs.aws.amazon.com/cost-management).
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from gpuops.errors import Unreadable
from gpuops.values import Charge, Money, Ref, Time

from . import tags
from .api import Api

REGION = "us-east-1"
METRIC = "UnblendedCost"


def charges(api: Api, name: str, account: str, start: Time, end: Time, until: Time) -> tuple[Charge, ...]:
    """One line per nonce and day. Cost Explorer names no instance: the id of each ref is empty."""
    period = {"Start": _day(start), "End": _day(end + 86_400)}  # the last day is not included
    grouped = [{"Type": "TAG", "Key": tags.NONCE}]
    pages = api.pages(
        "ce",
        REGION,
        "get_cost_and_usage",
        until,
        TimePeriod=period,
        Granularity="DAILY",
        Metrics=[METRIC],
        GroupBy=grouped,
    )
    try:
        return tuple(
            line
            for page in pages
            for day in page["ResultsByTime"]
            for group in day.get("Groups") or ()
            if (line := _line(name, account, day["TimePeriod"], group)) is not None
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise Unreadable(f"the answer of Cost Explorer cannot be read: {error!r}") from error


def _line(name: str, account: str, period: dict[str, Any], group: dict[str, Any]) -> Charge | None:
    nonce = str(group["Keys"][0]).removeprefix(f"{tags.NONCE}$")
    said = group["Metrics"][METRIC]
    amount = Money(Decimal(str(said["Amount"])), str(said["Unit"]))
    if not nonce or not amount.amount:
        return None
    ref = Ref(name, account, "", "rental", "")
    return Charge(ref, nonce, _moment(period["Start"]), _moment(period["End"]), amount, "compute")


def _day(at: Time) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()


def _moment(day: str) -> Time:
    return datetime.datetime.fromisoformat(day[:10]).replace(tzinfo=datetime.UTC).timestamp()
