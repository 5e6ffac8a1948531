"""Pond's wire: one request, and one answer or one error of ours. Nothing else of the adapter knows HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpuops.errors import CredentialsError, ProviderError, RateLimited, Unreadable
from gpuops.values import Time

from .words import BAD_CREDENTIALS


class PondError(ProviderError):
    """Pond itself says that the call failed: `word` is its error code."""

    def __init__(self, message: str, status: int, word: str) -> None:
        super().__init__(message)
        self.status, self.word = status, word


@dataclass(frozen=True)
class Wire:
    """How Pond is reached. `now` is the clock that `until` is told by."""

    client: httpx.Client
    token: Callable[[], str | None]
    now: Callable[[], Time]

    def call(self, method: str, path: str, until: Time, **sent: Any) -> tuple[dict[str, Any], Time]:
        """Send one request, once, and return the answer with Pond's time. All that is not a good answer raises."""
        what, left_s = f"pond: {method} {path}", until - self.now()
        if left_s <= 0:
            raise ProviderError(f"{what}: no time left, nothing was sent")
        if not (token := self.token()):
            raise CredentialsError("POND_TOKEN has no value", next_command="gpuops auth set POND_TOKEN")
        headers, content = {"Authorization": f"Bearer {token}"}, b""
        try:
            with self.client.stream(method, path, headers=headers, timeout=left_s, **sent) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if self.now() > until:  # httpx bounds each wait, not their sum
                        raise ProviderError(f"{what}: no whole answer in time")
        except httpx.HTTPError as error:
            raise ProviderError(f"{what}: no answer ({type(error).__name__})") from error
        return _read(what, response, content), _time(response, self.now())

    def pages(self, path: str, until: Time, **query: str) -> Iterator[tuple[Any, Time]]:
        """Every row of every page. A page that cannot be read raises: what was read until then is not the whole."""
        follows: Any = None
        while True:
            params = query if follows is None else {**query, "after": str(follows)}
            page, at = self.call("GET", path, until, params=params)
            with understood(f"a page of {path}"):
                rows, follows = list(page["items"]), page["next"]
            yield from ((row, at) for row in rows)
            if follows is None:
                return


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while an answer is translated into `Unreadable`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"pond: {what} cannot be understood: {error!r}") from error


def _read(what: str, response: httpx.Response, content: bytes) -> dict[str, Any]:
    if response.status_code == 429:  # by its status: the page may be anybody's
        wait = response.headers.get("Retry-After", "")
        raise RateLimited(f"{what}: too many requests", float(wait) if wait.isdigit() else 0.0)
    with understood(f"the answer {response.status_code} to {what}"):
        body = dict(json.loads(content))
        problem = None if response.is_success else dict(body["error"])
    if problem is None:
        return body
    # Only Pond's own words decide. The same status with a page of somebody on the way never comes here.
    word = str(problem.get("code"))
    if word in BAD_CREDENTIALS:
        raise CredentialsError(f"{what}: {word}", next_command="gpuops auth set POND_TOKEN")
    raise PondError(f"{what}: {word}", response.status_code, word)


def _time(response: httpx.Response, otherwise: Time) -> Time:
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return otherwise
