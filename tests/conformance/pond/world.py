"""What the conformance kit needs of Pond: the adapter, an order that can be filled, and a switch for each fault."""

from __future__ import annotations

import os
from collections.abc import Callable

import httpx

from gpuops.marks import new_nonce
from gpuops.provider import Provider
from gpuops.testing.conformance import ConformanceWorld
from gpuops.values import HostKey, Mark, Need, Order, Ref, VolumeUse

from .adapter import provider
from .cloud import ACCOUNT, TOKEN, Pond, Thing


class PondWorld(ConformanceWorld):
    """Pond behind a socket; its time is pushed forward, waits on the wire are real."""

    need = Need("L4", region="lake")
    settle_s = 60.0
    other_regions = ("river",)
    speaks_http = True
    refuses_late = True
    late = "silent"
    page_status = 403
    """The one that tempts most: whoever takes it for Pond's own word calls good credentials bad."""

    def __init__(self, pond: Pond, url: str, factory: Callable[..., Provider] = provider) -> None:
        self.pond = pond
        client = httpx.Client(base_url=f"{url}/v1/", trust_env=False)
        self.provider = factory({}, {"POND_TOKEN": TOKEN}.get, pond.now, client)

    def now(self) -> float:
        return self.pond.now()

    def advance(self, seconds: float) -> None:
        self.pond.advance(seconds)

    def order(self, ends_in_s: float = 3600.0) -> Order:
        ends_at = float(int(self.now() + ends_in_s))
        mark = Mark("a-run", new_nonce(os.urandom(8)), "ada", ends_at, "SHA256:of-the-host-key")
        offer = self.provider.quote(self.need, self.now() + 30)[0]
        key = HostKey("private", "public", mark.host_key)
        return Order(mark, 0, offer, "image", 10, (), ("ssh-ed25519 key",), key, "", ends_at)

    def lose_answer(self) -> None:
        self.pond.faults.next_create.append("lost")

    def error_after_create(self) -> None:
        self.pond.faults.next_create.append("error")

    def refuse_capacity(self) -> None:
        self.pond.faults.next_create.append("no_capacity")

    def refuse_late(self) -> None:
        self.pond.faults.next_create.append("fails")

    def hide_new(self, seconds: float) -> None:
        self.pond.faults.hidden_s = seconds

    def ignore_terminate(self) -> None:
        for thing in self.pond.things.values():
            thing.ignores += 1

    def gap(self, region: str) -> None:
        self.pond.faults.blind.add(region)

    def unknown_word(self, ref: Ref) -> None:
        self.pond.things[ref.id].word = "evaporating"

    def ending(self, ref: Ref) -> None:
        self.pond.things[ref.id].word = "draining"

    def damage_mark(self, ref: Ref) -> None:
        # the third part of the name is the limit: another one does not fit the check characters
        thing = self.pond.things[ref.id]
        thing.name = "-".join([*thing.name.split("-")[:2], "zzzzzz", *thing.name.split("-")[3:]])

    def rename(self, ref: Ref) -> None:
        self.pond.things[ref.id].name = "my favourite machine"

    def clone(self, ref: Ref) -> Ref:
        like = self.pond.things[ref.id]
        return self._ref("rental", self.pond.make("machines", like.name, like.region, like.labels, size=like.size))

    def foreign(self, kind: str = "rental") -> Ref:
        plural, size = {"rental": ("machines", "oak"), "volume": ("volumes", "")}[kind]
        return self._ref(kind, self.pond.make(plural, "theirs", "river", {"team": "frogs"}, size=size))

    def volume(self) -> VolumeUse:
        return VolumeUse(self.pond.make("volumes", "data", "lake", {}).id, "/data")

    def break_credentials(self) -> None:
        self.pond.faults.bad_token = True

    def cut_connection(self) -> None:
        self.pond.faults.next_create.append("cut")

    def answer_late(self) -> None:
        self.pond.faults.next_create.append(self.late)

    def throttle(self, retry_after_s: float | None) -> None:
        self.pond.faults.throttled, self.pond.faults.retry_after_s = True, retry_after_s

    def answer_html(self) -> None:
        self.pond.faults.page_status = self.page_status

    def forbid(self) -> None:
        self.pond.faults.forbidden = True

    def mask_credentials(self) -> None:
        self.pond.faults.bad_token = self.pond.faults.masked = True

    def fail_looks(self) -> None:
        self.pond.faults.broken_looks = True

    def break_pages(self) -> None:
        self.pond.faults.broken_pages = True

    def _ref(self, kind: str, thing: Thing) -> Ref:
        return Ref("pond", ACCOUNT, thing.region, kind, thing.id)
