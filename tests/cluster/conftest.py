"""What the stories of a cluster are tried on: a control plane, and two machines as its nodes.

All stories share the machines: each leaves both of them Ready. What is missing is a reason to skip,
and in CI a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError, control_plane_programs
from lab.control_plane_programs import NEWEST
from lab.guest import images
from tests.cluster.machines import DEADLINE_SECONDS, NAMES, MachineCluster
from tests.e2e.cluster import Namespace
from tests.e2e.machines import KERNEL
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
        image = images.find(KERNEL)
        control_plane_programs.find(KUBERNETES)
        control_plane_programs.kubeadm(KUBERNETES)
        control_plane_programs.go_kubelet(KUBERNETES)
    except UnavailableError as reason:
        do_without(str(reason))
    with MachineCluster(tmp_path_factory.mktemp("cluster"), image, KUBERNETES) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: MachineCluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace for one story. Afterwards it is gone, and both nodes take pods again."""
    name = request.node.name.replace("_", "-").removeprefix("test-")[:50].strip("-")
    namespace = cluster.make_namespace(name)
    yield namespace
    cluster.kubectl("uncordon", *NAMES)
    namespace.delete()
    path = f"/api/v1/namespaces/{namespace.name}"
    cluster.api.wait_gone(path, deadline_seconds=DEADLINE_SECONDS)
