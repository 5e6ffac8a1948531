"""What the user-data of an order makes of a machine: the pinned key, the login, the end from inside, and its volumes."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from awswire import ROLE, alone, order
from clouds import netns
from clouds.aws import AwsCloud
from clouds.sshcase import Client, key, refused, wait
from gpuops_providers.aws import provider
from gpuops_providers.aws.adapter import AwsProvider

from gpuops.marks import new_nonce
from gpuops.values import Created, HostKey, Need, Observation, Order, Ref, VolumeUse

pytestmark = [pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"), pytest.mark.e2e]
REGION = "us-east-1"


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    with netns.own_network():
        cloud = AwsCloud(tmp_path_factory.mktemp("aws"), hosts=True)
        yield cloud
        cloud.stop()


@pytest.fixture
def cloud(account: AwsCloud, monkeypatch: pytest.MonkeyPatch) -> AwsCloud:
    account.reset()
    alone(monkeypatch, account.url)
    return account


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def aws(cloud: AwsCloud) -> AwsProvider:
    made = provider({"region": REGION, "scheduler_role": ROLE}, lambda name: None, time.time)
    assert isinstance(made, AwsProvider)
    return made


def soon() -> float:
    return time.time() + 30


def wish(aws: AwsProvider, client: Client, **changes: object) -> Order:
    """An order that carries this client's keys."""
    public = client.host.with_suffix(".pub").read_text().strip()
    keys = (client.own.with_suffix(".pub").read_text(),)
    host_key = HostKey(client.host.read_text(), public, "SHA256:key")
    offer = aws.quote(Need("A10G", region=REGION), soon())[0]
    plain = order(offer=offer, host_key=host_key, ssh_public_keys=keys, **changes)
    return dataclasses.replace(plain, mark=dataclasses.replace(plain.mark, nonce=new_nonce(secrets.token_bytes(8))))


def rent(aws: AwsProvider, order: Order) -> tuple[Ref, str]:
    """A rental whose SSH answers: its ref and its address."""
    aws.prepare(order, soon())
    answer = aws.provision(order, soon())
    assert isinstance(answer, Created), answer
    wait(lambda: (seen := aws.inspect(answer.ref, soon())).endpoint is not None and not refused(address(seen)))
    return answer.ref, address(aws.inspect(answer.ref, soon()))


def address(seen: Observation) -> str:
    assert seen.endpoint is not None and (seen.endpoint.port, seen.endpoint.user) == (22, "root")
    return seen.endpoint.host


def says(client: Client, where: str) -> Callable[[str], str]:
    def ask(script: str) -> str:
        done = client.ssh(script, where, user="root")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return ask


def test_the_machine_shows_the_injected_key_and_lets_root_in(aws: AwsProvider, client: Client, tmp_path: Path) -> None:
    _, where = rent(aws, wish(aws, client))
    facts = json.loads(says(client, where)("cat /etc/gpuops-host.json"))
    assert facts == {"published_ports": [22], "isolation": "virtual machine"}
    wrong = client.ssh("true", where, pinned=key(tmp_path / "wrong"), user="root")
    assert "Host key verification failed" in wrong.stderr


def test_the_machine_ends_itself_at_the_deadline_and_the_bill_with_it(aws: AwsProvider, client: Client) -> None:
    ref, where = rent(aws, wish(aws, client, ends_at=float(int(time.time()) + 12)))
    assert says(client, where)("echo alive") == "alive"
    wait(lambda: aws.inspect(ref, soon()).state == "terminal")
    assert refused(where)
    seen = aws.inspect(ref, soon())
    assert seen.bills == () and "Client.InstanceInitiatedShutdown" in seen.reason


def test_the_deadline_inside_moves_by_a_file_that_is_renamed(aws: AwsProvider, client: Client) -> None:
    ref, where = rent(aws, wish(aws, client, ends_at=float(int(time.time()) + 14)))
    later = int(time.time()) + 3600
    says(client, where)(
        f"echo {later} > /etc/gpuops/deadline.new && mv /etc/gpuops/deadline.new /etc/gpuops/deadline; cat /etc/gpuops/deadline"
    )
    time.sleep(20)
    assert aws.inspect(ref, soon()).state == "running"
    says(client, where)("for torn in 17 nonsense ''; do echo $torn > /etc/gpuops/deadline; sleep 6; done")
    assert aws.inspect(ref, soon()).state == "running", "a file that cannot be read changes nothing"


def test_an_attached_volume_is_mounted_named_and_kept(cloud: AwsCloud, aws: AwsProvider, client: Client) -> None:
    ident = cloud.client("ec2").create_volume(AvailabilityZone=f"{REGION}a", Size=10)["VolumeId"]
    use = VolumeUse(ident, "/data")
    ref, where = rent(aws, wish(aws, client, volumes=(use,)))
    ask = says(client, where)
    aws.attach(ref, use, soon())
    wait(lambda: json.loads(ask("cat /etc/gpuops-host.json")).get("volumes") == [{"id": ident, "mount": "/data"}])
    assert ask("findmnt -n -o TARGET /data || grep -c ' /data ' /proc/self/mountinfo")
    ask("echo kept > /data/word")
    aws.terminate(ref, soon())
    volume = dataclasses.replace(ref, kind="volume", id=ident)
    wait(lambda: aws.inspect(volume, soon()).raw_state == "available")
