"""A look at a rental, through its whole life and through everything that may stand between it and us."""

from __future__ import annotations

import base64
import dataclasses
import hashlib

import pytest
from clouds.gcp import GcpCloud
from gcpcase import ZONE, adapter, bought, cloud, later, offered, order, server, volume

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, Unreadable
from gpuops.values import Created, Ref, Scope

__all__ = ["cloud", "server"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("stockout", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        ("stockout_plain", "ZONE_RESOURCE_POOL_EXHAUSTED"),
        ("quota", "QUOTA_EXCEEDED"),
    ],
)
def test_an_insert_that_fails_later_is_a_refusal(cloud: GcpCloud, fault: str, code: str) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp))
    cloud.faults(**{fault: 1})
    answer = gcp.provision(wanted, later(cloud))
    assert isinstance(answer, Created), "the call itself was accepted"
    cloud.advance(5)
    seen = gcp.inspect(answer.ref, later(cloud))
    assert (seen.state, seen.bills, seen.raw_state) == ("refused", (), code)
    assert code in seen.reason and seen.request_id == answer.request_id


def test_while_the_insert_runs_it_counts_as_billing_and_nothing_is_concluded(cloud: GcpCloud) -> None:
    cloud.settings(insert_s=30.0)
    gcp = adapter(cloud)
    answer = gcp.provision(order(cloud, offered(cloud, gcp)), later(cloud))
    assert isinstance(answer, Created)
    seen = gcp.inspect(answer.ref, later(cloud))
    assert seen.state == "starting" and seen.bills
    listed = gcp.list_billable(Scope(("rental",), (ZONE,)), later(cloud))
    assert not listed.items
    (gap,) = listed.gaps
    assert gap.region == ZONE and answer.ref.id in gap.reason
    cloud.advance(31)
    listed = gcp.list_billable(Scope(("rental",), (ZONE,)), later(cloud))
    assert [item.ref for item in listed.items] == [answer.ref] and not listed.gaps


def test_the_operation_is_found_where_the_vendor_takes_no_filter(cloud: GcpCloud) -> None:
    cloud.settings(insert_s=30.0)
    gcp = adapter(cloud)
    answer = gcp.provision(order(cloud, offered(cloud, gcp)), later(cloud))
    assert isinstance(answer, Created)
    filtered = {"status": 400, "reason": "invalid"}
    cloud.faults(error=[{"call": f"{where}Operations.*ist", **filtered} for where in ("zone", "global")])
    assert gcp.inspect(answer.ref, later(cloud)).state == "starting"
    assert gcp.list_billable(Scope(("rental",)), later(cloud)).gaps


def test_a_running_rental_tells_address_time_and_timer(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp))
    seen = gcp.inspect(bought(cloud, gcp, wanted), later(cloud))
    assert seen.state == "running"
    assert seen.endpoint is not None and (seen.endpoint.user, seen.endpoint.port) == ("gpuops", 22)
    assert seen.ends_at == wanted.ends_at, "read back from what the provider will really do"
    assert seen.provider_time is not None and abs((seen.created_at or 0) - cloud.now()) < 30


def test_a_stopped_rental_bills_for_its_disks_and_has_no_timer_any_more(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.client("InstancesClient").stop_unary(project=cloud.project, zone=ZONE, instance=ref.id)
    cloud.advance(5)
    seen = gcp.inspect(ref, later(cloud))
    assert (seen.state, seen.raw_state, seen.bills, seen.ends_at) == ("stopped", "TERMINATED", ("storage",), None)
    (item,) = gcp.list_billable(Scope(("rental",)), later(cloud)).items
    assert item.bills == ("storage",)


def test_the_provider_deletes_it_at_the_limit(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.advance(3700)
    assert gcp.inspect(ref, later(cloud)).state == "absent"
    assert not cloud.there() and not cloud.there("disks")


@pytest.mark.parametrize("fault", ["forbidden", "api_disabled", "credentials", "token_refused"])
def test_without_the_right_to_look_nothing_is_gone(cloud: GcpCloud, fault: str) -> None:
    ref = bought(cloud, adapter(cloud))
    cloud.faults(**{fault: True})
    with pytest.raises(CredentialsError):
        adapter(cloud).inspect(ref, later(cloud))


@pytest.mark.parametrize("kind", ["rental", "volume", "filestore"])
def test_a_project_that_is_hidden_shows_nothing_gone(cloud: GcpCloud, kind: str) -> None:
    gcp = adapter(cloud)
    ref = dataclasses.replace(bought(cloud, gcp), kind=kind)
    cloud.faults(hidden_account=True)
    with pytest.raises(CredentialsError):
        gcp.inspect(ref, later(cloud))
    if kind == "rental":
        with pytest.raises(CredentialsError):
            gcp.terminate(ref, later(cloud))


@pytest.mark.parametrize("fault", ["error", "cut", "html"])
def test_an_outage_shows_nothing_gone(cloud: GcpCloud, fault: str) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.faults(**{fault: {"times": None}})
    with pytest.raises(GpuopsError) as raised:
        gcp.inspect(ref, later(cloud))
    assert not isinstance(raised.value, CredentialsError)


def test_a_404_that_is_not_the_vendors_own_shows_nothing_gone(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.faults(html={"status": 404, "call": "instances.get", "times": None})
    with pytest.raises(ProviderError):
        gcp.inspect(ref, later(cloud))
    with pytest.raises(ProviderError):
        gcp.terminate(ref, later(cloud))


def test_a_page_of_a_proxy_is_unreadable(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.faults(html={"status": 200})
    with pytest.raises(Unreadable):
        gcp.inspect(ref, later(cloud))


def test_an_answer_about_another_project_is_worth_nothing(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    with pytest.raises(ProviderError, match="not in project"):
        gcp.inspect(Ref("gcp", "another-project", ZONE, "rental", "x"), later(cloud))


def test_a_volume_that_would_be_deleted_with_it_is_named(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    wanted = order(cloud, offered(cloud, gcp), volumes=(volume(cloud),))
    ref = bought(cloud, gcp, wanted)
    assert gcp.inspect(ref, later(cloud)).reason == ""
    flip(cloud, ref, "datasets", True)
    flip(cloud, ref, "boot", False)
    reason = gcp.inspect(ref, later(cloud)).reason
    assert "datasets would be deleted with it" in reason
    assert "boot would outlive it" in reason


def flip(cloud: GcpCloud, ref: Ref, device: str, auto_delete: bool) -> None:
    """Somebody changes what becomes of a disk."""
    cloud.client("InstancesClient").set_disk_auto_delete_unary(
        project=cloud.project, zone=ref.region, instance=ref.id, device_name=device, auto_delete=auto_delete
    )
    cloud.advance(1)


def test_the_host_key_is_none_until_the_machine_has_told_it(cloud: GcpCloud) -> None:
    cloud.settings(guest_s=60.0)
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    assert gcp.host_key(ref, later(cloud)) is None
    key = base64.b64encode(b"\0\0\0\x0bssh-ed25519 and the rest of a key").decode()
    cloud.guest(f"zones/{ZONE}", ref.id, "hostkeys", ssh_ed25519=key, ssh_rsa="AAAA")
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    assert gcp.host_key(ref, later(cloud)) == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def test_a_host_key_that_is_none_is_no_key(cloud: GcpCloud) -> None:
    cloud.settings(guest_s=600.0)
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    cloud.guest(f"zones/{ZONE}", ref.id, "hostkeys", ssh_ed25519="not base64 at all!")
    with pytest.raises(ProviderError, match="cannot be read"):
        gcp.host_key(ref, later(cloud))
