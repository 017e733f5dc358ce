"""The API server goes away, the agent is killed: pods run on, and the API is told the truth."""

import os
import random
import time
from collections.abc import Iterator

from lab.agent import is_running, pod_manifest
from lab.go_kubelet import GoKubelet
from lab.images import SLEEPER
from lab.processes import wait_until
from tests.e2e.cluster import (
    Cluster,
    Namespace,
    conditions,
    container,
    container_ids,
    is_over,
    is_ready,
    is_usable,
    phase,
    shell,
    until_term,
    workload,
)
from tests.e2e.local import AGENT, LocalCluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# Longer than a lease lasts, by default.
OUTAGE_SECONDS = float(os.environ.get("TRIO_KUBELET_E2E_OUTAGE_SECONDS", "45"))
# Watches of the Go kubelet may wait for half a minute, then for the pod's objects once more.
SEEN_SECONDS = 120.0
KILLS = 20
TRUE_AGAIN_SECONDS = 10.0
# The Go kubelet may count one for what it had made and not started when it was killed.
RESTARTS_TOLD = {0, 1} if AGENT is GoKubelet else {0}
# A run that failed can be repeated as it was: its seed is told.
SEED = int(os.environ.get("TRIO_KUBELET_SEED", "0")) or random.SystemRandom().randrange(2**32)


def test_pods_run_on_and_end_while_the_api_server_is_away(
    cluster: Cluster, namespace: Namespace
) -> None:
    """What happens at the node during an outage is in the API soon after it, and the reverse."""
    stays = namespace.run("stays", until_term("c"))
    namespace.run("ends", shell("c", "sleep 8; exit 4"), restartPolicy="Never")
    namespace.run("restarts", shell("c", "sleep 6; exit 1"))
    cluster.stop_api_server()
    time.sleep(OUTAGE_SECONDS)  # The outage itself: there is nobody to ask.
    cluster.start_api_server()
    namespace.add("bound", until_term("c"), nodeName=cluster.node)
    namespace.wait("bound", is_ready, deadline_seconds=SEEN_SECONDS)
    ended = namespace.wait("ends", is_over, deadline_seconds=SEEN_SECONDS)
    assert container(ended)["state"]["terminated"]["exitCode"] == 4
    namespace.wait(
        "restarts", lambda pod: container(pod)["restartCount"] > 0, deadline_seconds=SEEN_SECONDS
    )
    assert container_ids([namespace.pod("stays")]) == container_ids([stays])
    assert container(namespace.pod("stays"))["restartCount"] == 0
    # The controller manager may have given the node up meanwhile, and be late itself.
    cluster.wait_node_ready(deadline_seconds=90)


def test_pods_that_are_deleted_and_made_right_after_an_outage_are_not_missed(
    cluster: Cluster, namespace: Namespace
) -> None:
    for number in range(4):
        namespace.add(f"old-{number}", until_term("c"))
    namespace.wait_all(
        lambda pods: len(pods) == 4 and all(map(is_ready, pods)), deadline_seconds=SEEN_SECONDS
    )
    cluster.stop_api_server()
    cluster.start_api_server()
    for number in range(4):
        namespace.api.delete(namespace.path("Pod", f"old-{number}"))
        namespace.add(f"new-{number}", until_term("c"))
    namespace.wait_all(
        lambda pods: (
            {pod["metadata"]["name"] for pod in pods} == {f"new-{number}" for number in range(4)}
            and all(map(is_ready, pods))
        ),
        deadline_seconds=SEEN_SECONDS,
    )


def test_the_lease_goes_on_after_an_outage(cluster: Cluster) -> None:
    path = f"{LEASES}/{cluster.node}"
    before = cluster.api.get(path)["spec"]["renewTime"]
    cluster.stop_api_server()
    cluster.start_api_server()
    cluster.api.wait_for(
        path, lambda lease: lease["spec"]["renewTime"] > before, deadline_seconds=25
    )
    cluster.api.wait_for(f"/api/v1/nodes/{cluster.node}", is_usable)


