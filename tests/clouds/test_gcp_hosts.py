"""Each instance has an SSH host of its own, made from its own metadata; reached by plain OpenSSH."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import netns
from clouds.gcp import GcpCloud
from clouds.gcp_case import ZONE, boot_disk, delete, done, errors, get, metadata, order, running, types

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpCloud]:
    """A cloud with hosts, in a network that leads nowhere."""
    pytest.importorskip("google.cloud.compute_v1")
    with netns.own_network():
        cloud = GcpCloud(tmp_path_factory.mktemp("gcp"), hosts=True)
        yield cloud
        cloud.close()


@pytest.fixture
def cloud(server: GcpCloud) -> Iterator[GcpCloud]:
    server.reset(hosts=True)
    yield server
    bugs = server.control("state")["bugs"]
    server.reset(hosts=True)
    assert not bugs, bugs


class Client:
    """Somebody with OpenSSH and a key."""

    def __init__(self, folder: Path, cloud: GcpCloud) -> None:
        self.folder, self.cloud, self.key = folder, cloud, folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.key)], check=True)

    def login(self, user: str = "gpuops") -> str:
        """What goes into the metadata `ssh-keys`."""
        return f"{user}:{self.key.with_suffix('.pub').read_text().strip()} {user}"

    def host_key(self, name: str = "one") -> str:
        """The host key by the cloud's interface: type word and value are two fields."""
        request = {"project": self.cloud.project, "zone": ZONE, "instance": name, "query_path": "hostkeys/"}
        found: list[Any] = []

        def published() -> bool:
            try:
                answer = self.cloud.client("InstancesClient").get_guest_attributes(request=request, retry=None)
            except errors().NotFound:
                return False
            found[:] = [i for i in answer.query_value.items if i.key == "ssh-ed25519"]
            return bool(found)

        self.cloud.wait(published, "the host key")
        return f"{found[0].key} {found[0].value}"

    def ssh(
        self, script: str, name: str = "one", key: str = "", user: str = "gpuops"
    ) -> subprocess.CompletedProcess[str]:
        """Run a script on the host of an instance, its host key pinned."""
        address = get(self.cloud, name).network_interfaces[0].access_configs[0].nat_i_p
        (self.folder / "known").write_text(f"{address} {key or self.host_key(name)}\n")
        options = {"UserKnownHostsFile": self.folder / "known", "GlobalKnownHostsFile": "/dev/null", "BatchMode": "yes"}
        options |= {"StrictHostKeyChecking": "yes", "IdentitiesOnly": "yes", "ConnectTimeout": "5"}
        argv = ["ssh", "-F", "none", "-i", str(self.key)]
        argv += [part for option, value in options.items() for part in ("-o", f"{option}={value}")]
        argv += [f"{user}@{address}", "bash -s"]
        return subprocess.run(argv, input=script, capture_output=True, text=True, timeout=60, check=False)

    def says(self, script: str, name: str = "one") -> str:
        """The output of a script that must end well."""
        done = self.ssh(script, name)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def order(self, name: str = "one", script: str = "", **changes: Any) -> Any:
        """An instance with this client's login."""
        values = {"enable_guest_attributes": "TRUE", "ssh_keys": self.login()}
        if script:
            values["startup_script"] = script
        return order(name, metadata=metadata(**values), **changes)


@pytest.fixture
def client(tmp_path: Path, cloud: GcpCloud) -> Client:
    return Client(tmp_path, cloud)


def stop(cloud: GcpCloud, way: str, status: str) -> None:
    """Stop or start, and wait for it."""
    request = {"project": cloud.project, "zone": ZONE, "instance": "one"}
    getattr(cloud.client("InstancesClient"), f"{way}_unary")(request=request, retry=None)
    cloud.wait(lambda: get(cloud).status == status, status)


def test_a_login_with_the_key_of_the_metadata_and_the_published_host_key(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order())
    assert client.says("echo $USER; nvidia-smi --query-gpu=name,memory.total --format=csv,noheader") == (
        "gpuops\nNVIDIA L4 (simulated), 23034 MiB"
    )


def test_another_host_key_is_refused(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order())
    other = " ".join(client.key.with_suffix(".pub").read_text().split()[:2])
    assert "Host key verification failed" in client.ssh("true", key=other).stderr


def test_each_instance_has_its_own_address_key_and_disk(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order("one"))
    running(cloud, client.order("two"))
    assert client.host_key("one") != client.host_key("two")
    client.says("echo mine > ~/file", "one")
    assert client.ssh("cat ~/file", "two").returncode != 0
    assert client.ssh("true", "two", key=client.host_key("one")).returncode != 0


def test_other_keys_and_other_users_are_not_let_in(cloud: GcpCloud, client: Client, tmp_path: Path) -> None:
    running(cloud, client.order())
    assert client.ssh("true", user="ubuntu").returncode != 0
    (tmp_path / "other").mkdir()
    assert "Permission denied" in Client(tmp_path / "other", cloud).ssh("true").stderr


