"""The life of instances and their disks, seen through the vendor's own client."""

import uuid
from typing import Any

import pytest
from clouds.gcp import GcpCloud
from clouds.gcp_case import (
    FAR_ZONE,
    IMAGE,
    OTHER_ZONE,
    ZONE,
    boot_disk,
    cloud,
    delete,
    done,
    errors,
    get,
    insert,
    metadata,
    order,
    running,
    scheduling,
    server,
    types,
)

__all__ = ["cloud", "server"]


def call(cloud: GcpCloud, service: str, method: str, **request: Any) -> Any:
    """One call without repeats."""
    full = {"project": cloud.project, **request}
    return getattr(cloud.client(f"{service}Client"), method)(request=full, retry=None, timeout=10)


def change(cloud: GcpCloud, method: str, name: str = "one", **request: Any) -> Any:
    """A changing call on an instance, waited for."""
    operation = call(cloud, "Instances", f"{method}_unary", zone=ZONE, instance=name, **request)
    return done(cloud, operation)


def test_an_operation_has_a_numeric_id_and_runs_before_it_is_done(cloud: GcpCloud) -> None:
    cloud.settings(pending_s=60, insert_s=180)
    operation = insert(cloud)
    assert operation.id > 10**17
    seen = []
    for _ in range(3):
        now = call(cloud, "ZoneOperations", "get", zone=ZONE, operation=operation.name)
        seen.append(types().Operation.Status(now.status).name)
        cloud.advance(100)
    assert seen == ["PENDING", "RUNNING", "DONE"]


def test_an_instance_cannot_be_read_while_its_insert_runs(cloud: GcpCloud) -> None:
    cloud.settings(pending_s=60, insert_s=180)
    operation = insert(cloud)
    for _ in range(2):
        with pytest.raises(errors().NotFound):
            get(cloud)
        cloud.advance(70)
    cloud.advance(70)
    assert done(cloud, operation).name == operation.name
    assert get(cloud).name == "one"


def test_an_instance_goes_by_provisioning_and_staging_to_running(cloud: GcpCloud) -> None:
    cloud.settings(staging_s=60)
    done(cloud, insert(cloud))
    seen = []
    for _ in range(3):
        seen.append(get(cloud).status)
        cloud.advance(60)
    assert seen == ["PROVISIONING", "STAGING", "RUNNING"]
    assert get(cloud).network_interfaces[0].access_configs[0].nat_i_p


def test_the_same_request_id_is_the_same_operation(cloud: GcpCloud) -> None:
    request_id = str(uuid.uuid4())
    first = insert(cloud, request_id=request_id)
    assert insert(cloud, request_id=request_id).name == first.name
    done(cloud, first)
    assert insert(cloud, order("another"), request_id=request_id).name == first.name
    assert first.client_operation_id == request_id
    assert set(cloud.there()) == {"one"}


