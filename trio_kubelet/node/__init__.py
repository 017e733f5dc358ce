"""The machine as a node: its name, its size, its addresses."""

from trio_kubelet.node.facts import gather_dns, gather_facts, host_addresses, node_name

__all__ = ["gather_dns", "gather_facts", "host_addresses", "node_name"]
