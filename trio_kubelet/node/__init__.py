"""The machine as a node: its name, its size, its addresses, and its objects in the cluster.

`NodeReporter` registers the node and reports its status, `NodeLease` renews its lease, `NodeView`
is what the cluster says about it. `bootstrap.py` gets the node its first certificate.
"""

from trio_kubelet.node.facts import gather_dns, gather_facts, host_addresses, read_hosts
from trio_kubelet.node.machine import MachineInfo, read_machine
from trio_kubelet.node.observation import Pressures
from trio_kubelet.node.profile import NodeProfile, node_name, node_profile
from trio_kubelet.node.readiness import relist_errors
from trio_kubelet.node.resources import NodeResources, node_resources
from trio_kubelet.node.view import NodeView

__all__ = [
    "MachineInfo",
    "NodeProfile",
    "NodeResources",
    "NodeView",
    "Pressures",
    "gather_dns",
    "gather_facts",
    "host_addresses",
    "node_name",
    "node_profile",
    "node_resources",
    "read_hosts",
    "read_machine",
    "relist_errors",
]