def test_a_request_id_is_a_uuid_and_not_the_zero_one(cloud: GcpCloud) -> None:
    for wrong in ("once", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(errors().BadRequest):
            insert(cloud, request_id=wrong)


def test_a_name_that_is_taken_is_409_also_while_the_first_insert_runs(cloud: GcpCloud) -> None:
    cloud.settings(insert_s=60)
    insert(cloud)
    params = types().AttachedDiskInitializeParams(source_image=IMAGE, disk_name="another")
    for _ in range(2):
        with pytest.raises(errors().Conflict) as caught:
            insert(cloud, order(disks=[boot_disk(initialize_params=params)]))
        assert caught.value.errors[0]["reason"] == "alreadyExists"
        cloud.advance(61)


def test_the_same_name_in_another_zone_is_another_instance(cloud: GcpCloud) -> None:
    done(cloud, insert(cloud))
    done(cloud, insert(cloud, zone=OTHER_ZONE), OTHER_ZONE)
    instances = [u for u in cloud.usage() if u["plural"] == "instances" and u["end"] is None]
    assert sorted(u["scope"] for u in instances) == [f"zones/{ZONE}", f"zones/{OTHER_ZONE}"]


def test_a_deleted_instance_is_stopping_and_then_gone_with_its_disk(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.settings(stop_s=60)
    operation = delete(cloud)
    assert get(cloud).status == "STOPPING"
    cloud.advance(61)
    assert not done(cloud, operation).error.errors
    with pytest.raises(errors().NotFound):
        get(cloud)
    assert cloud.there("disks") == {}
    assert all(u["end"] for u in cloud.usage())


def test_deleting_what_is_not_there_is_404(cloud: GcpCloud) -> None:
    with pytest.raises(errors().NotFound) as caught:
        delete(cloud, "never")
    assert caught.value.errors[0]["reason"] == "notFound"


def test_a_protected_instance_is_not_deleted(cloud: GcpCloud) -> None:
    running(cloud, order(deletion_protection=True))
    with pytest.raises(errors().BadRequest):
        delete(cloud)
    operation = call(
        cloud, "Instances", "set_deletion_protection_unary", zone=ZONE, resource="one", deletion_protection=False
    )
    done(cloud, operation)
    done(cloud, delete(cloud))
    assert cloud.there() == {}


def test_disks_made_from_parameters_carry_their_own_labels_only(cloud: GcpCloud) -> None:
    plain = types().AttachedDisk(initialize_params=types().AttachedDiskInitializeParams(disk_size_gb=20))
    running(cloud, order(disks=[boot_disk(), plain]))
    boot, other = (call(cloud, "Disks", "get", zone=ZONE, disk=name) for name in ("one", "one-1"))
    assert boot.labels == {"gpuops-run": "a-run"}
    assert boot.source_image.endswith("/images/ubuntu-2204-jammy-v20261101")
    assert not other.labels
    assert (other.size_gb, other.status) == (20, "READY")


def test_a_disk_without_auto_delete_outlives_its_instance_and_bills_on(cloud: GcpCloud) -> None:
    running(cloud, order(disks=[boot_disk(auto_delete=False)]))
    assert call(cloud, "Disks", "get", zone=ZONE, disk="one").users
    done(cloud, delete(cloud))
    assert not call(cloud, "Disks", "get", zone=ZONE, disk="one").users
    assert [u["plural"] for u in cloud.usage() if u["end"] is None] == ["disks"]


def test_auto_delete_belongs_to_the_attachment_and_can_be_changed(cloud: GcpCloud) -> None:
    running(cloud)
    assert get(cloud).disks[0].auto_delete
    change(cloud, "set_disk_auto_delete", auto_delete=False, device_name="persistent-disk-0")
    assert not get(cloud).disks[0].auto_delete
    done(cloud, delete(cloud))
    assert set(cloud.there("disks")) == {"one"}


def test_an_existing_disk_is_attached_kept_and_not_shared(cloud: GcpCloud) -> None:
    cloud.put("disks", f"zones/{ZONE}", name="data", sizeGb="200", status="READY")
    attached = types().AttachedDisk(source=f"zones/{ZONE}/disks/data", device_name="data", auto_delete=False)
    running(cloud, order(disks=[boot_disk(), attached]))
    assert get(cloud).disks[1].device_name == "data"
    with pytest.raises(errors().BadRequest) as caught:
        insert(cloud, order("two", disks=[boot_disk(), attached]))
    assert caught.value.errors[0]["reason"] == "resourceInUseByAnotherResource"
    with pytest.raises(errors().BadRequest) as caught:
        call(cloud, "Disks", "delete_unary", zone=ZONE, disk="data")
    assert caught.value.errors[0]["reason"] == "resourceInUseByAnotherResource"
    done(cloud, delete(cloud))
    assert set(cloud.there("disks")) == {"data"}
    done(cloud, call(cloud, "Disks", "delete_unary", zone=ZONE, disk="data"))
    assert cloud.there("disks") == {}


def test_a_disk_of_another_zone_cannot_be_attached(cloud: GcpCloud) -> None:
    cloud.put("disks", f"zones/{OTHER_ZONE}", name="data", sizeGb="200", status="READY")
    attached = types().AttachedDisk(source=f"zones/{OTHER_ZONE}/disks/data")
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(disks=[boot_disk(), attached]))
    assert cloud.there() == {}


def test_a_disk_can_be_attached_and_detached_while_the_instance_runs(cloud: GcpCloud) -> None:
    cloud.put("disks", f"zones/{ZONE}", name="data", sizeGb="200", status="READY")
    running(cloud)
    disk = types().AttachedDisk(source=f"zones/{ZONE}/disks/data", device_name="data")
    change(cloud, "attach_disk", attached_disk_resource=disk)
    assert [d.auto_delete for d in get(cloud).disks] == [True, False]
    change(cloud, "set_disk_auto_delete", auto_delete=True, device_name="data")
    change(cloud, "detach_disk", device_name="data")
    assert "users" not in cloud.there("disks")["data"]
    change(cloud, "attach_disk", attached_disk_resource=disk)
    assert not get(cloud).disks[1].auto_delete, "the flag is lost on detach"


def test_a_stopped_instance_is_terminated_not_gone_and_its_disk_bills(cloud: GcpCloud) -> None:
    running(cloud)
    change(cloud, "stop")
    cloud.wait(lambda: get(cloud).status == "TERMINATED", "TERMINATED")
    assert not get(cloud).network_interfaces[0].access_configs[0].nat_i_p, "the ephemeral address is gone"
    change(cloud, "start")
    cloud.wait(lambda: get(cloud).status == "RUNNING", "RUNNING")


def test_an_instance_can_be_stopped_before_it_runs(cloud: GcpCloud) -> None:
    cloud.settings(staging_s=60)
    done(cloud, insert(cloud))
    change(cloud, "stop")
    cloud.advance(300)
    assert get(cloud).status == "TERMINATED"


def test_labels_need_the_fingerprint_that_was_read(cloud: GcpCloud) -> None:
    running(cloud)
    request = types().InstancesSetLabelsRequest(labels={"a": "b"}, label_fingerprint="old=")
    with pytest.raises(errors().PreconditionFailed):
        change(cloud, "set_labels", instances_set_labels_request_resource=request)
    request.label_fingerprint = get(cloud).label_fingerprint
    change(cloud, "set_labels", instances_set_labels_request_resource=request)
    assert get(cloud).labels == {"a": "b"}
    with pytest.raises(errors().PreconditionFailed):
        change(cloud, "set_labels", instances_set_labels_request_resource=request)


@pytest.mark.parametrize("labels", [{"Run": "x"}, {"run": "A"}, {"run": "2026-11-30T10:00:00Z"}, {"run": "x" * 64}])
def test_labels_have_no_capitals_and_no_colons(cloud: GcpCloud, labels: dict[str, str]) -> None:
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(labels=labels))


