"""The switches for what is shown and for the whole account, seen through the vendor's own client."""

import pytest
from clouds.gcp import GcpCloud
from clouds.gcp_case import (
    FAR_ZONE,
    OTHER_ZONE,
    ZONE,
    aggregated,
    caught,
    cloud,
    delete,
    done,
    get,
    insert,
    listed,
    order,
    page,
    reason,
    running,
    server,
)

__all__ = ["cloud", "server"]


# --- what is shown


def test_lists_show_what_is_new_only_later(cloud: GcpCloud) -> None:
    cloud.faults(hide_new={"seconds": 300})
    done(cloud, insert(cloud))
    assert get(cloud).name == "one"
    assert listed(cloud) == []
    assert aggregated(cloud) == {}
    cloud.advance(301)
    assert listed(cloud) == ["one"]
    assert aggregated(cloud) == {f"zones/{ZONE}": ["one"]}


def test_only_one_zone_may_show_its_news_late(cloud: GcpCloud) -> None:
    cloud.faults(hide_new={"seconds": 300, "where": f"zones/{ZONE}", "call": "instances.*"})
    done(cloud, insert(cloud))
    done(cloud, insert(cloud, zone=OTHER_ZONE), OTHER_ZONE)
    assert aggregated(cloud) == {f"zones/{OTHER_ZONE}": ["one"]}
    assert len(aggregated(cloud, "Disks", "disks")) == 2


def test_a_zone_that_lists_cannot_read_has_a_warning_and_is_named(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(gap={"where": f"zones/{ZONE}"})
    answer = page(cloud)
    assert answer.items[f"zones/{ZONE}"].warning.code == "UNREACHABLE"
    assert not answer.items[f"zones/{ZONE}"].instances
    assert answer.items[f"zones/{OTHER_ZONE}"].warning.code == "NO_RESULTS_ON_PAGE"
    assert list(answer.unreachables) == [f"projects/{cloud.project}/zones/{ZONE}"]
    caught("ServiceUnavailable", lambda: listed(cloud))
    assert get(cloud).name == "one"


def test_another_warning_stands_beside_the_results(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(warning={"where": f"zones/{ZONE}"})
    scope = page(cloud).items[f"zones/{ZONE}"]
    assert scope.warning.code == "PARTIAL_SUCCESS"
    assert [i.name for i in scope.instances] == ["one"]


def test_a_place_can_be_unreachable_without_any_warning(cloud: GcpCloud) -> None:
    cloud.faults(unreachable={"where": f"zones/{FAR_ZONE}"})
    answer = page(cloud)
    assert list(answer.unreachables) == [f"projects/{cloud.project}/zones/{FAR_ZONE}"]
    assert answer.items[f"zones/{FAR_ZONE}"].warning.code == "NO_RESULTS_ON_PAGE"


def test_an_unknown_word_for_a_status_passes_the_client(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(status={"name": "one"})
    assert get(cloud).status == "HIBERNATING"
    assert page(cloud).items[f"zones/{ZONE}"].instances[0].status == "HIBERNATING"


def test_a_status_can_lie(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(status={"name": "one", "word": "TERMINATED"})
    assert get(cloud).status == "TERMINATED"
    assert cloud.there()["one"]["status"] == "RUNNING"


# --- the account


def test_credentials_that_are_good_no_more_are_401_for_everything(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(credentials=True)
    for call in (lambda: get(cloud), lambda: page(cloud), lambda: delete(cloud), lambda: insert(cloud, order("two"))):
        assert reason(caught("Unauthorized", call)) == "authError"
    cloud.faults()
    assert set(cloud.there()) == {"one"}


def test_an_account_without_rights_is_403_for_what_exists(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(forbidden=True)
    assert reason(caught("Forbidden", lambda: get(cloud))) == "forbidden"


def test_an_account_without_rights_may_be_answered_404(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    cloud.faults(hidden_account=True)
    caught("NotFound", lambda: get(cloud))
    caught("NotFound", lambda: page(cloud))


def test_an_interface_that_is_switched_off_says_so_in_the_details(cloud: GcpCloud) -> None:
    cloud.faults(api_disabled=True)
    error = caught("Forbidden", lambda: page(cloud))
    assert reason(error) == "accessNotConfigured"
    assert (error.reason, error.metadata["service"]) == ("SERVICE_DISABLED", "compute.googleapis.com")


def test_a_token_that_is_refused_is_a_refresh_error(cloud: GcpCloud) -> None:
    auth = pytest.importorskip("google.auth.exceptions")
    transport = pytest.importorskip("google.auth.transport.requests")
    cloud.faults(token_refused=True)
    with pytest.raises(auth.RefreshError, match="invalid_grant"):
        cloud.credentials().refresh(transport.Request())


def test_one_region_is_down_and_the_other_goes_on(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    done(cloud, insert(cloud, zone=FAR_ZONE), FAR_ZONE)
    cloud.faults(region_down={"where": "us-central1"})
    for call in (lambda: get(cloud), lambda: listed(cloud), lambda: insert(cloud, order("two"))):
        caught("ServiceUnavailable", call)
    assert get(cloud, zone=FAR_ZONE).name == "one"
    answer = page(cloud)
    assert answer.items[f"zones/{ZONE}"].warning.code == "UNREACHABLE"
    assert f"projects/{cloud.project}/zones/{ZONE}" in answer.unreachables
    assert [i.name for i in answer.items[f"zones/{FAR_ZONE}"].instances] == ["one"]


def test_what_has_struck_is_counted(cloud: GcpCloud) -> None:
    cloud.faults(error=2)
    for _ in range(2):
        caught("ServiceUnavailable", lambda: page(cloud))
    page(cloud)
    assert cloud.faults() == {"answer": 2}


def test_pages_after_the_first_can_fail(cloud: GcpCloud) -> None:
    for name in ("one", "two"):
        cloud.put("disks", f"zones/{ZONE}", name=name, sizeGb="10")
    cloud.faults(later_pages=True)
    assert aggregated(cloud, "Disks", "disks") == {f"zones/{ZONE}": ["one", "two"]}, "one page holds both"
    error = caught("ServiceUnavailable", lambda: aggregated(cloud, "Disks", "disks", max_results=1))
    assert reason(error) == "backendError"
