"""The fake cloud as a function from request to answer: faults first, then who asks, then what is asked."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import gcp_catalogue as catalogue
from . import gcp_schema as schema
from .gcp_answers import Answer, Refusal, html_answer, json_answer
from .gcp_calls import Calls
from .gcp_faults import Faults
from .gcp_lives import Machines, NoMachines
from .gcp_others import Others
from .gcp_requests import PREFIX, Call, MessageTypes, understand
from .gcp_state import Account, Settings
from .gcp_tokens import Tokens

LONGEST_WAIT_S = 120.0
"""An operation's `wait` answers after two minutes at the latest (discovery document)."""
CHECKED_BYTES = 200_000
"""Answers up to this size are held to the description too; larger ones are made of the same parts."""


class Cloud:
    """One account with everything around it. `respond` may be called from any thread."""

    def __init__(self, make_machines: Callable[[Cloud], Machines] = lambda cloud: NoMachines()) -> None:
        self.description = schema.load()
        self.types = MessageTypes()
        self.lock = threading.RLock()
        self.make_machines = make_machines
        self.bugs: list[str] = []
        self.log: list[dict[str, Any]] = []
        self.tokens = Tokens(Settings().project, Settings().token_s)
        self.begin({})

    def begin(self, settings: Mapping[str, Any]) -> None:
        """A new account; what the old one has still to do is forgotten."""
        with self.lock:
            if hasattr(self, "account"):
                for resource in [r for r in self.account.resources.values() if r.plural == "instances"]:
                    self.machines.end(resource.body["selfLink"], wipe=True)
                self.account.resources.clear()  # a host that is still booting finds its instance gone
            self.account = Account(Settings(**settings), self.description, self.lock)
            self.faults = Faults()
            self.account.hide_s = self.faults.hidden_for
            self.machines = self.make_machines(self) if self.account.settings.hosts else NoMachines()
            self.others = Others(self.account, self.faults)
            self.calls = Calls(self.account, self.faults, self.machines)
            self.tokens.valid_s = self.account.settings.token_s
            self.tokens.granted.clear()
            self.log.clear()
            self.bugs.clear()
            catalogue.furnish(self.account)

    def tick(self) -> None:
        """Let everything happen that is due."""
        with self.lock:
            try:
                self.account.tick()
            except Exception:
                self.bugs.append(traceback.format_exc())

    def respond(self, verb: str, target: str, text: str, headers: Mapping[str, str]) -> Answer | None:
        """The answer to one request; None when the line is cut instead."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        name, where, resource = self._named(verb, parts.path, text)
        entry = {"at": time.time(), "verb": verb, "path": parts.path, "query": parts.query, "call": name, "body": text}
        with self.lock:
            self.tick()
            self.log.append(entry)
            wait_s, answer, cut = self.faults.strike(name, where, resource, after=False)
            call_s = self.account.settings.call_s
        time.sleep(wait_s + call_s)
        if cut:
            entry["status"] = 0
            return None
        if answer is None:
            answer = self._carried_out(verb, parts.path, query, text, headers, name)
            if answer.status < 400:
                with self.lock:
                    wait_s, other, cut = self.faults.strike(name, where, resource, after=True)
                    answer = other or self.faults.spoiled(answer, name, where, resource)
                time.sleep(wait_s)
        entry["status"] = 0 if cut else answer.status
        return None if cut else answer

    def _named(self, verb: str, path: str, text: str) -> tuple[str, str, str]:
        """How the fault table calls a request: method, scope, name."""
        if path == "/token":
            return "oauth.token", "global", ""
        found = self.description.route(verb, path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
        if found is None:
            return self.others.named(verb, path), "global", ""
        call = Call(found[0], found[1], {}, {})
        return call.method.id, call.scope, call.target or _name_in(text)

    def _carried_out(
        self, verb: str, path: str, query: Mapping[str, list[str]], text: str, headers: Mapping[str, str], name: str
    ) -> Answer:
        try:
            if name == "oauth.token":
                return self.tokens.grant(parse_qs(text))
            if not name:
                return html_answer(404)
            if not self.account.settings.anonymous:
                self.tokens.require(name, headers, query)
            if not path.startswith(PREFIX):
                with self.lock:
                    return self.others.answer(verb, path, query)
            call = understand(self.description, self.types, verb, path, query, text)
            assert call is not None
            return self._computed(call)
        except Refusal as refusal:
            return refusal.answer()
        except Exception:
            self.bugs.append(f"{verb} {path}: {traceback.format_exc()}")
            return json_answer({"error": {"code": 500, "message": "the fake has a bug", "errors": []}}, 500)

    def _computed(self, call: Call) -> Answer:
        give_up = time.monotonic() + LONGEST_WAIT_S
        while True:
            with self.lock:
                self.tick()
                body = self.calls.carry_out(call)
                answer = json_answer(body)
                if call.method.name != "wait" or body["status"] == "DONE" or time.monotonic() > give_up:
                    self._check(call, body, answer)
                    return answer
            time.sleep(0.02)

    def _check(self, call: Call, body: Mapping[str, Any], answer: Answer) -> None:
        """What the fake says must be something that the vendor could say, unless it is told to lie."""
        lies = any(fault.kind in ("word", "warn", "progress") for fault in self.faults.rows)
        if call.method.answer and len(answer.body) < CHECKED_BYTES and not lies:
            for violation in self.description.check(f"#{call.method.answer}", body, "answer"):
                self.bugs.append(f"{call.method.id}: {violation.field}: {violation.text}")


def _name_in(text: str) -> str:
    """The name that a body gives to what it makes; empty when it cannot be read."""
    start = text.find('"name"')
    return text[start:].split('"')[3] if start >= 0 and text[start:].count('"') > 3 else ""
