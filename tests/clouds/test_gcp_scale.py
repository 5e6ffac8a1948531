"""A large account: filled in a moment, listed in pages, each call as slow as a real one."""

import time

import pytest
from clouds.gcp import GcpCloud
from clouds.gcp_case import aggregated, cloud, server

__all__ = ["cloud", "server"]
RESOURCES, REGIONS, CALL_S = 10_000, 20, 0.1


@pytest.mark.slow
def test_ten_thousand_resources_in_twenty_regions_are_all_listed(cloud: GcpCloud) -> None:
    cloud.reset(regions=REGIONS)
    made = cloud.fill(RESOURCES)
    assert made.pop("seconds") < 30
    assert sum(made.values()) == RESOURCES
    instances, disks = aggregated(cloud), aggregated(cloud, "Disks", "disks")
    assert len(instances) == len(disks) == 3 * REGIONS
    assert sum(map(len, instances.values())) == made["instances"]
    assert sum(map(len, disks.values())) == made["disks"]
    snapshots = cloud.client("SnapshotsClient").list(request={"project": cloud.project, "max_results": 500}, retry=None)
    assert len(list(snapshots)) == made["snapshots"]
    assert sum(map(len, aggregated(cloud, "Addresses", "addresses").values())) == made["addresses"]
    assert {len(names) for names in cloud_pages(cloud)} == {500}


def cloud_pages(cloud: GcpCloud) -> list[list[str]]:
    """The names of each page of instances."""
    pager = cloud.client("InstancesClient").aggregated_list(project=cloud.project, retry=None)
    return [[i.name for listed in page.items.values() for i in listed.instances] for page in pager.pages]


def test_every_call_takes_as_long_as_it_is_told(cloud: GcpCloud) -> None:
    cloud.reset(regions=REGIONS, call_s=CALL_S)
    cloud.fill(3000)
    begun = time.monotonic()
    pages = len(cloud_pages(cloud))
    assert pages == 2
    assert time.monotonic() - begun >= pages * CALL_S
