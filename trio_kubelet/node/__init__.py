"""The machine as a node: its name, its size, its addresses, and its objects in the cluster.

`NodeReporter` registers the node and reports its status, `NodeLease` renews its lease, `NodeView`
is what the cluster says about it. `bootstrap.py` gets the node its first certificate.
"""

from trio_kubelet.node.profile import node_name
from trio_kubelet.node.resources import node_resources

__all__ = [
    "node_name",
    "node_resources",
]
