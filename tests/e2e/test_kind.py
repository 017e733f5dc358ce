"""What there is on kind's nodes alone: a control plane in static pods."""

import re

from lab.cluster_api import Json
from lab.kind.cluster import CONTROL_PLANE
from lab.processes import wait_until
from tests.e2e.cluster import container_ids, is_ready
from tests.e2e.kind import ClusterOfKind

DEADLINE_SECONDS = 120
NODE = f"/api/v1/nodes/{CONTROL_PLANE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{CONTROL_PLANE}"
PODS = "/api/v1/namespaces/kube-system/pods"
NAMES = {
    f"{program}-{CONTROL_PLANE}"
    for program in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
}
PROGRAM = "readlink /proc/$(systemctl show --property MainPID --value kubelet)/exe"


def test_a_control_plane_runs_on_while_its_node_changes_hands(
    cluster_of_kind: ClusterOfKind,
) -> None:
    kind = cluster_of_kind.kind
    before = _pods(cluster_of_kind)
    assert {pod["metadata"]["name"] for pod in before} == NAMES
    for change, program in ((kind.install_agent, "python"), (kind.give_back, "kubelet")):
        change(CONTROL_PLANE)
        _wait_for_heartbeat(cluster_of_kind)
        assert program in kind.on(CONTROL_PLANE, PROGRAM)
        _wait_for_probes(cluster_of_kind)
        for name in NAMES:
            path = f"{PODS}/{name}"
            cluster_of_kind.api.wait_for(path, is_ready, deadline_seconds=DEADLINE_SECONDS)
        after = _pods(cluster_of_kind)
        assert container_ids(after) == container_ids(before)
        assert _uids(after) == _uids(before)


def _wait_for_heartbeat(cluster: ClusterOfKind) -> None:
    renewed = cluster.api.get(LEASE)["spec"]["renewTime"]

    def is_newer(lease: Json) -> bool:
        return bool(lease["spec"]["renewTime"] > renewed)

    cluster.api.wait_for(LEASE, is_newer, deadline_seconds=DEADLINE_SECONDS)
    cluster.api.wait_for(NODE, is_ready, deadline_seconds=DEADLINE_SECONDS)


def _wait_for_probes(cluster: ClusterOfKind) -> None:
    """Wait until each program's liveness probe has succeeded; none may fail."""

    def have_succeeded() -> bool:
        probed = _liveness_probes(cluster)
        assert "failed" not in probed.values()
        return len(probed) == len(NAMES)

    wait_until(
        have_succeeded,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"liveness probes of {_liveness_probes(cluster)}",
    )


def _liveness_probes(cluster: ClusterOfKind) -> dict[str, str]:
    """Whom the node's agent has probed since its start, with the result."""
    lines = cluster.kubectl("get", "--raw", f"{NODE}/proxy/metrics/probes").splitlines()
    counted = [line for line in lines if line.startswith("prober_probe_total{")]
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in counted]
    of_liveness = [
        each for each in labels if each["probe_type"] == "Liveness" and each["pod"] in NAMES
    ]
    failures_last = sorted(of_liveness, key=lambda each: each["result"] == "failed")
    return {each["pod"]: each["result"] for each in failures_last}


def _pods(cluster: ClusterOfKind) -> list[Json]:
    """Those of the control plane; kind's own image brings others beside them."""
    return [pod for pod in cluster.api.get(PODS)["items"] if pod["metadata"]["name"] in NAMES]


def _uids(pods: list[Json]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods]
