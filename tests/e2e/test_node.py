"""The node object, its lease, and how soon the node takes pods."""

from datetime import datetime, timedelta

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import (
    Cluster,
    Namespace,
    conditions,
    is_over,
    is_usable,
    until_term,
)
from tests.e2e.local import LocalCluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STARTS = 3
PRESSURES = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}
NODE_EVENTS = {
    "Starting",
    "NodeHasSufficientMemory",
    "NodeHasNoDiskPressure",
    "NodeHasSufficientPID",
}


def test_a_node_that_the_api_has_never_seen_is_ready_after_each_start(
    local_cluster: LocalCluster,
) -> None:
    path = f"/api/v1/nodes/{local_cluster.node}"
    for _ in range(STARTS):
        local_cluster.stop_agent()
        local_cluster.api.delete(path)
        local_cluster.start_agent()
        local_cluster.api.wait_for(path, is_usable)


def test_the_node_says_what_it_is_and_has(cluster: Cluster) -> None:
    node = cluster.wait_node_ready()
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == cluster.node
    assert labels["kubernetes.io/os"] == "linux"
    status = node["status"]
    assert set(status["capacity"]) >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert set(status["allocatable"]) >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert {each["type"] for each in status["addresses"]} == {"InternalIP", "Hostname"}
    info = status["nodeInfo"]
    assert info["containerRuntimeVersion"].startswith("containerd://")
    assert all(info[name] for name in ("bootID", "kernelVersion", "osImage", "systemUUID"))
    assert info["kubeletVersion"].startswith("v1.")


def test_the_node_has_no_pressure_and_says_why_it_is_ready(cluster: Cluster) -> None:
    seen = conditions(cluster.wait_node_ready())
    assert {name: seen[name]["reason"] for name in PRESSURES} == PRESSURES
    assert {seen[name]["status"] for name in PRESSURES} == {"False"}
    assert (seen["Ready"]["reason"], seen["Ready"]["message"]) == (
        "KubeletReady",
        "kubelet is posting ready status",
    )


def test_a_disk_that_is_too_full_is_disk_pressure_and_keeps_pods_away(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    path = f"/api/v1/nodes/{local_cluster.node}"

    def pressure(status: str) -> Json:
        node = local_cluster.api.wait_for(
            path, lambda seen: conditions(seen)["DiskPressure"]["status"] == status
        )
        return conditions(node)["DiskPressure"]

    too_full = {"imagefs.available": "99.99%"}
    local_cluster.restart_agent(evictionHard=too_full, evictionPressureTransitionPeriod="0s")
    try:
        seen = pressure("True")
        assert (seen["reason"], seen["message"]) == (
            "KubeletHasDiskPressure",
            "kubelet has disk pressure",
        )
        namespace.add("refused", until_term("c"), nodeName=local_cluster.node)
        status = namespace.wait("refused", is_over)["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
        assert status["message"] == "Pod was rejected: The node had condition: [DiskPressure]. "
    finally:
        local_cluster.restart_agent()
    assert pressure("False")["reason"] == "KubeletHasNoDiskPressure"
    namespace.run("let-in", until_term("c"), nodeName=local_cluster.node)
    wait_for_node_events(local_cluster, {"NodeHasDiskPressure", "NodeHasNoDiskPressure"})


def test_images_of_the_node_are_listed(cluster: Cluster) -> None:
    node = cluster.api.wait_for(
        f"/api/v1/nodes/{cluster.node}", lambda seen: seen["status"].get("images")
    )
    names = {name for image in node["status"]["images"] for name in image["names"]}
    assert any(name.startswith("localhost/lab/busybox") for name in names)


def test_the_lease_is_renewed_and_belongs_to_the_node(cluster: Cluster) -> None:
    path = f"{LEASES}/{cluster.node}"
    first = cluster.api.wait_for(path, lambda lease: lease["spec"].get("renewTime"))
    assert first["spec"]["holderIdentity"] == cluster.node
    assert first["spec"]["leaseDurationSeconds"] == 40
    owner = first["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", cluster.node)
    renewed = cluster.api.wait_for(
        path,
        lambda lease: lease["spec"]["renewTime"] != first["spec"]["renewTime"],
        deadline_seconds=20,
    )
    before, after = (
        datetime.fromisoformat(lease["spec"]["renewTime"]) for lease in (first, renewed)
    )
    assert after - before < timedelta(seconds=15)


def test_events_tell_that_the_node_started(cluster: Cluster) -> None:
    wait_for_node_events(cluster, NODE_EVENTS)


def wait_for_node_events(cluster: Cluster, wanted: set[str]) -> None:
    """Wait until there are events of these reasons about the node."""

    def seen() -> set[str]:
        selector = f"involvedObject.kind=Node,involvedObject.name={cluster.node}"
        events = cluster.api.get("/api/v1/events", fieldSelector=selector)["items"]
        return {event["reason"] for event in events}

    wait_until(
        lambda: seen() >= wanted,
        deadline_seconds=30,
        else_say=lambda: f"only {seen()} of {wanted}",
    )


def test_kubectl_shows_the_node_and_its_pod(cluster: Cluster, namespace: Namespace) -> None:
    namespace.run("shown", until_term("c"))
    line = cluster.kubectl("get", "node", cluster.node, "--no-headers").split()
    assert line[:2] == [cluster.node, "Ready"]
    assert namespace.kubectl("get", "pod", "shown", "--no-headers").split()[:4] == [
        *("shown", "1/1", "Running", "0"),
    ]
    assert "shown" in cluster.kubectl("describe", "node", cluster.node)