def test_an_agent_that_starts_without_its_api_server_keeps_its_pods(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """A static pod that begins to run meanwhile shows that the agent is at work."""
    before = namespace.run("stays", until_term("c"))
    local_cluster.stop_api_server()
    local_cluster.kill_agent()
    local_cluster.add_static_pod(pod_manifest("witness", until_term("c")))
    local_cluster.start_agent()
    local_cluster.agent.wait_for(
        lambda pods: any(n.startswith("witness-") and is_running(pods[n]) for n in pods)
    )
    local_cluster.start_api_server()
    local_cluster.wait_node_ready()
    local_cluster.remove_static_pod("witness")
    local_cluster.api.wait_gone(f"/api/v1/namespaces/default/pods/witness-{local_cluster.node}")
    namespace.add("next", until_term("c"))
    namespace.wait("next", is_ready)
    assert container_ids([namespace.pod("stays")]) == container_ids([before])


def test_no_container_restarts_when_the_agent_is_killed_in_a_churn(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """Pods of a Deployment stay what they are; others come and go at every kill."""
    chance = random.Random(SEED)
    namespace.create(
        "Deployment", "stays", workload("stays", {"name": "c", "image": SLEEPER}, replicas=8)
    )
    pods = namespace.wait_all(lambda pods: len(pods) == 8 and all(map(is_ready, pods)), "stays")
    before = container_ids(pods)
    for kill in range(KILLS):
        namespace.add(f"churn-{kill}", until_term("c"))
        if kill >= 3:
            namespace.api.delete(namespace.path("Pod", f"churn-{kill - 3}"))
        time.sleep(chance.uniform(0.2, 3))
        local_cluster.kill_agent()
        local_cluster.start_agent()
    local_cluster.agent.wait_for(lambda _: True)
    wait_until(
        lambda: not list(_lies(local_cluster, namespace)),
        deadline_seconds=TRUE_AGAIN_SECONDS,
        else_say=lambda: f"seed {SEED}: {'; '.join(_lies(local_cluster, namespace))}",
    )
    assert container_ids(namespace.pods("stays")) == before, f"seed {SEED}"
    # The scheduler may have waited for the node, which nobody reported on between the kills.
    pods = namespace.wait_all(lambda pods: len(pods) == 8 + 3 and all(map(is_ready, pods)))
    assert container_ids(namespace.pods("stays")) == before, f"seed {SEED}"
    assert {container(pod)["restartCount"] for pod in pods} <= RESTARTS_TOLD, f"seed {SEED}"


def test_a_node_whose_agent_is_away_is_found_to_be_and_returns(
    cluster: Cluster, namespace: Namespace
) -> None:
    """The controller manager marks the node after 40 seconds; its pods run on."""
    before = namespace.run("stays", until_term("c"))
    path = f"/api/v1/nodes/{cluster.node}"
    cluster.kill_agent()
    cluster.api.wait_for(
        path,
        lambda node: conditions(node)["Ready"]["status"] == "Unknown",
        deadline_seconds=100,
    )
    cluster.start_agent()
    cluster.wait_node_ready()
    namespace.wait("stays", is_ready)
    assert container_ids([namespace.pod("stays")]) == container_ids([before])


def _lies(cluster: LocalCluster, namespace: Namespace) -> Iterator[str]:
    """What the API says of pods, each with containers that never end, and the runtime does not."""
    running = cluster.running_containers(namespace.name)
    for pod in namespace.pods():
        name, runs = pod["metadata"]["name"], running.pop(pod["metadata"]["uid"], set())
        said = {
            (each["name"], each["containerID"].partition("://")[2], each["restartCount"])
            for each in pod.get("status", {}).get("containerStatuses") or ()
            if "running" in each["state"]
        }
        if said != runs:
            yield f"{name}: {sorted(said)} are said to run, {sorted(runs)} do"
        if phase(pod) != ("Running" if runs else "Pending"):
            yield f"{name} is said to be {phase(pod)}, {len(runs)} containers run"
        if is_ready(pod) != bool(runs):
            yield f"{name} is said to be ready: {is_ready(pod)}, {len(runs)} containers run"
    for uid, runs in running.items():
        yield f"nobody knows pod {uid}, of which {sorted(runs)} run"
