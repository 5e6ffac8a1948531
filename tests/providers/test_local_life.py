"""What ends a rental of the local cloud, and what the cloud says when a keeper or a host was killed."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpuops_providers.local import keeper, processes
from localcloud import LocalCloud

from gpuops import codec
from gpuops.errors import ProviderError
from gpuops.values import Order, Scope

LONG_LIFE = (
    "tmux -L t -f /dev/null new-session -d -x 200 -y 50 'tail -f /dev/null'; setsid -f tail -f /dev/null >&- 2>&-;"
)


def soon() -> float:
    return time.time() + 15


# --- what ends a rental


class FullDisk:
    """A cloud whose disk is full, until it is not."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.full = directory, True

    def rental_directory(self, rental_id: str) -> Path:
        return self.directory

    def write_json(self, path: Path, value: object) -> None:
        if self.full:
            (path.parent / f".{path.name}.{os.getpid()}.abc").write_text("{")
            raise OSError(errno.ENOSPC, "no space left on device")
        path.write_text(json.dumps(value))


def test_a_full_disk_takes_no_timer_away(tmp_path: Path) -> None:
    cloud, end = FullDisk(tmp_path), tmp_path / "end.json"
    timer = keeper.Timer(cloud, SimpleNamespace(id="r-1"))  # type: ignore[arg-type]
    end.write_text(json.dumps({"ends_at": time.time() - 1}))
    assert timer.due(), "the first end is in force whatever can be written"
    assert [p.name for p in tmp_path.iterdir()] == ["end.json"]
    timer = keeper.Timer(cloud, SimpleNamespace(id="r-1"))  # type: ignore[arg-type]
    end.write_text(json.dumps({"ends_at": time.time() + 0.2}))
    assert not timer.due()
    later = time.time() + 100
    end.write_text(json.dumps({"ends_at": later}))
    time.sleep(0.25)
    assert timer.due(), "an end that could not be confirmed moves nothing"
    cloud.full = False
    assert not timer.due()
    assert json.loads((tmp_path / "armed.json").read_text()) == {"ends_at": later}


def test_terminating_ends_tmux_and_setsid_children(either: LocalCloud) -> None:
    ref = either.rent()
    either.ssh(ref, LONG_LIFE)
    before = {pid: processes.identify(pid) for pid in either.processes(ref)}
    assert len(before) >= 4
    either.end(ref)
    assert not [process for process in before.values() if processes.alive(process)]
    assert either.inspect(ref).reason == "terminated on request"


def test_ending_takes_a_moment_and_bills_until_it_is_over(local: LocalCloud) -> None:
    ref = local.rent()
    local.provider.terminate(ref, soon())
    observation = local.inspect(ref)
    assert (observation.state, observation.bills) == ("ending", ("compute",))
    local.wait(lambda: local.inspect(ref).state == "terminal")
    assert local.inspect(ref).bills == ()


def test_an_ended_rental_is_shown_for_a_while_and_then_absent(local: LocalCloud) -> None:
    local.provider = local.adapter(shown_s="0.5")
    ref = local.rent()
    local.end(ref)
    shown = local.provider.list_billable(Scope(("rental",)), soon()).items
    assert [(item.ref, item.bills) for item in shown] == [(ref, ())]
    local.wait(lambda: local.inspect(ref).state == "absent")
    assert local.provider.list_billable(Scope(("rental",)), soon()).items == ()
    assert [charge.nonce for charge in local.provider.charges(0, soon(), soon())] == [shown[0].nonce]


