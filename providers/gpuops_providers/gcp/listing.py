"""List what bills: aggregated lists over every scope, whoever made it, with a gap for each part that could not be read.

Nothing is ever filtered by label. A scope without results says NO_RESULTS_ON_PAGE, which is no gap; every other warning is one,
and so is each of `unreachables`. Source: the aggregated lists of the discovery document compute.v1 (rev. 20261106).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuops.errors import Unreadable
from gpuops.marks import parse_name
from gpuops.values import Billable, Gap, Money, Ref, Scope, Time

from . import filestore, kinds, marks, times, words
from .api import Api
from .failures import Failure, Forbidden
from .kinds import KINDS, NAT, RENTAL, VOLUME, Kind
from .places import GLOBAL, concerns, covers, last

NOTHING = "NO_RESULTS_ON_PAGE"
RUNNING_INSERTS = "operationType = insert AND status != DONE"

RateOf = Callable[[str, Any, str], Money]
"""(kind, the vendor's item, location) → what it costs per hour, as far as that is known."""


@dataclass
class Found:
    """What a listing has brought so far."""

    items: list[Billable] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    refused: list[Forbidden] = field(default_factory=list)
    """Kinds for which the credentials lack the right."""


def everything(api: Api, scope: Scope, rate_of: RateOf, until: Time) -> Found:
    """Items and gaps of every kind that was asked for, where it was asked for.

    Raises when nothing at all could be read: an unreadable listing is an error, never an empty list.
    """
    found = Found()
    wanted = list(kinds.asked(scope.kinds))
    found.gaps += [Gap("", kind, "Google Cloud has no such kind here") for kind in scope.kinds if kind not in kinds.ALL]
    read = 0
    for name in wanted:
        try:
            if name == kinds.FILESTORE:
                _filestore(api, found, until)
            else:
                _kind(api, KINDS[name], rate_of, found, until)
            read += 1
        except Forbidden as error:
            found.refused.append(error)
            found.gaps.append(Gap("", name, error.message))
        except (Failure, Unreadable) as error:
            if len(wanted) == 1:
                raise
            found.gaps.append(Gap("", name, error.message))
    if wanted and not read and found.refused:
        raise found.refused[0]
    return Found(
        [item for item in found.items if covers(scope.regions, item.ref.region)],
        [gap for gap in found.gaps if concerns(scope.regions, gap.region)],
    )


def _kind(api: Api, kind: Kind, rate_of: RateOf, found: Found, until: Time) -> None:
    if kind.name == RENTAL:
        # first, so that one that ends between the two calls is seen by the second
        found.gaps += _being_made(api, until)
    for location, item in _items(api, kind, found.gaps, until):
        found.items += billables(api.project(), kind, item, location, rate_of)


def _being_made(api: Api, until: Time) -> Iterator[Gap]:
    """Machines of ours whose insert still runs: they bill soon and no list shows them, so nothing is concluded meanwhile."""
    gaps: list[Gap] = []
    operations = ("GlobalOperations", "operations", RENTAL)
    try:
        found = list(_scoped(api, *operations, {"filter": RUNNING_INSERTS}, gaps, until))
    except Failure as error:
        if error.kind != "invalid":
            raise
        # a filter that the vendor does not take must not stand in the way of every listing
        found = list(_scoped(api, *operations, {}, gaps, until))
    for location, operation in found:
        name = last(operation.target_link)
        over = operation.status.name == "DONE" or operation.operation_type != "insert"
        if not over and "/instances/" in operation.target_link and parse_name(name) is not None:
            yield Gap(location, RENTAL, f"{name} is still being made")
    yield from gaps


def _items(api: Api, kind: Kind, gaps: list[Gap], until: Time) -> Iterator[tuple[str, Any]]:
    if kind.items:
        yield from _scoped(api, kind.service, kind.items, kind.name, {}, gaps, until)
        return
    for page in api.pages(kind.service, "list", until, {}):
        if problem := _problem(page.warning):
            gaps.append(Gap("", kind.name, problem))
        for item in page.items:
            yield GLOBAL, item


def _scoped(
    api: Api, service: str, field_name: str, kind: str, request: dict[str, Any], gaps: list[Gap], until: Time
) -> Iterator[tuple[str, Any]]:
    """(location, item) of an aggregated list; what it could not read goes to `gaps`."""
    for page in api.pages(service, "aggregated_list", until, request):
        gaps += [Gap(last(place), kind, "unreachable") for place in page.unreachables]
        if problem := _problem(page.warning):
            gaps.append(Gap("", kind, problem))
        for scope, inside in page.items.items():
            location = last(scope)
            if problem := _problem(inside.warning):
                gaps.append(Gap(location, kind, problem))
            for item in getattr(inside, field_name):
                yield location, item


def _problem(warning: Any) -> str:
    """What a warning says could not be read; empty for the usual word about an empty scope."""
    if not warning or not warning.code or warning.code == NOTHING:
        return ""
    return f"{warning.code}: {warning.message}" if warning.message else str(warning.code)


def billables(project: str, kind: Kind, item: Any, location: str, rate_of: RateOf) -> Iterator[Billable]:
    """What one item of the vendor's is in our words; nothing for what is free and not ours."""
    bills = kind.bills(item)
    if kind.name == NAT:
        for nat in item.nats:
            ref = Ref("gcp", project, location, NAT, f"{item.name}/{nat.name}")
            since = times.parse(item.creation_timestamp)
            yield Billable(ref, nat.name, None, bills, since, rate_of(NAT, nat, location), item.name)
        return
    labels = dict(item.labels) if "labels" in type(item).meta.fields else {}
    mark, nonce, damaged = marks.read(labels, item.name)
    if not bills and not nonce:
        return
    if kind.name == RENTAL:
        state = words.STATES.get(item.status, "unknown")
        bills = words.BILLS.get(state, bills)
    yield Billable(
        Ref("gcp", project, location, kind.name, item.name),
        item.name,
        mark,
        bills,
        times.parse(item.creation_timestamp),
        _rate(kind.name, item, location, labels, nonce, rate_of),
        _parent(kind.name, item),
        nonce,
        damaged,
    )


def _rate(kind: str, item: Any, location: str, labels: dict[str, str], nonce: str, rate_of: RateOf) -> Money:
    """A rental of ours says what it was bought for, boot disk included, which therefore costs nothing beside it."""
    if kind == RENTAL and (bought := marks.rate(labels)) is not None:
        return bought
    known = rate_of(kind, item, location)
    return Money(known.amount * 0, known.currency) if kind == VOLUME and nonce and item.users else known


def _parent(kind: str, item: Any) -> str:
    """The machine that a disk or address belongs to."""
    users: Iterable[str] = item.users if kind in (VOLUME, "address") else ()
    return next((last(user) for user in users), "")


def _filestore(api: Api, found: Found, until: Time) -> None:
    items, unreachable = filestore.listed(api, until)
    found.items += items
    found.gaps += [Gap(place, kinds.FILESTORE, "unreachable") for place in unreachable]
