"""A local cloud of its own for one test: keys, orders, faults, logging in, and a check that nothing is left running."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuops_providers.local import provider
from gpuops_providers.local.adapter import LocalProvider
from gpuops_providers.local.cloud import Cloud
from gpuops_providers.local.processes import of_rental

from gpuops.errors import GpuopsError
from gpuops.marks import new_nonce
from gpuops.values import Created, HostKey, Mark, Need, Observation, Order, Ref, Scope, VolumeUse

FAST = {"create_s": "0.1", "terminate_s": "0.2"}
PATIENCE_S = 15.0


class LocalCloud:
    """One cloud directory with one adapter on it."""

    def __init__(self, **config: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gpuops-cloud-"))
        self.secrets: dict[str, str] = {}
        self.config = {"directory": str(self.directory), **FAST, **config}
        self.provider = self.adapter()
        self.cloud = Cloud(self.directory, self.config.get("account", "default"))
        self.client_key = self._key("client")
        self.host_key = self._key("host")

    def adapter(self, **config: str) -> LocalProvider:
        """Another adapter on the same cloud, as another process would have it."""
        made = provider({**self.config, **config}, self.secrets.get)
        assert isinstance(made, LocalProvider)
        return made

    def faults(self, **switches: Any) -> None:
        """Set the fault switches."""
        (self.directory / "faults.json").write_text(json.dumps(switches))

    def order(
        self,
        offer: str = "local.sim-l4",
        region: str = "here",
        ends_in_s: float = 600,
        volumes: tuple[VolumeUse, ...] = (),
    ) -> Order:
        """A fresh order."""
        now = time.time()
        found = self.provider.quote(
            Need("", offer=offer, region=region, count=2 if offer.endswith("x2") else 1), now + 9
        )
        private = self.host_key.read_text()
        public = " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])
        mark = Mark("run-of-a-test", new_nonce(secrets.token_bytes(8)), "tester", float(int(now + 600)), "SHA256:test")
        return Order(
            mark=mark,
            member=0,
            offer=found[0],
            image="",
            disk_gb=1,
            volumes=volumes,
            ssh_public_keys=(self.client_key.with_suffix(".pub").read_text(),),
            host_key=HostKey(private, public, "SHA256:test"),
            startup="",
            ends_at=now + ends_in_s,
        )

    def provision(self, order: Order | None = None) -> Ref:
        """Buy and insist."""
        answer = self.provider.provision(order or self.order(), time.time() + PATIENCE_S)
        assert isinstance(answer, Created), answer
        return answer.ref

    def rent(self, order: Order | None = None) -> Ref:
        """Buy and wait until it runs."""
        ref = self.provision(order)
        self.wait(lambda: self.inspect(ref).state == "running")
        return ref

    def inspect(self, ref: Ref) -> Observation:
        """A look now."""
        return self.provider.inspect(ref, time.time() + PATIENCE_S)

    def end(self, ref: Ref) -> None:
        """Ask for the end and wait for it."""
        self.provider.terminate(ref, time.time() + PATIENCE_S)
        self.wait(lambda: self.inspect(ref).state in ("terminal", "absent"))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must come."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, "it never happened"
            time.sleep(0.03)

    def ssh(self, ref: Ref, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a script on the host, its key pinned; stdin carries it."""
        endpoint = self.inspect(ref).endpoint
        assert endpoint is not None
        known = self.directory / f"known_hosts.{ref.id}"
        known.write_text(f"[{endpoint.host}]:{endpoint.port} {self.host_key.with_suffix('.pub').read_text()}")
        options = {
            "UserKnownHostsFile": known,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "ConnectTimeout": 5,
        }
        argv = ["ssh", "-F", "none", "-i", str(self.client_key), "-p", str(endpoint.port)]
        argv += [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        argv += [f"{endpoint.user}@{endpoint.host}", "bash -s"]
        return subprocess.run(argv, input=script, capture_output=True, text=True, timeout=PATIENCE_S, check=check)

    def facts(self, ref: Ref) -> dict[str, Any]:
        """What the host tells about itself."""
        return dict(json.loads(self.ssh(ref, 'cat "$GPUOPS_HOST_JSON"').stdout))

    def processes(self, ref: Ref) -> set[int]:
        """The pids of the rental that can be seen from here."""
        rental = self.cloud.rental(ref.id)
        return of_rental(ref.id, rental.first if rental else None)

    def close(self) -> None:
        """End everything, and fail when something survives."""
        (self.directory / "faults.json").unlink(missing_ok=True)
        (self.directory / "tokens.json").unlink(missing_ok=True)
        left: set[int] = set()
        for account in self.directory.iterdir():
            if not (account / "rentals").is_dir():
                continue
            adapter = self.adapter(account=account.name)
            cloud = Cloud(self.directory, account.name)
            for rental_id in cloud.rental_ids():
                self._end_for_good(adapter, cloud, Ref("local", account.name, "", "rental", rental_id))
                left |= of_rental(rental_id, None)
        shutil.rmtree(self.directory, ignore_errors=True)
        assert not left, f"processes were left: {left}"

    def _end_for_good(self, adapter: LocalProvider, cloud: Cloud, ref: Ref) -> None:
        try:
            adapter.terminate(ref, time.time() + PATIENCE_S)
        except GpuopsError:
            # A test has damaged the record: its keeper sees the request all the same.
            cloud.write_json(cloud.rental_directory(ref.id) / "terminate.json", {})
            self.wait(lambda: not of_rental(ref.id, None))
            return
        self.wait(lambda: adapter.inspect(ref, time.time() + PATIENCE_S).state in ("terminal", "absent"))
        rental = cloud.rental(ref.id)
        self.wait(
            lambda: rental is None or not os.path.exists(f"/proc/{rental.keeper.pid}") or _is_zombie(rental.keeper.pid)
        )

    def _key(self, name: str) -> Path:
        path = self.directory / f"{name}_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
        return path

    def listed(self, *kinds: str) -> list[Ref]:
        """Refs of everything that bills now."""
        inventory = self.provider.list_billable(Scope(kinds), time.time() + PATIENCE_S)
        assert not inventory.gaps
        return [item.ref for item in inventory.items if item.bills]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
