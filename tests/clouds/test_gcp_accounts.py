"""Who asks, what it costs, and what other interfaces of the same account show."""

import json
import time
from typing import Any

import pytest
from clouds import gcp_prices as prices
from clouds.gcp import SCOPE, GcpCloud
from clouds.gcp_case import ZONE, cloud, done, errors, get, insert, order, running, scheduling, server, types

__all__ = ["cloud", "server"]


def transport() -> Any:
    """What google-auth asks for tokens with."""
    return pytest.importorskip("google.auth.transport.requests")


def session(cloud: GcpCloud) -> Any:
    """An authorized session on plain HTTP, with an exchanged token."""
    return transport().AuthorizedSession(cloud.credentials())


def fetch(cloud: GcpCloud, path: str, verb: str = "GET", **query: str) -> tuple[int, dict[str, Any]]:
    """A call to another interface."""
    answer = session(cloud).request(verb, f"{cloud.address}{path}", params=query, timeout=10)
    return answer.status_code, answer.json()


# --- tokens


def test_the_key_of_a_service_account_is_exchanged_for_a_token_that_expires(cloud: GcpCloud) -> None:
    cloud.settings(token_s=1)
    credentials = cloud.credentials()
    credentials.refresh(transport().Request())
    compute = types().InstancesClient
    made = compute.get_transport_class("rest")(
        credentials=credentials, host=cloud.address.partition("://")[2], url_scheme="http", always_use_jwt_access=False
    )
    client = compute(transport=made)
    assert list(client.list(project=cloud.project, zone=ZONE, retry=None)) == []
    token = credentials.token
    time.sleep(1.1)
    answer = transport().requests.get(
        f"{cloud.address}/compute/v1/projects/{cloud.project}", headers={"Authorization": f"Bearer {token}"}, timeout=10
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["errors"][0]["reason"] == "authError"


def test_a_users_own_login_is_refreshed_at_the_same_address(cloud: GcpCloud) -> None:
    user = pytest.importorskip("google.oauth2.credentials")
    credentials = user.Credentials.from_authorized_user_file(str(cloud.user_file), scopes=[SCOPE])
    credentials._token_uri = json.loads(cloud.user_file.read_text())["token_uri"]  # the library knows one address only
    credentials.refresh(transport().Request())
    assert credentials.token.startswith("ya29.")


def test_the_assertion_that_compute_v1_signs_itself_is_taken_as_a_token(cloud: GcpCloud) -> None:
    with pytest.raises(errors().NotFound):
        get(cloud)
    assert cloud.log("oauth.token") == []


@pytest.mark.parametrize("header", ["", "Bearer nonsense", "Bearer a.b.c", "Basic eDp5"])
def test_without_good_credentials_nothing_is_answered(cloud: GcpCloud, header: str) -> None:
    answer = transport().requests.get(
        f"{cloud.address}/compute/v1/projects/{cloud.project}", headers={"Authorization": header}, timeout=10
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"


def test_a_token_of_somebody_elses_key_is_refused(cloud: GcpCloud, tmp_path: Any) -> None:
    other = GcpCloud(tmp_path)
    auth = pytest.importorskip("google.auth.exceptions")
    try:
        credentials = other.credentials()
        credentials._token_uri = f"{cloud.address}/token"
        with pytest.raises(auth.RefreshError, match="invalid_grant"):
            credentials.refresh(transport().Request())
    finally:
        other.close()


def test_without_a_lock_anybody_is_answered(cloud: GcpCloud) -> None:
    """As other fakes are used: with anonymous credentials."""
    anonymous = pytest.importorskip("google.auth.credentials").AnonymousCredentials()
    client = types().ZonesClient(credentials=anonymous, client_options={"api_endpoint": cloud.address})
    cloud.settings(anonymous=True)
    assert len(list(client.list(project=cloud.project, retry=None))) == 3


def test_the_date_of_an_answer_is_the_clouds_time(cloud: GcpCloud) -> None:
    cloud.advance(86400)
    answer = session(cloud).get(f"{cloud.address}/compute/v1/projects/{cloud.project}", timeout=10)
    email = pytest.importorskip("email.utils")
    assert abs(email.parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time() - 86400) < 10


def test_the_credentials_of_a_request_are_not_kept_but_its_body_is(cloud: GcpCloud) -> None:
    insert(cloud, order("canary"))
    (entry,) = cloud.log("instances.insert")
    assert '"canary"' in entry["body"]
    assert entry["status"] == 200
    assert "Bearer" not in str(cloud.log())


# --- prices


def skus(cloud: GcpCloud, **query: str) -> list[dict[str, Any]]:
    """The whole price list, page by page, by API key."""
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        answer = transport().requests.get(
            f"{cloud.address}/v1/services/6F81-5844-456A/skus",
            params={**query, **({"pageToken": token} if token else {})},
            headers={"X-Goog-Api-Key": cloud.api_key},
            timeout=10,
        )
        assert answer.status_code == 200, answer.text
        found += answer.json()["skus"]
        token = answer.json()["nextPageToken"]
        if not token:
            return found


def test_accelerator_core_and_memory_are_priced_apart_and_spot_apart_from_on_demand(cloud: GcpCloud) -> None:
    here = [sku for sku in skus(cloud) if sku["serviceRegions"] == ["us-central1"]]
    words = {(sku["description"], sku["category"]["usageType"]) for sku in here}
    for part in ("Nvidia L4 GPU", "G2 Instance Core", "G2 Instance Ram"):
        assert (f"{part} running in us-central1", "OnDemand") in words
    assert ("Nvidia L4 GPU attached to Spot Preemptible VMs running in us-central1", "Preemptible") in words
    assert ("Spot Preemptible G2 Instance Core running in us-central1", "Preemptible") in words


def test_every_price_says_that_it_is_invented(cloud: GcpCloud) -> None:
    for sku in skus(cloud):
        (info,) = sku["pricingInfo"]
        assert info["summary"] == prices.LABEL
        (tier,) = info["pricingExpression"]["tieredRates"]
        assert int(tier["unitPrice"]["units"]) + tier["unitPrice"]["nanos"] > 0


def test_the_price_list_has_the_fields_of_the_vendors_document(cloud: GcpCloud) -> None:
    """Names of `Sku` and what it holds in the discovery document cloudbilling.v1."""
    known = {"name", "skuId", "description", "category", "serviceRegions", "pricingInfo", "serviceProviderName"}
    assert all(set(sku) <= known | {"geoTaxonomy"} for sku in skus(cloud))
    assert len({sku["skuId"] for sku in skus(cloud)}) == len(skus(cloud))


def test_pages_of_the_price_list_lose_nothing(cloud: GcpCloud) -> None:
    assert skus(cloud, pageSize="7") == skus(cloud)


def test_prices_need_a_good_key(cloud: GcpCloud) -> None:
    address = f"{cloud.address}/v1/services/6F81-5844-456A/skus"
    answer = transport().requests.get(address, headers={"X-Goog-Api-Key": "wrong"}, timeout=10)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"][0]["reason"] == "API_KEY_INVALID"
    assert transport().requests.get(address, timeout=10).status_code == 401
    assert fetch(cloud, "/v1/services/6F81-5844-456A/skus")[0] == 200


# --- other interfaces


def test_network_file_systems_are_listed_over_all_places_read_and_deleted(cloud: GcpCloud) -> None:
    cloud.put("filestores", ZONE, name="share", tier="BASIC_HDD", labels={"team": "x"})
    base = f"/v1/projects/{cloud.project}/locations"
    status, body = fetch(cloud, f"{base}/-/instances")
    assert status == 200
    (found,) = body["instances"]
    assert found["name"] == f"projects/{cloud.project}/locations/{ZONE}/instances/share"
    assert found["state"] == "READY"
    assert fetch(cloud, f"{base}/{ZONE}/instances/share")[1]["tier"] == "BASIC_HDD"
    fetch(cloud, f"{base}/{ZONE}/instances/share", "DELETE")
    cloud.advance(1)
    assert fetch(cloud, f"{base}/{ZONE}/instances/share")[0] == 404
    assert fetch(cloud, f"{base}/-/instances")[1] == {}


def test_places_of_network_file_systems_that_cannot_be_read_are_named(cloud: GcpCloud) -> None:
    cloud.put("filestores", ZONE, name="share")
    cloud.faults(gap={"where": f"zones/{ZONE}"})
    _, body = fetch(cloud, f"/v1/projects/{cloud.project}/locations/-/instances")
    assert body == {"unreachable": [f"projects/{cloud.project}/locations/{ZONE}"]}


def test_one_interface_may_be_switched_off_while_the_other_answers(cloud: GcpCloud) -> None:
    cloud.faults(api_disabled={"service": "file"})
    status, body = fetch(cloud, f"/v1/projects/{cloud.project}/locations/-/instances")
    assert status == 403
    assert body["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
    assert body["error"]["details"][0]["metadata"]["service"] == "file.googleapis.com"
    assert len(list(cloud.client("ZonesClient").list(project=cloud.project, retry=None))) == 3


def test_other_things_that_bill_are_listed_too(cloud: GcpCloud) -> None:
    cloud.put("filestoreBackups", "us-central1", name="backup")
    cloud.put("tpuNodes", ZONE, name="tpu")
    cloud.put("buckets", "us-central1", name="bucket")
    assert len(fetch(cloud, f"/v1/projects/{cloud.project}/locations/-/backups")[1]["backups"]) == 1
    assert len(fetch(cloud, f"/v2/projects/{cloud.project}/locations/-/nodes")[1]["nodes"]) == 1
    assert fetch(cloud, "/storage/v1/b", project=cloud.project)[1]["items"][0]["name"] == "bucket"


# --- the truth that tests compare with


def test_what_bills_is_known_from_the_accepted_call_to_the_end(cloud: GcpCloud) -> None:
    before = cloud.now()
    done(cloud, insert(cloud, order(scheduling=scheduling())))
    (instance,) = (u for u in cloud.usage() if u["plural"] == "instances")
    assert before - 1 <= instance["start"] <= cloud.now()
    assert instance["end"] is None
    assert instance["labels"] == {"gpuops-run": "a-run"}
    cloud.advance(3700)
    ended = [u for u in cloud.usage() if u["plural"] == "instances"]
    assert [round((u["end"] - u["start"]) / 60) for u in ended] == [60]


def test_a_reset_leaves_nothing(cloud: GcpCloud) -> None:
    running(cloud)
    cloud.faults(error=5)
    cloud.advance(500)
    cloud.reset()
    assert cloud.usage() == []
    assert cloud.log() == []
    assert cloud.faults() == {}
    assert abs(cloud.now() - time.time()) < 5
    running(cloud)
