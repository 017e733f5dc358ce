"""What the end-to-end tests run on: a control plane, and the agent as a node of it.

TRIO_KUBELET_KUBERNETES is the version of the control plane (`1.36`, `1.34`), and
TRIO_KUBELET_CONTAINERD that of the containerd of `local`. TRIO_KUBELET_E2E is the provider: `local`
runs all on this host, `guest` has a machine with systemd as the node, `kind` uses Docker (that of
this host, or else a private one; with TRIO_KUBELET_KIND_DOCKER=guest a private one in a machine);
`any`, the default, takes `kind` where a Docker daemon and kind are, and `local` elsewhere. What is
missing is an error if provider or version was asked for, and in CI, and a reason to skip otherwise.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from lab import UnavailableError, control_plane_programs, host
from lab.control_plane_programs import NEWEST
from lab.csi_driver import LabDriver, detach_loop_devices
from lab.go_kubelet import GoKubelet
from lab.guest import images
from lab.kind import cluster as kind
from lab.kind.cluster import Docker, KindCluster
from lab.registry import Registry
from tests.e2e.cluster import Cluster, Namespace
from tests.e2e.guest import GuestCluster
from tests.e2e.kind import ClusterOfKind
from tests.e2e.local import LocalCluster
from tests.e2e.machines import KERNEL
from tests.e2e.provider import GUEST, KIND, chosen_provider, is_docker_in_guest
from tests.missing import do_without

HERE = Path(__file__).parent
KUBERNETES = os.environ.get("TRIO_KUBELET_KUBERNETES", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster with the agent as the node that pods are scheduled to."""
    provider = chosen_provider(os.environ, has_kind=kind.is_installed)
    if provider == GUEST:
        yield request.getfixturevalue("guest_cluster")
        return
    folder = tmp_path_factory.mktemp("cluster")
    if provider == KIND:
        with _docker(folder) as docker, ClusterOfKind(KindCluster(folder, docker)) as of_kind:
            yield of_kind
        return
    obstacles = host.obstacles()
    if obstacles:
        do_without("; ".join(obstacles))
    local = LocalCluster(folder, request.getfixturevalue("control_plane"))
    try:
        local.start()
    except UnavailableError as reason:
        do_without(str(reason))
    yield local
    local.stop()


@pytest.fixture(scope="session")
def guest_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCluster]:
    """A cluster whose node is a machine with systemd and cgroup v2, and runc and crun."""
    try:
        image = images.find(KERNEL)
        control_plane_programs.find(KUBERNETES or NEWEST)
    except UnavailableError as reason:
        do_without(str(reason), asked_for=bool(KUBERNETES))
    folder = tmp_path_factory.mktemp("guest-cluster")
    with GuestCluster(folder, image, KUBERNETES or NEWEST) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def local_cluster(cluster: Cluster) -> LocalCluster:
    """The cluster, for a test that needs what only processes of our own allow."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this test needs the provider local")
    return cluster


@pytest.fixture(scope="session")
def cluster_of_kind(cluster: Cluster) -> ClusterOfKind:
    """The cluster, for a test of what there is on kind's nodes alone."""
    if not isinstance(cluster, ClusterOfKind):
        pytest.skip("this test needs the provider kind")
    return cluster


@pytest.fixture
def go_kubelet(local_cluster: LocalCluster) -> type[GoKubelet]:
    """The Go kubelet, built and ready to have the node of the cluster."""
    try:
        control_plane_programs.go_kubelet(local_cluster.control_plane.wish)
    except UnavailableError as reason:
        do_without(str(reason))
    return GoKubelet


@pytest.fixture
def closed_registry(local_cluster: LocalCluster) -> Iterator[Registry]:
    """A registry with a password, which the node's containerd reaches."""
    containerd = local_cluster.containerd
    with Registry(containerd.folder / "registry", login=True) as registry:
        registry.serve_to(containerd.registries)
        yield registry


@pytest.fixture(autouse=True)
def no_loop_devices_left(tmp_path: Path) -> Iterator[None]:
    """Take the loop devices away that a CSI driver of a failed test had on its volumes."""
    yield
    for image in LabDriver(tmp_path).images():
        detach_loop_devices(image)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace for one test; it is deleted afterwards, and nobody waits for that."""
    name = request.node.name.replace("_", "-").partition("[")[0]
    namespace = cluster.make_namespace(name.removeprefix("test-")[:50].strip("-"))
    yield namespace
    namespace.delete()


def _docker(folder: Path) -> AbstractContextManager[Docker]:
    """The Docker of this host with its kind, or else a private one, in a machine if asked."""
    if is_docker_in_guest(os.environ):
        return kind.private(folder, KUBERNETES or NEWEST, guest=True)
    if kind.is_installed():
        return nullcontext(kind.installed())
    return kind.private(folder, KUBERNETES or NEWEST)
