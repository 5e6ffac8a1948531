"""Lists: of one scope, of all scopes at once, filtered and in pages.

An aggregated list shows every scope of its kind. One without results on this page carries the warning NO_RESULTS_ON_PAGE, which
is no error; any other warning, and anything in `unreachables`, means that something could not be read.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import gcp_catalogue as catalogue
from .gcp_answers import Refusal, invalid
from .gcp_faults import Faults
from .gcp_requests import Call
from .gcp_schema import Description
from .gcp_state import SITE, Account, Resource

Body = dict[str, Any]
Place = tuple[Any, ...]
NEWEST_FIRST = "creationTimestamp desc"
"""The one order besides that of the names (discovery document, `orderBy`)."""
_TERM = re.compile(r"([\w.-]+)\s*(!=|=|:|<|>)\s*(\"[^\"]*\"|'[^']*'|[^\s()]+)")


@dataclass(frozen=True)
class Lists:
    """The reading calls."""

    account: Account
    faults: Faults

    def get(self, call: Call) -> Body:
        return self.shown(self.account.get(call.plural, call.scope, call.target))

    def shown(self, resource: Resource) -> Body:
        """A resource as it is shown, lies included."""
        if resource.plural == "instances":
            for fault in self.faults.standing("word", resource.scope, resource.name):
                return {**resource.body, "status": fault.word}
        if resource.plural == "operations":
            for fault in self.faults.standing("progress", resource.scope, resource.name):
                return {**resource.body, "status": fault.word}
        return resource.body

    def list(self, call: Call) -> Body:
        if self.faults.blind(call.scope):
            raise Refusal(503, "backendError", f"{call.scope} cannot be read")
        found = (r for r in self.account.listed(call.plural, call.scope))
        page, token = self._page(call, found)
        link = f"{SITE}projects/{self.account.settings.project}/{call.scope}/{call.plural}"
        body: Body = {"kind": f"compute#{_kind(call)}", "id": f"{call.scope}/{call.plural}", "selfLink": link}
        if page:
            body["items"] = [self.shown(r) for r in page]
        for fault in self.faults.standing("warn", call.scope):
            body["warning"] = warning(fault.word, call.scope)
        return {**body, "nextPageToken": token} if token else body

    def aggregated(self, call: Call) -> Body:
        description = self.account.description
        scopes = scopes_of(self.account, call.plural)
        field = _list_field(description, call.method.answer)
        blind = {scope for scope in scopes if self.faults.blind(scope)}
        found = (r for r in self.account.listed(call.plural) if r.scope not in blind)
        page, token = self._page(call, found)
        items: dict[str, Body] = {}
        by_scope: dict[str, list[Resource]] = {}
        for resource in page:
            by_scope.setdefault(resource.scope, []).append(resource)
        for scope in scopes:
            here = [self.shown(r) for r in by_scope.get(scope, ())]
            items[scope] = {field: here} if here else {"warning": warning("NO_RESULTS_ON_PAGE", scope)}
            if scope in blind:
                items[scope] = {"warning": warning("UNREACHABLE", scope)}
            for fault in self.faults.standing("warn", scope):
                items[scope] = {**({field: here} if here else {}), "warning": warning(fault.word, scope)}
        link = f"{SITE}projects/{self.account.settings.project}/aggregated/{call.plural}"
        body: Body = {
            "kind": f"compute#{_kind(call)}",
            "id": f"aggregated/{call.plural}",
            "selfLink": link,
            "items": items,
        }
        missing = [s for s in scopes if s in blind or any(True for _ in self.faults.standing("unreachable", s))]
        if missing:
            body["unreachables"] = [f"projects/{self.account.settings.project}/{scope}" for scope in missing]
        return {**body, "nextPageToken": token} if token else body

    def _page(self, call: Call, found: Iterator[Resource]) -> tuple[list[Resource], str]:
        wanted = call.query.get("filter", "")
        size = int(call.query.get("maxResults", self.account.settings.page))
        if not 0 <= size <= 500:
            raise invalid("maxResults", f"'{size}' must be between 0 and 500")
        size = min(size or 500, self.account.settings.page)
        matches = compiled(wanted)
        order = call.query.get("orderBy", "")
        if order not in ("", "name", NEWEST_FIRST):
            raise invalid("orderBy", f"'{order}' is neither name nor {NEWEST_FIRST}")
        # what was deleted meanwhile may be the last of the page before: places are compared, not looked for
        place = _by_age if order == NEWEST_FIRST else _by_name
        ordered = sorted(found, key=place) if order == NEWEST_FIRST else found
        after = _read_token(call.query.get("pageToken", ""), wanted, order)
        if after and any(self.faults.standing("pages", call.scope, call=call.method.id)):
            raise Refusal(503, "backendError", "no page after the first can be read")
        rest = (r for r in ordered if (not after or place(r) > after) and matches(r.body))
        page = list(itertools.islice(rest, size + 1))
        if len(page) <= size:
            return page, ""
        return page[:size], _token(place(page[size - 1]), wanted, order)

    # --- places and catalogues

    def list_places(self, call: Call) -> Body:
        """Zones or regions."""
        matches = compiled(call.query.get("filter", ""))
        body: Body = {"kind": f"compute#{call.plural[:-1]}List", "id": call.plural}
        return {**body, "items": [place for place in self._places(call.plural) if matches(place)]}

    def get_place(self, call: Call) -> Body:
        for place in self._places(call.plural):
            if place["name"] == call.target:
                return place
        raise Refusal(404, "notFound", f"The resource '{call.plural}/{call.target}' was not found")

    def _places(self, plural: str) -> Iterator[Body]:
        for region, zones in catalogue.zones(self.account.settings).items():
            if plural == "regions":
                yield catalogue.region_body(self.account, region)
            else:
                yield from (catalogue.zone_body(self.account, zone) for zone in zones)

    def get_project(self, call: Call) -> Body:
        return catalogue.project_body(self.account)

    def image(self, call: Call) -> Body:
        """An image, or the newest of a family, of this project or of one that everybody may use."""
        name, rows = call.target, catalogue.IMAGES.get(call.project, ())
        column = 1 if call.method.name == "getFromFamily" else 0
        found = [catalogue.image_body(call.project, *row) for row in rows if row[column] == name]
        if call.project == self.account.settings.project:
            own = (r.body for r in self.account.listed("images"))
            found += [body for body in own if body.get("family" if column else "name") == name]
        if not found:
            raise Refusal(404, "notFound", f"The resource 'projects/{call.project}/global/images/{name}' was not found")
        return found[-1]

    def list_images(self, call: Call) -> Body:
        if call.project == self.account.settings.project:
            return self.list(call)
        rows = catalogue.IMAGES.get(call.project, ())
        matches = compiled(call.query.get("filter", ""))
        items = [body for body in (catalogue.image_body(call.project, *row) for row in rows) if matches(body)]
        return {"kind": "compute#imageList", "id": f"projects/{call.project}/global/images", "items": items}


def warning(code: str, scope: str) -> Body:
    """A warning in the place of results."""
    words = (
        f"There are no results for scope '{scope}' on this page."
        if code == "NO_RESULTS_ON_PAGE"
        else f"'{scope}': {code}"
    )
    return {"code": code, "message": words, "data": [{"key": "scope", "value": scope}]}


def scopes_of(account: Account, plural: str) -> list[str]:
    """Every scope in which a kind can be, in the order of their names."""
    paths = [m.path for m in account.description.methods.values() if m.path.endswith(f"/{plural}")]
    found = ["global"] if any("/global/" in path for path in paths) else []
    for region, zones in catalogue.zones(account.settings).items():
        if any("/{region}/" in path for path in paths):
            found.append(f"regions/{region}")
        if any("/{zone}/" in path for path in paths):
            found += [f"zones/{zone}" for zone in zones]
    return sorted(found)


def compiled(text: str) -> Callable[[Body], bool]:
    """A filter: terms `field=value`, `field!=value`, `field:value` (has) joined by AND. Raises for what this fake cannot read."""
    terms = []
    for part in re.split(r"\s+AND\s+", text.strip()) if text.strip() else []:
        match = _TERM.fullmatch(part.strip().removeprefix("(").removesuffix(")").strip())
        if match is None or match[2] in "<>":
            raise Refusal(400, "invalid", f"Invalid list filter expression: {part!r}")
        terms.append((match[1].split("."), match[2], match[3].strip("\"'")))
    return lambda body: all(_meets(body, *term) for term in terms)


def _meets(body: Body, path: list[str], operator: str, value: str) -> bool:
    seen: Any = body
    for part in path:
        seen = seen.get(part) if isinstance(seen, dict) else None
    if operator == ":":
        return seen is not None and (value == "*" or value.strip("*").lower() in str(seen).lower())
    same = str(seen).lower() == value.lower() if seen is not None else False
    return same if operator == "=" else not same


def _list_field(description: Description, answer: str) -> str:
    scoped = description.schemas[answer]["items"].removeprefix("{}#")
    return next(name for name in description.schemas[scoped] if name != "warning")


def _kind(call: Call) -> str:
    answer = call.method.answer
    return answer[0].lower() + answer[1:]


def _by_name(resource: Resource) -> Place:
    return resource.key


def _by_age(resource: Resource) -> Place:
    return (-resource.number,)


def _token(place: Place, wanted: str, order: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([place, wanted, order]).encode()).decode()


def _read_token(token: str, wanted: str, order: str) -> Place:
    """The place after which this page begins; empty for the first page."""
    if not token:
        return ()
    try:
        place, *asked = json.loads(base64.urlsafe_b64decode(token))
    except ValueError:
        raise invalid("pageToken", "it is no token of this list") from None
    if asked != [wanted, order]:
        raise invalid("pageToken", "the filter or the order changed between pages")
    return tuple(place)