def test_with_os_login_the_keys_in_the_metadata_are_ignored(cloud: GcpCloud, client: Client) -> None:
    values = {"enable_guest_attributes": "TRUE", "ssh_keys": client.login(), "enable_oslogin": "TRUE"}
    running(cloud, order(metadata=metadata(**values)))
    assert "Permission denied" in client.ssh("true").stderr


@pytest.mark.timeout(300)
def test_the_startup_script_mounts_a_disk_that_outlives_the_instance(cloud: GcpCloud, client: Client) -> None:
    cloud.put("disks", f"zones/{ZONE}", name="data", sizeGb="200", status="READY")
    script = "#!/bin/bash\nmkdir -p /data\nmountpoint -q /data || mount -o discard,defaults /dev/disk/by-id/google-data /data\n"
    attached = types().AttachedDisk(source=f"zones/{ZONE}/disks/data", device_name="data")
    for turn in ("first", "second"):
        running(cloud, client.order(script=script, disks=[boot_disk(), attached]))
        cloud.wait(lambda: client.ssh("mountpoint -q /data").returncode == 0, "the mount")
        seen = client.says(f"ls /data; echo x > /data/{turn}")
        done(cloud, delete(cloud))
    assert seen == "first"
    done(cloud, cloud.client("DisksClient").delete_unary(project=cloud.project, zone=ZONE, disk="data", retry=None))
    cloud.put("disks", f"zones/{ZONE}", name="data", sizeGb="200", status="READY")
    running(cloud, client.order(script=script, disks=[boot_disk(), attached]))
    cloud.wait(lambda: client.ssh("mountpoint -q /data").returncode == 0, "the mount")
    assert client.says("ls /data") == "", "another disk of the same name"


def test_a_disk_attached_later_appears_and_disappears(cloud: GcpCloud, client: Client) -> None:
    cloud.put("disks", f"zones/{ZONE}", name="data", sizeGb="200", status="READY")
    running(cloud, client.order())
    request = {"project": cloud.project, "zone": ZONE, "instance": "one"}
    disk = types().AttachedDisk(source=f"zones/{ZONE}/disks/data", device_name="data")
    instances = cloud.client("InstancesClient")
    done(cloud, instances.attach_disk_unary(request={**request, "attached_disk_resource": disk}, retry=None))
    assert client.says("test -b /dev/disk/by-id/google-data && echo there") == "there"
    done(cloud, instances.detach_disk_unary(request={**request, "device_name": "data"}, retry=None))
    assert client.ssh("test -e /dev/disk/by-id/google-data").returncode != 0


def test_the_startup_script_runs_at_every_boot_and_the_disk_and_key_stay(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order(script="echo boot >> /srv/boots\n"))
    cloud.wait(lambda: client.ssh("cat /srv/boots").stdout == "boot\n", "the first boot")
    key = client.host_key()
    stop(cloud, "stop", "TERMINATED")
    stop(cloud, "start", "RUNNING")
    cloud.wait(lambda: client.ssh("cat /srv/boots").stdout == "boot\nboot\n", "the second boot")
    assert client.host_key() == key


def test_a_host_that_powers_itself_off_leaves_a_stopped_instance_whose_disk_bills(
    cloud: GcpCloud, client: Client
) -> None:
    running(cloud, client.order())
    client.ssh("sudo poweroff")
    cloud.wait(lambda: get(cloud).status == "TERMINATED", "TERMINATED")
    assert {u["plural"] for u in cloud.usage() if u["end"] is None} == {"instances", "disks"}


def test_an_instance_without_an_external_address_answers_at_its_internal_one(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order(network_interfaces=[types().NetworkInterface(network="global/networks/default")]))
    (interface,) = get(cloud).network_interfaces
    assert not interface.access_configs
    scan = ["ssh-keyscan", "-T", "5", "-t", "ed25519", interface.network_i_p]
    probe = subprocess.run(scan, capture_output=True, text=True, timeout=20, check=False)
    assert client.host_key() in probe.stdout


def test_a_deleted_instance_has_no_host(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order())
    address = get(cloud).network_interfaces[0].access_configs[0].nat_i_p
    done(cloud, delete(cloud))
    probe = subprocess.run(["ssh-keyscan", "-T", "2", address], capture_output=True, text=True, timeout=20, check=False)
    assert probe.stdout == ""


def test_the_console_shows_the_host_keys(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order())
    request = {"project": cloud.project, "zone": ZONE, "instance": "one"}
    shown = cloud.client("InstancesClient").get_serial_port_output(request=request, retry=None)
    assert client.host_key() in shown.contents


def test_the_deadline_ends_the_host(cloud: GcpCloud, client: Client) -> None:
    running(cloud, client.order())
    client.says("nohup sleep 600 >/dev/null 2>&1 &")
    cloud.advance(3700)
    cloud.wait(lambda: cloud.there() == {}, "the deadline")
    assert cloud.control("hosts") == []
