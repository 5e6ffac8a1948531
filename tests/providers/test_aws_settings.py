"""The settings of the AWS adapter, what it costs to start, and the texts that it reads from price list and tags."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from awswire import Wire, empty_account, error, made, order, plain_error, regions, soon, whole, wired, xml
from gpuops_providers import aws, cloudinit
from gpuops_providers.aws import kinds, tags
from gpuops_providers.aws.order import choice
from gpuops_providers.aws.prices import read_table
from gpuops_providers.aws.settings import read

from gpuops.errors import ProviderError, UsageError
from gpuops.plan import image_problem
from gpuops.registry import credential_names
from gpuops.values import Mark, Money, Need

NEED = Need("A10G")
MARK = Mark("run-1", "abcdefghijkl", "ada@example.org", 1_796_000_000.0, "SHA256:a+b/c=")


@pytest.mark.parametrize(
    "given",
    [
        {"colour": "blue"}, {"scheduler_role": "gpuops"}, {"region": "home"}, {"regions": "us-east-1,home"},
        {"markets": "auction"}, {"markets": ""}, {"image": "ubuntu"}, {"subnet": "default"}, {"user": "Ada Lovelace"},
        {"address_url": "ftp://x"}, {"cost_explorer": "maybe"},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_a_setting_that_cannot_mean_anything_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))) as caught:
        aws.provider(given, lambda name: None)
    assert caught.value.next_command


def test_lists_are_written_with_commas() -> None:
    found = read({"regions": "us-east-1, eu-west-1", "markets": "spot,on-demand"})
    assert (found.regions, found.markets) == (("us-east-1", "eu-west-1"), ("spot", "on-demand"))


def test_nothing_of_aws_is_imported_before_the_first_call() -> None:
    script = (
        "import sys; from gpuops_providers.aws import provider; made = provider({}, lambda name: None); made.traits; "
        "print([m for m in sys.modules if m.split('.')[0] in ('boto3', 'botocore', 's3transfer')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_adapter_stores_no_secret_of_its_own() -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("aws", "gpuops_providers.aws:provider", "gpuops.providers")
    assert credential_names("aws", [entry]) == ()


@pytest.mark.parametrize(
    ("image", "fine"),
    [("ami-0123456789abcdef0", True), ("ami-01234567", True), ("ssm:/aws/service/x", False), ("ubuntu-22.04", False)],
)
def test_a_manifest_names_an_image_that_cannot_change(image: str, fine: bool) -> None:
    assert (image_problem(image, aws.provider({}, lambda name: None).traits.image) == "") == fine


@pytest.mark.parametrize("text", ["", "g5.xlarge", "g5.xlarge/us-east-1", "g5.xlarge/us-east-1/auction", "//spot"])
def test_what_is_no_offer_of_this_provider_is_none(text: str) -> None:
    assert choice(text) is None


def test_a_mark_survives_its_tags() -> None:
    read_back = tags.carried(tags.tags(MARK, Money(Decimal("1.0060"))))
    assert (read_back.mark, read_back.nonce, read_back.damaged) == (MARK, MARK.nonce, False)
    assert read_back.rate == Money(Decimal("1.0060"))


def test_every_state_that_the_services_own_models_know_is_known() -> None:
    from botocore.loaders import Loader

    shapes = {
        ("ec2", "InstanceStateName"): "rental", ("ec2", "VolumeState"): "volume", ("ec2", "SnapshotState"): "snapshot",
        ("ec2", "ImageState"): "image", ("ec2", "NatGatewayState"): "nat-gateway", ("ec2", "SpotInstanceState"): "spot-request",
        ("ec2", "FleetStateCode"): "fleet", ("ec2", "BatchState"): "fleet",
        ("ec2", "CapacityReservationState"): "capacity-reservation", ("ec2", "CapacityBlockResourceState"): "capacity-block",
        ("efs", "LifeCycleState"): "file-system", ("fsx", "FileSystemLifecycle"): "file-system",
    }  # fmt: skip
    for (service, shape), kind in shapes.items():
        words = Loader().load_service_model(service, "service-2")["shapes"][shape]["enum"]
        assert {word.lower() for word in words} <= set(kinds.WORDS[kind]), shape


# --- prices, by the wire -------------------------------------------------------------------------------------------

TYPES = (
    "<instanceTypeSet><item><instanceType>g5.xlarge</instanceType><supportedUsageClasses><item>on-demand</item>"
    "</supportedUsageClasses><processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures>"
    "</processorInfo><gpuInfo><gpus><item><name>A10G</name><manufacturer>NVIDIA</manufacturer><count>1</count>"
    "<memoryInfo><sizeInMiB>22888</sizeInMiB></memoryInfo></item></gpus></gpuInfo></item></instanceTypeSet>"
)
ZONES = (
    "<instanceTypeOfferingSet><item><instanceType>g5.xlarge</instanceType><location>us-east-1a</location></item>"
    "</instanceTypeOfferingSet>"
)


def product(usd: str, unit: str = "Hrs") -> str:
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
    return json.dumps(
        {"terms": {"OnDemand": {"t": {"effectiveDate": "2026-11-01", "priceDimensions": {"d": dimension}}}}}
    )


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with wired(monkeypatch) as found:
        empty_account(found)
        found.on("DescribeInstanceTypes", xml("DescribeInstanceTypes", TYPES))
        found.on("DescribeInstanceTypeOfferings", xml("DescribeInstanceTypeOfferings", ZONES))
        found.on("GetParameter", plain_error("ParameterNotFound"))
        yield found


def test_of_several_products_the_dearest_counts_and_free_ones_do_not(wire: Wire) -> None:
    found = [product("0.0000000000"), product("1.0060000000"), product("1.2000000000"), product("9.0", "Quantity")]
    wire.on("GetProducts", whole({"PriceList": found}))
    (offer,) = made().quote(NEED, soon())
    assert Decimal("1.2") < offer.rate.amount < Decimal("1.3")
    assert "assumed: no source tells" in offer.terms["disk"]
    assert offer.terms["image_problem"]


@pytest.mark.parametrize("found", [["not json"], ['{"terms": {"OnDemand": {"t": {}}}}'], [], [product("0.0")]])
def test_a_price_that_cannot_be_read_is_no_offer(wire: Wire, found: list[str]) -> None:
    wire.on("GetProducts", whole({"PriceList": found}))
    with pytest.raises(ProviderError, match=r"no price of g5\.xlarge") as caught:
        made().quote(NEED, soon())
    assert "prices" in caught.value.next_command


def test_a_region_that_cannot_be_asked_offers_nothing_beside_one_that_can(wire: Wire, tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('observed = 2026-11-20\n[us-east-1]\n"g5.xlarge" = "1.0"\n')
    wire.on("DescribeRegions", regions(us_east_1="opt-in-not-required", eu_west_1="opted-in"))
    wire.on("GetProducts", plain_error("AccessDeniedException", status=403))
    everywhere = made(region="", prices=str(table))
    assert {offer.region for offer in everywhere.quote(NEED, soon())} == {"us-east-1"}
    wire.on("DescribeInstanceTypes", error("AuthFailure", status=401))
    with pytest.raises(UsageError):
        everywhere.quote(NEED, soon())


def test_a_table_says_how_old_it_is(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('observed = 2026-11-20\n[us-east-1]\n"g5.xlarge" = "1.0"\n')
    table = read_table(path)
    assert table is not None
    price = table.price("us-east-1", "g5.xlarge", 1_796_083_200.0)
    assert price is not None and price.source == "price table prices.toml of 2026-11-20, 11 days old"
    assert table.price("eu-west-1", "g5.xlarge", time.time()) is None


def test_charges_are_told_by_nonce_and_day(wire: Wire) -> None:
    def group(nonce: str, usd: str) -> dict[str, object]:
        return {"Keys": [f"gpuops:nonce${nonce}"], "Metrics": {"UnblendedCost": {"Amount": usd, "Unit": "USD"}}}

    day = {
        "TimePeriod": {"Start": "2026-11-29", "End": "2026-11-30"},
        "Groups": [group(MARK.nonce, "1.5"), group("", "90")],
    }
    wire.on("GetCostAndUsage", whole({"ResultsByTime": [day]}))
    provider = made(cost_explorer="yes")
    (line,) = provider.charges(1_795_910_400.0, 1_795_996_800.0, soon())
    assert (line.nonce, str(line.amount), line.end) == (MARK.nonce, "1.5 USD", 1_795_996_800.0)
    (asked,) = wire.calls("GetCostAndUsage")
    assert asked.given["TimePeriod"] == {"Start": "2026-11-29", "End": "2026-12-01"}, (
        "each request costs, and one is enough"
    )


def test_charges_that_cannot_be_read_are_an_error(wire: Wire) -> None:
    wire.on("GetCostAndUsage", whole({"ResultsByTime": [{"Groups": [{"Keys": ["gpuops:nonce$a"]}], "TimePeriod": {}}]}))
    with pytest.raises(ProviderError):
        made(cost_explorer="yes").charges(0.0, 1.0, soon())


# --- user-data -----------------------------------------------------------------------------------------------------


def test_user_data_without_a_timer_or_volumes_starts_no_service() -> None:
    text = cloudinit.cloud_config(order(), powers_off=False)
    config = json.loads(text.removeprefix("#cloud-config\n"))
    assert config["runcmd"] == []
    assert {file["path"] for file in config["write_files"]} == {
        "/etc/gpuops-host.json", "/etc/ssh/sshd_config.d/00-gpuops.conf",
    }  # fmt: skip


def test_user_data_without_a_host_key_leaves_the_machine_its_own() -> None:
    config = json.loads(cloudinit.cloud_config(order(host_key=None)).removeprefix("#cloud-config\n"))
    assert "ssh_keys" not in config and "ssh_deletekeys" not in config


def test_a_start_up_script_runs_last_as_a_file() -> None:
    config = json.loads(cloudinit.cloud_config(order(startup="echo 'a \"b\"'")).removeprefix("#cloud-config\n"))
    assert config["runcmd"][-1] == ["sh", "/etc/gpuops/startup"]
    assert "echo 'a \"b\"'" in [file["content"] for file in config["write_files"]]
