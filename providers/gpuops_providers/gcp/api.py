"""Calls to Google Cloud, bounded in time and with every foreign error translated; the only file that meets the vendor's library.

No call is repeated here: `retry=None`, and operations are read by calls of our own. (`operation.result()` would poll the public
address even where another endpoint is set, and raises by HTTP status instead of by code.) Source: google-cloud-compute 1.57.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpuops.errors import CredentialsError, GpuopsError, ProviderError
from gpuops.values import Time

from . import failures, times
from .settings import Settings

CALL_S = 30.0
"""The longest that one call may take."""

PAGE = 500
"""Items of one page; the vendor's own most."""

MOST_PAGES = 200
"""A listing that does not end is an error, not a program that never ends."""

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LOGIN = "gcloud auth application-default login"


@dataclass(frozen=True, slots=True)
class Sdk:
    """The vendor's modules, imported."""

    compute: Any
    auth: Any
    auth_errors: Any
    transport: Any


def load() -> Sdk:
    """Import the vendor's library: 2 to 4 seconds of CPU the first time. Safe in any thread, and from several at once."""
    return Sdk(
        importlib.import_module("google.cloud.compute_v1"),
        importlib.import_module("google.auth"),
        importlib.import_module("google.auth.exceptions"),
        importlib.import_module("google.auth.transport.requests"),
    )


