"""The process that keeps one rental: it accepts the order, starts the host, watches its end, and ends everything in it.

    python -m gpuops_providers.local.keeper accept DIRECTORY ACCOUNT   order on stdin, answer on stdout
    python -m gpuops_providers.local.keeper end DIRECTORY ACCOUNT ID   ends what a dead keeper left

It is detached before it accepts anything: once a rental exists, nothing that happens to gpuops or to its terminal ends
it. The wall clock decides when the timer fires, because that is the provider's time; a clock that counts suspend bounds
how far setting the wall clock back can delay it. A lock that somebody holds never keeps the timer from firing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuops import codec
from gpuops.errors import GpuopsError
from gpuops.marks import mark_name
from gpuops.values import Money, Order, Time

from . import awkward, host, isolation, offers
from .cloud import Cloud, Rental, read_time
from .faults import Faults
from .processes import Process, adopt_orphans, end_all, identify, reap

TICK_S = 0.1
END_PATIENCE_S = 10.0
END_ATTEMPTS = 60
PRUNE_AFTER_S = 86400.0
ENDED_BY_TIMER = "ended by its own timer"
TERMINATED = "terminated on request"
HOST_DIED = "host died"
RESTARTS = "the host restarts"


class Timer:
    """When the rental ends by itself, read again and again from a file; what cannot be read leaves the last value.

    An end is taken in only once armed.json tells it: on a full disk the last value that was told stays in force. The
    first one is in force at once, whatever can be written.
    """

    def __init__(self, cloud: Cloud, rental: Rental) -> None:
        self._cloud = cloud
        self._directory = cloud.rental_directory(rental.id)
        self._ends_at: Time | None = None
        self._told: Time | None = None
        self._fires = float("inf")

    def due(self) -> bool:
        """Take in a moved end, confirm it in armed.json, and say whether the end has come."""
        wanted = read_time(self._directory / "end.json", "ends_at")
        if wanted is not None and wanted != self._told:
            told = self._tell(wanted)
            if wanted != self._ends_at and (told or self._ends_at is None):
                self._ends_at = wanted
                self._fires = _boottime() + wanted - time.time()
            self._told = wanted if told else self._told
        return self._ends_at is not None and (time.time() >= self._ends_at or _boottime() >= self._fires)

    def _tell(self, wanted: Time) -> bool:
        try:
            self._cloud.write_json(self._directory / "armed.json", {"ends_at": wanted})
        except OSError:
            # tried again at every tick: what a full disk left half written must not pile up
            for torn in self._directory.glob(f".armed.json.{os.getpid()}.*"):
                torn.unlink(missing_ok=True)
            return False
        return True


def accept(cloud: Cloud, request: Mapping[str, Any]) -> tuple[dict[str, Any], Rental | None]:
    """Decide on an order and, when it is good, make the rental exist. The answer goes back to the adapter."""
    order = codec.from_json(Order, request["order"])
    own = identify(os.getpid())
    assert own is not None
    try:
        with cloud.lock():
            if time.time() > request["until"]:
                return {"refused": "the order came too late", "kind": "invalid"}, None
            cloud.prune(PRUNE_AFTER_S)
            if refusal := _refusal(cloud, order, request["isolation"]):
                return {"refused": refusal[0], "kind": refusal[1]}, None
            rental = _new_rental(cloud, order, request, own)
            cloud.add_rental(rental, order.ends_at)
    except GpuopsError as error:
        # A lock that is held, or a record that cannot be read: nothing was made.
        return {"refused": error.message, "kind": "account"}, None
    return {"created": rental.id, "created_at": rental.created_at}, rental


def _refusal(cloud: Cloud, order: Order, wanted_isolation: str) -> tuple[str, str] | None:
    """Why the order cannot be taken, and of which kind the refusal is."""
    product = offers.find(cloud.directory, order.offer.id)
    if product is None or order.offer.region not in product.regions:
        return f"no offer {order.offer.id} in {order.offer.region}", "invalid"
    if product.per_hour > order.offer.rate.amount:
        return f"{product.id} now costs {product.per_hour} USD per hour", "price"
    if order.ends_at <= time.time():
        return "the rental would end before it begins", "invalid"
    if not isolation.tool("sshd"):
        return "no SSH daemon on this machine: install openssh-server", "invalid"
    running = [rental for rental in _rentals(cloud) if rental.state != "terminated"]
    same = [r for r in running if r.offer == product.id and r.region == order.offer.region]
    if len(same) >= product.capacity:
        return f"no capacity: {len(same)} of {product.capacity} {product.id} are rented", "capacity"
    used = {use.id: rental.id for rental in running for use in rental.volumes}
    for use in order.volumes:
        volume = cloud.volume(use.id)
        if volume is None or volume.region != order.offer.region:
            return f"no volume {use.id} in {order.offer.region}", "invalid"
        if use.id in used:
            return f"volume {use.id} is attached to {used[use.id]}", "invalid"
        if not _mountable(use.mount):
            return f"a volume cannot be mounted at {use.mount}", "invalid"
    return _plain_refusal(order, product) if isolation.choose(wanted_isolation) == isolation.PLAIN else None


def _plain_refusal(order: Order, product: offers.Product) -> tuple[str, str] | None:
    if isolation.plain_login() is None:
        return "this user has no login shell, and bubblewrap does not work here", "invalid"
    if features := awkward.unmet(product.host):
        return f"{product.id} has hosts that need bubblewrap, which does not work here: {features}", "invalid"
    for use in order.volumes:
        if os.path.lexists(use.mount) or not os.access(os.path.dirname(use.mount), os.W_OK):
            return f"without bubblewrap a volume needs a free name where you may write: {use.mount}", "invalid"
    return None


def _mountable(mount: str) -> bool:
    parts = Path(mount).parts
    taken = ("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "sys", "dev", "run", "opt", "var")
    return len(parts) > 1 and parts[0] == "/" and ".." not in parts and parts[1] not in taken and mount != "/root"


def _rentals(cloud: Cloud) -> list[Rental]:
    return [rental for rental_id in cloud.rental_ids() if (rental := cloud.rental(rental_id))]


def _new_rental(cloud: Cloud, order: Order, request: Mapping[str, Any], own: Process) -> Rental:
    product = offers.find(cloud.directory, order.offer.id)
    assert product is not None
    faults = Faults(cloud)
    chosen = isolation.choose(request["isolation"])
    plain = chosen == isolation.PLAIN
    features = dict(product.host)
    if faults.setting("own_host_key"):
        features["own_host_key"] = True
    return Rental(
        id=f"r-{secrets.token_hex(5)}",
        account=cloud.account,
        region=order.offer.region,
        offer=product.id,
        name=mark_name(order.mark),
        mark=order.mark,
        state="provisioning",
        created_at=time.time(),
        rate=Money(product.per_hour),
        volumes=order.volumes,
        keeper=own,
        create_s=sum(
            (request["create_s"], float(faults.setting("slow_create_s", 0)), float(features.get("pull_s", 0)))
        ),
        terminate_s=request["terminate_s"],
        shown_s=request["shown_s"],
        python=request["python"],
        startup=order.startup,
        image=order.image,
        login=(isolation.plain_login() or "root") if plain else awkward.user(features),
        isolation=chosen,
        host=features,
    )


def keep(cloud: Cloud, rental: Rental, order: Order) -> None:
    """Start the host, watch it, and end it for whichever reason comes first."""
    timer = Timer(cloud, rental)
    timer.due()
    try:
        private = order.host_key.private if order.host_key and not rental.host.get("own_host_key") else None
        host.build(cloud, rental, {"authorized": order.ssh_public_keys, "host_key": private})
        rental = _started(cloud, rental)
        why = _watch(cloud, rental, timer)
        if why == RESTARTS and end_all(rental.id, rental.first, END_PATIENCE_S):
            rental = _started(cloud, dataclasses.replace(rental, boots=rental.boots + 1))
            why = _watch(cloud, rental, timer)
    except (OSError, GpuopsError) as error:
        end(cloud, rental, f"did not start: {error}")
        return
    end(cloud, rental, why)


def _started(cloud: Cloud, rental: Rental) -> Rental:
    first, port = host.start(cloud, rental)
    return dataclasses.replace(rental, first=first, port=port)


def _watch(cloud: Cloud, rental: Rental, timer: Timer) -> str:
    """Wait for the end and say why it came."""
    assert rental.first is not None
    request = cloud.rental_directory(rental.id) / "terminate.json"
    try:
        handle = os.pidfd_open(rental.first.pid)
    except ProcessLookupError:
        return HOST_DIED
    restarts = host.restarts_when(cloud, rental)
    try:
        started = shown = False
        while True:
            if request.exists():
                return TERMINATED
            if timer.due():
                return ENDED_BY_TIMER
            if restarts is not None and restarts.exists():
                return RESTARTS
            if not started:
                started = _try(cloud, rental.id, lambda r: _with_host(r, rental))
            elif not shown and time.time() >= rental.created_at + rental.create_s:
                shown = _try(cloud, rental.id, _running)
            if select.select([handle], [], [], TICK_S)[0]:
                return HOST_DIED
            reap()
    finally:
        os.close(handle)


def _with_host(record: Rental, rental: Rental) -> Rental:
    return dataclasses.replace(record, first=rental.first, port=rental.port, boots=rental.boots)


def _running(rental: Rental) -> Rental:
    return dataclasses.replace(rental, state="running") if rental.state == "provisioning" else rental


def _try(cloud: Cloud, rental_id: str, how: Callable[[Rental], Rental], patience_s: float = TICK_S) -> bool:
    """Change the record if it can be had soon."""
    try:
        cloud.change(rental_id, how, patience_s)
    except (OSError, GpuopsError):
        return False
    return True


def end(cloud: Cloud, rental: Rental, reason: str) -> None:
    """End every process of the rental, let the cloud take its moment, and close the usage record.

    A rental of which something still runs is never called terminated: it stays `shutting-down` and goes on billing.
    """
    since = rental.ending_since or time.time()

    def ending(now: Rental) -> Rental:
        if now.state == "terminated":
            return now
        return dataclasses.replace(now, state="shutting-down", reason=reason, ending_since=now.ending_since or since)

    _try(cloud, rental.id, ending)
    for _ in range(END_ATTEMPTS):
        if end_all(rental.id, rental.first, END_PATIENCE_S):
            break
    else:
        return
    # A host that died is gone at once; one that was ended takes the cloud a moment.
    if reason != HOST_DIED:
        time.sleep(max(0.0, min(since + rental.terminate_s - time.time(), rental.terminate_s)))
    for _ in range(END_ATTEMPTS):
        try:
            close(cloud, rental, reason)
            return
        except (OSError, GpuopsError):
            time.sleep(TICK_S)


def close(cloud: Cloud, rental: Rental, reason: str) -> Rental:
    """Record that the rental, of which no process is left, has ended now; its disk exists no more."""
    host.wipe(cloud, rental)

    def closed(now: Rental) -> Rental:
        if now.state == "terminated":
            return now
        return dataclasses.replace(now, state="terminated", reason=reason, ended_at=time.time())

    return cloud.change(rental.id, closed)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _detach() -> None:
    """Become a process of its own session that nothing of the caller can reach."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()


def _close_streams(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(null)
    os.close(target)


def _serve(cloud: Cloud) -> None:
    request = json.load(sys.stdin.buffer)
    answer, rental = accept(cloud, request)
    sys.stdout.write(json.dumps(answer) + "\n")
    try:
        sys.stdout.flush()
    except OSError:
        # The caller is gone. What was accepted stays accepted.
        pass
    if rental is None:
        return
    _close_streams(cloud.rental_directory(rental.id) / "keeper.log")
    keep(cloud, rental, codec.from_json(Order, request["order"]))


def main(argv: list[str]) -> None:
    """Run as the head of this file says."""
    cloud = Cloud(Path(argv[1]), argv[2])
    _detach()
    if argv[0] == "accept":
        _serve(cloud)
    else:
        _close_streams(cloud.rental_directory(argv[3]) / "keeper.log")
        own = identify(os.getpid())
        assert own is not None
        end(cloud, cloud.change(argv[3], lambda r: dataclasses.replace(r, keeper=own)), TERMINATED)


if __name__ == "__main__":
    main(sys.argv[1:])
