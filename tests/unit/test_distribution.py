"""Tests that share a node go to the same process, and no others do."""

from types import SimpleNamespace

import pytest

from tests.distribution import Distribution, group_of

KILLS = "tests/integration/test_kills.py"
CGROUPS = "tests/guest/test_cgroups.py"


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        (f"{KILLS}::test_kill[containerd-1.6]", f"{KILLS} containerd-1.6"),
        (f"{KILLS}::test_kill[containerd-2.1-01-plain]", f"{KILLS} containerd-2.1"),
        (f"{KILLS}::test_kill[30-apparmor-containerd-2.1]", f"{KILLS} containerd-2.1"),
        (f"{KILLS}::test_kill[containerd-1.7+crun]", f"{KILLS} containerd-1.7+crun"),
        (f"{KILLS}::test_none", f"{KILLS}::test_none"),
        ("tests/cri/test_x.py::test_y[containerd]", "tests/cri/test_x.py containerd"),
        ("tests/cri/test_x.py::test_y[Bad-containerd]", "tests/cri/test_x.py containerd"),
        ("tests/cri/test_x.py::test_y[hollow]", "tests/cri/test_x.py::test_y[hollow]"),
        ("tests/e2e/test_node.py::test_z", "tests/e2e"),
        ("tests/guest/test_boot.py::test_z[in order]", "tests/guest/test_boot.py"),
        (f"{CGROUPS}::test_z[systemd]", f"{CGROUPS} systemd"),
        ("tests/guest/test_x.py::test_y[crun-test_z]", "tests/guest/test_x.py crun"),
    ],
)
def test_the_group_of_a_test_is_in_its_id(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


class Process:
    """Runs tests, as far as who hands them out can tell."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


# As `-n 2 --no-loadscope-reorder` has it.
CONFIG = SimpleNamespace(
    getvalue=lambda _: ["2*popen"], option=SimpleNamespace(loadscopereorder=False)
)


def test_a_group_goes_to_the_first_process_that_has_no_test_to_run_after_the_one_it_runs() -> None:
    distribution = Distribution(CONFIG)
    long, short = Process("long"), Process("short")
    names = ("long", "short", "last")
    tests = [f"tests/guest/test_{name}.py::test_{n}" for name in names for n in range(3)]
    for process in (long, short):
        distribution.add_node(process)
        distribution.add_node_collection(process, tests)
    distribution.schedule()
    assert (long.given, short.given) == ([0, 1, 2], [3, 4, 5])
    distribution.mark_test_complete(long, 0)
    distribution.mark_test_complete(short, 3)
    assert (long.given, short.given) == ([0, 1, 2], [3, 4, 5])
    distribution.mark_test_complete(short, 4)
    assert (long.given, short.given) == ([0, 1, 2], [3, 4, 5, 6, 7, 8])
