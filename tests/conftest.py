"""What all tests share: settings, clocks, the containerds and the control plane they run on."""

import hashlib
import os
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest
import structlog
from hypothesis import HealthCheck, settings
from trio.testing import MockClock

from lab import UnavailableError
from lab.control_plane import ControlPlane
from lab.control_plane_programs import NEWEST
from lab.orphans import marked
from tests.containerds import Containerds
from tests.distribution import Distribution
from tests.file_work import in_place
from tests.missing import do_without
from tests.turns import meter_all_runs

KUBERNETES = os.environ.get("TRIO_KUBELET_KUBERNETES", "")

# Programs that a killed run leaves behind are known by it, and swept away by a later one.
os.environ.update(marked({}))

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples every time: a run tells of the change that it is made for. What nobody has
# thought of is looked for with HYPOTHESIS_PROFILE=thorough.
settings.register_profile("default", UNHURRIED, derandomize=True)
settings.register_profile("thorough", UNHURRIED, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
BEGUN = "TRIO_KUBELET_TESTS_BEGUN"


def pytest_configure(config: pytest.Config) -> None:
    """Where the processes that share the tests note which have begun; what all runs have."""
    meter_all_runs()
    # With source and values of each frame, as is the default, a traceback takes half a second.
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])
    if BEGUN not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="begun-")
        os.environ[BEGUN] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(partial(os.environ.__delitem__, BEGUN))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Distribution:
    """Tests that share a node stay together."""
    return Distribution(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that ended its process, as one does that hangs, when the next one gets it."""
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()
    try:
        Path(os.environ[BEGUN], name).touch(exist_ok=False)
    except FileExistsError:
        pytest.fail("the process that ran it first has ended", pytrace=False)


@runtime_checkable
class HasLastWords(Protocol):
    """What a test runs on, and has logs."""

    def last_words(self) -> str:
        """The ends of its logs."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of all logs to the report of a test that failed."""
    report = yield
    if report.failed:
        things = (each for each in item.funcargs.values() if isinstance(each, HasLastWords))
        report.sections += [("ends of the logs", each.last_words()) for each in islice(things, 1)]
    return report


@pytest.fixture(scope="session")
def containerds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerds]:
    """Private containerds, of each version one, for all tests of this process."""
    with Containerds(tmp_path_factory) as containerds:
        yield containerds


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of our own; needs no root."""
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"), version=KUBERNETES or NEWEST)
    try:
        plane.start()
    except UnavailableError as reason:
        do_without(str(reason), asked_for=bool(KUBERNETES))
    yield plane
    plane.stop()


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
