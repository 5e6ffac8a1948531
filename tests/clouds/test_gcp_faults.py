"""Every switch of the fault table does what it says, seen through the vendor's own client."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clouds import gcp_faults as faults
from clouds.gcp import ControlError, GcpCloud
from clouds.gcp_case import (
    OTHER_ZONE,
    ZONE,
    caught,
    cloud,
    delete,
    done,
    errors,
    get,
    insert,
    listed,
    order,
    page,
    reason,
    running,
    server,
    types,
)

__all__ = ["cloud", "server"]


def broken_line(call: Callable[[], Any]) -> None:
    """No answer came: the client library lets the transport's own exception through."""
    requests = pytest.importorskip("requests")
    with pytest.raises(requests.exceptions.ConnectionError):
        call()


def test_every_switch_has_its_test() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_gcp_faults*.py"))
    missing = [name for name in faults.SWITCHES if not re.search(rf"\b{name}=|\"{name}\"", text)]
    assert missing == []


def test_a_switch_that_does_not_exist_is_refused(cloud: GcpCloud) -> None:
    with pytest.raises(ControlError):
        cloud.faults(earthquake=1)
    with pytest.raises(ControlError, match="no such fields"):
        cloud.faults(cut={"how_often": 1})


# --- in the operation


@pytest.mark.parametrize(
    ("switch", "code"),
    [
        ("stockout", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        ("stockout_plain", "ZONE_RESOURCE_POOL_EXHAUSTED"),
    ],
)
def test_lack_of_capacity_stands_in_the_operation_and_nothing_is_left(cloud: GcpCloud, switch: str, code: str) -> None:
    cloud.faults(**{switch: 1})
    operation = done(cloud, insert(cloud))
    assert operation.status == types().Operation.Status.DONE
    assert operation.error.errors[0].code == code
    assert operation.http_error_status_code == 503
    assert "does not have enough resources" in operation.error.errors[0].message
    assert cloud.usage() == []
    assert not done(cloud, insert(cloud)).error.errors, "the name is free again, and the switch has worn off"


def test_a_stockout_names_its_details(cloud: GcpCloud) -> None:
    cloud.faults(stockout=1)
    (detail,) = done(cloud, insert(cloud)).error.errors[0].error_details
    assert detail.error_info.reason == "resource_availability"
    assert detail.error_info.metadatas["zone"] == ZONE


def test_a_stockout_of_one_zone_leaves_the_others(cloud: GcpCloud) -> None:
    cloud.faults(stockout={"where": f"zones/{ZONE}", "times": None})
    for _ in range(2):
        assert done(cloud, insert(cloud)).error.errors
    assert not done(cloud, insert(cloud, zone=OTHER_ZONE), OTHER_ZONE).error.errors


def test_a_quota_stands_in_the_operation_with_its_name(cloud: GcpCloud) -> None:
    cloud.faults(quota=1)
    operation = done(cloud, insert(cloud))
    assert (operation.error.errors[0].code, operation.http_error_status_code) == ("QUOTA_EXCEEDED", 403)
    assert (
        operation.error.errors[0].error_details[0].quota_info.metric_name == "compute.googleapis.com/gpus_all_regions"
    )
    assert cloud.usage() == []


def test_a_change_can_fail_in_its_operation(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(failed_change=1)
    request = {"project": cloud.project, "zone": ZONE, "instance": "one", "auto_delete": False}
    operation = cloud.client("InstancesClient").set_disk_auto_delete_unary(
        request={**request, "device_name": "persistent-disk-0"}, retry=None
    )
    assert done(cloud, operation).error.errors[0].code == "INTERNAL_ERROR"
    assert get(cloud).disks[0].auto_delete


def test_a_delete_can_fail_in_its_operation_and_the_instance_bills_on(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(failed_delete=1)
    assert done(cloud, delete(cloud)).error.errors
    assert get(cloud).status == "RUNNING"
    assert get(cloud).resource_status.scheduling.termination_timestamp
    assert not done(cloud, delete(cloud)).error.errors
    assert cloud.there() == {}


# --- at once


@pytest.mark.parametrize(
    ("switch", "kind", "why"),
    [
        ("refused_invalid", "BadRequest", "invalid"),
        ("refused_quota", "Forbidden", "quotaExceeded"),
        ("refused_forbidden", "Forbidden", "forbidden"),
        ("billing_disabled", "Forbidden", "billingNotEnabled"),
    ],
)
def test_an_early_refusal_leaves_nothing(cloud: GcpCloud, switch: str, kind: str, why: str) -> None:
    cloud.faults(**{switch: 1})
    assert reason(caught(kind, lambda: insert(cloud))) == why
    assert cloud.there("operations") == {}
    assert cloud.usage() == []


def test_an_error_before_acceptance_leaves_nothing(cloud: GcpCloud) -> None:
    cloud.faults(error=1)
    caught("ServiceUnavailable", lambda: insert(cloud))
    assert cloud.usage() == []


@pytest.mark.parametrize(("switch", "wait"), [("too_many", None), ("too_many_wait", "1")])
def test_too_many_requests_with_and_without_a_time_to_wait(cloud: GcpCloud, switch: str, wait: str | None) -> None:
    cloud.faults(**{switch: 1})
    error = caught("TooManyRequests", lambda: page(cloud))
    assert reason(error) == "rateLimitExceeded"
    assert error.response.headers.get("Retry-After") == wait
    page(cloud)


def test_a_rate_limit_can_be_a_403(cloud: GcpCloud) -> None:
    cloud.faults(rate_limit=1)
    assert reason(caught("Forbidden", lambda: page(cloud))) == "rateLimitExceeded"


def test_an_error_can_be_a_page_of_html(cloud: GcpCloud) -> None:
    cloud.faults(html=1)
    error = caught("BadGateway", lambda: page(cloud))
    assert error.response.headers["Content-Type"].startswith("text/html")


def test_the_line_is_cut_before_anything_is_done(cloud: GcpCloud) -> None:
    cloud.faults(cut=1)
    broken_line(lambda: insert(cloud))
    assert cloud.there("operations") == {}


def test_a_slow_answer_is_slow(cloud: GcpCloud) -> None:
    cloud.faults(slow={"seconds": 0.8})
    begun = time.monotonic()
    page(cloud)
    assert time.monotonic() - begun >= 0.8


# --- accepted, and the answer does not say so


@pytest.mark.parametrize("switch", ["lose_answer", "error_after", "html_after"])
def test_what_was_accepted_without_an_answer_exists(cloud: GcpCloud, switch: str) -> None:
    cloud.faults(**{switch: 1})
    with pytest.raises(Exception, match=r"50[23]|onnection"):
        insert(cloud)
    cloud.wait(lambda: get_or_none(cloud) is not None, "the instance")
    assert reason(caught("Conflict", lambda: insert(cloud))) == "alreadyExists"
    assert listed(cloud) == ["one"]


def get_or_none(cloud: GcpCloud) -> Any:
    """The instance, or None while it cannot be read."""
    try:
        return get(cloud)
    except errors().NotFound:
        return None


def test_a_lost_answer_is_found_again_by_its_request_id(cloud: GcpCloud) -> None:
    cloud.faults(lose_answer=1)
    request_id = "5b2c9f1e-0000-4000-8000-000000000001"
    broken_line(lambda: insert(cloud, request_id=request_id))
    operation = insert(cloud, request_id=request_id)
    assert not done(cloud, operation).error.errors
    assert len(cloud.there()) == 1


def test_an_answer_that_comes_too_late_for_the_client(cloud: GcpCloud) -> None:
    requests = pytest.importorskip("requests")
    cloud.faults(slow_answer={"seconds": 2.0})
    request = {"project": cloud.project, "zone": ZONE, "instance_resource": order()}
    with pytest.raises(requests.exceptions.ReadTimeout):
        cloud.client("InstancesClient").insert_unary(request=request, retry=None, timeout=1)
    cloud.wait(lambda: get_or_none(cloud) is not None, "the instance")


# --- 200, and not what it should be


@pytest.mark.parametrize("switch", ["torn", "garbled"])
def test_an_answer_that_is_no_answer_cannot_be_read(cloud: GcpCloud, switch: str) -> None:
    done(cloud, insert(cloud))
    cloud.faults(**{switch: {"call": "instances.aggregatedList"}})
    with pytest.raises(Exception, match=r"JSON|JSONDecodeError|Expecting|parse|IncompleteRead|broken"):
        page(cloud)
    assert [i.name for i in page(cloud).items[f"zones/{ZONE}"].instances] == ["one"]


def test_an_accepted_insert_whose_answer_cannot_be_read_exists(cloud: GcpCloud) -> None:
    cloud.faults(torn={"call": "instances.insert"})
    with pytest.raises(Exception, match=r"IncompleteRead|broken|JSON|parse"):
        insert(cloud)
    cloud.wait(lambda: get_or_none(cloud) is not None, "the instance")


def test_an_empty_object_passes_the_client_as_an_empty_list(cloud: GcpCloud) -> None:
    """The trap: no scope at all is not the same as no results in every scope."""
    done(cloud, insert(cloud))
    cloud.faults(empty={"call": "instances.aggregatedList"})
    assert dict(page(cloud).items) == {}


def test_a_word_for_an_operation_that_nobody_knows_arrives_as_undefined(cloud: GcpCloud) -> None:
    operation = insert(cloud)
    cloud.faults(operation_status=True)
    request = {"project": cloud.project, "zone": ZONE, "operation": operation.name}
    found = cloud.client("ZoneOperationsClient").get(request=request, retry=None)
    assert found.status == types().Operation.Status.UNDEFINED_STATUS


# --- operations that do nothing


def test_an_ignored_delete_says_done_and_the_instance_runs_on(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(ignore_delete=1)
    operation = done(cloud, delete(cloud))
    assert not operation.error.errors
    assert get(cloud).status == "RUNNING"
    done(cloud, delete(cloud))
    assert cloud.there() == {}


def test_an_ignored_change_says_done_and_changes_nothing(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(ignore_change=1)
    request = {"project": cloud.project, "zone": ZONE, "instance": "one", "auto_delete": False}
    operation = cloud.client("InstancesClient").set_disk_auto_delete_unary(
        request={**request, "device_name": "persistent-disk-0"}, retry=None
    )
    assert not done(cloud, operation).error.errors
    assert get(cloud).disks[0].auto_delete
