"""What the tests in guests run on: machines of the lab, with systemd and cgroup v2 alone.

Where none can run, the tests are skipped; where CI is `true`, they fail. A failed test shows the
end of the console of its guest, which has the journal too. The modules that take longest come
first, or one process would be at them when the others have ended.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError
from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from tests.guest.node import Node, build_wheel
from tests.missing import do_without

HERE = Path(__file__).parent
LONGEST = (
    *("test_remote_volumes", "test_cgroups", "test_integration", "test_user_namespaces"),
    *("test_service", "test_boot", "test_machine", "test_kills", "test_slices", "test_lab_guest"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.guest)
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """The longest modules are the first."""
    is_here = item.path.is_relative_to(HERE)
    return LONGEST.index(item.path.stem) if is_here and item.path.stem in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def image() -> GuestImage:
    """The image of a node, with the packaged kernel."""
    try:
        return images.find()
    except UnavailableError as reason:
        do_without(str(reason))


@pytest.fixture(scope="session")
def guest(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A machine that runs, for all tests of this process; what a test changes there, it undoes."""
    with Guest(tmp_path_factory.mktemp("guest"), image=image) as guest:
        yield guest


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as it is released, built once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return build_wheel(folder.with_name(f"wheel-{run}") if run else folder / "wheel")


@pytest.fixture(scope="session")
def node(guest: Guest, wheel: Path) -> Node:
    """The agent as the service of a machine, for all tests of this process."""
    node = Node(guest)
    node.install(wheel)
    return node
