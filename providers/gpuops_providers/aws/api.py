"""boto3 behind one function: each call is bounded by the caller's `until`, and every error is one of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, Unreadable
from gpuops.values import Time

from .errors import Denied, translate

READ_TIMEOUTS_S = (16, 8, 4, 2, 1)
CONNECT_TIMEOUT_S = 3
WORKERS = 16
HOME_REGION = "us-east-1"
"""Where what has no region is asked, when neither the settings nor the profile name one."""
Answer = dict[str, Any]
T = TypeVar("T")


class Api:
    """The clients of one profile, made when first needed."""

    def __init__(self, profile: str, now: Callable[[], Time]) -> None:
        """`now`: the clock that `until` is told by."""
        self._profile, self._now = profile, now
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str, int, int], Any] = {}
        self.logins = 0
        """How often credentials were given up: what was learned by earlier ones may be about another account."""

    def region(self) -> str:
        """The profile's own region; empty when it names none."""
        with self._lock:
            return str(self._opened("asking the profile for its region").region_name or "")

    def call(
        self, service: str, region: str, method: str, until: Time, *, once: bool = False, **parameters: Any
    ) -> Answer:
        """One call. `once`: it is sent at most once, whatever becomes of it; all others may be sent twice.

        Raises `CredentialsError`, `RateLimited`, `Unreadable` and other `ProviderError`s; nothing else.
        """
        doing = f"{service} {method} in {region}"
        client = self._client(service, region, until, attempts=1 if once else 2, doing=doing)
        try:
            answer: Answer = getattr(client, method)(**parameters)
        except Exception as error:
            translated = translate(error, doing, self._profile)
            if isinstance(translated, CredentialsError) and not isinstance(translated, Denied):
                self._forget(client)
            raise translated from error
        return answer

    def pages(self, service: str, region: str, method: str, until: Time, **parameters: Any) -> Iterator[Answer]:
        """Every page of a listing. A token that comes back unchanged is unreadable: it would never end."""
        more: dict[str, Any] = {}
        while True:
            answer = self.call(service, region, method, until, **parameters, **more)
            yield answer
            token, name = answer.get("NextToken"), "NextToken"
            if answer.get("NextMarker"):
                token, name = answer["NextMarker"], "Marker"
            if not token:
                return
            if more.get(name) == token:
                raise Unreadable(f"{service} {method} in {region}: the same page again and again")
            more = {name: token}

    def left_s(self, until: Time) -> float:
        """Seconds until then, by the clock of whoever said it."""
        return until - self._now()

    def input_shape(self, service: str, region: str, operation: str, until: Time) -> Any:
        """What the service's own model says of an operation's parameters."""
        client = self._client(service, region, until, attempts=1, doing=f"the model of {operation}")
        return client.meta.service_model.operation_model(operation).input_shape

    def _forget(self, client: Any) -> None:
        """Look for credentials anew at the next call: who logs in again must not have to start gpuops again."""
        with self._lock:
            if client in self._clients.values():
                self._session, self._clients = None, {}
                self.logins += 1

    def _client(self, service: str, region: str, until: Time, attempts: int, doing: str) -> Any:
        """A client whose longest wait fits before `until`, all attempts and the pause between them counted."""
        left = self.left_s(until)
        if left <= 0:
            raise ProviderError(f"too late for {doing}: nothing was sent")
        pauses = attempts - 1
        fitting = (t for t in READ_TIMEOUTS_S if attempts * (t + min(t, CONNECT_TIMEOUT_S)) + pauses <= left)
        timeout = next(fitting, 0)
        if not timeout:
            attempts, timeout = 1, READ_TIMEOUTS_S[-1]
        key = (service, region, attempts, timeout)
        with self._lock:  # a session makes one client at a time
            if key not in self._clients:
                self._clients[key] = self._made(service, region, attempts, timeout, doing)
            return self._clients[key]

    def _made(self, service: str, region: str, attempts: int, timeout: int, doing: str) -> Any:
        from botocore.config import Config

        config = Config(
            connect_timeout=min(timeout, CONNECT_TIMEOUT_S),
            read_timeout=timeout,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=WORKERS,
            user_agent_extra="gpuops",
        )
        try:
            return self._opened(doing).client(service, region_name=region, config=config)
        except GpuopsError:
            raise
        except Exception as error:
            raise translate(error, doing, self._profile) from error

    def _opened(self, doing: str) -> Any:
        if self._session is None:
            import boto3

            try:
                self._session = boto3.session.Session(profile_name=self._profile or None)
            except Exception as error:
                raise translate(error, doing, self._profile) from error
        return self._session


def answered_at(answer: Answer) -> Time | None:
    """The provider's time in an answer; None when it tells none."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def request_id(answer: Answer) -> str:
    """The provider's name for the request."""
    return str(answer.get("ResponseMetadata", {}).get("RequestId", ""))


def in_parallel(jobs: Sequence[Callable[[], T]], patience_s: float) -> list[T | GpuopsError]:
    """Run the jobs at once and return their results, or errors of ours, in order; what is not done in time is an error.

    Threads that still wait then end with their own socket's patience. Any other exception is raised: a bug.
    """
    if len(jobs) == 1:
        try:
            return [jobs[0]()]
        except GpuopsError as error:
            return [error]
    pool = futures.ThreadPoolExecutor(WORKERS, "gpuops-aws")
    running = [pool.submit(job) for job in jobs]
    done, _ = futures.wait(running, timeout=max(0.0, patience_s))
    pool.shutdown(wait=False, cancel_futures=True)
    results: list[T | GpuopsError] = []
    for future in running:
        if future not in done or future.cancelled():
            results.append(ProviderError("no answer in time"))
            continue
        try:
            results.append(future.result())
        except GpuopsError as error:
            results.append(error)
    return results
