"""The gcp adapter passes the suite that every provider passes, against a fake Compute Engine over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clouds.gcp import GcpCloud
from gcpcase import FAR_ZONE, NEED, OTHER_ZONE, adapter, offered, order

from gpuops.testing.conformance import ConformanceWorld, ProviderConformance
from gpuops.values import Order, Ref

ABOUT = "made by somebody else"


class GcpWorld(ConformanceWorld):
    """The cloud's time moves on request."""

    need = NEED
    settle_s = 6.0
    other_regions = (OTHER_ZONE, FAR_ZONE)

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

    def foreign(self) -> Ref:
        self.cloud.put("disks", f"zones/{OTHER_ZONE}", name="somebody-elses", description=ABOUT, sizeGb="10")
        return Ref("gcp", self.cloud.project, OTHER_ZONE, "volume", "somebody-elses")

    def break_credentials(self) -> None:
        self.cloud.faults(credentials=True)


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
