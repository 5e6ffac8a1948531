"""The one create call, as it goes over the wire; the fake holds every request to the vendor's own description."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
from clouds import gcp_schema
from clouds.gcp import GcpCloud
from gcpcase import IMAGE_FAMILY, NEED, ZONE, adapter, bought, cloud, later, offered, order, server, volume
from gpuops_providers.gcp import marks, request, words

from gpuops.errors import GpuopsError, ProviderError
from gpuops.marks import parse_name
from gpuops.values import Created, Order, Refused

__all__ = ["cloud", "server"]


def sent(cloud: GcpCloud, wanted: Order | None = None, **settings: str) -> dict[str, Any]:
    """The body of the create call for an order."""
    made = adapter(cloud, **settings)
    answer = made.provision(wanted or order(cloud, offered(cloud, made)), later(cloud))
    assert isinstance(answer, Created), answer
    (entry,) = cloud.log("instances.insert")
    return dict(json.loads(entry["body"]))


def test_one_order_is_one_insert_and_nothing_else(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    before = len(cloud.log())
    answer = made.provision(wanted, later(cloud))
    assert isinstance(answer, Created)
    assert [entry["call"] for entry in cloud.log()[before:]] == ["instances.insert"]
    assert marks.request_id(wanted.mark.nonce) in cloud.log()[-1]["query"]
    assert answer.request_id.startswith("operation-")


def test_the_mark_stands_in_the_name_and_in_the_labels_of_machine_and_disk(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    body = sent(cloud, wanted)
    parsed = parse_name(body["name"])
    assert parsed is not None and parsed.nonce == wanted.mark.nonce
    for labels in (body["labels"], body["disks"][0]["initializeParams"]["labels"]):
        assert marks.read(labels, body["name"]) == (wanted.mark, wanted.mark.nonce, False)
    assert marks.rate(body["labels"]) == wanted.offer.rate


def test_the_provider_deletes_it_at_the_limit_and_never_brings_it_back(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    limit = float(int(cloud.now()) + 7200)
    scheduling = sent(cloud, dataclasses.replace(wanted, ends_at=limit + 0.9))["scheduling"]
    assert scheduling == {
        "terminationTime": datetime.fromtimestamp(limit, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "provisioningModel": "STANDARD",
    }


def test_a_spot_offer_is_a_spot_machine(cloud: GcpCloud) -> None:
    made = adapter(cloud, provisioning="standard, spot")
    wanted = order(cloud, offered(cloud, made, "spot"))
    assert sent(cloud, wanted)["scheduling"]["provisioningModel"] == "SPOT"


def test_its_own_disk_goes_with_it_and_a_volume_stays(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    boot, data = sent(cloud, order(cloud, offered(cloud, made), volumes=(volume(cloud),)))["disks"]
    assert boot["autoDelete"] is True and boot["boot"] is True
    assert data["autoDelete"] is False
    assert data["source"].endswith(f"zones/{ZONE}/disks/datasets")
    assert data["deviceName"] == "datasets"


def test_the_login_has_our_keys_alone_and_no_account_of_the_project(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    keys = ("ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two\n")
    body = sent(cloud, order(cloud, offered(cloud, made), ssh_public_keys=keys))
    values = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert values["ssh-keys"] == "gpuops:ssh-ed25519 AAAA one\ngpuops:ssh-ed25519 BBBB two"
    assert values["block-project-ssh-keys"] == "TRUE"
    assert values["enable-oslogin"] == "FALSE"
    assert values["enable-guest-attributes"] == "TRUE"
    assert "serviceAccounts" not in body


def test_a_service_account_goes_along_only_when_asked_for(cloud: GcpCloud) -> None:
    (account,) = sent(cloud, service_account="reader@p.iam.gserviceaccount.com")["serviceAccounts"]
    assert account["email"] == "reader@p.iam.gserviceaccount.com"


def test_without_an_external_address_none_is_asked_for_or_paid(cloud: GcpCloud) -> None:
    assert "accessConfigs" not in sent(cloud, address="internal")["networkInterfaces"][0]
    inside, outside = (offered(cloud, adapter(cloud, address=word)).rate.amount for word in ("internal", "external"))
    assert inside < outside


def test_the_image_is_the_one_that_the_plan_has_seen(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    offer = offered(cloud, made)
    assert offer.terms["image"] == IMAGE_FAMILY.replace("family/ubuntu-2204-lts", "ubuntu-2204-jammy-v20261101")
    assert sent(cloud, order(cloud, offer))["disks"][0]["initializeParams"]["sourceImage"] == offer.terms["image"]


def test_a_family_is_never_sent(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    answer = made.provision(order(cloud, offered(cloud, made), image=IMAGE_FAMILY), later(cloud))
    assert isinstance(answer, Refused)
    assert not cloud.log("instances.insert")


def test_accelerators_are_attached_to_n1(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    need = dataclasses.replace(NEED, device="T4")
    body = sent(cloud, order(cloud, offered(cloud, made, need=need)))
    (attached,) = body["guestAccelerators"]
    assert attached["acceleratorType"].endswith("nvidia-tesla-t4") and attached["acceleratorCount"] == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refused_invalid", "invalid"),
        ("refused_quota", "quota"),
        ("refused_forbidden", "account"),
        ("billing_disabled", "account"),
        ("api_disabled", "account"),
        ("credentials", "account"),
    ],
)
def test_what_the_vendor_turned_down_is_refused(cloud: GcpCloud, fault: str, kind: str) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    cloud.faults(**{fault: {"call": "instances.insert"}})
    answer = made.provision(wanted, later(cloud))
    assert isinstance(answer, Refused)
    assert answer.kind == kind
    assert not cloud.there()


@pytest.mark.parametrize(
    "fault", ["error", "html", "cut", "lose_answer", "error_after", "html_after", "too_many", "rate_limit"]
)
def test_what_may_have_worked_is_unknown(cloud: GcpCloud, fault: str) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    cloud.faults(**{fault: {"call": "instances.insert"}})
    with pytest.raises(GpuopsError):
        made.provision(wanted, later(cloud))


def test_an_answer_that_does_not_come_in_time_is_unknown(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    cloud.faults(slow={"call": "instances.insert", "seconds": 4})
    with pytest.raises(ProviderError):
        made.provision(wanted, cloud.now() + 1)


def test_the_same_order_again_is_the_same_machine(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    ref = bought(cloud, made, wanted)
    assert isinstance(again := made.provision(wanted, later(cloud)), Created)
    assert again.ref == ref
    assert list(cloud.there()) == [ref.id]


def test_a_name_that_our_own_order_has_taken_is_the_same_attempt(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    name = request.name(wanted)
    cloud.put("instances", f"zones/{ZONE}", name=name, labels=marks.labels(wanted.mark), status="RUNNING", disks=[])
    answer = made.provision(wanted, later(cloud))
    assert isinstance(answer, Created) and answer.ref.id == name


def test_a_name_that_somebody_else_has_taken_decides_nothing(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made))
    cloud.put("instances", f"zones/{ZONE}", name=request.name(wanted), status="RUNNING", disks=[])
    with pytest.raises(ProviderError, match="not from this order"):
        made.provision(wanted, later(cloud))


def test_every_enumerated_word_that_is_sent_is_one_of_the_vendors() -> None:
    schemas = gcp_schema.load().schemas
    for field, (schema, ours) in words.SENT.items():
        assert set(ours) <= set(schemas[schema][field].strip("|").split("|")), field
    assert set(words.STATES) == set(schemas["Instance"]["status"].split("|"))
    with pytest.raises(ValueError):
        words.sent("onHostMaintenance", "TERMINTE")


def test_the_startup_script_mounts_by_device_name_and_never_formats(cloud: GcpCloud) -> None:
    made = adapter(cloud)
    wanted = order(cloud, offered(cloud, made), volumes=(volume(cloud),), startup="echo done")
    text = request.startup(wanted, "ada")
    assert "attach datasets /data" in text and text.endswith("echo done\n")
    assert "mkfs" not in text
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
