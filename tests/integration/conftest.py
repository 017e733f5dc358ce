"""What the integration tests run on: private containerds.

TRIO_KUBELET_CONTAINERD lists the versions (`1.6`, `1.7`, `2.1`, `default`), separated by commas;
every test that takes `containerd` runs once on each. `1.7+crun` is one with another OCI runtime. A
version that cannot be had is an error if it was asked for like this, and in CI
(`tests/missing.py`), and skipped otherwise. State is in pytest's temporary folders.

Several processes may share the tests (`tests/distribution.py`). The modules that take longest come
first, or all would wait for them at the end.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError, host
from lab.agent import LabAgent
from lab.containerd import Containerd
from lab.registry import Registry
from tests.containerds import ASKED_FOR, VERSIONS, Containerds
from tests.integration.pods import Node
from tests.missing import do_without

HERE = Path(__file__).parent
LONGEST = (
    "test_volume_kills",
    "test_kills",
    "test_resource_kills",
    "test_pods_restarts",
    "test_configs",
    "test_pods_images",
)

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """The longest groups are the first."""
    stem = item.path.stem
    return LONGEST.index(stem) if stem in LONGEST else len(LONGEST)


@pytest.fixture(autouse=True)
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    """Unmounts what a failed test left mounted, or pytest could not remove its folder."""
    yield
    host.detach_mounts_below(tmp_path)


@pytest.fixture(scope="session")
def real_containers() -> None:
    """Skips the test where no container can run; in CI it fails."""
    obstacles = host.obstacles()
    if obstacles:
        do_without("; ".join(obstacles))


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: f"containerd-{version}")
def containerd(
    request: pytest.FixtureRequest, real_containers: None, containerds: Containerds
) -> Containerd:
    """A running containerd with the lab's images.

    Of use to a test: `endpoint`, `socket`, `ctr(...)`, `images`, `pid`, `network`, `registries`,
    and from a thread `kill()`, `restart()`. A test leaves it running and without pods of its own.
    """
    try:
        return containerds.running(request.param)
    except UnavailableError as reason:
        do_without(str(reason), asked_for=bool(ASKED_FOR))


@pytest.fixture
def registry(containerd: Containerd) -> Iterator[Registry]:
    """An empty registry that `containerd` reaches under the name `registry.test`."""
    with Registry(containerd.folder / f"registry-{next(_numbers)}") as registry:
        registry.serve_to(containerd.registries)
        yield registry


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """An agent for all tests of a module; at its end nothing of any pod is left, or they fail."""
    with LabAgent(tmp_path_factory.mktemp("node"), endpoint=containerd.endpoint) as agent:
        yield Node(agent=agent, containerd=containerd)
