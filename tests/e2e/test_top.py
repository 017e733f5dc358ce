"""What `kubectl top` shows, read from the node as metrics-server reads it.

metrics-server asks each node for /metrics/resource with a token that may `get nodes/metrics`,
verifies the node's certificate, and takes rates between two answers by the samples' own times. A
pod counts once all of its containers have CPU time and memory. Its API is left out here, for it
wants an API server with an aggregation layer; `top` below is what it would tell `kubectl top`.
"""

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_ready, shell
from tests.e2e.local import LocalCluster

DEADLINE_SECONDS = 120
CPU_LIMIT = 0.2
MEMORY_MIB = 64
MI = 1 << 20
CPU, MEMORY = "cpu_usage_seconds_total", "memory_working_set_bytes"
STARTED = "container_start_time_seconds"

Key = tuple[str, str, str]
"""Namespace, pod and container; all are empty for the node."""


@frozen
class Point:
    """What one container, or the node, has used at a time (seconds since the epoch)."""

    time: float
    cpu_seconds: float
    memory_bytes: float
    started_at: float = 0.0


@frozen
class Use:
    """CPUs and bytes."""

    cpus: float
    memory_bytes: float


def points(text: str) -> Mapping[Key, Point]:
    """What an answer has of the node and of containers; what has no CPU time or memory is not."""
    found: dict[str, dict[Key, tuple[float, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            key = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", ""))
            time = float(sample.timestamp or 0)
            found.setdefault(sample.name, {})[key] = (time, sample.value)
    seen: dict[Key, Point] = {}
    for prefix in ("node", "container"):
        memory = found.get(f"{prefix}_{MEMORY}", {})
        for key, (time, seconds) in found.get(f"{prefix}_{CPU}", {}).items():
            used = memory.get(key, (0.0, 0.0))[1]
            if seconds and used:
                started = found.get(STARTED, {}).get(key, (0.0, 0.0))[1]
                seen[key] = Point(time, seconds, used, started)
    return seen


def top(before: Mapping[Key, Point], after: Mapping[Key, Point]) -> Mapping[Key, Use]:
    """What was used between two answers; one that has started since is measured from its start."""
    used = {}
    for key, last in after.items():
        first = before.get(key)
        if first is None or first.started_at < last.started_at:
            first = Point(last.started_at, 0.0, 0.0)
        window = last.time - first.time
        if window > 0:
            cpus = (last.cpu_seconds - first.cpu_seconds) / window
            used[key] = Use(cpus, last.memory_bytes)
    return used


@pytest.fixture
def token(local_cluster: LocalCluster, namespace: Namespace) -> Iterator[str]:
    """That of a service account which may do what metrics-server may do with nodes."""
    api, group = local_cluster.api, "/apis/rbac.authorization.k8s.io/v1"
    metadata = {"metadata": {"name": f"top-{namespace.name}"}}
    rule = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace.name}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": metadata["metadata"]["name"],
    }
    api.create(f"{group}/clusterroles", {**metadata, "rules": [rule]})
    api.create(f"{group}/clusterrolebindings", {**metadata, "roleRef": role, "subjects": [subject]})
    yield namespace.kubectl("create", "token", "default").strip()
    for kind in ("clusterrolebindings", "clusterroles"):
        api.delete(f"{group}/{kind}/{metadata['metadata']['name']}")


def ask(cluster: LocalCluster, token: str) -> tuple[int, str]:
    """Status and text of the node's answer, whose certificate is verified."""
    authority = cluster.control_plane.authority.certificate.decode()
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node}")
    [address] = [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"]
    connection = http.client.HTTPSConnection(
        address,
        node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"],
        timeout=DEADLINE_SECONDS,
        context=ssl.create_default_context(cadata=authority),
    )
    with closing(connection):
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/metrics/resource", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def busy(name: str) -> Json:
    """A container that computes as much as it may, and holds memory."""
    hold = f"dd if=/dev/zero of=/held/file bs=1M count={MEMORY_MIB}; while :; do :; done"
    limits = {"cpu": f"{CPU_LIMIT * 1000:.0f}m", "memory": "256Mi"}
    mounts = [{"name": "held", "mountPath": "/held"}]
    return shell(name, hold, resources={"limits": limits}, volumeMounts=mounts)


def test_the_use_of_node_and_pods_is_what_they_do(
    local_cluster: LocalCluster, namespace: Namespace, token: str
) -> None:
    volume = {"name": "held", "emptyDir": {"medium": "Memory"}}
    namespace.add("busy", busy("c"), volumes=[volume])
    namespace.wait("busy", is_ready)
    key = (namespace.name, "busy", "c")
    node = ("", "", "")
    seen: list[Mapping[Key, Point]] = []

    def used() -> Mapping[Key, Use]:
        status, text = ask(local_cluster, token)
        if status == http.client.OK:
            seen.append(points(text))
        return top(seen[0], seen[-1]) if len(seen) > 1 else {}

    def is_what_it_does() -> bool:
        found = used()
        if key not in found or node not in found:
            return False
        pod, whole = found[key], found[node]
        if pod.memory_bytes < MEMORY_MIB * MI or not 0.5 * CPU_LIMIT < pod.cpus < 1.3 * CPU_LIMIT:
            del seen[0]  # What was before the pod was at work, or a reading of the same moment.
            return False
        return whole.cpus > pod.cpus and whole.memory_bytes > pod.memory_bytes

    wait_until(is_what_it_does, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: f"{seen[-2:]}")


def test_a_token_without_that_right_reads_nothing(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    token = namespace.kubectl("create", "token", "default").strip()
    status, words = ask(local_cluster, token)
    assert (status, "Forbidden" in words) == (http.client.FORBIDDEN, True)
