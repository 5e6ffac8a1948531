"""The local cloud on real processes: its hosts, its refusals, its volumes, its console."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from gpuops_providers.local import create_volume, isolation, processes, provider
from localcloud import LocalCloud

from gpuops.errors import CredentialsError, ProviderError, Unreadable, UsageError
from gpuops.values import Created, Order, Ref, Refused, Scope, VolumeUse

CANARY = "canary-9b1f"


def soon() -> float:
    return time.time() + 15


@pytest.fixture(scope="module", params=["auto", "plain"])
def rented(request: pytest.FixtureRequest) -> Iterator[tuple[LocalCloud, Ref]]:
    """One rental for all tests that only look at it."""
    cloud = LocalCloud(isolation=request.param)
    yield cloud, cloud.rent(cloud.order("local.sim-a100-80x2"))
    cloud.close()


def listing_reasons(local: LocalCloud) -> list[str]:
    return [gap.reason for gap in local.provider.list_billable(Scope(), soon()).gaps]


# --- the host


def test_a_rental_is_reached_with_its_key_pinned(rented: tuple[LocalCloud, Ref]) -> None:
    cloud, ref = rented
    log = cloud.cloud.rental_directory(ref.id) / "sshd.log"
    logins = log.read_text().count("Accepted publickey")
    assert cloud.ssh(ref, "echo hello").stdout == "hello\n"
    assert log.read_text().count("Accepted publickey") == logins + 1


def test_a_host_with_another_key_is_not_accepted(local: LocalCloud) -> None:
    local.faults(own_host_key=True)
    done = local.ssh(local.rent(), "echo hello", check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_the_host_says_how_well_it_is_isolated(rented: tuple[LocalCloud, Ref]) -> None:
    cloud, ref = rented
    facts = cloud.facts(ref)
    assert facts["isolation"] == isolation.choose(cloud.config["isolation"])
    assert facts["simulated"] is True
    assert facts["published_ports"] == [22]


def test_the_device_says_that_it_is_simulated(rented: tuple[LocalCloud, Ref]) -> None:
    either, ref = rented
    query = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader"
    assert either.ssh(ref, query).stdout == "NVIDIA A100-SXM4-80GB (simulated), 81920 MiB, 580.95.05\n" * 2
    assert either.ssh(ref, f"{query},nounits | head -1").stdout.split(", ")[1] == "81920"
    assert "(simulated)" in either.ssh(ref, "nvidia-smi").stdout
    assert either.ssh(ref, "nvidia-smi --query-gpu=nonsense --format=csv", check=False).returncode == 2


def test_the_hosts_python_has_numpy(rented: tuple[LocalCloud, Ref]) -> None:
    cloud, ref = rented
    assert cloud.ssh(ref, "python3 -c 'import numpy; print(numpy.__name__)'").stdout == "numpy\n"


def test_bubblewrap_gives_the_host_a_world_of_its_own(rented: tuple[LocalCloud, Ref]) -> None:
    local, ref = rented
    if local.facts(ref)["isolation"] == isolation.PLAIN:
        assert local.ssh(ref, "id -u").stdout.strip() == str(os.getuid()), "the fallback has none, and says so"
        return
    lines = local.ssh(
        ref,
        "whoami; hostname; id -u; findmnt -no TARGET /workspace; df -P /workspace | tail -1 | awk '{print $6}';"
        "touch /workspace/a /tmp/a /dev/shm/a /run/a ~/a && echo writable; touch /usr/a 2>/dev/null || echo read-only;"
        "ls /proc | grep -c '^[0-9]*$'; ls -d /home /boot /srv 2>/dev/null | wc -l",
    ).stdout.splitlines()
    assert lines[0] == "root"
    assert lines[1] == ref.id
    assert lines[2] != "0"
    assert lines[3:7] == ["/workspace", "/workspace", "writable", "read-only"]
    assert int(lines[7]) < 20
    assert lines[8] == "0"


def test_the_callers_environment_stays_outside(local: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", CANARY)
    ref = local.rent()
    if local.facts(ref)["isolation"] == isolation.PLAIN:
        pytest.skip("without a PID namespace the host sees this machine's processes")
    seen = local.ssh(ref, f"env; cat /proc/1/environ; cat /proc/[0-9]*/environ | grep -ac {CANARY} || true").stdout
    assert "GPUOPS_LOCAL_RENTAL=" in seen, (
        "the environment of the first process must be readable, or this shows nothing"
    )
    assert CANARY not in seen
    keeper = local.cloud.rental(ref.id).keeper.pid  # type: ignore[union-attr]
    assert CANARY.encode() not in Path(f"/proc/{keeper}/environ").read_bytes()


# --- refusals and gaps


def test_what_cannot_be_sold_is_refused_and_leaves_nothing(local: LocalCloud) -> None:
    create_volume("elsewhere", 1, "there", local.directory)
    wrong_mounts = [VolumeUse(volume, "/data") for volume in ("no-such", "elsewhere", "../../x")]
    create_volume("good", 1, "here", local.directory)
    wrong_mounts += [VolumeUse("good", mount) for mount in ("/etc", "/", "relative", "/workspace/../etc")]
    for order in [local.order(ends_in_s=-1), *(local.order(volumes=(use,)) for use in wrong_mounts)]:
        answer = local.provider.provision(order, soon())
        assert isinstance(answer, Refused), order.volumes
        assert answer.kind == "invalid"
    assert local.listed("rental") == []


def test_a_price_that_rose_is_refused(local: LocalCloud) -> None:
    order = local.order()
    record = {"id": "local.sim-l4", "device": "NVIDIA L4", "memory_mib": 23034, "per_hour": "0.11"}
    (local.directory / "offers.json").write_text(json.dumps([record]))
    answer = local.provider.provision(order, soon())
    assert isinstance(answer, Refused)
    assert answer.kind == "price"


def test_two_buyers_of_the_last_one_get_one(local: LocalCloud) -> None:
    record = {"id": "local.rare", "device": "NVIDIA L4", "memory_mib": 23034, "per_hour": "0.10", "capacity": 1}
    (local.directory / "offers.json").write_text(json.dumps([record]))
    answers: list[Created | Refused] = []
    orders = [local.order("local.rare") for _ in range(3)]
    buyers = [
        threading.Thread(target=lambda order=order: answers.append(local.provider.provision(order, soon())))
        for order in orders
    ]
    for buyer in buyers:
        buyer.start()
    for buyer in buyers:
        buyer.join()
    assert sorted(type(answer).__name__ for answer in answers) == ["Created", "Refused", "Refused"]
    assert len(local.listed("rental")) == 1


def test_a_record_that_cannot_be_read_is_a_gap_and_not_an_absence(local: LocalCloud) -> None:
    ref = local.provision()
    local.wait(lambda: local.inspect(ref).state == "running")
    good = (local.cloud.rental_directory(ref.id) / "record.json").read_text()
    for damage in ("{", "{}", '{"id": 1}', good.replace(ref.id, "r-0000000000"), ""):
        (local.cloud.rental_directory(ref.id) / "record.json").write_text(damage)
        assert any(ref.id in reason for reason in listing_reasons(local)), damage
        with pytest.raises(Unreadable):
            local.inspect(ref)
    (local.cloud.rental_directory(ref.id) / "record.json").write_text(good)
    assert listing_reasons(local) == []


def test_a_rental_with_a_damaged_record_can_be_ended_but_never_counts_as_gone(local: LocalCloud) -> None:
    ref = local.rent()
    running = local.processes(ref)
    assert running
    (local.cloud.rental_directory(ref.id) / "record.json").write_text("{")
    with pytest.raises(Unreadable):
        local.provider.terminate(ref, soon())
    local.wait(lambda: not processes.with_descendants(running))
    assert listing_reasons(local)


def test_a_wrong_token_and_another_account_are_never_an_absence(local: LocalCloud) -> None:
    ref, order = local.provision(), local.order()
    with pytest.raises(ProviderError, match="account"):
        local.adapter(account="second").inspect(ref, soon())
    assert local.adapter(account="second").list_billable(Scope(), soon()).items == ()
    (local.directory / "tokens.json").write_text(json.dumps({"default": "right"}))
    local.secrets["LOCAL_TOKEN"] = "wrong"
    with pytest.raises(CredentialsError):
        local.inspect(ref)
    answer = local.provider.provision(order, soon())
    assert isinstance(answer, Refused)
    assert answer.kind == "account"
    local.secrets["LOCAL_TOKEN"] = "right"
    assert local.inspect(ref).bills


@pytest.mark.parametrize("off_s", [-7200, 7200])
def test_until_is_told_by_the_clock_that_the_adapter_was_given(local: LocalCloud, off_s: float) -> None:
    """This computer may be hours off: what is left of a step is counted by money time, and a late step sends nothing."""

    def now() -> float:
        return time.time() + off_s

    adapter = provider({"directory": str(local.directory)}, lambda name: None, now)
    created = adapter.provision(local.order(), now() + 20)
    assert isinstance(created, Created)
    assert adapter.inspect(created.ref, now() + 20).bills
    assert adapter.list_billable(Scope(), now() + 20).items
    late = adapter.provision(local.order(), now() - 1)
    assert isinstance(late, Refused) and late.reason.startswith("too late")
    with pytest.raises(ProviderError, match="too late"):
        adapter.inspect(created.ref, now() - 1)
    adapter.terminate(created.ref, now() + 20)


def test_settings_that_nobody_knows_are_refused() -> None:
    with pytest.raises(UsageError, match="directroy"):
        provider({"directroy": "/x"}, lambda name: None)


def test_a_server_error_is_an_error_once(local: LocalCloud) -> None:
    local.faults(error={"list": 1})
    with pytest.raises(ProviderError):
        local.listed()
    assert local.listed() == []


# --- volumes


def test_a_volume_outlives_rentals_and_shows_who_it_is(local: LocalCloud, tmp_path: Path) -> None:
    volume = create_volume("data", 20, "here", local.directory)
    mount = "/data" if isolation.choose("auto") != isolation.PLAIN else str(tmp_path / "data")
    use = VolumeUse("data", mount)
    first = local.rent(local.order(volumes=(use,)))
    (fact,) = local.facts(first)["volumes"]
    assert (fact["id"], fact["uuid"], fact["mount"]) == ("data", volume.uuid, mount)
    assert json.loads(local.ssh(first, f"cat {fact['identity_file']}").stdout)["uuid"] == volume.uuid
    local.ssh(first, f"echo kept > {mount}/file")
    refused = local.provider.provision(local.order(volumes=(use,)), soon())
    assert isinstance(refused, Refused)
    assert first.id in refused.reason
    (ref,) = local.listed("volume")
    with pytest.raises(ProviderError, match="in use"):
        local.provider.terminate(ref, soon())
    local.end(first)
    second = local.rent(local.order(volumes=(use,)))
    assert local.ssh(second, f"cat {mount}/file").stdout == "kept\n"
    local.end(second)
    assert local.listed() == [ref]
    for _ in range(2):
        local.provider.terminate(ref, soon())
    assert local.listed() == []
    assert local.inspect(ref).state == "absent"


def test_a_volume_has_its_price_per_hour(local: LocalCloud) -> None:
    create_volume("data", 730, "here", local.directory)
    (item,) = local.provider.list_billable(Scope(("volume",)), soon()).items
    assert round(item.rate.amount, 9) == Decimal("0.05")
    assert item.bills == ("storage",)


# --- the console, and an ordinary user


def console(local: LocalCloud, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuops_providers.local", *argv, "--directory", str(local.directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=40)


def test_the_console_makes_volumes_lists_and_ends_everything(local: LocalCloud) -> None:
    assert console(local, "volume", "create", "disk", "--gb", "5").returncode == 0
    assert console(local, "volume", "create", "disk", "--gb", "5").returncode == 2
    ref = local.rent()
    listed = [json.loads(line) for line in console(local, "list").stdout.splitlines()]
    assert [(line["kind"], line["id"]) for line in listed] == [("rental", ref.id), ("volume", "disk")]
    assert console(local, "terminate-all").returncode == 0
    assert [ref.kind for ref in local.listed()] == ["volume"]


_ORDINARY = """
set -e
work=$1 wanted=$2 uid=61234; shift 2
cp /etc/passwd "$work/passwd"
echo "ordinary:x:$uid:$uid::$work:/bin/bash" >> "$work/passwd"
mount --bind "$work/passwd" /etc/passwd
# What lies in root's home is shown to the ordinary user too, in this mount namespace only.
n=0
for path in "$@"; do n=$((n + 1)); mkdir "$work/m$n"; mount --rbind "$path" "$work/m$n"; done
mount -t tmpfs -o mode=755 tmpfs /root
n=0
for path in "$@"; do
  n=$((n + 1))
  case $path in /root/*) mkdir -p "$path"; mount --rbind "$work/m$n" "$path" ;; esac
done
cd "$work"
exec env -i PATH="$PATH" HOME="$work" PYTHONPATH="$ROOTS" TMPDIR="$work/t" \\
  setpriv --reuid $uid --regid $uid --clear-groups "$PYTHON" -c "$LIFE" "$wanted"
"""

_LIFE = """
import json, sys
from localcloud import LocalCloud
from gpuops_providers.local import isolation, processes
local = LocalCloud(isolation=sys.argv[1])
try:
    ref = local.rent()
    local.ssh(ref, "setsid -f tail -f /dev/null >&- 2>&-")
    facts, who = local.facts(ref), local.ssh(ref, "id -u; nvidia-smi -L; python3 -c 'import numpy; print(1)'").stdout
    before = [processes.identify(pid) for pid in local.processes(ref)]
    local.end(ref)
    left = [process.pid for process in before if processes.alive(process)]
    print(json.dumps([facts["isolation"], isolation.choose(sys.argv[1]), who, len(before), left]))
finally:
    local.close()
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="gpuops-ordinary-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("wanted", ["auto", "plain"])
def test_an_ordinary_user_rents_too(scratch: Path, wanted: str) -> None:
    if os.getuid() != 0:
        pytest.skip("this user is an ordinary one: every other test here shows it")
    root = Path(__file__).resolve().parents[2]
    (scratch / "t").mkdir()
    (scratch / "t").chmod(0o777)
    paths = sorted({sys.base_prefix, sys.prefix, str(root)})
    outer = [p for p in paths if not any(p != q and p.startswith(q + "/") for q in paths)]
    known = {
        "PATH": os.environ["PATH"],
        "PYTHON": sys.executable,
        "ROOTS": os.pathsep.join([str(root), str(root / "providers"), str(root / "tests")]),
        "LIFE": _LIFE,
    }
    command = ["unshare", "--mount", "bash", "-c", _ORDINARY, "ordinary", str(scratch), wanted, *outer]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said, chosen, who, count, left = json.loads(done.stdout)
    assert said == chosen
    assert said != "bubblewrap"
    lines = who.splitlines()
    assert lines[0] == "61234"
    assert "(simulated)" in lines[1]
    assert lines[2] == "1"
    assert count >= 2
    assert left == []


# --- awkward hosts


def odd(local: LocalCloud, **host: Any) -> Order:
    """An order for a host with these features."""
    record = {"id": "local.odd", "device": "NVIDIA L4", "memory_mib": 23034, "per_hour": "0.10", "host": host}
    (local.directory / "offers.json").write_text(json.dumps([record]))
    return local.order("local.odd")


needs_bubblewrap = pytest.mark.skipif(
    isolation.choose("auto") == isolation.PLAIN,
    reason="awkward hosts are made of mounts: bubblewrap does not work here",
)
EXECUTES = "for d in /tmp /dev/shm /workspace; do cp /usr/bin/true $d/t; $d/t 2>/dev/null && echo $d; done; true"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("host", "script", "said"),
    [
        (
            {"python": "/opt/conda/bin"},
            "command -v python3 python || echo none; /opt/conda/bin/python3 -c 'print(1)'",
            "none 1",
        ),
        ({"user": "ubuntu", "sudo": True}, "whoami; pwd; sudo -n true && echo may", "ubuntu /home/ubuntu may"),
        ({"workspace_mode": "0555"}, "touch /workspace/x 2>/dev/null || echo closed", "closed"),
        ({"noexec": ["/tmp", "/dev/shm"]}, EXECUTES, "/workspace"),
        ({"home": "read-only"}, "touch ~/x 2>/dev/null || echo read-only", "read-only"),
        ({"home_mb": 1}, "head -c 2000000 /dev/zero > ~/x 2>/dev/null || echo full; rm ~/x; touch ~/y && echo fine", "full fine"),
        ({"bashrc": "echo Welcome; PATH=/odd:$PATH"}, "echo ${PATH%%:*}", "Welcome /odd"),
        (
            {"missing": ["rsync"], "installs": True},
            "command -v rsync; apt-get install -y rsync && command -v rsync; apt-get install nonsense >/dev/null || echo no",
            "/usr/local/bin/rsync no",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_feature_makes_the_host_that_it_promises(
    local: LocalCloud, host: dict[str, Any], script: str, said: str
) -> None:
    ref = local.rent(odd(local, **host))
    assert local.ssh(ref, script).stdout.split() == said.split()


def test_a_login_for_people_runs_no_commands(local: LocalCloud) -> None:
    done = local.ssh(local.rent(odd(local, shell_only=True)), "echo hello", check=False)
    assert (done.returncode, done.stdout) == (1, "This login gives a terminal and runs no commands.\n")


def test_the_provider_says_how_far_the_image_is(local: LocalCloud) -> None:
    ref = local.provision(odd(local, pull_s=2))
    first = local.inspect(ref)
    assert first.state == "starting" and re.fullmatch(r"pulling the image, \d+ % \(simulated\)", first.reason)
    local.wait(lambda: local.inspect(ref).state == "running")
    assert local.inspect(ref).reason == ""


def test_a_host_restarts_once_and_keeps_address_and_disk(local: LocalCloud) -> None:
    ref = local.rent(odd(local, reboots_when="/workspace/now"))
    before, facts = local.inspect(ref), local.facts(ref)
    local.ssh(ref, "sleep 300 & cd $GPUOPS_WORKSPACE && echo kept > now", check=False)
    local.wait(lambda: (rental := local.cloud.rental(ref.id)) is not None and rental.boots == 2)
    assert local.inspect(ref).endpoint == before.endpoint
    again = local.facts(ref)
    assert (again["boot"], again["boot"] != facts["boot"]) == ("2", True)
    assert local.ssh(ref, "cat $GPUOPS_WORKSPACE/now").stdout == "kept\n"
    assert local.inspect(ref).state == "running"


def test_without_bubblewrap_an_offer_made_of_mounts_is_refused() -> None:
    local = LocalCloud(isolation="plain")
    try:
        answer = local.provider.provision(odd(local, home="read-only", noexec=["/tmp"], bashrc="true"), soon())
        assert isinstance(answer, Refused) and answer.kind == "invalid"
        assert answer.reason == "local.odd has hosts that need bubblewrap, which does not work here: home, noexec"
        assert local.listed("rental") == []
    finally:
        local.close()


@needs_bubblewrap
def test_an_awkward_host_is_a_record(local: LocalCloud) -> None:
    features = {"workspace_mb": 50, "ports": [22, 8080], "missing": ["rsync"], "device": {"memory_mib": 4096}}
    ref = local.rent(odd(local, **features))
    facts = local.facts(ref)
    assert facts["published_ports"] == [22, 8080]
    assert "4096" in local.ssh(ref, "nvidia-smi").stdout
    script = "command -v rsync || echo none; command -v tar; df -Pm /workspace | tail -1 | awk '{print $2}'"
    assert local.ssh(ref, script).stdout.split() == ["none", "/usr/bin/tar", "48"]
