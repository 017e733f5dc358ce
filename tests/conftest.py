"""Settings that all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from trio.testing import MockClock

from tests.file_work import in_place

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def mock_clock() -> Iterator[MockClock]:
    """A clock that stands still until the test moves it; no thread works beside the test."""
    with in_place():
        yield MockClock()


@pytest.fixture
def autojump_clock() -> Iterator[MockClock]:
    """A clock that jumps when every task waits; no thread works while it does."""
    with in_place():
        yield MockClock(autojump_threshold=0)
