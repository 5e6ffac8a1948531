"""The server of the fake AWS: moto behind a layer that does what moto leaves out, and goes wrong on request.

    python -m clouds.aws_shim [--hosts DIRECTORY]     prints {"port": N} once it answers on 127.0.0.1

`clouds.aws.AwsCloud` starts it. Everything below `/_fake/` is the tests' own door; the rest is AWS.
"""

from __future__ import annotations

import argparse
import dataclasses
import email.utils
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from clouds import aws_figures as figures
from clouds.aws_ec2 import Ec2
from clouds.aws_faults import Fault, Switches
from clouds.aws_hosts import AwsHosts
from clouds.aws_pages import paged
from clouds.aws_regions import Regions, keep_types
from clouds.aws_wire import Answer, Call, as_json, error, read_call, send_on
from clouds.aws_world import BY_SPOT, World, due_at
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

TICK_S = 0.1
UNBOUND_REGIONS = ("us-east-1",)
"""Where Pricing and Cost Explorer answer for all regions, enabled or not."""
Start = Callable[..., Any]


class Shim:
    """The WSGI application."""

    def __init__(self, hosts: Path | None) -> None:
        self._lock = threading.RLock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        keeper = AwsHosts(hosts, self._host_ended) if hosts else None
        self._world = World(Switches(), keeper)
        self._ec2 = Ec2(self._world)
        self._faults: list[Fault] = []
        self._calls: list[dict[str, Any]] = []
        self._regions = Regions()
        self._regions.enable(self._world.switches.regions)
        keep_types(figures.PER_HOUR)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_fake/"):
            answer, fault = self._control(path.removeprefix("/_fake/"), environ), None
        elif path == "/check-ip":
            answer, fault = (
                Answer(200, f"{self._world.switches.caller}\n".encode(), {"Content-Type": "text/plain"}),
                None,
            )
        else:
            answer, fault = self._answer(read_call(environ), environ)
        if fault and fault.late_s:
            time.sleep(fault.late_s)
        if fault and fault.body == "none":
            return _cut(environ, start)
        start(f"{answer.status} -", list(answer.headers.items()))
        return [answer.body]

    def date(self) -> str:
        """What the Date header of every answer says."""
        return email.utils.formatdate(self._world.now(), usegmt=True)

    def tick_for_ever(self) -> None:
        """Let time pass while nobody asks."""
        while True:
            time.sleep(TICK_S)
            with self._lock:
                try:
                    self._world.tick()
                except Exception:  # the ticker must not end; whoever reads the log sees why
                    traceback.print_exc()

    def _answer(self, call: Call, environ: dict[str, Any]) -> tuple[Answer, Fault | None]:
        with self._lock:
            self._world.tick()
            fault = self._fault(call)
            if fault and not fault.after:
                answer = _written(fault, call)
            else:
                answer = self._handled(call, environ)
                if fault and fault.code:
                    answer = _written(fault, call)
            known = {"service": call.service, "action": call.action, "region": call.region, "dry_run": call.dry_run}
            self._calls.append({**known, "status": answer.status, "fault": fault.code if fault else ""})
            return answer, fault

    def _fault(self, call: Call) -> Fault | None:
        """The first fault that fits; it is used up by one."""
        for number, fault in enumerate(self._faults):
            fits = fault.action in ("*", call.action) and fault.region in ("*", call.region)
            if not fits or (call.dry_run and not fault.dry_run) or fault.times < 1:
                continue
            if fault.skip > 0:
                self._faults[number] = dataclasses.replace(fault, skip=fault.skip - 1)
                continue
            self._faults[number] = dataclasses.replace(fault, times=fault.times - 1)
            return fault
        return None

    def _handled(self, call: Call, environ: dict[str, Any]) -> Answer:
        def forward(changed: Call) -> Answer:
            made = Response.from_app(self._moto, send_on(environ, changed), buffered=True)
            headers = {name: value for name, value in made.headers.items() if name.lower() != "date"}
            return Answer(made.status_code, made.get_data(), headers)

        if call.region and call.region not in {*self._world.switches.regions, *UNBOUND_REGIONS}:
            text = "AWS was not able to validate the provided access credentials"
            return error(call, 401, "AuthFailure", text)
        if call.service == "ec2":
            self._meet(call.region)
            handler = self._ec2.handlers.get(call.action)
            self._world.describing = call.action.startswith("Describe")
            try:
                return paged(call, self._world.switches.page_size, handler or _as_it_is, forward)
            finally:
                self._world.describing = False
        if call.service == "scheduler":
            self._world.seen.add(call.region)
        answer = self._other(call) or forward(call)
        if call.action == "UpdateSchedule" and answer.status == 200:
            asked = json.loads(call.body)
            self._world.replaced(call.region, path_name(environ), asked.get("GroupName") or "default", asked)
        return answer

    def _other(self, call: Call) -> Answer | None:
        """Services that moto has not, and what it does not check."""
        asked = json.loads(call.body) if call.body and not call.form else {}
        if call.service == "pricing" and call.action == "GetProducts":
            filters = {f["Field"]: f["Value"] for f in asked.get("Filters", ())}
            return as_json({"FormatVersion": "aws_v1", "PriceList": figures.products(filters, self._world.now())})
        if call.service == "servicequotas":
            return self._quotas(call, asked)
        if call.action == "GetParameter" and str(asked.get("Name", "")).startswith("/aws/service/deeplearning/ami/"):
            architecture = asked["Name"].split("/")[5]
            value = figures.IMAGES.get(architecture)
            if value is None:
                return error(call, 400, "ParameterNotFound", "")
            found = {"Name": asked["Name"], "Type": "String", "Value": value, "Version": 7, "DataType": "text"}
            return as_json({"Parameter": {**found, "LastModifiedDate": int(self._world.now())}})
        if call.action in ("CreateSchedule", "UpdateSchedule"):
            expression = asked.get("ScheduleExpression", "")
            at = due_at(expression, asked.get("ScheduleExpressionTimezone", "UTC"))
            # The vendor's guide is silent about times that have passed. Users report a refusal, the dearer answer: no timer.
            if expression.startswith("at(") and (at is None or at < self._world.now()):
                return error(call, 400, "ValidationException", f"Invalid Schedule Expression {expression}.")
        return None

    def _quotas(self, call: Call, asked: dict[str, Any]) -> Answer:
        value = self._world.switches.vcpu_quota
        if call.action.startswith("List"):
            return as_json({"Quotas": [figures.quota(code, value) for code in figures.QUOTAS]})
        code = asked.get("QuotaCode", "")
        if code not in figures.QUOTAS:
            return error(call, 400, "NoSuchResourceException", f"The request failed because {code} does not exist")
        return as_json({"Quota": figures.quota(code, value)})

    def _meet(self, region: str) -> None:
        """A region that is used for the first time gets the images that AWS offers in every region."""
        if region in self._world.seen:
            return
        self._world.seen.add(region)
        self._regions.offer_images(self._world.backend(region), region)

    def _host_ended(self, ident: str, why: str) -> None:
        with self._lock:
            if why == "powered off":
                self._world.powered_off(ident)

    def _control(self, what: str, environ: dict[str, Any]) -> Answer:
        """The tests' door."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        asked = json.loads(environ["wsgi.input"].read(length)) if length else {}
        with self._lock:
            try:
                return as_json(getattr(self, f"_control_{what}")(**asked))
            except Exception as problem:
                return Answer(500, json.dumps({"error": repr(problem)}).encode())

    def _control_faults(self, faults: list[dict[str, Any]]) -> None:
        self._faults += [Fault(**fault) for fault in faults]

    def _control_clear(self) -> None:
        self._faults.clear()

    def _control_switches(self, **switches: Any) -> None:
        changed = {key: tuple(value) if isinstance(value, list) else value for key, value in switches.items()}
        self._world.switches = dataclasses.replace(self._world.switches, **changed)
        self._regions.enable(self._world.switches.regions)

    def _control_clock(self, advance_s: float = 0.0) -> float:
        self._world.offset_s += advance_s
        self._world.tick()
        return self._world.now()

    def _control_word(self, instance: str, word: str) -> None:
        self._world.lives[instance].word = word
        self._world.tick()

    def _control_reclaim(self, instance: str) -> None:
        self._world.end(self._world.lives[instance], BY_SPOT)

    def _control_state(self) -> dict[str, Any]:
        self._world.tick()
        lives = {ident: {"state": life.state, "region": life.region} for ident, life in self._world.lives.items()}
        hosts = self._world.hosts.keeper.names() if self._world.hosts else ()
        return {"now": self._world.now(), "instances": lives, "hosts": hosts, "faults": len(self._faults)}

    def _control_calls(self) -> list[dict[str, Any]]:
        return self._calls

    def _control_console(self, instance: str) -> str:
        return self._world.hosts.console(instance) if self._world.hosts else ""

    def _control_reset(self) -> None:
        self._faults.clear()
        self._calls.clear()
        self._world.clear()
        self._ec2.clear()
        self._world.switches = Switches()
        self._regions.enable(self._world.switches.regions)
        Response.from_app(
            self._moto, {**_RESET, "wsgi.input": sys.stdin.buffer, "wsgi.errors": sys.stderr}, buffered=True
        )


_RESET = {
    "REQUEST_METHOD": "POST", "PATH_INFO": "/moto-api/reset", "SCRIPT_NAME": "", "QUERY_STRING": "", "HTTP_HOST": "localhost",
    "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "CONTENT_LENGTH": "0",
    "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.multithread": True, "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}  # fmt: skip


def _as_it_is(call: Call, forward: Callable[[Call], Answer]) -> Answer:
    return forward(call)


def path_name(environ: dict[str, Any]) -> str:
    """The last part of a REST path."""
    return str(environ["PATH_INFO"]).rpartition("/")[2]


def _written(fault: Fault, call: Call) -> Answer:
    """An error as the fault wants it."""
    headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
    if fault.body == "html":
        text = f"<html><head><title>{fault.status} {fault.code}</title></head><body>{fault.code}</body></html>"
        return Answer(fault.status, text.encode(), {"Content-Type": "text/html", **headers})
    answer = error(call, fault.status, fault.code, fault.message)
    return Answer(answer.status, answer.body, {**answer.headers, **headers})


def _cut(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """End the connection without a byte of answer."""
    line: socket.socket = environ["werkzeug.socket"]
    line.shutdown(socket.SHUT_RDWR)
    start("500 cut", [])
    return []


class QuietHandler(MotoRequestHandler):  # type: ignore[misc]
    """Says nothing about single requests, and tells the cloud's time."""

    protocol_version = "HTTP/1.1"

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The cloud's time."""
        return str(self.server.app.date())

    def log_request(self, *given: Any) -> None:
        """Nothing."""


def main(argv: list[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=Path)
    shim = Shim(parser.parse_args(argv).hosts)
    threading.Thread(target=shim.tick_for_ever, daemon=True).start()
    server = make_server("127.0.0.1", 0, shim, threaded=True, request_handler=QuietHandler)
    print(json.dumps({"port": server.server_port, "pid": os.getpid()}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
