"""A fake Google Cloud for tests: Compute Engine and what belongs to it, over HTTP, as a process of its own.

    cloud = GcpCloud(directory)                 # a few seconds: the judge of requests is the vendor's own client library
    cloud.reset(regions=3)                      # an empty account in no time
    client = cloud.client("InstancesClient")    # the real client, bound to the fake
    cloud.faults(stockout=1, region_down={"where": "europe-west4"})
    cloud.advance(3600)

The switches are the table in `gcp_faults.py`, the settings the fields of `gcp_state.Settings`. With `hosts=True` each instance
has an SSH host of its own; the caller must then be in a network of its own (`netns.own_network`).

Where the fake decides what no document says: an insert's resource cannot be read until the operation is done; a zone that cannot
be read has the warning UNREACHABLE and stands in `unreachables`; deletion protection answers 400 invalidResourceUsage.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
START_S = 100.0
PATIENCE_S = 60.0
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class ControlError(Exception):
    """The back door did not understand."""


class GcpCloud:
    """One fake cloud with one project."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._clients: dict[str, Any] = {}
        self.directory = directory
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clouds.gcp_server", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(directory / "server.log").open("wb"),
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        if not self.address:
            raise RuntimeError((directory / "server.log").read_text())
        self.control("ready")
        keys = self.control("key", at=self.address)
        self.key_file, self.user_file = directory / "service.json", directory / "user.json"
        self.key_file.write_text(json.dumps(keys["service"]))
        self.user_file.write_text(json.dumps(keys["user"]))
        self.api_key: str = keys["api_key"]
        self.reset(**settings)

    def control(self, name: str, /, **body: Any) -> Any:
        """One call of the back door."""
        request = urllib.request.Request(f"{self.address}/_control/{name}", json.dumps(body).encode(), method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=START_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise ControlError(error.read().decode()) from None

    # --- what a test does with it

    def reset(self, **settings: Any) -> None:
        """An empty account; every setting that is not named has its default."""
        self.control("reset", **settings)
        self.project: str = self.settings()["project"]

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Change settings; returns them all."""
        return dict(self.control("settings", **changes))

    def faults(self, **switches: Any) -> dict[str, int]:
        """Set exactly these switches; returns how often those before have struck, by kind."""
        return dict(self.control("faults", **switches))

    def now(self) -> float:
        """The cloud's time."""
        return float(self.control("now")["now"])

    def advance(self, seconds: float) -> None:
        """Let time pass in the cloud."""
        self.control("advance", seconds=seconds)

    def put(self, collection: str, scope: str, **body: Any) -> dict[str, Any]:
        """Somebody else makes a resource: `put("snapshots", "global", name="old")`."""
        return dict(self.control("put", collection=collection, scope=scope, body=body))

    def change(self, plural: str, scope: str, name: str, **body: Any) -> None:
        """Fields of a resource are different from now on."""
        self.control("change", plural=plural, scope=scope, name=name, body=body)

    def remove(self, plural: str, scope: str, name: str) -> None:
        """A resource is gone at once."""
        self.control("remove", plural=plural, scope=scope, name=name)

    def reclaim(self, scope: str, name: str) -> None:
        """The vendor takes a spot machine back."""
        self.control("reclaim", scope=scope, name=name)

    def guest(self, scope: str, name: str, namespace: str, **values: str) -> None:
        """A process in the guest writes guest attributes; dashes in keys are underscores here."""
        written = {key.replace("_", "-"): value for key, value in values.items()}
        self.control("guest", scope=scope, name=name, namespace=namespace, values=written)

    def fill(self, resources: int) -> dict[str, Any]:
        """Somebody else's resources, spread over all regions."""
        return dict(self.control("fill", resources=resources))

    def usage(self) -> list[dict[str, Any]]:
        """What has cost money, from when to when: the truth."""
        return list(self.control("usage"))

    def log(self, call: str = "") -> list[dict[str, Any]]:
        """Every request since the reset, or those of one call."""
        return [entry for entry in self.control("log") if call in ("", entry["call"])]

    def there(self, plural: str = "instances") -> dict[str, dict[str, Any]]:
        """What there really is of a kind, whatever lists say, by name."""
        return {r["name"]: r["body"] for r in self.control("state")["resources"] if r["plural"] == plural}

    def wait(self, condition: Any, what: str = "it") -> None:
        """Wait for something that must come."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, f"{what} never happened"
            time.sleep(0.03)

    # --- the vendor's own client

    def credentials(self) -> Any:
        """The service account's credentials, as google-auth reads them."""
        service_account = importlib.import_module("google.oauth2.service_account")
        return service_account.Credentials.from_service_account_file(str(self.key_file), scopes=[SCOPE])

    def client(self, name: str) -> Any:
        """A client of google-cloud-compute that reaches the fake and nothing else."""
        if name not in self._clients:
            kind = getattr(importlib.import_module("google.cloud.compute_v1"), name)
            made = kind(credentials=self.credentials(), client_options={"api_endpoint": self.address})
            assert made.transport._host.startswith(self.address)
            self._clients[name] = made
        return self._clients[name]

    def close(self) -> None:
        """End the cloud and its hosts. Raises when the fake has said something that the vendor could not say."""
        bugs = self.control("state")["bugs"] if self.process.poll() is None else ["the server died"]
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            bugs.append("the server did not end")
        assert not bugs, f"the fake has bugs: {bugs} {(self.directory / 'server.log').read_text()[-2000:]}"
