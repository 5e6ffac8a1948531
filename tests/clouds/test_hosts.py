"""Hosts behind invented addresses: real SSH, made from user-data, ended in every way a machine can end."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import netns
from clouds.cloudconfig import first_boot
from clouds.hosts import POWERED_OFF, STOPPED, Device, Disk, HostError, HostKeeper, Machine
from clouds.sshcase import ADDRESS, OTHER, Client, key, refused, wait

pytestmark = [
    pytest.mark.skipif(bool(netns.missing()), reason=netns.missing() or "-"),
    pytest.mark.e2e,
]
DISK = Disk("vol-0abc", "/dev/nvme1n1", ("nvme-Amazon_Elastic_Block_Store_vol0abc",), 24)


def machine(client: Client, name: str = "i-1", address: str = ADDRESS, more: str = "") -> Machine:
    return Machine(name, address, first_boot(client.user_data(more), "ubuntu"), Device("NVIDIA A10G", 23028))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def ends() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def keeper(tmp_path: Path, ends: list[tuple[str, str]]) -> Iterator[HostKeeper]:
    with netns.own_network():
        made = HostKeeper(tmp_path / "hosts", lambda name, why: ends.append((name, why)))
        try:
            yield made
        finally:
            made.close()
    assert not any("hosts" in line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line)


def test_a_host_shows_the_injected_key_and_lets_the_injected_login_in(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    assert client.says("id -un; hostname") == "ubuntu\ni-1"
    assert "ssh-ed25519" in keeper.host_keys("i-1")


def test_another_host_key_is_refused_by_openssh(keeper: HostKeeper, client: Client, tmp_path: Path) -> None:
    keeper.start(machine(client))
    done = client.ssh("true", pinned=key(tmp_path / "wrong"))
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_an_address_without_a_host_refuses_the_connection(keeper: HostKeeper, client: Client) -> None:
    assert refused()
    keeper.start(machine(client))
    assert not refused()
    assert refused(OTHER)
    keeper.stop("i-1")
    assert refused()


def test_root_is_told_to_come_as_the_default_user(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    done = client.ssh("id -un", user="root")
    assert 'Please login as the user "ubuntu"' in done.stdout


def test_the_device_is_the_one_of_the_machine_and_says_that_it_is_simulated(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    shown = client.says("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits; command -v nvidia-smi")
    assert shown == "NVIDIA A10G (simulated), 23028\n/usr/bin/nvidia-smi"


def test_two_hosts_live_at_once_and_do_not_see_each_other(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    keeper.start(machine(client, "i-2", OTHER))
    client.says("echo one > /tmp/mine; setsid sleep 300 </dev/null >/dev/null 2>&1 &")
    assert client.says("hostname; ls /tmp/mine 2>/dev/null | wc -l; pgrep -c sleep || true", OTHER) == "i-2\n0\n0"
    keeper.stop("i-1")
    assert client.says("hostname", OTHER) == "i-2"


def test_files_and_commands_of_user_data_are_there(keeper: HostKeeper, client: Client) -> None:
    more = (
        "write_files:\n  - {path: /etc/gpuops/deadline, content: '1900000000', permissions: '0600'}\n"
        "  - {path: /usr/local/sbin/x, encoding: b64, content: ZWNobyBoaQ==, permissions: '0755'}\n"
        "bootcmd:\n  - echo early > /root/early\n"
        "runcmd:\n  - [sh, -c, 'echo $0 > /tmp/ran', args]\n  - mkdir -p /workspace/outputs\n"
    )
    keeper.start(machine(client, more=more))
    wait(lambda: "boot: finished" in keeper.console("i-1"))
    shown = client.says(
        "cat /etc/gpuops/deadline; stat -c ' %a' /etc/gpuops/deadline; cat /tmp/ran /root/early; x; ls -d /workspace/*"
    )
    assert "failed" not in keeper.console("i-1")
    assert shown == "1900000000 600\nargs\nearly\nhi\n/workspace/outputs"


def test_what_user_data_asks_for_and_the_host_does_not_do_is_named(client: Client) -> None:
    assert first_boot("#cloud-config\nchef: {}\npackages: [tmux]\n", "ubuntu").ignored == ("chef", "packages")


def test_a_host_without_injected_keys_makes_its_own_and_prints_them(keeper: HostKeeper, client: Client) -> None:
    own = client.own.with_suffix(".pub").read_text()
    keeper.start(Machine("i-1", ADDRESS, first_boot("", "ubuntu", (own,))))
    console = keeper.console("i-1")
    block = console.split("-----BEGIN SSH HOST KEY KEYS-----\n")[1].split("-----END")[0]
    made = client.folder / "made"
    made.with_suffix(".pub").write_text(block)
    assert client.ssh("true", pinned=made).returncode == 0
    assert block.split()[1] == keeper.host_keys("i-1")["ssh-ed25519"]


@pytest.mark.parametrize("command", ["sudo poweroff", "sudo shutdown -P now", "/usr/bin/systemctl poweroff"])
def test_a_host_that_powers_off_ends_and_says_so(
    keeper: HostKeeper, client: Client, ends: list[tuple[str, str]], command: str
) -> None:
    keeper.start(machine(client))
    client.ssh(command)
    wait(lambda: ends == [("i-1", POWERED_OFF)])
    assert refused()


def test_a_timer_of_user_data_ends_the_host_at_the_time_in_a_file(
    keeper: HostKeeper, client: Client, ends: list[tuple[str, str]]
) -> None:
    more = """write_files:
  - path: /etc/systemd/system/end.service
    content: |
      [Service]
      Type=oneshot
      ExecStart=/bin/sh -c '[ "$(date +%%s)" -lt "$(cat /etc/deadline)" ] || systemctl poweroff'
  - path: /etc/systemd/system/end.timer
    content: |
      [Timer]
      OnBootSec=1
      OnUnitActiveSec=1
      [Install]
      WantedBy=timers.target
  - {path: /etc/deadline, content: '4000000000'}
