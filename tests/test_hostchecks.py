"""Expected against seen: what an answer of the agent means for a spec."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gpuops import hostchecks
from gpuops.errors import HostError
from gpuops.spec import Checks, Outputs, Spec, Teardown, Train
from gpuops.values import Money, Need, VolumeUse

VOLUME = VolumeUse("vol-1", "/workspace", min_free_gb=10)


def spec(volumes: tuple[VolumeUse, ...] = (), **checks: Any) -> Spec:
    return Spec(
        name="demo", owner="me", provider="local", need=Need("A100"), image="", disk_gb=1, volumes=volumes,
        checks=Checks(**checks), transfers=(), max_total_bytes=1, inputs_sha256="", env=(), secrets=(),
        train=Train(("x",), "/w"), outputs=Outputs("/w/out", "/copies"), cap=Money(Decimal(1)), deadline_s=1,
        deadline_at=0, hold_s=1, setup_s=1, teardown=Teardown(),
    )  # fmt: skip


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "boot_id": "b", "time": 1000.0, "gpus": {"error": "", "devices": [["NVIDIA H100 80GB HBM3", "81559", "550.54.15"]]},
        "free": {"/w/out": 50e9, "/workspace": 50e9}, "mounts": {}, "labels": {}, "markers": {}, "exists": {}, "told": {},
        "ports": [22], "isolation": "container", "python": "3.10.12", "tools": {"tmux": True, "rsync": True},
        "closed": {"/w/out": ""}, "home": "/root", "rsync": "", "user": "root", "host": "h", "kernel": "6", "cores": 8, **changes,
    }  # fmt: skip


def failed(answer: dict[str, Any], wanted: Spec, now: float = 1000.0) -> list[str]:
    return [c.name for c in hostchecks.compare(answer, wanted, now).checks if not c.ok]


@pytest.mark.parametrize(
    ("checks", "names"),
    [
        ({"device": "h100", "memory_gb": 80, "driver": "550.54"}, []),
        ({"device": "H100 80GB"}, []),
        ({"device": "A100"}, ["device"]),
        ({"device": "H100", "count": 8}, ["device count"]),
        ({"memory_gb": 94}, ["device memory"]),
        ({"driver": "550.90"}, ["driver"]),
        ({"free_gb": 51}, ["free space"]),
        ({"ports": (22, 80)}, ["published ports"]),
    ],
)
def test_device_memory_driver_space_and_ports(checks: dict[str, Any], names: list[str]) -> None:
    assert failed(seen(), spec(**checks)) == names


def test_a_host_without_a_device_shows_why() -> None:
    facts = hostchecks.compare(
        seen(gpus={"error": "nvidia-smi is not on this host", "devices": []}), spec(device="H100"), 1000
    )
    assert facts.checks[0].seen == "nvidia-smi is not on this host" and not facts.checks[0].ok


def test_a_clock_that_is_wrong() -> None:
    assert failed(seen(time=1031.0), spec()) == ["clock"]
    assert failed(seen(time=971.0), spec()) == []


@pytest.mark.parametrize(
    ("answer", "ok"),
    [
        ({"mounts": {"/workspace": ["/volumes/vol-1", "ext4", "/dev/vdb"]}}, True),
        ({"mounts": {"/workspace": ["/", "ext4", "/dev/vdb"]}, "labels": {"/dev/vdb": ["scsi-0X_vol-1"]}}, True),
        ({"mounts": {"/workspace": ["/", "ext4", "/dev/vdb"]}, "markers": {"/workspace": '{"id": "vol-1"}'}}, True),
        ({"mounts": {"/workspace": ["/", "ext4", "/dev/vdb"]}, "markers": {"/workspace": '{"id": "vol-1-b"}'}}, False),
        ({"mounts": {"/workspace": ["/volumes/vol-10", "ext4", "/dev/vdb"]}}, False),
        ({"mounts": {"/workspace": ["/volumes/vol-1-b", "ext4", "/dev/vdb"]}}, False),
        ({"mounts": {"/data": ["/volumes/vol-1", "ext4", "/dev/vdb"]}}, False),
        ({"exists": {"/workspace": True}}, False),
        ({"exists": {"/workspace": True}, "isolation": "plain", "markers": {"/workspace": "vol-1"}}, True),
        ({"exists": {"/workspace": True}, "isolation": "plain", "markers": {"/workspace": "vol-2"}}, False),
        ({}, False),
    ],
)
def test_a_volume_is_known_by_what_it_is_and_where(answer: dict[str, Any], ok: bool) -> None:
    assert failed(seen(**answer), spec((VOLUME,))) == ([] if ok else ["volume vol-1"])


def test_a_volume_without_room_is_said() -> None:
    mounted = {"mounts": {"/workspace": ["/volumes/vol-1", "ext4", "x"]}, "free": {"/w/out": 50e9, "/workspace": 9e9}}
    assert failed(seen(**mounted), spec((VOLUME,))) == ["free on vol-1"]


def tools(**changes: Any) -> tuple[bool, str]:
    facts = hostchecks.compare(seen(**changes), spec(), 1000)
    return next((c.ok, c.seen) for c in facts.checks if c.name == "tools")


def test_missing_tools_are_named_with_what_is_used_instead() -> None:
    assert tools() == (True, "python3 3.10.12, tmux, rsync")
    assert tools(tools={"tmux": False, "rsync": True}) == (
        True,
        "python3 3.10.12, rsync; tmux missing: training runs in a detached session of its own",
    )
    assert "rsync missing: files go as a tar stream over the same connection" in tools(tools={})[1]
    said = {"said": "installed by apt-get with sudo: tmux, rsync"}
    assert tools(installed=said) == (True, f"python3 3.10.12, tmux, rsync; {said['said']}")
    assert not tools(python="3.7.17")[0]


def test_folders_that_are_closed_to_the_login_are_named_with_the_fix() -> None:
    closed = "/workspace is closed to this user (mode 755)"
    answer = seen(user="ubuntu", home="/home/ubuntu", closed={"/workspace/code": closed, "/workspace/out": closed})
    assert failed(answer, spec()) == ["write access"]
    (check,) = (c for c in hostchecks.compare(answer, spec(), 1000).checks if c.name == "write access")
    assert check.seen == (
        f"{closed}: in the manifest name folders below /home/ubuntu, or use an image in which ubuntu may write there"
    )


@pytest.mark.parametrize("answer", [{}, {"boot_id": "b"}, seen(gpus=None), seen(ports="x"), seen(time=None)])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_host(answer: dict[str, Any]) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        hostchecks.compare(answer, spec(), 1000)


def test_an_old_rsync_here_is_a_warning() -> None:
    old = hostchecks.compare(seen(), spec(), 1000, "rsync  version 3.2.7  protocol version 31").facts["rsync here"]
    new = hostchecks.compare(seen(), spec(), 1000, "rsync  version 3.5.0  protocol version 32").facts["rsync here"]
    assert "known holes" in old and "known holes" not in new
