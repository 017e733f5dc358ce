"""A node beside an external cloud provider, whose part the tests take, on a real API server."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
from attrs import frozen

from lab.cluster_api import Json
from tests.e2e.cluster import Namespace, is_ready, is_usable, until_term
from tests.e2e.local import LocalCluster

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"
PROVIDER_ID = "lab://rack-1/node-7"
TOLERATION = {"key": UNINITIALIZED, "operator": "Exists"}


def addresses(node: Json) -> Mapping[str, str]:
    """The addresses of a node, by type."""
    return {each["type"]: each["address"] for each in node["status"].get("addresses", ())}


def taints(node: Json) -> Sequence[str]:
    return [each["key"] for each in node["spec"].get("taints", ())]


def is_unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(
        each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


@frozen
class NewNode:
    """A node that the API server has never seen, before its agent starts; `address` is its own."""

    path: str
    address: str


@pytest.fixture
def node(local_cluster: LocalCluster) -> Iterator[NewNode]:
    """A new node; afterwards the cluster has the one that it had."""
    path = f"/api/v1/nodes/{local_cluster.node}"
    known = local_cluster.wait_node_ready()
    local_cluster.stop_agent()
    local_cluster.api.delete(path)
    yield NewNode(path, addresses(known)["InternalIP"])
    local_cluster.stop_agent()
    local_cluster.api.delete(path)
    local_cluster.restart_agent()
    local_cluster.wait_node_ready()


def test_a_node_waits_for_its_cloud_provider_and_takes_its_word(
    local_cluster: LocalCluster, namespace: Namespace, node: NewNode
) -> None:
    api = local_cluster.api
    flags = ("--cloud-provider=external", f"--node-ip={node.address}")
    local_cluster.restart_agent(*flags, providerID=PROVIDER_ID)
    registered = api.wait_for(node.path, is_ready)
    assert registered["spec"]["providerID"] == PROVIDER_ID
    assert UNINITIALIZED in taints(registered)
    assert registered["metadata"]["annotations"][PROVIDED_NODE_IP] == node.address
    assert addresses(registered)["InternalIP"] == node.address

    namespace.run("of-the-cloud", until_term("c"), tolerations=[TOLERATION])
    namespace.add("usual", until_term("c"))
    namespace.wait("usual", is_unschedulable)

    given = [
        {"type": "InternalIP", "address": node.address},
        {"type": "ExternalIP", "address": "198.51.100.7"},
        {"type": "Hostname", "address": "node-7.rack-1.example.com"},
    ]
    api.patch(f"{node.path}/status", {"status": {"addresses": given}})
    api.patch(node.path, {"spec": {"taints": None}})
    namespace.wait("usual", is_ready)
    local_cluster.restart_agent(*flags, providerID=PROVIDER_ID)
    heartbeat = last_heartbeat(api.get(node.path))
    seen = api.wait_for(node.path, lambda found: last_heartbeat(found) != heartbeat)
    assert seen["status"]["addresses"] == given, "the cloud provider's word counts more"
    assert is_usable(seen), "a node that was looked at is not tainted anew"


def last_heartbeat(node: Json) -> str:
    (ready,) = (each for each in node["status"]["conditions"] if each["type"] == "Ready")
    found: str = ready["lastHeartbeatTime"]
    return found


def test_without_a_node_ip_only_the_cloud_provider_says_where_the_node_is(
    local_cluster: LocalCluster, node: NewNode
) -> None:
    local_cluster.restart_agent("--cloud-provider=external")
    registered = local_cluster.api.wait_for(node.path, is_ready)
    assert PROVIDED_NODE_IP not in registered["metadata"]["annotations"]
    assert addresses(registered) == {"Hostname": local_cluster.node}
