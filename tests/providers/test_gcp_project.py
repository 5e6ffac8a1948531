"""The project, its credentials, the settings, and what is loaded when."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clouds.gcp import GcpCloud
from gcpcase import IMAGE_FAMILY, NEED, adapter, bought, cloud, later, server
from gpuops_providers.gcp import kinds, prices, provider, settings
from gpuops_providers.gcp.prices import Shape

from gpuops.errors import CredentialsError, GpuopsError, UsageError
from gpuops.registry import credential_names
from gpuops.values import Finding, Scope

__all__ = ["cloud", "server"]


def findings(cloud: GcpCloud, **config: str) -> dict[str, Finding]:
    """What the adapter says that the project needs."""
    return {f.name: f for f in adapter(cloud, **config).needs(later(cloud))}


# --- credentials


def test_the_account_is_the_project(cloud: GcpCloud) -> None:
    assert adapter(cloud).account() == cloud.project


def test_application_default_credentials_are_enough(cloud: GcpCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud.key_file))
    assert adapter(cloud, project="", credentials_file="").account() == cloud.project, "the key names its project"


def test_a_login_without_a_project_asks_for_one(cloud: GcpCloud) -> None:
    with pytest.raises(CredentialsError, match="no project") as told:
        adapter(cloud, credentials_file=str(cloud.user_file), project="").account()
    assert "config.toml" in told.value.next_command


def test_without_credentials_the_command_that_makes_them_is_named(cloud: GcpCloud, tmp_path: Path) -> None:
    with pytest.raises(CredentialsError) as told:
        adapter(cloud, credentials_file=str(tmp_path / "none.json")).account()
    assert told.value.next_command == "gcloud auth application-default login"


@pytest.mark.parametrize("fault", ["token_refused", "credentials", "forbidden"])
def test_credentials_that_are_not_good_are_said_to_be(cloud: GcpCloud, fault: str) -> None:
    cloud.faults(**{fault: True})
    with pytest.raises(CredentialsError):
        adapter(cloud).account()


def test_a_sign_in_that_cannot_be_reached_says_nothing_about_credentials(cloud: GcpCloud) -> None:
    cloud.faults(error={"call": "oauth.token", "times": None})
    with pytest.raises(GpuopsError) as told:
        adapter(cloud).account()
    assert not isinstance(told.value, CredentialsError)


# --- addresses


def test_every_client_talks_to_the_endpoint_that_was_set_and_to_no_other(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    ref = bought(cloud, gcp)
    gcp.host_key(ref, later(cloud))
    gcp.set_mark(ref, cloud.now() + 9000, later(cloud))
    gcp.needs(later(cloud))
    gcp.list_billable(Scope(), later(cloud))
    gcp.terminate(ref, later(cloud))
    clients = gcp._api._clients
    assert len(clients) > 10
    for name, client in clients.items():
        assert client.transport._host == cloud.address, name


# --- what the project must have


def test_a_good_project_needs_nothing(cloud: GcpCloud) -> None:
    assert {f.state for f in findings(cloud).values()} == {"ok"}


def test_no_quota_is_missing_with_the_command_that_asks_for_it(cloud: GcpCloud) -> None:
    cloud.settings(gpus_all_regions=0.0)
    found = findings(cloud)["gcp GPU quota"]
    assert found.state == "missing" and "GPUS-ALL-REGIONS-per-project" in found.fix


def test_an_api_that_is_off_is_missing_with_the_command_that_switches_it_on(cloud: GcpCloud) -> None:
    cloud.faults(api_disabled=True)
    (found,) = findings(cloud).values()
    assert found.state == "missing" and found.fix.startswith("gcloud services enable compute.googleapis.com")


def test_no_network_is_missing(cloud: GcpCloud) -> None:
    found = findings(cloud, network="global/networks/training")["gcp network"]
    assert found.state == "missing" and "networks create training" in found.fix


@pytest.mark.parametrize(
    "rule",
    [
        {"disabled": True},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["80", "100-200"]}]},
        {"allowed": [{"IPProtocol": "icmp"}]},
        {"direction": "EGRESS"},
        {"targetTags": ["web"]},
        {"sourceRanges": []},
    ],
)
def test_a_firewall_that_lets_nobody_in_is_a_warning(cloud: GcpCloud, rule: dict[str, object]) -> None:
    cloud.change("firewalls", "global", "default-allow-ssh", **rule)
    found = findings(cloud)["gcp firewall"]
    assert found.state == "warning" and "firewall-rules create" in found.fix


def test_a_range_of_ports_that_covers_ssh_lets_people_in(cloud: GcpCloud) -> None:
    cloud.change("firewalls", "global", "default-allow-ssh", allowed=[{"IPProtocol": "tcp", "ports": ["20-30"]}])
    assert findings(cloud)["gcp firewall"].state == "ok"


def test_a_firewall_that_may_not_be_read_is_a_warning(cloud: GcpCloud) -> None:
    cloud.faults(forbidden={"call": "firewalls.list"})
    assert findings(cloud)["gcp network"].state == "warning"


def test_needs_without_credentials_is_one_line(cloud: GcpCloud, tmp_path: Path) -> None:
    (found,) = findings(cloud, credentials_file=str(tmp_path / "none.json")).values()
    assert found.state == "missing" and found.fix == "gcloud auth application-default login"


# --- settings


@pytest.mark.parametrize(
    "config",
    [
        {"colour": "blue"},
        {"api_endpoint": "http://compute.example.org"},
        {"api_endpoint": "ftp://127.0.0.1"},
        {"image": "ubuntu-latest"},
        {"provisioning": "cheap"},
        {"address": "both"},
        {"boot_disk_gb": "5"},
        {"user": "root; rm"},
        {"network": "default"},
    ],
)
def test_settings_that_are_wrong_are_refused(config: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="provider gcp"):
        settings.read(config)


def test_a_private_endpoint_is_https_unless_it_is_this_computer() -> None:
    found = settings.read({"api_endpoint": "compute-x.p.googleapis.com", "billing_endpoint": "http://127.0.0.1:8080"})
    assert found.api_endpoint == "https://compute-x.p.googleapis.com"
    assert found.billing_endpoint == "http://127.0.0.1:8080"


def test_zones_and_regions_may_both_be_named() -> None:
    assert settings.read({"zones": "a-b1-c, d-e1", "region": "f-g2"}).zones == ("a-b1-c", "d-e1", "f-g2")


def test_the_image_family_is_a_setting() -> None:
    assert settings.read({"image": IMAGE_FAMILY}).image == IMAGE_FAMILY


# --- loading

HEAVY = ("google.cloud.", "google.auth", "google.protobuf", "grpc", "requests")


def run(*lines: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_nothing_of_the_vendor_is_loaded_before_the_first_call() -> None:
    first = "import sys, gpuops_providers.gcp as gcp; gcp.provider({}, lambda name: None)"
    assert run(first, f"print([m for m in sys.modules if m.startswith({HEAVY})])") == "[]"


def test_it_can_be_loaded_in_the_background(cloud: GcpCloud) -> None:
    gcp = adapter(cloud)
    gcp.preload().join(60)
    assert gcp.quote(NEED, later(cloud))


def test_a_library_that_is_missing_is_named_with_what_to_install() -> None:
    said = run(
        "import sys; sys.modules['google'] = sys.modules['google.cloud'] = None; import gpuops_providers.gcp as gcp",
        "try: gcp.provider({}, lambda name: None)",
        "except Exception as error: print(type(error).__name__, error.next_command)",
    )
    assert said == "UsageError pip install google-cloud-compute"


def test_no_secret_is_needed_beside_the_vendors_own_login() -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("gcp", "gpuops_providers.gcp:provider", "gpuops.providers")
    assert credential_names("gcp", [entry]) == ()
    assert provider({}, lambda name: None).name == "gcp"


# --- what the documentation says

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "gcp.md").read_text()


def test_the_guide_names_every_setting_and_everything_that_is_not_looked_at() -> None:
    rows = "\n".join(line for line in GUIDE.splitlines() if line.startswith("| `"))
    known = {f.name for f in dataclasses.fields(settings.Settings)} | {"regions", "region"}
    assert known == set(re.findall(r"`([a-z_]+)`", "\n".join(row.split("|")[1] for row in rows.splitlines())))
    for words in kinds.NOT_COVERED:
        assert words in " ".join(GUIDE.split()), words


def test_the_price_table_in_the_guide_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(next(text for text in re.findall(r"```toml\n(.*?)```", GUIDE, re.S) if "observed" in text))
    shape = Shape("n1-standard-8", 8, 30, "nvidia-tesla-t4", 1, included=False)
    assert prices.read(path).machine(shape, "us-central1", "standard") is None, "the machine has no row"
    assert prices.read(path).disk("pd-balanced", "us-central1")
