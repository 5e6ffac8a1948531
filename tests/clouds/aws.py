"""A fake AWS account for tests: moto behind our own layer, as a process of its own, with real hosts where they are wanted.

    cloud = AwsCloud(directory)            # or hosts=True, inside netns.own_network()
    cloud.client("ec2").run_instances(…)   # plain boto3
    cloud.fault(no_capacity()); cloud.switch(pending_s=2); cloud.advance(3600)
    cloud.stop()                           # and nothing is left running

What AWS does and moto does not is listed in tests/clouds/test_aws_*.py, a sentence for each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from clouds import netns
from clouds.aws_faults import Fault
from gpuops_providers.local.processes import Process, alive, identify, with_descendants

ACCOUNT = "123456789012"
STARTS_S = 90.0
"""Importing moto takes some seconds on a busy machine."""
KEY = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "never-a-real-one"}
MOTO = {
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
    "MOTO_ENABLE_AMI_VALIDATION": "yes",
    "MOTO_ENABLE_KEYPAIR_VALIDATION": "",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "yes",
}


class AwsCloud:
    """One account. Give every test module one, and `reset` it between tests: starting takes seconds."""

    def __init__(self, directory: Path, hosts: bool = False) -> None:
        """`directory`: for logs and hosts. `hosts`: each instance gets its own; needs `netns.own_network`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "aws.log"
        command = [sys.executable, "-m", "clouds.aws_shim", *(("--hosts", str(directory / "hosts")) if hosts else ())]
        if hosts:
            netns.require_own_network()
            command = [*netns.MACHINE, *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **MOTO, **KEY, "PYTHONPATH": os.pathsep.join(p for p in _paths() if p)},
                start_new_session=True,
            )
        try:
            self.url = f"http://127.0.0.1:{self._port()}"
        except BaseException:
            self.stop()
            raise
        self.environment = {
            **KEY,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        """What a process needs in order to talk to this account and to no other."""
        self.check_ip_url = f"{self.url}/check-ip"

    def client(self, service: str, region: str = "us-east-1", attempts: int = 1, read_timeout_s: float = 60) -> Any:
        """boto3, as anybody would use it."""
        import boto3
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": attempts}, read_timeout=read_timeout_s, connect_timeout=5
        )
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.url,
            config=config,
            aws_access_key_id=KEY["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEY["AWS_SECRET_ACCESS_KEY"],
        )

    def fault(self, *faults: Fault) -> None:
        """Add faults behind those that are there."""
        self._ask("faults", faults=[dataclasses.asdict(fault) for fault in faults])

    def clear(self) -> None:
        """No more faults."""
        self._ask("clear")

    def switch(self, **switches: Any) -> None:
        """Change `aws_faults.Switches`."""
        self._ask("switches", **switches)

    def advance(self, seconds: float) -> None:
        """Let this much of the cloud's time pass at once; hosts do not notice."""
        self._ask("clock", advance_s=seconds)

    def now(self) -> float:
        """The cloud's clock."""
        return float(self._ask("clock"))

    def word(self, instance: str, word: str) -> None:
        """Use another word for the state of an instance."""
        self._ask("word", instance=instance, word=word)

    def reclaim(self, instance: str) -> None:
        """Take a spot instance back."""
        self._ask("reclaim", instance=instance)

    def charge(self, *results: dict[str, Any]) -> None:
        """What the next GetCostAndUsage answers, whole and in order: one value of its answer for each call."""
        self._post("moto-api/static/ce/cost-and-usage-results", {"results": list(results)})

    def instances(self) -> dict[str, str]:
        """The true state of every instance, whatever the API shows."""
        return {ident: life["state"] for ident, life in self._ask("state")["instances"].items()}

    def hosts(self) -> tuple[str, ...]:
        """Instances whose hosts run."""
        return tuple(self._ask("state")["hosts"])

    def console(self, instance: str) -> str:
        """What the host of an instance has printed."""
        return str(self._ask("console", instance=instance))

    def calls(self, action: str = "") -> list[dict[str, Any]]:
        """Every call since the start or the last reset, in order: service, action, region, dry_run, status, fault."""
        return [call for call in self._ask("calls") if action in ("", call["action"])]

    def reset(self) -> None:
        """An empty account, hosts ended, no faults, the real time."""
        self._ask("reset")

    def stop(self) -> None:
        """End the server and every host; fails when a process survives."""
        everything = [p for pid in with_descendants([self._process.pid]) if (p := identify(pid))]
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        give_up = time.monotonic() + 10
        while (left := [p for p in everything if alive(p)]) and time.monotonic() < give_up:
            time.sleep(0.02)
        assert not left, f"processes were left: {_commands(left)}"

    def _ask(self, what: str, **parameters: Any) -> Any:
        return json.loads(self._post(f"_fake/{what}", parameters))

    def _post(self, path: str, value: Any) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(value).encode(), headers)
        # never by a proxy of this machine
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return bytes(answer.read())

    def _port(self) -> int:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], STARTS_S)[0]:
            raise RuntimeError(f"the fake AWS does not start: {self.log.read_text()[-2000:]}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fake AWS has ended: {self.log.read_text()[-2000:]}")
        return int(json.loads(line)["port"])


def _paths() -> list[str]:
    """Where this package, and everything that it imports, is found."""
    return [str(Path(__file__).parents[1]), *sys.path]


def _commands(processes: list[Process]) -> list[str]:
    found = []
    for process in processes:
        try:
            found.append(
                Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
    return found
