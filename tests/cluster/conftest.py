"""A control plane, and two machines as its nodes, for all tests of a run.

The machines have the packaged kernel. What is missing is a reason to skip, and in CI a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError, control_plane_programs
from lab.control_plane_programs import NEWEST
from lab.guest import images
from tests.cluster.machines import MachineCluster
from tests.missing import do_without

HERE = Path(__file__).parent
KUBERNETES = os.environ.get("TRIO_KUBELET_KUBERNETES") or NEWEST


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    """Both machines have joined and are Ready."""
    try:
        image = images.find()
        control_plane_programs.find(KUBERNETES)
        control_plane_programs.kubeadm(KUBERNETES)
        control_plane_programs.go_kubelet(KUBERNETES)
    except UnavailableError as reason:
        do_without(str(reason))
    with MachineCluster(tmp_path_factory.mktemp("cluster"), image, KUBERNETES) as cluster:
        yield cluster
