"""The provider's own timer: what it needs, when it is pending, and that it fires."""

import datetime

import pytest
from clouds.gcp import GcpCloud
from clouds.gcp_case import (
    ZONE,
    boot_disk,
    cloud,
    delete,
    done,
    errors,
    get,
    insert,
    order,
    running,
    scheduling,
    server,
    types,
)

__all__ = ["cloud", "server"]


def pending(cloud: GcpCloud) -> float | None:
    """The moment of the pending deadline, as seconds since 1970."""
    text = get(cloud).resource_status.scheduling.termination_timestamp
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


def text(at: float) -> str:
    """A moment as a user would write it."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()


def set_scheduling(cloud: GcpCloud, wanted: object) -> None:
    """Change scheduling and wait."""
    request = {"project": cloud.project, "zone": ZONE, "instance": "one", "scheduling_resource": wanted}
    done(cloud, cloud.client("InstancesClient").set_scheduling_unary(request=request, retry=None, timeout=10))


def halt(cloud: GcpCloud, method: str, status: str) -> None:
    """Stop, suspend or start the instance."""
    request = {"project": cloud.project, "zone": ZONE, "instance": "one"}
    getattr(cloud.client("InstancesClient"), f"{method}_unary")(request=request, retry=None, timeout=10)
    cloud.wait(lambda: get(cloud).status == status, status)


def test_the_deadline_is_read_back_from_running_on(cloud: GcpCloud) -> None:
    cloud.settings(staging_s=60)
    done(cloud, insert(cloud))
    assert pending(cloud) is None
    cloud.advance(200)
    assert abs((pending(cloud) or 0) - (cloud.now() - 80 + 3600)) < 10


def test_the_deadline_deletes_the_instance_and_its_disk(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.advance(3500)
    assert get(cloud).status == "RUNNING"
    cloud.advance(200)
    with pytest.raises(errors().NotFound):
        get(cloud)
    assert cloud.there("disks") == {}


def test_the_deadline_leaves_a_disk_that_is_not_for_deletion(cloud: GcpCloud) -> None:
    running(cloud, order(disks=[boot_disk(auto_delete=False)]))
    cloud.advance(3700)
    assert cloud.there() == {}
    assert set(cloud.there("disks")) == {"one"}


def test_the_deadline_with_stop_leaves_a_stopped_instance_whose_disk_bills(cloud: GcpCloud) -> None:
    running(cloud, order(scheduling=scheduling(instance_termination_action="STOP")))
    cloud.advance(3700)
    assert get(cloud).status == "TERMINATED"
    assert {u["plural"] for u in cloud.usage() if u["end"] is None} == {"instances", "disks"}


def test_a_deadline_fires_by_itself_without_any_request(cloud: GcpCloud) -> None:
    cloud.settings(shortest_run_s=1)
    short = scheduling(max_run_duration=types().Duration(seconds=1))
    done(cloud, insert(cloud, order(scheduling=short)))
    cloud.wait(lambda: cloud.there() == {}, "the deadline")


@pytest.mark.parametrize("way", ["stop", "suspend"])
def test_a_stopped_instance_has_no_pending_deadline_and_the_duration_starts_again(cloud: GcpCloud, way: str) -> None:
    running(cloud)
    first = pending(cloud)
    halt(cloud, way, {"stop": "TERMINATED", "suspend": "SUSPENDED"}[way])
    assert pending(cloud) is None
    cloud.advance(7200)
    halt(cloud, {"stop": "start", "suspend": "resume"}[way], "RUNNING")
    assert first is not None
    assert (pending(cloud) or 0) > first + 3600


def test_an_absolute_time_is_kept(cloud: GcpCloud) -> None:
    at = float(int(cloud.now()) + 5000)
    running(cloud, order(scheduling=scheduling(max_run_duration=None, termination_time=text(at))))
    assert pending(cloud) == at
    cloud.advance(5001)
    cloud.wait(lambda: cloud.there() == {}, "the deadline")


def test_a_duration_needs_a_termination_action(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest) as caught:
        insert(cloud, order(scheduling=scheduling(instance_termination_action=None)))
    assert "instanceTerminationAction" in str(caught.value)
    assert cloud.there() == {}


@pytest.mark.parametrize("seconds", [29, 120 * 86400 + 1])
def test_a_duration_is_30_seconds_to_120_days(cloud: GcpCloud, seconds: int) -> None:
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(scheduling=scheduling(max_run_duration=types().Duration(seconds=seconds))))


def test_a_duration_and_a_time_exclude_each_other(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(scheduling=scheduling(termination_time=text(cloud.now() + 600))))


@pytest.mark.parametrize("wrong", ["tomorrow", "2026-12-01T00:00:00", "2020-01-01T00:00:00Z"])
def test_a_time_has_an_offset_and_lies_ahead(cloud: GcpCloud, wrong: str) -> None:
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(scheduling=scheduling(max_run_duration=None, termination_time=wrong)))


def test_scheduling_changes_only_while_the_instance_is_stopped(cloud: GcpCloud) -> None:
    running(cloud)
    longer = scheduling(max_run_duration=types().Duration(seconds=7200))
    with pytest.raises(errors().BadRequest) as caught:
        set_scheduling(cloud, longer)
    assert caught.value.errors[0]["reason"] == "resourceNotReady"
    halt(cloud, "stop", "TERMINATED")
    set_scheduling(cloud, longer)
    halt(cloud, "start", "RUNNING")
    assert abs((pending(cloud) or 0) - cloud.now() - 7200) < 30


def test_where_the_cloud_allows_it_the_end_of_a_running_instance_moves(cloud: GcpCloud) -> None:
    cloud.settings(scheduling_while_running=True)
    running(cloud)
    at = float(int(cloud.now()) + 9000)
    set_scheduling(cloud, scheduling(max_run_duration=None, termination_time=text(at)))
    assert pending(cloud) == at
    cloud.advance(3700)
    assert get(cloud).status == "RUNNING"


def test_a_deleted_instance_has_no_deadline_left_that_could_hit_its_successor(cloud: GcpCloud) -> None:
    running(cloud)
    done(cloud, delete(cloud))
    cloud.advance(3000)
    running(cloud)
    cloud.advance(1000)
    assert get(cloud).status == "RUNNING"
