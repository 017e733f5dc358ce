"""The Node object as the cluster has it: one place that knows the newest version.

It is followed by list-and-watch; answers to the agent's own writes are handed in too, because they
are newer than what the watch has shown so far. Admission reads labels, taints and allocatable
here, the status and the lease start from it.
"""

import trio

from trio_kubelet.k8s import NODES, Node
from trio_kubelet.k8s.client import Api, Changed, Removed, Selection, Synced, WatchEvent, reflect
from trio_kubelet.k8s.versions import version_number
from trio_kubelet.tasks.callbacks import Callbacks


class NodeView:
    """The newest known version of one node. Written by its watch and by those who wrote to it.

    `current` is None before it is known and after it was deleted; `is_synced` says that the API
    server has been asked once, so that None means that there is no such node. `on_version` is
    called with each version, with None when the node is gone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.current: Node | None = None
        self.is_synced = False
        self._known = trio.Event()
        self.on_version: Callbacks[[Node | None]] = Callbacks()

    async def wait_known(self) -> Node:
        """Return the node as soon as there is one."""
        while self.current is None:
            await self._known.wait()
        return self.current

    async def watch(self, api: Api) -> None:
        """Follow the node for ever, whatever breaks."""
        await reflect(api, NODES, self._on_event, Selection(fields=f"metadata.name={self.name}"))

    def offer(self, node: Node) -> None:
        """Take a version over, unless a newer one of the same node is known."""
        known = self.current
        is_same = known is not None and known.metadata.uid == node.metadata.uid
        if known is None or not is_same or _version(node) >= _version(known):
            self._set(node)

    async def _on_event(self, event: WatchEvent[Node]) -> None:
        match event:
            case Changed(object=node):
                self.offer(node)
            case Removed(object=node):
                self._remove(node)
            case Synced():
                self.is_synced = True

    def _remove(self, node: Node) -> None:
        if self.current is not None and self.current.metadata.uid == node.metadata.uid:
            self._set(None)

    def _set(self, node: Node | None) -> None:
        self.current = node
        if node is None:
            self._known = trio.Event()
        else:
            self._known.set()
        self.on_version.call(node)


def _version(node: Node) -> int:
    """The resource version as a number; the API compares them so (KEP-5504)."""
    return max(0, version_number(node.metadata.resource_version))
