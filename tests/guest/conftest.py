"""What the tests in guests run on: machines of the lab, with systemd and cgroup v2 alone.

Where none can run, the tests are skipped; where CI is `true`, they fail. A failed test shows the
end of the console of each guest that it had, which has the journal too.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from lab import UnavailableError
from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.image import Image

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.guest)


@pytest.fixture(scope="session")
def image() -> Image:
    """The image of a node, with the packaged kernel."""
    try:
        return images.find()
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def guest(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A machine that runs, for all tests of this process; what a test changes there, it undoes."""
    with Guest(tmp_path_factory.mktemp("guest"), image=image) as guest:
        yield guest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for thing in item.funcargs.values():
            if isinstance(thing, Guest):
                report.sections.append((f"console of {thing.name}", thing.last_words()))
    return report
