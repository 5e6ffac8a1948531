"""The back door of the fake cloud, below `/_control/`: what only a test may do. JSON in, JSON out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import gcp_filler as filler
from . import gcp_lives as lives
from .gcp_calls import kind_of
from .gcp_cloud import Cloud
from .gcp_others import KINDS
from .gcp_state import Resource
from .gcp_tokens import API_KEY

Body = dict[str, Any]
FREE = ("operations", "networks", "subnetworks", "firewalls", "machineTypes", "acceleratorTypes", "diskTypes")
"""Kinds that cost nothing; `usage` leaves them out."""


class Control:
    """The calls of the back door."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._calls: Mapping[str, Callable[[Body], Any]] = {
            "reset": self._reset,
            "settings": self._settings,
            "faults": self._faults,
            "advance": self._advance,
            "now": lambda body: {"now": cloud.account.now()},
            "put": self._put,
            "change": self._change,
            "remove": self._remove,
            "guest": self._guest,
            "fill": self._fill,
            "usage": self._usage,
            "log": self._log,
            "state": self._state,
            "key": self._key,
            "reclaim": self._reclaim,
            "hosts": lambda body: list(cloud.machines.names()),
        }

    def answer(self, name: str, body: Body) -> Any:
        """Carry out one call; raises `KeyError` and `ValueError` for what is not understood."""
        if name == "ready":
            self._cloud.types.refuse("Duration", "{}")  # the first judgement waits for the import
            return {}
        with self._cloud.lock:
            return self._calls[name](body)

    def _key(self, body: Body) -> Body:
        """What a user would have downloaded; `at` is the address of the fake."""
        tokens = self._cloud.tokens
        return {"service": tokens.key_file(body["at"]), "user": tokens.user_file(body["at"]), "api_key": API_KEY}

    def _reset(self, body: Body) -> Body:
        """An account as on the first day, with these settings."""
        self._cloud.begin(body)
        return {}

    def _settings(self, body: Body) -> Body:
        account = self._cloud.account
        account.settings = dataclasses.replace(account.settings, **body)
        self._cloud.tokens.valid_s = account.settings.token_s
        return dataclasses.asdict(account.settings)

    def _faults(self, body: Body) -> Body:
        """Set exactly these switches; says how often those before have struck."""
        struck = dict(self._cloud.faults.struck)
        self._cloud.faults.set(body)
        return struck

    def _advance(self, body: Body) -> Body:
        """Let time pass: what is due happens at its own moment, step by step."""
        account = self._cloud.account
        left = float(body["seconds"])
        while left > 0:
            step = min(left, account.next_due(left))
            account.offset_s += step
            left -= step
            account.tick()
        return {"now": account.now()}

    def _put(self, body: Body) -> Body:
        """Somebody else has made a resource, by another way."""
        collection, scope, value = body["collection"], body["scope"], dict(body["body"])
        if collection in (*KINDS.values(), "buckets"):
            return self._cloud.others.put(collection, scope, value).body
        account = self._cloud.account
        method = account.description.methods[f"{collection}.get"]
        wrong = list(account.description.check(f"#{method.answer}", value))
        if wrong:
            raise ValueError("; ".join(f"{v.field}: {v.text}" for v in wrong))
        plural = method.path.split("/")[-2]
        return account.add(plural, scope, kind_of(account, collection), value).body

    def _change(self, body: Body) -> Body:
        """Fields of a resource are different now, nobody knows why."""
        resource = self._found(body)
        resource.body.update(body["body"])
        return resource.body

    def _remove(self, body: Body) -> Body:
        """It is gone, nobody knows why."""
        resource = self._found(body)
        if resource.plural == "instances":
            self._cloud.machines.end(resource.body["selfLink"], wipe=True)
        self._cloud.account.remove(resource)
        return {}

    def _found(self, body: Body) -> Resource:
        return self._cloud.account.resources[body["plural"], body["scope"], body["name"]]

    def _reclaim(self, body: Body) -> Body:
        """The vendor takes a spot machine back."""
        lives.terminate(self._cloud.account, self._cloud.machines, self._found({"plural": "instances", **body}))
        return {}

    def _guest(self, body: Body) -> Body:
        """Some process in the guest writes guest attributes."""
        link = self._found({"plural": "instances", **body}).body["selfLink"]
        self._cloud.account.guest.setdefault(link, {}).setdefault(body["namespace"], {}).update(body["values"])
        return {}

    def _fill(self, body: Body) -> Body:
        started = time.monotonic()
        made = filler.fill(self._cloud.account, int(body["resources"]))
        return {**made, "seconds": time.monotonic() - started}

    def _usage(self, body: Body) -> list[Body]:
        account = self._cloud.account
        rows = [*account.past_usage, *account.usage.values()]
        return [dataclasses.asdict(u) for u in rows if u.plural not in FREE]

    def _log(self, body: Body) -> list[Body]:
        """Every request since the last reset."""
        return list(self._cloud.log)

    def _state(self, body: Body) -> Body:
        """Resources as they are, whatever lists show; and what the fake itself has done wrong."""
        account = self._cloud.account
        there = [r for r in account.resources.values() if r.plural not in FREE]
        shown = [
            {"plural": r.plural, "scope": r.scope, "name": r.name, "hidden": r.hidden, "body": r.body} for r in there
        ]
        return {"resources": shown, "bugs": list(self._cloud.bugs)}