def test_metadata_needs_its_fingerprint_too(cloud: GcpCloud) -> None:
    running(cloud)
    new = metadata(owner="me")
    with pytest.raises(errors().PreconditionFailed):
        change(cloud, "set_metadata", metadata_resource=new)
    new.fingerprint = get(cloud).metadata.fingerprint
    change(cloud, "set_metadata", metadata_resource=new)
    assert [(i.key, i.value) for i in get(cloud).metadata.items] == [("owner", "me")]


def test_guest_attributes_are_404_until_the_guest_has_written_them(cloud: GcpCloud) -> None:
    cloud.settings(guest_s=60)
    running(cloud)
    with pytest.raises(errors().NotFound):
        call(cloud, "Instances", "get_guest_attributes", zone=ZONE, instance="one", query_path="hostkeys/")
    cloud.advance(61)
    found = call(cloud, "Instances", "get_guest_attributes", zone=ZONE, instance="one", query_path="hostkeys/")
    (item,) = found.query_value.items
    assert (item.namespace, item.key) == ("hostkeys", "ssh-ed25519")
    assert item.value.startswith("AAAA"), "the type word is not part of the value"
    assert item.value in call(cloud, "Instances", "get_serial_port_output", zone=ZONE, instance="one").contents


def test_without_the_metadata_there_are_no_guest_attributes(cloud: GcpCloud) -> None:
    running(cloud, order(metadata=metadata(owner="me")))
    cloud.advance(5)
    with pytest.raises(errors().NotFound):
        call(cloud, "Instances", "get_guest_attributes", zone=ZONE, instance="one", query_path="hostkeys/")


def test_any_process_in_the_guest_can_overwrite_guest_attributes(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.advance(5)
    cloud.guest(f"zones/{ZONE}", "one", "hostkeys", ssh_ed25519="AAAAother")
    found = call(cloud, "Instances", "get_guest_attributes", zone=ZONE, instance="one", query_path="hostkeys/")
    assert found.query_value.items[0].value == "AAAAother"


@pytest.mark.parametrize(
    "changes",
    [
        {"machine_type": f"zones/{OTHER_ZONE}/machineTypes/g2-standard-4"},
        {"machine_type": ""},
        {"disks": []},
        {"network_interfaces": []},
        {"name": "Not-A-Name"},
        {"name": "x" * 64},
    ],
)
def test_what_cannot_be_made_is_400_and_nothing_is_left(cloud: GcpCloud, changes: dict[str, Any]) -> None:
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(**changes))
    assert cloud.usage() == []


