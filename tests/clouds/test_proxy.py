"""The counting proxy: numbers for calls, and a client that is killed exactly before or after one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from clouds.aws import AwsCloud
from clouds.aws_wire import action_of
from clouds.awscase import AMI
from clouds.proxy import CountingProxy

BUYS = f"""
import boto3
ec2 = boto3.client("ec2")
ec2.describe_instances()
ec2.run_instances(ImageId="{AMI}", InstanceType="g5.xlarge", MinCount=1, MaxCount=1, ClientToken="t")
ec2.describe_volumes()
print("done")
"""


class Upstream(ThreadingHTTPServer):
    """Answers with what it was asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.asked.append(f"{self.command} {self.path} {body.decode()}")
                self.send_response(201)
                self.send_header("X-Kept", "yes")
                self.end_headers()
                self.wfile.write(body.upper())

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *given: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.shutdown()
    made.server_close()


def ask(url: str, body: bytes | None = None) -> tuple[int, str, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        return answer.status, answer.headers["X-Kept"], answer.read()


def test_calls_pass_unchanged_and_are_counted(upstream: Upstream) -> None:
    with CountingProxy(upstream.url) as proxy:
        assert ask(f"{proxy.url}/a?b=c", b"hello") == (201, "yes", b"HELLO")
        ask(f"{proxy.url}/d")
        assert upstream.asked == ["POST /a?b=c hello", "GET /d "]
        assert [(c.number, c.name, c.status) for c in proxy.calls] == [(1, "POST /a", 201), (2, "GET /d", 201)]


def test_what_does_not_count_passes_all_the_same(upstream: Upstream) -> None:
    with CountingProxy(upstream.url, counts=lambda request: request.method == "POST") as proxy:
        proxy.hold(1, "before")
        ask(f"{proxy.url}/d")
        assert proxy.calls == ()


@pytest.mark.parametrize(("when", "seen"), [("before", 0), ("after", 1)])
def test_a_held_call_can_be_dropped(upstream: Upstream, when: Any, seen: int) -> None:
    with CountingProxy(upstream.url) as proxy:
        proxy.hold(1, when)
        problems: list[Exception] = []

        def client() -> None:
            try:
                ask(f"{proxy.url}/a")
            except (OSError, urllib.error.URLError) as problem:
                problems.append(problem)

        asking = threading.Thread(target=client)
        asking.start()
        held = proxy.wait_held(10)
        assert held is not None
        assert (held.number, held.status) == (1, 201 if when == "after" else None)
        proxy.drop()
        asking.join(10)
        assert len(problems) == 1
        assert len(upstream.asked) == seen


def test_a_held_call_can_go_on(upstream: Upstream) -> None:
    with CountingProxy(upstream.url) as proxy:
        proxy.hold(1, "before")
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(ask(f"{proxy.url}/a")))
        asking.start()
        assert proxy.wait_held(10)
        assert upstream.asked == []
        proxy.release()
        asking.join(10)
        assert answers[0][0] == 201


def test_a_call_that_never_comes_is_not_waited_for_for_ever(upstream: Upstream) -> None:
    with CountingProxy(upstream.url) as proxy:
        proxy.hold(1, "before")
        assert proxy.wait_held(0.1) is None


def test_an_upstream_that_is_gone_ends_the_connection(upstream: Upstream) -> None:
    upstream.shutdown()
    upstream.server_close()
    with CountingProxy(upstream.url) as proxy, pytest.raises(OSError):
        ask(f"{proxy.url}/a")


@pytest.mark.slow
def test_a_client_is_killed_before_and_after_each_of_its_calls(cloud: AwsCloud) -> None:
    with CountingProxy(cloud.url, action_of) as proxy:
        environment = {**os.environ, **cloud.environment, "AWS_ENDPOINT_URL": proxy.url}

        def client() -> subprocess.Popen[str]:
            return subprocess.Popen([sys.executable, "-c", BUYS], env=environment, stdout=subprocess.PIPE, text=True)

        counted = client()
        assert counted.communicate(timeout=60)[0] == "done\n"
        names = [call.name for call in proxy.calls]
        assert names == ["DescribeInstances", "RunInstances", "DescribeVolumes"]
        made = []
        for number in range(1, len(names) + 1):
            for when in ("before", "after"):
                cloud.reset()
                proxy.restart()
                proxy.hold(number, when)  # type: ignore[arg-type]
                killed = client()
                held = proxy.wait_held(60)
                assert held is not None and held.name == names[number - 1]
                killed.kill()
                assert killed.communicate(timeout=10)[0] == ""
                proxy.drop()
                made.append(len(cloud.instances()))
        assert made == [0, 0, 0, 1, 1, 1], "the instance exists once EC2 has answered, and not before"
