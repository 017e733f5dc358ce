"""Stories of a cluster in which the Go kubelet runs one node and the agent the other."""

from collections.abc import Iterator

import pytest

from tests.cluster.machines import NAMES, MachineCluster
from tests.cluster.test_two_nodes import wait_endpoints
from tests.cluster.workload import (
    APP,
    PORT,
    begun,
    check_use,
    create,
    drain,
    on,
    page,
    scale,
    uids,
    wait_reached,
    wait_ready,
)
from tests.e2e.cluster import Namespace, container_ids, is_ready
from tests.e2e.kubeadm import blocks
from tests.e2e.machines import AGENT, KUBELET

FIRST, SECOND = NAMES
TAKE_OVER, GIVE_BACK = blocks("From the Go kubelet and back")


@pytest.fixture
def mixed(cluster: MachineCluster) -> Iterator[MachineCluster]:
    """The Go kubelet runs the second node; in the end the agent does, whoever did."""
    try:
        hand_over(cluster, KUBELET)
        yield cluster
    finally:
        if AGENT not in cluster.machines[SECOND].kubelet():
            hand_over(cluster, AGENT)


def hand_over(cluster: MachineCluster, command: str) -> None:
    """Let another kubelet run the second node, as the guide says."""
    machine = cluster.machines[SECOND]
    machine.follow(TAKE_OVER if command == AGENT else GIVE_BACK)
    machine.wait_kubelet_is(command)
    cluster.wait_heartbeat(SECOND)
    cluster.wait_node(SECOND)


def test_pods_on_nodes_of_both_kubelets_are_one_service(
    mixed: MachineCluster, namespace: Namespace
) -> None:
    ports = [{"port": 80, "targetPort": PORT}]
    namespace.create("Service", APP, {"spec": {"selector": {"app": APP}, "ports": ports}})
    pods = create(namespace, "Deployment", 4)
    check_use(namespace, pods)
    names = {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in pods}
    wait_endpoints(namespace, set(names))
    for pod in (on(FIRST, pods)[0], on(SECOND, pods)[0]):
        assert {page(namespace, pod, each).strip() for each in names} == set(names.values())

    for drained, other in ((SECOND, FIRST), (FIRST, SECOND)):
        drain(namespace, drained)
        moved = wait_ready(namespace, 4, on=[other])
        check_use(namespace, moved)
        wait_endpoints(namespace, {pod["status"]["podIP"] for pod in moved})
        namespace.kubectl("uncordon", drained)


def test_a_node_goes_from_the_go_kubelet_to_the_agent_and_back_with_its_pods(
    mixed: MachineCluster, namespace: Namespace
) -> None:
    seen = create(namespace, "Deployment", 2)
    for replicas, command in ((4, AGENT), (6, KUBELET)):
        before = on(SECOND, seen)
        hand_over(mixed, command)
        wait_reached(namespace, before)
        check_use(namespace, before)
        if command == AGENT:  # The Go kubelet says that none is ready until it has probed it.
            assert all(is_ready(each) for pod in before for each in namespace.versions(pod))
        seen = scale(namespace, replicas)
        assert container_ids(before).items() <= container_ids(seen).items()
        assert len(on(SECOND, seen)) > len(before), "whoever has the node starts pods"
        check_use(namespace, seen)
    assert begun(mixed, namespace) == dict.fromkeys(uids(seen), 1)