_BUY = """
import os, signal, sys, time
from gpuops import codec
from gpuops.values import Order
from gpuops_providers.local import provider
import json
request = json.load(sys.stdin)
order = codec.from_json(Order, request["order"])
made = provider(request["config"], lambda name: None).provision(order, time.time() + 15)
print(made.ref.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def buy_and_die(local: LocalCloud, order: Order) -> str:
    """Buy from a process that is killed right afterwards."""
    request = json.dumps({"config": local.config, "order": codec.to_json(order)})
    done = subprocess.run([sys.executable, "-c", _BUY], input=request, capture_output=True, text=True, timeout=20)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


def test_the_timer_fires_although_nobody_is_there(either: LocalCloud) -> None:
    order = replace(either.order(ends_in_s=4), startup=LONG_LIFE)
    rental_id = buy_and_die(either, order)
    (ref,) = either.listed("rental")
    assert ref.id == rental_id
    seen: dict[int, processes.Process | None] = {}

    def over() -> bool:
        seen.update({pid: processes.identify(pid) for pid in either.processes(ref) if pid not in seen})
        return either.inspect(ref).state == "terminal"

    either.wait(over)
    rental = either.cloud.rental(rental_id)
    assert rental is not None
    assert rental.reason == "ended by its own timer"
    assert rental.ending_since is not None
    assert 0 <= rental.ending_since - order.ends_at < 2
    assert len(seen) >= 3
    assert not [process for process in seen.values() if processes.alive(process)]


def test_the_startup_script_of_the_order_runs(either: LocalCloud) -> None:
    ref = either.rent(replace(either.order(), startup='touch "$HOME/started"'))
    either.wait(lambda: either.ssh(ref, "ls ~").stdout.splitlines()[-1:] == ["started"])


def test_the_timer_moves_and_an_unreadable_end_leaves_it_alone(local: LocalCloud) -> None:
    ref = local.rent(local.order(ends_in_s=3600))
    wanted = float(int(time.time() + 7200))
    assert local.provider.set_end(ref, wanted, soon()) == wanted
    (local.cloud.rental_directory(ref.id) / "end.json").write_text('{"ends_at": 17')
    time.sleep(0.3)
    assert local.inspect(ref).state == "running"
    assert local.inspect(ref).ends_at == wanted
    local.provider.set_end(ref, time.time() + 0.3, soon())
    local.wait(lambda: local.inspect(ref).state == "terminal")
    assert local.inspect(ref).reason == "ended by its own timer"


def test_a_lock_that_somebody_holds_does_not_stop_the_timer(local: LocalCloud) -> None:
    ref = local.rent(local.order(ends_in_s=1.5))
    with local.cloud.lock():
        local.wait(lambda: not local.processes(ref))
    local.wait(lambda: local.inspect(ref).state == "terminal")


# --- what was killed from outside


def test_a_dead_keeper_is_noticed_and_the_rental_goes_on_billing_until_terminated(either: LocalCloud) -> None:
    ref = either.rent()
    either.ssh(ref, LONG_LIFE)
    os.kill(either.cloud.rental(ref.id).keeper.pid, signal.SIGKILL)  # type: ignore[union-attr]
    either.wait(lambda: either.inspect(ref).ends_at is None)
    observation = either.inspect(ref)
    assert (observation.state, observation.bills) == ("running", ("compute",))
    assert "without a timer" in observation.reason
    assert either.listed("rental") == [ref]
    with pytest.raises(ProviderError, match="keeper"):
        either.provider.set_end(ref, soon(), soon())
    before = {pid: processes.identify(pid) for pid in either.processes(ref)}
    either.end(ref)
    assert not [process for process in before.values() if processes.alive(process)]


def test_a_killed_host_exists_no_more(either: LocalCloud) -> None:
    ref = either.rent()
    os.kill(either.cloud.rental(ref.id).first.pid, signal.SIGKILL)  # type: ignore[union-attr]
    either.wait(lambda: either.inspect(ref).state == "terminal")
    observation = either.inspect(ref)
    assert (observation.reason, observation.bills) == ("host died", ())
    (charge,) = either.provider.charges(0, soon(), soon())
    assert charge.end is not None


def test_host_and_keeper_killed_together_are_settled_by_whoever_looks(local: LocalCloud) -> None:
    ref = local.rent()
    rental = local.cloud.rental(ref.id)
    assert rental is not None
    assert rental.first is not None
    os.kill(rental.keeper.pid, signal.SIGKILL)
    os.kill(rental.first.pid, signal.SIGKILL)
    local.wait(lambda: not processes.alive(rental.first))
    local.wait(lambda: local.listed("rental") == [])
    assert local.inspect(ref).reason == "host died"
