"""The compact description is that of the vendor, and it refuses what the vendor would."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from clouds import gcp_schema as schema
from clouds.gcp import GcpCloud
from clouds.gcp_case import ZONE, cloud, errors, insert, order, server, types

__all__ = ["cloud", "server"]


@pytest.fixture(scope="module")
def description() -> schema.Description:
    return schema.load()


def test_the_kept_description_is_what_the_full_document_gives() -> None:
    source = schema.full_document()
    if source is None:
        pytest.skip("google-api-python-client, which carries the document, is not installed")
    assert schema.COMPACT.read_text() == schema.text(schema.compact(json.loads(source.read_text())))


def test_every_kept_type_names_a_kept_schema(description: schema.Description) -> None:
    kinds = [kind for fields in description.schemas.values() for kind in fields.values()]
    named = {kind.replace("[]", "").replace("{}", "")[1:] for kind in kinds if "#" in kind}
    assert named <= set(description.schemas)
    assert {m.answer for m in description.methods.values()} - {""} <= set(description.schemas)


def test_every_method_is_found_by_its_path(description: schema.Description) -> None:
    for method in description.methods.values():
        path = method.path.replace("{", "").replace("}", "")
        found = description.route(method.verb, path)
        assert found is not None
        assert found[0].id == method.id


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        ({"nam": "x"}, "resource", 'Unknown name "nam"'),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "resource.scheduling.provisioningModel", "none of"),
        ({"disks": {}}, "resource.disks", "is not a list"),
        ({"disks": [{"autoDelete": "yes"}]}, "resource.disks[0].autoDelete", "is no boolean"),
        ({"labels": {"a": 1}}, "resource.labels.a", "is no string"),
        (
            {"scheduling": {"maxRunDuration": {"seconds": "1.5"}}},
            "resource.scheduling.maxRunDuration.seconds",
            "is no int64",
        ),
        ([], "resource", "is not an object"),
    ],
)
def test_what_no_field_allows_is_named_with_its_place(
    description: schema.Description, value: Any, where: str, why: str
) -> None:
    (violation,) = description.check("#Instance", value)
    assert violation.field == where
    assert why in violation.text


def post(cloud: GcpCloud, path: str, body: Any, verb: str = "POST") -> tuple[int, dict[str, Any]]:
    """A request that the client library would not send."""
    request = urllib.request.Request(f"{cloud.address}/compute/v1/{path}", json.dumps(body).encode(), method=verb)
    cloud.settings(anonymous=True)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_an_unknown_name_is_400_in_the_vendors_form(cloud: GcpCloud) -> None:
    status, body = post(cloud, f"projects/{cloud.project}/zones/{ZONE}/instances", {"name": "x", "machinetype": "y"})
    assert status == 400
    assert body["error"]["errors"][0]["reason"] == "invalid"
    assert body["error"]["status"] == "INVALID_ARGUMENT"
    (violation,) = body["error"]["details"][0]["fieldViolations"]
    assert violation["field"] == "resource"
    assert "machinetype" in violation["description"]


def test_an_unknown_parameter_is_400(cloud: GcpCloud) -> None:
    path = f"projects/{cloud.project}/aggregated/instances?returnPartialSuccess=true"
    request = urllib.request.Request(f"{cloud.address}/compute/v1/{path}")
    cloud.settings(anonymous=True)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 400
    assert b"Cannot bind query parameter" in caught.value.read()


def test_an_enumeration_that_the_client_does_not_check_is_400(cloud: GcpCloud) -> None:
    wrong = order(scheduling=types().Scheduling(provisioning_model="CHEAP"))
    with pytest.raises(errors().BadRequest) as caught:
        insert(cloud, wrong)
    assert "provisioningModel" in str(caught.value)
    assert cloud.there() == {}


def test_what_the_clients_own_types_refuse_is_400(cloud: GcpCloud) -> None:
    """A number beyond 64 bits is text of digits to the description, and none to protobuf."""
    disk = {"initializeParams": {"diskSizeGb": "99999999999999999999"}}
    status, body = post(cloud, f"projects/{cloud.project}/zones/{ZONE}/instances", {"name": "x", "disks": [disk]})
    assert status == 400
    assert body["error"]["errors"][0]["reason"] == "parseError"


def test_a_path_that_is_none_of_the_vendors_is_a_page_of_html(cloud: GcpCloud) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{cloud.address}/compute/v1/projects/p/nothing", timeout=10)
    assert caught.value.code == 404
    assert caught.value.headers["Content-Type"].startswith("text/html")


def test_what_is_not_modelled_says_so(cloud: GcpCloud) -> None:
    cloud.settings(anonymous=True)
    status, body = post(cloud, f"projects/{cloud.project}/zones/{ZONE}/instances/x/reset", None)
    assert status in (400, 501)
    assert "error" in body
