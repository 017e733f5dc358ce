"""Tests that share a node go to the same process, and no others do."""

import pytest

from tests.distribution import group_of

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
