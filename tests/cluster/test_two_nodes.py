"""Stories of a cluster of two machines, as its administrator and its users see them."""

import re
import time

import pytest

from lab import LabError
from lab.processes import wait_until
from tests.cluster.machines import DEADLINE_SECONDS, NAMES, MachineCluster
from tests.cluster.workload import (
    APP,
    PORT,
    TOLERATIONS,
    begun,
    check_use,
    create,
    drain,
    notes,
    on,
    page,
    scale,
    stay,
    uids,
    wait_gone,
    wait_reached,
    wait_ready,
)
from tests.e2e.cluster import Namespace, container_ids, is_ready
from tests.e2e.kubeadm import blocks

FIRST, SECOND = NAMES
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
# Long enough for connections to be lost, and for retries to become rare.
OUTAGE_SECONDS = 120


def test_a_deployment_runs_on_both_nodes_and_a_service_leads_to_those_that_are_ready(
    namespace: Namespace,
) -> None:
    ports = [{"port": 80, "targetPort": PORT}]
    namespace.create("Service", APP, {"spec": {"selector": {"app": APP}, "ports": ports}})
    pods = create(namespace, "Deployment", 2)
    check_use(namespace, pods)
    names = {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in pods}
    wait_endpoints(namespace, set(names))
    for pod in pods:
        assert {page(namespace, pod, each).strip() for each in names} == set(names.values())

    (first,) = on(FIRST, pods)
    namespace.kubectl("exec", first["metadata"]["name"], "--", "rm", "/www/index.html")
    wait_endpoints(namespace, set(names) - {first["status"]["podIP"]})
    assert container_ids(namespace.pods(APP)) == container_ids(pods)


def test_a_drained_node_is_empty_until_it_takes_pods_again(namespace: Namespace) -> None:
    before = create(namespace, "Deployment", 2)
    drain(namespace, FIRST)
    assert not on(FIRST, namespace.pods(APP))
    after = wait_ready(namespace, 2, on=[SECOND])
    assert container_ids(on(SECOND, before)).items() <= container_ids(after).items()
    check_use(namespace, after)

    namespace.kubectl("uncordon", FIRST)
    check_use(namespace, on(FIRST, scale(namespace, 4)))


def test_a_cordoned_node_keeps_its_pods_and_takes_no_more(namespace: Namespace) -> None:
    before = create(namespace, "Deployment", 2)
    namespace.kubectl("cordon", SECOND)
    after = scale(namespace, 4)
    assert container_ids(before).items() <= container_ids(after).items()
    assert uids(on(SECOND, after)) == uids(on(SECOND, before))
    check_use(namespace, after)


def test_pods_run_on_while_the_agent_of_their_node_is_upgraded(
    cluster: MachineCluster, namespace: Namespace
) -> None:
    before = create(namespace, "Deployment", 2)
    machine = cluster.machines[FIRST]
    old = version(cluster, FIRST)
    new = f"{old.rpartition('.')[0]}.dev12345"
    machine.guest.run(f"sed -i s/{old}/{new}/ /src/trio_kubelet/__init__.py")
    machine.follow(*blocks("Upgrade the agent"))
    wait_until(
        lambda: version(cluster, FIRST) == new,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"the agent of {FIRST} is {version(cluster, FIRST)}",
    )
    wait_reached(namespace, before)
    check_use(namespace, before)
    after = wait_ready(namespace, 2)
    assert container_ids(after) == container_ids(before)
    assert begun(cluster, namespace) == dict.fromkeys(uids(before), 1)
    assert all(is_ready(each) for pod in before for each in namespace.versions(pod))
    check_use(namespace, on(FIRST, scale(namespace, 4)))


def test_pods_of_a_node_that_is_switched_off_move_and_start_once(
    cluster: MachineCluster, namespace: Namespace
) -> None:
    before = create(namespace, "Deployment", 2, tolerations=TOLERATIONS)
    machine = cluster.machines[FIRST]
    machine.guest.run("sync")
    machine.guest.cut_power()
    cluster.wait_node_away(FIRST)
    moved = wait_ready(namespace, 2, on=[SECOND])
    check_use(namespace, moved)
    assert container_ids(on(SECOND, before)).items() <= container_ids(moved).items()

    machine.guest.boot()
    cluster.wait_node(FIRST)
    wait_gone(namespace, on(FIRST, before))
    after = wait_ready(namespace, 2, on=[SECOND])
    assert container_ids(after) == container_ids(moved)
    assert begun(cluster, namespace) == dict.fromkeys(uids(before) | uids(moved), 1)
    assert cluster.containers(FIRST) == 0
    check_use(namespace, on(FIRST, scale(namespace, 4)))


def test_pods_of_a_node_without_network_run_on_until_it_hears_that_they_are_deleted(
    cluster: MachineCluster, namespace: Namespace
) -> None:
    before = create(
        namespace,
        "StatefulSet",
        2,
        podManagementPolicy="Parallel",
        serviceName=APP,
        tolerations=TOLERATIONS,
    )
    (cut,) = on(FIRST, before)
    name = cut["metadata"]["name"]
    with cluster.network.disconnected(FIRST):
        end = time.monotonic() + OUTAGE_SECONDS
        cluster.wait_node_away(FIRST)
        namespace.wait(
            name,
            lambda pod: "deletionTimestamp" in pod["metadata"],
            deadline_seconds=DEADLINE_SECONDS,
        )
        with pytest.raises(LabError):
            namespace.kubectl("logs", name, "--request-timeout=5s")
        wait_until(
            lambda: time.monotonic() > end,
            deadline_seconds=2 * OUTAGE_SECONDS,
            else_say=lambda: "the clock stands still",
        )
        assert cluster.containers(FIRST) == 2, "a sandbox and its container run on"
        assert uids(namespace.pods(APP)) == uids(before), "nobody has the name meanwhile"
    cluster.wait_node(FIRST)
    wait_gone(namespace, [cut])
    # Where it runs now is the scheduler's choice.
    pods = namespace.wait_all(
        lambda pods: len(pods) == 2 and all(map(is_ready, stay(pods))),
        APP,
        deadline_seconds=DEADLINE_SECONDS,
    )
    check_use(namespace, pods)
    assert begun(cluster, namespace) == dict.fromkeys(uids(before) | uids(pods), 1)
    (now,) = (pod for pod in pods if pod["metadata"]["name"] == name)
    times = {(note.uid, note.what): note.second for note in notes(cluster, namespace)}
    ended, started = (cut["metadata"]["uid"], "end"), (now["metadata"]["uid"], "begin")
    assert times[ended] <= times[started], "never two at a time"


def version(cluster: MachineCluster, node: str) -> str:
    """Which agent runs on a node, as its metrics say; empty while nobody answers."""
    try:
        metrics = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics")
    except LabError:
        return ""
    found = re.search(r'^trio_kubelet_build_info\{.*\bversion="(.*?)"', metrics, re.MULTILINE)
    return found[1] if found else ""


def wait_endpoints(namespace: Namespace, addresses: set[str]) -> None:
    """Wait until the Service leads to these addresses and no other."""

    def ready() -> set[str]:
        slices = namespace.api.get(SLICES.format(namespace.name))["items"]
        endpoints = (each for one in slices for each in one["endpoints"] or ())
        ready = (each for each in endpoints if each["conditions"]["ready"])
        return {address for each in ready for address in each["addresses"]}

    wait_until(
        lambda: ready() == addresses,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"endpoints are {ready()}, not {addresses}",
    )
