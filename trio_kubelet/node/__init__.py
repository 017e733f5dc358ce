"""The machine as a node: its name, its size, its addresses, and its objects in the cluster."""

from trio_kubelet.node.facts import gather_dns, gather_facts, host_addresses
from trio_kubelet.node.names import node_name

__all__ = ["gather_dns", "gather_facts", "host_addresses", "node_name"]