runcmd:
  - systemctl daemon-reload
  - [systemctl, enable, --now, end.timer]
""".replace("%%", "%")
    keeper.start(machine(client, more=more))
    wait(lambda: "boot: finished" in keeper.console("i-1"))
    time.sleep(2.5)
    assert client.says("systemctl is-active end.timer") == "active"
    client.says("echo 1 > /etc/deadline.new; mv /etc/deadline.new /etc/deadline")
    wait(lambda: ends == [("i-1", POWERED_OFF)])


def test_a_delayed_shutdown_can_be_called_off(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client, more="runcmd:\n  - shutdown -P +60\n"))
    wait(lambda: "boot: finished" in keeper.console("i-1"))
    assert client.says("ls /run/units; sudo shutdown -c; ls /run/units") == "shutdown.at\nshutdown.timer\nshutdown.at"


def test_a_host_whose_plug_is_pulled_leaves_no_process(
    keeper: HostKeeper, client: Client, ends: list[tuple[str, str]]
) -> None:
    keeper.start(machine(client))
    client.says("for n in 1 2 3; do setsid sleep 4242 </dev/null >/dev/null 2>&1 & done; tmux new -d 'sleep 4242'")
    assert subprocess.run(["pgrep", "-f", "sleep 4242"], capture_output=True).returncode == 0
    keeper.stop("i-1")
    assert ends == [("i-1", STOPPED)]
    wait(lambda: subprocess.run(["pgrep", "-f", "sleep 4242"], capture_output=True).returncode == 1)


def test_a_disk_appears_with_its_names_and_is_mounted_on_request(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    keeper.attach("i-1", DISK)
    script = """
    test -b /dev/nvme1n1 && readlink -f /dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0abc
    sudo mkdir -p /workspace && sudo mount /dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0abc /workspace
    findmnt -no SOURCE,FSROOT /workspace; echo kept > /workspace/file; df -m --output=size /workspace | tail -1
    """
    assert client.says(script).split() == ["/dev/nvme1n1", "/dev/nvme1n1", "/", "24"]


def test_a_disk_outlives_its_host_and_is_found_again_in_the_next(keeper: HostKeeper, client: Client) -> None:
    more = f"mounts:\n  - [/dev/disk/by-id/{DISK.names[0]}, /workspace]\n"
    keeper.start(dataclasses.replace(machine(client, more=more), disks=(DISK,)))
    client.says("echo kept > /workspace/file")
    keeper.wipe("i-1")
    keeper.start(dataclasses.replace(machine(client, "i-2", OTHER, more), disks=(DISK,)))
    assert client.says("cat /workspace/file", OTHER) == "kept"


def test_a_disk_that_is_attached_late_is_mounted_by_its_line_in_fstab(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client, more=f"mounts:\n  - [/dev/disk/by-id/{DISK.names[0]}, /workspace]\n"))
    assert client.ssh("findmnt /workspace").returncode == 1
    keeper.attach("i-1", DISK)
    assert client.says("sudo mount -a; findmnt -no SOURCE /workspace") == "/dev/nvme1n1"
    keeper.detach("i-1", DISK)
    assert client.ssh("findmnt /workspace || ls /dev/nvme1n1").returncode != 0


def test_no_program_on_the_host_makes_a_new_file_system_on_a_disk(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    keeper.attach("i-1", DISK)
    assert "already" in client.ssh("sudo mkfs.ext4 /dev/nvme1n1; mkfs -t xfs /dev/nvme1n1").stderr
    assert client.says("blkid -o value -s TYPE /dev/nvme1n1") == "ext4"


def test_a_host_has_no_rights_outside(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    assert client.says("grep CapEff /proc/self/status") == "CapEff:\t0000000000000000"
    assert client.ssh("cat /etc/shadow; ls /work; tr '\\0' '\\n' < /proc/1/environ | grep -i pytest").stdout == ""


def test_hosts_are_refused_in_a_network_that_leads_anywhere(tmp_path: Path) -> None:
    if {name for _, name in socket.if_nameindex()} == {"lo"}:
        pytest.skip("this network leads nowhere")
    with pytest.raises(netns.NetworkError, match="not in a network of our own"):
        HostKeeper(tmp_path / "hosts")


def test_a_name_can_be_used_once(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    with pytest.raises(HostError, match="runs already"):
        keeper.start(machine(client))


def test_the_agent_sees_the_device_and_the_disk_under_its_name(keeper: HostKeeper, client: Client) -> None:
    keeper.start(machine(client))
    keeper.attach("i-1", DISK)
    client.says("sudo mkdir -p /workspace; sudo mount /dev/nvme1n1 /workspace; mkdir -p code/gpuops/host")
    for name in ("facts", "files"):
        source = Path(__file__).parents[2] / "gpuops" / "host" / f"{name}.py"
        client.says(f"cat > code/gpuops/host/{name}.py <<'END'\n{source.read_text()}\nEND")
    ask = 'import json; from gpuops.host.facts import facts; print(json.dumps(facts({"mounts": ["/workspace"]})))'
    seen = json.loads(client.says(f"cd code && python3 -c '{ask}'"))
    assert seen["gpus"]["devices"] == [["NVIDIA A10G (simulated)", "23028", "580.95.05"]]
    assert seen["mounts"]["/workspace"] == ["/", "tmpfs", "/dev/nvme1n1"]
    assert seen["labels"]["/dev/nvme1n1"] == list(DISK.names)
    assert (seen["user"], seen["home"]) == ("ubuntu", "/home/ubuntu")
