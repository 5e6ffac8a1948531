"""One fake AWS for all its tests, empty at the start of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from clouds.aws import AwsCloud


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    made = AwsCloud(tmp_path_factory.mktemp("aws"))
    yield made
    made.stop()


@pytest.fixture
def cloud(server: AwsCloud) -> AwsCloud:
    server.reset()
    return server


@pytest.fixture
def ec2(cloud: AwsCloud) -> Any:
    return cloud.client("ec2")
