"""The gcp adapter passes the suite that every provider passes, against a fake Compute Engine over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from clouds.gcp import GcpCloud
from gcpcase import FAR_ZONE, NEED, OTHER_ZONE, adapter, offered, order, volume

from gpuops.testing.conformance import ConformanceWorld, ProviderConformance
from gpuops.values import Order, Ref, VolumeUse

FAR = f"zones/{FAR_ZONE}"
FAR_REGION = "regions/europe-west4"
SNAPSHOTS = {"snapshotSchedulePolicy": {"schedule": {"dailySchedule": {"daysInCycle": 1, "startTime": "04:00"}}}}
FOREIGN: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "rental": ("instances", FAR, {"status": "RUNNING", "machineType": f"{FAR}/machineTypes/e2-medium"}, ""),
    "volume": ("disks", FAR, {"sizeGb": "10", "status": "READY"}, ""),
    "snapshot": ("snapshots", "global", {"status": "READY", "storageBytes": "1000"}, ""),
    "image": ("images", "global", {"status": "READY", "archiveSizeBytes": "1000"}, ""),
    "machine-image": ("machineImages", "global", {"status": "READY"}, ""),
    "address": (
        "addresses",
        FAR_REGION,
        {"status": "RESERVED", "addressType": "EXTERNAL", "address": "198.51.100.9"},
        "",
    ),
    "reservation": ("reservations", FAR, {"status": "READY"}, ""),
    "future-reservation": ("futureReservations", FAR, {"planningStatus": "SUBMITTED"}, ""),
    "resource-policy": ("resourcePolicies", FAR_REGION, {"status": "READY", **SNAPSHOTS}, ""),
    "router-nat": ("routers", FAR_REGION, {"nats": [{"name": "nat"}]}, "nat"),
    "commitment": ("regionCommitments", FAR_REGION, {"status": "ACTIVE"}, ""),
    "filestore": ("filestores", FAR_ZONE, {}, ""),
}
"""Kind → collection, place and body of one that somebody else made, and what its id has beside its name."""


class GcpWorld(ConformanceWorld):
    """The cloud's time moves on request."""

    need = NEED
    settle_s = 6.0
    other_regions = (OTHER_ZONE, FAR_ZONE)
    speaks_http = True
    refuses_late = True
    throttling = "too_many"
    page_status = 403

    def __init__(self, cloud: GcpCloud) -> None:
        self.cloud = cloud
        self.provider = adapter(cloud)
        self.offer = offered(cloud, self.provider)

    def now(self) -> float:
        return self.cloud.now()

    def advance(self, seconds: float) -> None:
        self.cloud.advance(seconds)

    def order(self, ends_in_s: float = 3600.0) -> Order:
        return order(self.cloud, self.offer, ends_in_s)

    def lose_answer(self) -> None:
        self.cloud.faults(lose_answer={"call": "instances.insert"})

    def error_after_create(self) -> None:
        self.cloud.faults(error_after={"call": "instances.insert"})

    def refuse_capacity(self) -> None:
        self.cloud.faults(stockout=1)

    def hide_new(self, seconds: float) -> None:
        self.cloud.faults(hide_new={"seconds": seconds})

    def ignore_terminate(self) -> None:
        self.cloud.faults(ignore_delete=1)

    def gap(self, region: str) -> None:
        self.cloud.faults(gap={"where": f"zones/{region}"})

    def unknown_word(self, ref: Ref) -> None:
        self.cloud.faults(status={"name": ref.id})

    def damage_mark(self, ref: Ref) -> None:
        labels = self.cloud.there()[ref.id]["labels"]
        self.cloud.change("instances", f"zones/{ref.region}", ref.id, labels={**labels, "gpuops-limit": "1"})

    def ending(self, ref: Ref) -> None:
        self.cloud.faults(status={"name": ref.id, "word": "STOPPING"})

    def rename(self, ref: Ref) -> None:
        # a name cannot be changed here; what a person can take away are the labels, which rank above it
        self.cloud.change("instances", f"zones/{ref.region}", ref.id, labels={"team": "mine"})

    def clone(self, ref: Ref) -> Ref:
        like = self.cloud.there()[ref.id]
        kept = {
            key: like[key] for key in ("machineType", "labels", "scheduling", "metadata", "status", "networkInterfaces")
        }
        self.cloud.put("instances", f"zones/{ref.region}", name="instance-1", **kept)
        return Ref("gcp", self.cloud.project, ref.region, "rental", "instance-1")

    def foreign(self, kind: str = "rental") -> Ref:
        collection, scope, shown, beside = FOREIGN[kind]
        name = f"theirs-{kind}"
        self.cloud.put(collection, scope, name=name, **shown)
        region = scope.rpartition("/")[2]
        return Ref("gcp", self.cloud.project, region, kind, f"{name}/{beside}" if beside else name)

    def volume(self) -> VolumeUse:
        return volume(self.cloud, f"data-{len(self.cloud.there('disks'))}")

    def refuse_late(self) -> None:
        self.cloud.settings(insert_s=1.0)
        self.cloud.faults(stockout=1)

    def break_credentials(self) -> None:
        self.cloud.faults(credentials=True)

    # --- the wire

    def cut_connection(self) -> None:
        self.cloud.faults(torn={"call": "instances.insert"})

    def answer_late(self) -> None:
        self.cloud.faults(slow_answer={"call": "instances.insert", "seconds": 12.0})

    def throttle(self, retry_after_s: float | None) -> None:
        wait = f"{retry_after_s:.0f}" if retry_after_s else ""
        self.cloud.faults(**{self.throttling: {"times": None, "retry_after": wait}})

    def answer_html(self) -> None:
        self.cloud.faults(html={"times": None, "status": self.page_status})

    def forbid(self) -> None:
        self.cloud.faults(forbidden=True)

    def mask_credentials(self) -> None:
        # all the vendor's answers become "not found": a project that one may not see does not exist
        self.cloud.faults(hidden_account=True)

    def fail_looks(self) -> None:
        self.cloud.faults(error={"call": "instances.get", "times": None})

    def break_pages(self) -> None:
        self.cloud.settings(page=1)
        self.cloud.faults(later_pages=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpCloud]:
    pytest.importorskip("google.cloud.compute_v1")
    cloud = GcpCloud(tmp_path_factory.mktemp("gcp"))
    yield cloud
    cloud.close()


class TestGcp(ProviderConformance):
    @pytest.fixture
    def world(self, server: GcpCloud) -> ConformanceWorld:
        # an insert is done as soon as it is accepted: what happens meanwhile is tried in tests/providers/test_gcp_looking.py
        server.reset(insert_s=0.0, pending_s=0.0)
        return GcpWorld(server)

    @pytest.mark.parametrize("status", [200, 401, 403, 404, 502])
    def test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(self, wire: GcpWorld, status: int) -> None:
        wire.page_status = status
        super().test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(wire)

    @pytest.mark.parametrize("answer", ["too_many", "rate_limit"])
    def test_too_many_requests_is_no_answer_to_a_create_call(self, wire: GcpWorld, answer: str) -> None:
        # the vendor says it by 429 or by 403 rateLimitExceeded
        wire.throttling = answer
        super().test_too_many_requests_is_no_answer_to_a_create_call(wire)

    def test_a_listing_that_breaks_off_is_not_complete(self, wire: GcpWorld) -> None:
        wire.cloud.settings(page=2)  # so that the whole one has several pages, too
        super().test_a_listing_that_breaks_off_is_not_complete(wire)
