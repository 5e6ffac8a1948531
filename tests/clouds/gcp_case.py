"""What tests of the fake Google Cloud share: one server, an empty account per test, orders in the client's words."""

from __future__ import annotations

import atexit
import functools
import importlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.gcp import GcpCloud

ZONE = "us-central1-a"
OTHER_ZONE = "us-central1-b"
FAR_ZONE = "europe-west4-a"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


def types() -> Any:
    """The client library; importing it takes seconds."""
    return importlib.import_module("google.cloud.compute_v1")


def errors() -> Any:
    """The exceptions that the client library raises."""
    return importlib.import_module("google.api_core.exceptions")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> GcpCloud:
    """One process for all tests of this one: it takes seconds to start, and an account is emptied in no time."""
    pytest.importorskip("google.cloud.compute_v1")
    return _shared(tmp_path_factory.getbasetemp() / "gcp-cloud")


@functools.cache
def _shared(directory: Path) -> GcpCloud:
    # the fixture comes into each file by its own import, and pytest would start a server for each
    cloud = GcpCloud(directory)
    atexit.register(cloud.close)
    return cloud


@pytest.fixture
def cloud(server: GcpCloud) -> Iterator[GcpCloud]:
    """An empty account."""
    server.reset()
    yield server
    bugs = server.control("state")["bugs"]
    server.reset()
    assert not bugs, bugs


def order(name: str = "one", zone: str = ZONE, **changes: Any) -> Any:
    """An instance as the adapter would order it; `changes` are fields of the message."""
    c = types()
    fields: dict[str, Any] = {
        "name": name,
        "machine_type": f"zones/{zone}/machineTypes/g2-standard-4",
        "disks": [boot_disk()],
        "network_interfaces": [
            c.NetworkInterface(network="global/networks/default", access_configs=[c.AccessConfig(name="External NAT")])
        ],
        "scheduling": scheduling(),
        "metadata": metadata(enable_guest_attributes="TRUE"),
        "labels": {"gpuops-run": "a-run"},
    }
    return c.Instance(**{**fields, **changes})


def boot_disk(**changes: Any) -> Any:
    """A boot disk that goes with its instance."""
    c = types()
    params = c.AttachedDiskInitializeParams(source_image=IMAGE, labels={"gpuops-run": "a-run"})
    return c.AttachedDisk(**{"boot": True, "auto_delete": True, "initialize_params": params, **changes})


def scheduling(**changes: Any) -> Any:
    """An hour, then deletion."""
    c = types()
    fields = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    fields |= {"max_run_duration": c.Duration(seconds=3600), "instance_termination_action": "DELETE"}
    return c.Scheduling(**{k: v for k, v in {**fields, **changes}.items() if v is not None})


def metadata(**values: str) -> Any:
    """Metadata; underscores in names are dashes."""
    c = types()
    return c.Metadata(items=[c.Items(key=key.replace("_", "-"), value=value) for key, value in values.items()])


def insert(cloud: GcpCloud, instance: Any = None, zone: str = ZONE, request_id: str = "") -> Any:
    """Ask for an instance; returns the operation as it was answered."""
    request = {"project": cloud.project, "zone": zone, "request_id": request_id or str(uuid.uuid4())}
    request["instance_resource"] = order(zone=zone) if instance is None else instance
    return cloud.client("InstancesClient").insert_unary(request=request, retry=None, timeout=10)


def done(cloud: GcpCloud, operation: Any, zone: str = ZONE) -> Any:
    """The operation once it is done, whatever it came to."""
    client = cloud.client("ZoneOperationsClient")
    return client.wait(project=cloud.project, zone=zone, operation=operation.name, retry=None, timeout=20)


def get(cloud: GcpCloud, name: str = "one", zone: str = ZONE) -> Any:
    """The instance now."""
    request = {"project": cloud.project, "zone": zone, "instance": name}
    return cloud.client("InstancesClient").get(request=request, retry=None, timeout=10)


def running(cloud: GcpCloud, instance: Any = None, zone: str = ZONE) -> Any:
    """An instance that runs."""
    wanted = order(zone=zone) if instance is None else instance
    operation = done(cloud, insert(cloud, wanted, zone), zone)
    assert not operation.error.errors, operation.error
    cloud.wait(lambda: get(cloud, wanted.name, zone).status == "RUNNING", "RUNNING")
    return get(cloud, wanted.name, zone)


def delete(cloud: GcpCloud, name: str = "one", zone: str = ZONE) -> Any:
    """Ask for the end; returns the operation as it was answered."""
    request = {"project": cloud.project, "zone": zone, "instance": name}
    return cloud.client("InstancesClient").delete_unary(request=request, retry=None, timeout=10)


def aggregated(
    cloud: GcpCloud, kind: str = "Instances", field: str = "instances", **request: Any
) -> dict[str, list[str]]:
    """Names by scope, of all pages."""
    pager = cloud.client(f"{kind}Client").aggregated_list(
        request={"project": cloud.project, **request}, retry=None, timeout=10
    )
    found: dict[str, list[str]] = {}
    for scope, listed in pager:
        found.setdefault(scope, []).extend(item.name for item in getattr(listed, field))
    return {scope: names for scope, names in found.items() if names}


def caught(kind: str, call: Callable[[], Any]) -> Any:
    """The exception of the client library that a call must raise."""
    with pytest.raises(getattr(errors(), kind)) as found:
        call()
    return found.value


def reason(error: Any) -> str:
    """The reason in an error."""
    return str(error.errors[0]["reason"])


def page(cloud: GcpCloud) -> Any:
    """The aggregated list as it was answered."""
    pager = cloud.client("InstancesClient").aggregated_list(request={"project": cloud.project}, retry=None, timeout=10)
    return next(iter(pager.pages))


def listed(cloud: GcpCloud, zone: str = ZONE) -> list[str]:
    """The names in one zone."""
    pager = cloud.client("InstancesClient").list(
        request={"project": cloud.project, "zone": zone}, retry=None, timeout=10
    )
    return [i.name for i in pager]