class Api:
    """One project's clients, made when they are first needed, all with the same credentials."""

    def __init__(self, settings: Settings, now: Callable[[], Time]) -> None:
        self.settings, self._now = settings, now
        self._lock = threading.RLock()
        self._clients: dict[str, Any] = {}
        self._credentials: Any = None
        self._session: Any = None
        self._project = settings.project
        self._told: Time | None = None

    @property
    def provider_time(self) -> Time | None:
        """The vendor's clock, as its newest answer told it."""
        return self._told

    def left_s(self, until: Time) -> float:
        """Seconds until then, by the clock of whoever said it."""
        return until - self._now()

    def project(self) -> str:
        """The project of the settings, else of the credentials. Raises `CredentialsError` when neither names one."""
        if not self._project:
            self._login()
        if not self._project:
            raise CredentialsError(
                "no project: neither the settings nor the credentials name one",
                next_command='add project = "YOUR-PROJECT" under [providers.gcp] in config.toml',
            )
        return self._project

    def client(self, service: str) -> Any:
        """The vendor's client for `service`, such as `Instances`."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._connect(service)
            return self._clients[service]

    def call(self, service: str, method: str, until: Time, request: Mapping[str, Any]) -> Any:
        """One call, for example `call("Disks", "get", until, {...})`; the project goes in by itself.

        Raises `Failure` for an answer that is an error, `CredentialsError`, `RateLimited`, `Unreadable`, and `ProviderError`
        when nothing was heard: then the outcome is unknown.
        """
        sdk = load()
        full = {"project": self.project(), **request}
        client = self.client(service)
        timeout_s = self._timeout(f"{service}.{method}", until)
        try:
            return getattr(client, method)(request=full, retry=None, timeout=timeout_s)
        except Exception as error:
            raise self._translated(sdk, error) from error

    def pages(self, service: str, method: str, until: Time, request: Mapping[str, Any]) -> Iterator[Any]:
        """Every page of a listing, each by a call of its own. A listing without an end raises."""
        token = ""
        for _ in range(MOST_PAGES):
            fields = {"max_results": PAGE, **request, **({"page_token": token} if token else {})}
            page = next(iter(self.call(service, method, until, fields).pages))
            yield page
            token = page.next_page_token
            if not token:
                return
        raise ProviderError(f"the listing {service}.{method} did not end after {MOST_PAGES} pages")

    def plain(self, verb: str, url: str, until: Time, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A call to another of the vendor's interfaces, as JSON over HTTP with the same credentials."""
        sdk, session = load(), self._authorized()
        timeout_s = self._timeout(url, until)
        try:
            answer = session.request(verb, url, params=query, timeout=timeout_s, allow_redirects=False)
        except Exception as error:
            raise self._translated(sdk, error) from error
        self._hear(answer)
        return self._document(answer.status_code, answer.text, answer.headers)

    def catalog(self, url: str, key: str, until: Time, query: Mapping[str, str]) -> dict[str, Any]:
        """A call that only needs an API key, which travels in a header so that no address ever shows it."""
        timeout_s = self._timeout(url, until)
        try:
            answer = httpx.get(url, params=dict(query), headers={"X-Goog-Api-Key": key}, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise ProviderError(f"no answer of {url}: {type(error).__name__}") from error
        return self._document(answer.status_code, answer.text, answer.headers)

    def require_project(self, until: Time) -> None:
        """Insist that the project can be seen: one that is hidden answers 404 to everything, and that shows nothing gone."""
        try:
            self.call("Projects", "get", until, {})
        except failures.Failure as error:
            if not error.absent:
                raise
            project = self.project()
            hidden = f"the project {project} cannot be seen with these credentials: what is in it may bill on"
            raise CredentialsError(hidden, next_command=f"gcloud projects get-iam-policy {project}") from error

    # --- connecting

    def _login(self) -> Any:
        """The credentials, found once. Raises `CredentialsError` when there are none."""
        sdk = load()
        with self._lock:
            if self._credentials is not None:
                return self._credentials
            try:
                with warnings.catch_warnings():
                    # a hint about quota projects that would go to the user's screen in the middle of a table
                    warnings.simplefilter("ignore")
                    if self.settings.credentials_file:
                        found = sdk.auth.load_credentials_from_file(self.settings.credentials_file, scopes=[SCOPE])
                    else:
                        found = sdk.auth.default(scopes=[SCOPE])
            except (sdk.auth_errors.GoogleAuthError, OSError, ValueError) as error:
                raise CredentialsError(f"no credentials of Google Cloud: {error}", next_command=LOGIN) from error
            self._credentials = found[0]
            self._project = self._project or str(found[1] or "")
            return self._credentials

    def _connect(self, service: str) -> Any:
        """A client on the endpoint of the settings; what it does not decide itself is said here, not left to defaults."""
        sdk, credentials = load(), self._login()
        client_class = getattr(sdk.compute, f"{service}Client")
        scheme, _, host = self.settings.api_endpoint.partition("://")
        transport = client_class.get_transport_class("rest")(
            # one exchanged token for all clients instead of a token signed per client: it can be revoked
            credentials=credentials, host=host, url_scheme=scheme, always_use_jwt_access=False,
        )  # fmt: skip
        session = getattr(transport, "_session", None)
        if session is not None:
            # the library drops the headers, and with them the vendor's clock
            session.hooks["response"].append(lambda answer, *_, **__: self._hear(answer))
        return client_class(transport=transport)

    def _authorized(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = load().transport.AuthorizedSession(self._login())
            return self._session

    def _timeout(self, what: str, until: Time) -> float:
        left_s = self.left_s(until)
        if left_s <= 0:
            raise ProviderError(f"too late for {what}: nothing was sent")
        return min(left_s, CALL_S)

    def _hear(self, answer: Any) -> None:
        try:
            self._told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            pass

    # --- translating

    def _document(self, status: int, text: str, headers: Mapping[str, str]) -> dict[str, Any]:
        try:
            document = json.loads(text or "{}")
        except ValueError as error:
            if status < 400:
                raise failures.unreadable(error) from error
            document = {}  # a page of a proxy: its status says enough
        if not isinstance(document, dict):
            raise failures.unreadable(ValueError("not an object"))
        if status < 300:
            return document
        told = document.get("error")
        said: dict[str, Any] = told if isinstance(told, dict) else {}
        codes = _codes(said.get("errors"), said.get("details")) or tuple(str(w) for w in (said.get("status"),) if w)
        message = str(said.get("message", "no reason given"))
        raise self._failed(status, message, codes, said.get("details"), headers)

    def _translated(self, sdk: Sdk, error: Exception) -> GpuopsError:
        """The one place where exceptions of the vendor's library become ours."""
        if isinstance(error, GpuopsError):
            return error
        if isinstance(error, sdk.auth_errors.TransportError) or getattr(error, "retryable", False):
            return ProviderError(f"no token, Google's sign-in cannot be reached: {error}")
        if isinstance(error, sdk.auth_errors.RefreshError) and str(error).lstrip().startswith("<"):
            # the sign-in answers in JSON, also when it refuses
            return ProviderError(
                "no token: a page of somebody on the way came instead of an answer of Google's sign-in"
            )
        if isinstance(error, sdk.auth_errors.GoogleAuthError):
            return CredentialsError(f"the credentials of Google Cloud are not good: {error}", next_command=LOGIN)
        status = getattr(error, "code", None)
        if isinstance(status, int) and hasattr(error, "errors"):
            details = getattr(error, "details", None)
            found = [detail for detail in (details or ()) if isinstance(detail, dict)]
            reason = getattr(error, "reason", None)
            codes = (*((str(reason),) if reason else ()), *_codes(getattr(error, "errors", ()), found))
            # the library writes method and address in front of what the vendor said
            message = re.sub(r"^[A-Z]+ https?://\S+: ", "", str(getattr(error, "message", error)))
            headers = getattr(getattr(error, "response", None), "headers", None) or {}
            return self._failed(int(status), message, codes, found, headers)
        if type(error).__module__.startswith(("requests", "urllib3")) and not isinstance(error, ValueError):
            return ProviderError(f"no answer of Google Cloud: {type(error).__name__}")
        if type(error).__name__ == "RetryError":
            return ProviderError("no answer of Google Cloud in time")
        if isinstance(error, ValueError) or type(error).__name__ == "ParseError":
            return failures.unreadable(error)
        return ProviderError(f"Google Cloud: {type(error).__name__}: {error}")

    def _failed(
        self, status: int, message: str, codes: tuple[str, ...], details: Any, headers: Mapping[str, str]
    ) -> GpuopsError:
        found = [d["metadata"] for d in details or () if isinstance(d, dict) and isinstance(d.get("metadata"), dict)]
        service = next((str(m["service"]) for m in found if m.get("service")), "")
        wait_s = times.wait_s(headers.get("Retry-After", ""), self._now())
        return failures.translate(status, message, codes, self._project, service, wait_s)


def _codes(errors: Any, details: Any) -> tuple[str, ...]:
    """The vendor's words in an error, the most exact first: reasons in the details, then those of the list."""
    words = [d.get("reason") for d in details or () if isinstance(d, dict)]
    words += [e.get("reason") for e in errors or () if isinstance(e, dict)]
    return tuple(dict.fromkeys(str(word) for word in words if word))
