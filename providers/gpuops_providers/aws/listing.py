"""What is on the account: every kind in every region, side by side; what cannot be read is a gap by name."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, Unreadable
from gpuops.values import Billable, Gap, Inventory, Money, Ref, Scope, Time

from .api import HOME_REGION, Answer, Api, answered_at, in_parallel
from .errors import Denied, Missing
from .kinds import KINDS, SOURCES, Found, Source

NOT_ENABLED = "not-opted-in"
FREE = Money(Decimal(0))
OVERHEAD_S = 0.5
"""Kept back from the time of a listing, so that its answer arrives in time."""


def list_billable(
    api: Api, name: str, account: str, scope: Scope, until: Time, home: str = "", only: tuple[str, ...] = ()
) -> Inventory:
    """Everything in `scope`; `only`: the regions that the settings restrict to, where the scope names none.

    Raises `CredentialsError` when the credentials are good nowhere, and `ProviderError` when the regions cannot be told.
    """
    enabled, told_at = regions(api, home, until)
    wanted = scope.regions or only or tuple(sorted(r for r, is_on in enabled.items() if is_on))
    kinds = [kind for kind in KINDS if not scope.kinds or kind in scope.kinds]
    gaps = [Gap("", kind, "this provider has no such kind") for kind in scope.kinds if kind not in KINDS]
    for region in wanted:
        if not enabled.get(region):
            why = "the region is not enabled on this account" if region in enabled else "there is no such region"
            gaps += [Gap(region, kind, why) for kind in kinds]
    asked = [(r, source) for r in wanted if enabled.get(r) for source in SOURCES if source.kind in kinds]
    jobs = [partial(_read, api, source, region, until) for region, source in asked]
    answers = in_parallel(jobs, api.left_s(until) - OVERHEAD_S) if jobs else []
    items: dict[Ref, Billable] = {}
    for (region, source), answer in zip(asked, answers, strict=True):
        if isinstance(answer, CredentialsError) and not isinstance(answer, Denied):
            raise answer
        if isinstance(answer, GpuopsError):
            gaps.append(Gap(region, source.kind, answer.message))
            continue
        for found in answer:
            if found.state != "terminal" or found.kind == "rental":
                ref = Ref(name, account, region, found.kind, found.id)
                items[ref] = billable(ref, found)
    ordered = sorted(items.values(), key=lambda item: (item.ref.region, item.ref.kind, item.ref.id))
    return Inventory(account, scope, tuple(ordered), tuple(dict.fromkeys(gaps)), told_at)


def regions(api: Api, home: str, until: Time) -> tuple[dict[str, bool], Time | None]:
    """Every region of the partition and whether the account has it enabled, with the provider's time."""
    answer = api.call("ec2", home or HOME_REGION, "describe_regions", until, AllRegions=True)
    try:
        found = {str(r["RegionName"]): r.get("OptInStatus") != NOT_ENABLED for r in answer["Regions"]}
    except (KeyError, TypeError) as error:
        raise Unreadable(f"the list of regions cannot be read: {error!r}") from error
    if not found:
        raise Unreadable("the list of regions is empty")
    return found, answered_at(answer)


def look(api: Api, ref: Ref, until: Time) -> Found | None:
    """One thing by its id; None when an authenticated answer says that it is not there."""
    sources = [source for source in SOURCES if source.kind == ref.kind and source.looks(ref.id)]
    if not sources:
        raise ProviderError(f"{ref}: this provider has no such kind of thing")
    try:
        found = _read(api, sources[0], ref.region, until, ref.id)
    except Missing:
        return None
    return next((f for f in found if f.id == ref.id), None)


def billable(ref: Ref, found: Found) -> Billable:
    """An entry as the contract's value.

    Only a rental of ours has a rate, the one that its offer named for everything its create call started. Nothing in a listing
    tells a price, so the rest has none: what `bills` names costs money all the same.
    """
    rate = found.carried.rate if "compute" in found.bills else None
    mark, c = found.carried.mark, found.carried
    return Billable(
        ref, c.name, mark, found.bills, found.since, rate or FREE, parent=found.parent, nonce=c.nonce, damaged=c.damaged
    )


def _read(api: Api, source: Source, region: str, until: Time, ident: str | None = None) -> list[Found]:
    """The entries of one source. An entry that lacks what every one has makes the whole answer unreadable."""
    try:
        return source.found(api, region, until, ident)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{source.service} {source.method} in {region}"
        raise Unreadable(f"{what}: the answer cannot be read: {error!r}") from error


def only(answer: Answer, ref: Ref) -> Found | None:
    """The instance in an answer of DescribeInstances; None when it is not in there."""
    source = next(source for source in SOURCES if source.kind == "rental")
    try:
        read = [source.read(entry) for entry in source.entries(answer)]
    except (KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"what AWS says of {ref} cannot be read: {error!r}") from error
    return next((found for found in read if found is not None and found.id == ref.id), None)
