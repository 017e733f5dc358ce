"""Pods that the scheduler did not choose this node for, and that it will not have."""

from collections.abc import Mapping

import pytest

from tests.e2e.cluster import Namespace, is_over, is_ready, phase, until_term
from tests.e2e.local import LocalCluster

# What the pod asks for, and with which reason and words the node refuses it.
REJECTED: Mapping[str, tuple[dict[str, object], str, str]] = {
    "node selector": (
        {"nodeSelector": {"no": "such"}},
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    ),
    "processors": (
        {"containers": [until_term("c", resources={"requests": {"cpu": "1000"}})]},
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1000000, used: ",
    ),
    "memory": (
        {"containers": [until_term("c", resources={"requests": {"memory": "1000Ti"}})]},
        "OutOfmemory",
        "Node didn't have enough resource: memory, requested: 1099511627776000, used: ",
    ),
    "a forbidden sysctl": (
        {"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "128"}]}},
        "SysctlForbidden",
        'forbidden sysctl: "net.core.somaxconn" not allowlisted',
    ),
}


@pytest.mark.parametrize("why", REJECTED)
def test_a_pod_that_the_node_cannot_have_fails_with_the_reason(
    namespace: Namespace, why: str
) -> None:
    fields, reason, words = REJECTED[why]
    _bind(namespace, "refused", fields)
    status = namespace.wait("refused", is_over)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", reason)
    assert status["message"].startswith(f"Pod was rejected: {words}")
    namespace.wait_event("refused", reason, words)


def test_a_resource_that_no_node_has_is_not_the_nodes_affair(namespace: Namespace) -> None:
    """A scheduler extender may have given it; the Go kubelet passes over what it does not know."""
    amount = {"example.com/gpu": "1"}
    resources = {"requests": amount, "limits": amount}
    _bind(namespace, "runs", {"containers": [until_term("c", resources=resources)]})
    namespace.wait("runs", is_ready)


def test_a_host_port_has_one_owner(namespace: Namespace) -> None:
    ports = [{"containerPort": 80, "hostPort": 39871, "hostIP": "127.0.0.1"}]
    fields: dict[str, object] = {"containers": [until_term("c", ports=ports)]}
    _bind(namespace, "owner", fields)
    namespace.wait("owner", is_ready)
    _bind(namespace, "second", fields)
    status = namespace.wait("second", is_over)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "NodePorts")
    words = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
    assert status["message"] == f"Pod was rejected: {words}"
    assert phase(namespace.pod("owner")) == "Running"


def test_a_pod_that_tolerates_nothing_is_refused_by_a_taint(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """The node refuses it, while the controllers, which would evict it, look away.

    It asks for a label that comes with the taint, so the agent knows the one if it has the other.
    """
    path = f"/api/v1/nodes/{local_cluster.node}"
    taint = {"key": "lab/closed", "effect": "NoExecute"}
    with local_cluster.control_plane.controllers_paused():
        closed = {"metadata": {"labels": {"lab/closed": "yes"}}, "spec": {"taints": [taint]}}
        local_cluster.api.patch(path, closed)
        try:
            _bind(namespace, "refused", {"nodeSelector": {"lab/closed": "yes"}})
            status = namespace.wait("refused", is_over)["status"]
        finally:
            opened = {"metadata": {"labels": {"lab/closed": None}}, "spec": {"taints": None}}
            local_cluster.api.patch(path, opened)
    assert (status["phase"], status["reason"]) == ("Failed", "TaintToleration")
    words = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    assert status["message"] == f"Pod was rejected: {words}"
    namespace.wait_event("refused", "TaintToleration", words)


def test_a_rejected_pod_can_be_deleted(namespace: Namespace) -> None:
    _bind(namespace, "refused", {"nodeSelector": {"no": "such"}})
    namespace.wait("refused", is_over)
    namespace.kubectl("delete", "pod", "refused", "--timeout=30s")


def _bind(namespace: Namespace, name: str, fields: dict[str, object]) -> None:
    """Create a pod that is bound to the node from the beginning: no scheduler looks at it."""
    containers = fields.get("containers", [until_term("c")])
    spec = {"nodeName": namespace.node, "terminationGracePeriodSeconds": 1, **fields}
    namespace.create("Pod", name, {"spec": {**spec, "containers": containers}})
