"""Google Cloud as a provider: calls and translation."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Callable
from typing import Any

from gpuops.errors import CredentialsError, ProviderError, UsageError
from gpuops.provider import ImageForm, Traits
from gpuops.values import (
    Created,
    Finding,
    Inventory,
    Need,
    Observation,
    Offer,
    Order,
    Ref,
    Refused,
    Scope,
    Time,
)

from . import ending, failures, kinds, listing, looking, marks, needs, offers, request, times
from .api import Api, load
from .book import Book
from .failures import Failure
from .places import covers, last, region_of
from .settings import IMAGE, PROVISIONING, Settings

MACHINES = 'name eq "(a2|a3|a4|g2|g4|n1-standard)-.*"'
"""What is asked for of thousands of machine types; a vendor that does not take the filter is asked for all."""


class GcpProvider:
    """One project of Google Cloud."""

    name = "gcp"
    traits = Traits(
        idempotency_token=True,
        billing_unit_s=offers.BILLING_UNIT_S,
        stopped_bills=("storage", "address"),
        outlives=(kinds.VOLUME,),
        # no vendor text bounds it
        listing_lag_s=None,
        deadline="read back",
        # setScheduling is for stopped machines only (discovery document, instances.setScheduling)
        end_movable=False,
        host_key_route="read back",
        kinds=kinds.ALL,
        made_kinds=(kinds.VOLUME,),
        image=ImageForm("machine", IMAGE, "projects/ubuntu-os-accelerator-images/global/images/NAME-v20260225"),
    )

    def __init__(
        self, api: Api, settings: Settings, billing_key: Callable[[], str | None], now: Callable[[], Time]
    ) -> None:
        """`billing_key` reads list prices; without it the price table of the settings counts."""
        self._api, self._settings, self._now = api, settings, now
        self._book = Book(api, settings, billing_key, now)

    def preload(self) -> threading.Thread:
        """Begin to import the vendor's library in the background, while something else is waited for."""
        thread = threading.Thread(target=load, name="gcp-import", daemon=True)
        thread.start()
        return thread

    def account(self) -> str:
        """The project, once the vendor has shown it; ids of projects are never given out twice."""
        # the import takes seconds, on a busy computer a minute: before the time is measured
        self._api.client("Projects")
        project = self._api.call("Projects", "get", self._now() + 30.0, {})
        return str(project.name)

    def quote(self, need: Need, until: Time) -> tuple[Offer, ...]:
        """Everything that fits, cheapest first, with the concrete image that the family means now."""
        every = list(offers.shapes(*self._types(until)))
        if need.region and not any(covers((need.region,), zone) for zone, _ in every):
            said = f"Google Cloud has no machine with devices in {need.region!r}"
            raise UsageError(said, next_command=f"gcloud compute zones list --project {self._api.project()}")
        fitting = [(zone, shape) for zone, shape in every if offers.fits(zone, shape, need, self._settings)]
        wanted = [
            (shape, what)
            for zone, shape in fitting
            for model in PROVISIONING
            if offers.wanted(what := offers.identify(zone, shape, model), need, self._settings)
        ]
        if not wanted:
            return ()
        known, image = self._book.read(until), self._concrete(until)
        size = offers.disk_gb(need.disk_gb, self._settings)
        account, now = self._api.project(), self._now()
        terms = {offers.IMAGE_TERM: image, "boot disk": f"{size} GiB, in the price"}
        rated = [(shape, what, offers.hourly(known, shape, what, size, self._settings)) for shape, what in wanted]
        made = [
            offers.offer(account, shape, what, rate, known.source(now), now, terms)
            for shape, what, rate in rated
            if rate is not None and (need.max_price_per_hour is None or rate.amount <= need.max_price_per_hour)
        ]
        missing = sorted(f"{what.machine_type} in {region_of(what.zone)}" for _, what, rate in rated if rate is None)
        if missing and len(missing) == len(rated):
            said = f"no price for {', '.join(dict.fromkeys(missing))} in the {known.source(now)}"
            raise UsageError(said, next_command=self._book.mend())
        return tuple(sorted(made, key=lambda offer: (offer.rate.amount, offer.id)))

    def prepare(self, order: Order, until: Time) -> tuple[Ref, ...]:
        """Nothing: keys and deadline go inside the create call, and the project's own firewall counts."""
        return ()

    def provision(self, order: Order, until: Time) -> Created | Refused:
        """Send one instances.insert. Its answer is an operation: what becomes of that, `inspect` tells."""
        if why := request.problem(order):
            return Refused(why, "invalid")
        what = offers.product(order.offer.id)
        assert what is not None  # `problem` has looked
        try:
            project = self._api.project()
            fields = {
                "zone": what.zone,
                "instance_resource": request.instance(order, what, project, self._settings),
                "request_id": marks.request_id(order.mark.nonce),
            }
            self._api.client("Instances")  # the import takes seconds: before the last look at the clock
            if self._api.left_s(until) <= 0:
                return Refused("too late, nothing was sent", "invalid")
            operation = self._api.call("Instances", "insert_unary", until, fields)
        except CredentialsError as error:
            # "too many requests" is none of these: it has been answered to calls that were carried out
            return Refused(f"nothing was made: {error}", "account")
        except Failure as error:
            if error.kind == "exists":
                return self._made_before(order, project, what.zone, until)
            if not error.certain:
                raise
            return Refused(str(error), error.refusal)
        failure = failures.of_operation(operation) if operation.status.name == "DONE" else None
        if failure is not None:
            return Refused(str(failure), failure.refusal)
        ref = self._ref(project, what.zone, request.name(order))
        return Created(ref, times.parse(operation.insert_time), order.offer.rate, operation.name)

    def inspect(self, ref: Ref, until: Time) -> Observation:
        """A fresh look."""
        self._own(ref)
        return looking.look(self._api, ref, until)

    def terminate(self, ref: Ref, until: Time) -> None:
        """Ask for the end; disks that were there before are kept."""
        self._own(ref)
        ending.end(self._api, ref, until)

    def list_billable(self, scope: Scope, until: Time) -> Inventory:
        """Everything in the project, ours or not, with a gap for what could not be read."""
        found = listing.everything(self._api, scope, self._book.rate_of, until)
        return Inventory(self._api.project(), scope, tuple(found.items), tuple(found.gaps), self._api.provider_time)

    def set_mark(self, ref: Ref, limit_at: Time, until: Time) -> Time:
        """Rewrite the limit in the labels of the rental and of the disks that go with it; the rental last, then read it back."""
        self._own(ref)
        item = looking.read(self._api, ref, until)
        if not item.labels.get(marks.NONCE):
            raise ProviderError(f"{ref} carries no mark")
        for disk in item.disks:
            if disk.source and disk.auto_delete:
                self._move_disk_mark(ref, last(disk.source), limit_at, until)
        labels = marks.moved(dict(item.labels), limit_at)
        if labels != dict(item.labels):
            body = {"labels": labels, "label_fingerprint": item.label_fingerprint}
            fields = {"instance": ref.id, "instances_set_labels_request_resource": body}
            ending.finish(self._api, ref, "set_labels_unary", fields, until)
        again, _, damaged = marks.read(dict(looking.read(self._api, ref, until).labels), ref.id)
        if again is None or damaged:
            raise ProviderError(f"the mark of {ref} cannot be read back")
        return again.limit_at

    def host_key(self, ref: Ref, until: Time) -> str | None:
        """The fingerprint that the machine's own agent published at first boot; None until it has.

        The value lacks the type word: it is the key itself, and its fingerprint needs no more. Any process on the machine may
        write there, so this is read before anything of ours runs on it.
        """
        self._own(ref)
        fields = {"zone": ref.region, "instance": ref.id, "query_path": "hostkeys/"}
        try:
            found = self._api.call("Instances", "get_guest_attributes", until, fields)
        except Failure as error:
            if not error.absent:
                raise
            self._api.require_project(until)
            return None
        value = next((entry.value for entry in found.query_value.items if entry.key == "ssh-ed25519"), "")
        return _fingerprint(value) if value else None

    def needs(self, until: Time) -> tuple[Finding, ...]:
        """What the project must have."""
        return needs.examine(self._api, self._settings, until)

    # --- effects

    def _types(self, until: Time) -> tuple[list[Any], list[Any]]:
        """Machine types and accelerator types, of every zone."""
        machines = self._listed("MachineTypes", "machine_types", MACHINES, until)
        accelerators = self._listed("AcceleratorTypes", "accelerator_types", "", until)
        return machines, accelerators

    def _listed(self, service: str, field: str, wanted: str, until: Time) -> list[Any]:
        fields = {"filter": wanted} if wanted else {}
        try:
            pages = list(self._api.pages(service, "aggregated_list", until, fields))
        except Failure as error:
            if error.kind != "invalid" or not wanted:
                raise
            return self._listed(service, field, "", until)
        return [item for page in pages for inside in page.items.values() for item in getattr(inside, field)]

    def _concrete(self, until: Time) -> str:
        """The image that the settings mean now: a family is resolved here, once, and the plan keeps what came of it."""
        image = self._settings.image
        match = image.split("/")
        if "family" not in match:
            return image
        found = self._api.call("Images", "get_from_family", until, {"project": match[1], "family": match[-1]})
        return f"projects/{match[1]}/global/images/{found.name}"

    def _made_before(self, order: Order, project: str, zone: str, until: Time) -> Created:
        """The name is taken: by this very order, if the machine carries its mark. Otherwise nothing is known."""
        ref = self._ref(project, zone, request.name(order))
        item = looking.read(self._api, ref, until)
        _, nonce, _ = marks.read(dict(item.labels), item.name)
        if nonce != order.mark.nonce or item.labels.get(marks.NONCE) != nonce:
            raise ProviderError(f"{ref} exists already and is not from this order")
        return Created(ref, times.parse(item.creation_timestamp), order.offer.rate)

    def _move_disk_mark(self, ref: Ref, disk: str, limit_at: Time, until: Time) -> None:
        item = looking.read(self._api, Ref(ref.provider, ref.account, ref.region, kinds.VOLUME, disk), until)
        labels = marks.moved(dict(item.labels), limit_at)
        if not item.labels.get(marks.NONCE) or labels == dict(item.labels):
            return
        body = {"labels": labels, "label_fingerprint": item.label_fingerprint}
        fields = {"resource": disk, "zone_set_labels_request_resource": body}
        ending.finish(self._api, ref, "set_labels_unary", fields, until, "Disks")

    def _ref(self, project: str, zone: str, name: str) -> Ref:
        return Ref(self.name, project, zone, kinds.RENTAL, name)

    def _own(self, ref: Ref) -> None:
        """An answer about another project would be worthless: its absence here proves nothing."""
        if (ref.provider, ref.account) != (self.name, self._api.project()):
            raise ProviderError(f"{ref} of project {ref.account} is not in project {self._api.project()}")
        if ref.kind not in kinds.ALL:
            raise ProviderError(f"{ref}: Google Cloud has no such kind here")


def _fingerprint(value: str) -> str:
    """As `ssh-keygen -l` shows it."""
    try:
        digest = hashlib.sha256(base64.b64decode(value.split()[-1], validate=True)).digest()
    except (binascii.Error, IndexError) as error:
        raise ProviderError(f"the host key that the machine published cannot be read: {value[:40]!r}") from error
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