def test_a_machine_type_that_the_zone_has_not_is_404(cloud: GcpCloud) -> None:
    with pytest.raises(errors().NotFound):
        insert(cloud, order(machine_type=f"zones/{ZONE}/machineTypes/a3-highgpu-8g"))


def test_accelerators_cannot_migrate(cloud: GcpCloud) -> None:
    with pytest.raises(errors().BadRequest) as caught:
        insert(cloud, order(scheduling=scheduling(on_host_maintenance="MIGRATE")))
    assert "onHostMaintenance" in str(caught.value)


def test_only_n1_takes_accelerators_that_are_asked_for(cloud: GcpCloud) -> None:
    t4 = [
        types().AcceleratorConfig(
            accelerator_type=f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", accelerator_count=2
        )
    ]
    with pytest.raises(errors().BadRequest):
        insert(cloud, order(machine_type=f"zones/{ZONE}/machineTypes/e2-medium", guest_accelerators=t4))
    running(cloud, order(machine_type=f"zones/{ZONE}/machineTypes/n1-standard-8", guest_accelerators=t4))
    assert get(cloud).guest_accelerators[0].accelerator_count == 2


def test_more_accelerators_than_the_quota_fail_in_the_operation(cloud: GcpCloud) -> None:
    cloud.settings(gpus_all_regions=1)
    done(cloud, insert(cloud))
    operation = done(cloud, insert(cloud, order("two")))
    assert operation.error.errors[0].code == "QUOTA_EXCEEDED"
    assert operation.http_error_status_code == 403
    assert set(cloud.there()) == {"one"}
    assert set(cloud.there("disks")) == {"one"}


def test_a_flexible_start_waits_in_pending(cloud: GcpCloud) -> None:
    cloud.settings(queue_s=60)
    done(cloud, insert(cloud, order(scheduling=scheduling(provisioning_model="FLEX_START"))))
    assert get(cloud).status == "PENDING"
    cloud.advance(61)
    cloud.wait(lambda: get(cloud).status == "RUNNING", "RUNNING")


def test_a_spot_instance_stops_where_nothing_else_is_said(cloud: GcpCloud) -> None:
    spot = types().Scheduling(provisioning_model="SPOT", on_host_maintenance="TERMINATE")
    running(cloud, order(scheduling=spot))
    assert get(cloud).scheduling.instance_termination_action == "STOP"
    assert get(cloud).scheduling.preemptible


@pytest.mark.parametrize(("action", "left"), [("STOP", {"one"}), ("DELETE", set())])
def test_a_spot_instance_that_is_taken_back_follows_its_termination_action(
    cloud: GcpCloud, action: str, left: set[str]
) -> None:
    spot = types().Scheduling(
        provisioning_model="SPOT", on_host_maintenance="TERMINATE", instance_termination_action=action
    )
    running(cloud, order(scheduling=spot))
    cloud.reclaim(f"zones/{ZONE}", "one")
    assert get(cloud).status == "STOPPING"
    cloud.advance(5)
    assert set(cloud.there()) == set(cloud.there("disks")) == left
    assert not left or get(cloud).status == "TERMINATED"


def test_a_member_of_a_group_comes_back_after_it_was_deleted(cloud: GcpCloud) -> None:
    cloud.put("instanceGroupManagers", f"zones/{ZONE}", name="group", targetSize=1)
    creator = f"projects/{cloud.project}/zones/{ZONE}/instanceGroupManagers/group"
    cloud.settings(replace_s=60)
    first = running(cloud, order(metadata=metadata(created_by=creator)))
    done(cloud, delete(cloud))
    assert cloud.there() == {}
    cloud.advance(61)
    cloud.wait(lambda: get(cloud).status == "RUNNING", "RUNNING")
    assert get(cloud).id != first.id


def test_an_instance_without_accelerators_runs_anywhere(cloud: GcpCloud) -> None:
    plain = order(zone=FAR_ZONE, machine_type=f"zones/{FAR_ZONE}/machineTypes/e2-medium")
    assert not running(cloud, plain, FAR_ZONE).guest_accelerators


def test_an_operation_that_was_waited_for_in_vain_is_read_by_its_name(cloud: GcpCloud) -> None:
    operation = insert(cloud)
    with pytest.raises(errors().NotFound):
        call(cloud, "ZoneOperations", "get", zone=OTHER_ZONE, operation=operation.name)
    assert call(cloud, "ZoneOperations", "get", zone=ZONE, operation=operation.name).target_id == operation.target_id
