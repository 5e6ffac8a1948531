"""Where things lie. `Ref.region` is the location in the vendor's own words: a zone for what lies in a zone, which every rental
and zonal disk does, a region for what is regional, and `global`.

A scope or setting may name either: a region covers its zones. What is said about a region, such as that it could not be read,
concerns its zones too.
"""

from __future__ import annotations

from collections.abc import Iterable

GLOBAL = "global"


def last(link: str) -> str:
    """The name at the end of a link or path."""
    return link.rsplit("/", 1)[-1]


def is_zone(location: str) -> bool:
    """`us-central1-a` is a zone, `us-central1` a region."""
    return location.count("-") >= 2


def region_of(location: str) -> str:
    """The region of a zone; a region is its own."""
    return location.rsplit("-", 1)[0] if is_zone(location) else location


def covers(wanted: Iterable[str], location: str) -> bool:
    """Whether `location` is among the wanted places, or inside one; nothing wanted means everywhere."""
    places = tuple(wanted)
    return not places or location in places or region_of(location) in places


def concerns(wanted: Iterable[str], location: str) -> bool:
    """Whether what is said about `location` (empty: everywhere) says something about one of the wanted places."""
    places = tuple(wanted)
    return not location or covers(places, location) or any(region_of(place) == location for place in places)


def path(project: str, location: str) -> dict[str, str]:
    """The fields of a request that say where; nothing but the project for what is global."""
    if location == GLOBAL:
        return {"project": project}
    return {"project": project, "zone" if is_zone(location) else "region": location}
