"""Huge pages as a cluster knows them: what the node has of each size, and what pods are given.

The Go kubelet does the same (TRIO_KUBELET_E2E_AGENT=go). Limits in cgroups are in
`tests/integration/test_huge_pages.py`.
"""

from collections.abc import Iterator

import pytest

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_ready, until_term
from tests.e2e.local import LocalCluster
from tests.huge_pages import free_pages, set_aside
from trio_kubelet.k8s import Quantity

PAGES = 32
ALL = f"{PAGES * 2}Mi"
NO_ROOM = "Insufficient hugepages-2Mi"


def amounts(cluster: LocalCluster) -> tuple[Json, Json]:
    """Capacity and allocatable of the node."""
    status = cluster.api.get(f"/api/v1/nodes/{cluster.node}")["status"]
    return status["capacity"], status["allocatable"]


@pytest.fixture
def with_pages(local_cluster: LocalCluster, namespace: Namespace) -> Iterator[LocalCluster]:
    """The cluster, whose node was started on a machine with huge pages."""
    memory = Quantity(amounts(local_cluster)[1]["memory"])
    with set_aside(PAGES):
        local_cluster.restart_agent()
        wait_amounts(local_cluster, pages=ALL, memory=memory - Quantity(ALL))
        yield local_cluster
        namespace.kubectl("delete", "pods", "--all", "--wait", "--timeout=60s")
    local_cluster.restart_agent()
    wait_amounts(local_cluster, pages="0", memory=memory)


def wait_amounts(cluster: LocalCluster, *, pages: str, memory: Quantity) -> None:
    """Wait until the node has that much in pages of 2 MiB, memory for others, and takes pods."""

    def has_them(node: Json) -> bool:
        capacity, allocatable = (node["status"][each] for each in ("capacity", "allocatable"))
        has_pages = capacity["hugepages-2Mi"] == allocatable["hugepages-2Mi"] == pages
        return has_pages and Quantity(allocatable["memory"]) == memory

    cluster.api.wait_for(f"/api/v1/nodes/{cluster.node}", has_them, deadline_seconds=60)
    cluster.wait_node_ready()


def asking(pages: int) -> Json:
    """A container that fills a volume with so many pages."""
    size = f"{pages * 2}Mi"
    resources = {"limits": {"hugepages-2Mi": size, "memory": "32Mi", "cpu": "50m"}}
    mounts = [{"name": "files", "mountPath": "/files"}]
    fill = f"fallocate -l {pages * 2}M /files/a"
    return until_term("c", fill, resources=resources, volumeMounts=mounts)


def test_a_node_has_pages_by_size_and_gives_them_to_one_pod_after_another(
    with_pages: LocalCluster, namespace: Namespace
) -> None:
    capacity, allocatable = amounts(with_pages)
    assert capacity["hugepages-1Gi"] == allocatable["hugepages-1Gi"] == "0"
    assert Quantity(capacity["memory"]) >= Quantity(allocatable["memory"]) + Quantity(ALL)
    volumes = [{"name": "files", "emptyDir": {"medium": "HugePages"}}]
    first = namespace.run("first", asking(PAGES - 1), volumes=volumes)
    assert first["status"]["qosClass"] == "Guaranteed"
    namespace.add("second", asking(2), volumes=volumes)
    waits = namespace.wait("second", has_no_room)
    assert "nodeName" not in waits["spec"]
    wait_free(1)
    namespace.kubectl("delete", "pod", "first")
    namespace.wait("second", is_ready)
    wait_free(PAGES - 2)


def wait_free(pages: int) -> None:
    """Wait until pods use all pages of the machine but so many."""
    wait_until(
        lambda: free_pages() == pages,
        deadline_seconds=60,
        else_say=lambda: f"{free_pages()} pages are free, not {pages}",
    )


def has_no_room(pod: Json) -> bool:
    """True if the scheduler found no node with enough huge pages."""
    conditions = pod["status"].get("conditions", ())
    return any(NO_ROOM in each.get("message", "") for each in conditions)
