"""A local cloud per test."""

from collections.abc import Iterator

import pytest
from localcloud import LocalCloud


@pytest.fixture
def local() -> Iterator[LocalCloud]:
    cloud = LocalCloud()
    yield cloud
    cloud.close()


@pytest.fixture(params=["auto", "plain"])
def either(request: pytest.FixtureRequest) -> Iterator[LocalCloud]:
    """The best isolation that works here, and the fallback."""
    cloud = LocalCloud(isolation=request.param)
    yield cloud
    cloud.close()
