"""Tells the cluster which CSI drivers this node has: the object CSINode, and the Node's metadata.

The desired state follows from the drivers that have registered, and is written whenever they, or
what is known of the Node, change: an API server that is away delays it, and no registration fails
for it. A driver that goes leaves CSINode and the annotation; labels of its topology stay, as in the
Go kubelet, because volumes of other drivers and pods may count on them.

What an earlier agent told of a driver stays until that driver has registered with this one: its
volumes at the node are still there, and the controller that attaches them asks for its id. An entry
of a driver that never comes again stays, as in the Go kubelet.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import orjson
import structlog
import trio
from attrs import evolve, frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.csi.driver import NodeInfo
from trio_kubelet.csi.drivers import CSIDrivers
from trio_kubelet.k8s import (
    CSI_NODES,
    NODES,
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    Node,
    ObjectMeta,
    OwnerReference,
    VolumeNodeResources,
)
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.node.reporter import NodeView
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("csi")

RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=30.0, jitter=0.2)

NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"
"""On the Node: what each driver calls it, as a JSON object."""
MIGRATED_ANNOTATION = "storage.alpha.kubernetes.io/migrated-plugins"
"""On the CSINode: in-tree plugins in whose place this node uses a CSI driver."""
MIGRATED_PLUGINS = ",".join(
    f"kubernetes.io/{name}"
    for name in (
        *("aws-ebs", "azure-disk", "azure-file", "cinder", "gce-pd", "portworx-volume"),
        "vsphere-volume",
    )
)


@frozen
class CSINodeInfo:
    """Keeps the cluster's picture of this node's drivers true."""

    _drivers: CSIDrivers
    _view: NodeView
    _api: Api

    async def run(self) -> None:
        """Write for ever. An API server that is away is waited for."""
        changes, seen = _Changes(), set(self._drivers.nodes())
        # One that comes and goes between two looks counts, too.
        self._drivers.on_change.add(lambda: seen.update(self._drivers.nodes()))
        self._drivers.on_change.add(changes.wake)
        self._drivers.on_limit.add(changes.wake)
        self._view.on_version.add(lambda _node: changes.wake())
        retries = Retries(RETRY)
        written: tuple[str, Mapping[str, NodeInfo], AbstractSet[str]] | None = None
        refused: Mapping[str, object] = {}
        while True:
            changes.clear()
            node = await self._view.wait_known()
            nodes, own = self._drivers.nodes(), frozenset(seen)
            try:
                metadata = node_metadata_changes(node, nodes, own)
                if metadata != refused:
                    refused = {} if await self._annotate(node, metadata) else metadata
                if (node.metadata.uid, nodes, own) != written:
                    await self._write(node, nodes, own)
                    written = node.metadata.uid, nodes, own
            except ApiError as error:
                retries.warn(log, "CSINode update failed, will retry", error=str(error))
                recovered = self._api.recovery.next
                with trio.move_on_after(retries.next_seconds()):
                    await recovered.wait()
            except Exception:
                log.exception("CSINode update failed")
                await retries.wait()
            else:
                retries.reset()
                await changes.wait()

    async def _annotate(self, node: Node, metadata: Mapping[str, object]) -> bool:
        """Give the Node what it lacks of its metadata; False if the API server will not have it."""
        if not metadata:
            return True
        name = node.metadata.name
        try:
            answer = await self._api.patch(
                NODES, name, body={"metadata": metadata}, subresource="status"
            )
        except ApiError as error:
            if not (error.is_forbidden or error.reason == "Invalid"):
                raise
            # Labels of one driver must not keep the others from being known.
            log.warning("node labels of CSI drivers were refused", error=str(error))
            return False
        self._view.offer(answer)
        return True

    async def _write(
        self, node: Node, nodes: Mapping[str, NodeInfo], own: AbstractSet[str]
    ) -> None:
        """Make the CSINode what it is to be; what it tells of drivers that are not `own` stays.

        What is told of a driver cannot be changed in place, but for the number of its volumes where
        the API server is new enough: it is taken out first.
        """
        drivers = csi_node_drivers(nodes)
        try:
            known = await self._api.get(CSI_NODES, node.metadata.name)
        except ApiError as error:
            if not error.is_not_found:
                raise
            await self._api.create(CSI_NODES, new_csi_node(node, drivers))
            return
        drivers = merged(known.spec.drivers, drivers, own)
        if _differ_in_limits(known, drivers) and await self._replaced(known, drivers):
            return
        unchanged = tuple(each for each in known.spec.drivers if each in drivers)
        if _differ(known, unchanged) and {each.name for each in known.spec.drivers} & {
            each.name for each in drivers if each not in unchanged
        }:
            known = await self._api.update(CSI_NODES, _evolved(known, unchanged))
        if _differ(known, drivers):
            await self._api.update(CSI_NODES, _evolved(known, drivers))

    async def _replaced(self, known: CSINode, drivers: tuple[CSINodeDriver, ...]) -> bool:
        """Write what is told of drivers in place; False if the API server will not have that."""
        try:
            await self._api.update(CSI_NODES, _evolved(known, drivers))
        except ApiError as error:
            if error.reason != "Invalid":
                raise
            return False
        return True


class _Changes:
    """A signal that is set from any callback and waited for by one task."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def wake(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


def csi_node_drivers(nodes: Mapping[str, NodeInfo]) -> tuple[CSINodeDriver, ...]:
    """Return what CSINode tells of the drivers, in the order of their names."""
    return tuple(
        CSINodeDriver(
            name=name,
            node_id=node.node_id,
            topology_keys=tuple(sorted(node.topology)),
            allocatable=VolumeNodeResources(count=node.max_volumes) if node.max_volumes else None,
        )
        for name, node in sorted(nodes.items())
    )


def merged(
    found: tuple[CSINodeDriver, ...], drivers: tuple[CSINodeDriver, ...], own: AbstractSet[str]
) -> tuple[CSINodeDriver, ...]:
    """Return what CSINode is to tell, in the order of names: of the drivers in `own`, `drivers`.

    What was found there of other drivers stays.
    """
    kept = (each for each in found if each.name not in own)
    return tuple(sorted((*drivers, *kept), key=lambda each: each.name))


def new_csi_node(node: Node, drivers: tuple[CSINodeDriver, ...]) -> CSINode:
    """Return the object for a node that has none; it goes with the Node."""
    owner = OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid
    )
    return CSINode(
        api_version=CSI_NODES.api_version,
        kind=CSI_NODES.kind,
        metadata=ObjectMeta(
            name=node.metadata.name,
            owner_references=(owner,),
            annotations={MIGRATED_ANNOTATION: MIGRATED_PLUGINS},
        ),
        spec=CSINodeSpec(drivers=drivers),
    )


def node_metadata_changes(
    node: Node, nodes: Mapping[str, NodeInfo], own: AbstractSet[str]
) -> Mapping[str, object]:
    """Return the patch of a Node's metadata that tells of the drivers; empty if nothing is new.

    The annotation keeps the ids of drivers that are not in `own`: those that have registered.
    A label that has another value already is left alone, and logged: two drivers, or a driver and
    an administrator, name the node's place differently.
    """
    changes: dict[str, object] = {}
    told = _node_ids(node)
    ids = {name: each.node_id for name, each in nodes.items()}
    if isinstance(told, dict):
        ids |= {n: i for n, i in told.items() if n not in own and isinstance(i, str)}
    if told != ids:
        text = orjson.dumps(ids, option=orjson.OPT_SORT_KEYS).decode() if ids else None
        changes["annotations"] = {NODE_ID_ANNOTATION: text}
    labels: dict[str, str] = {}
    for name, each in nodes.items():
        for key, value in each.topology.items():
            existing = node.metadata.labels.get(key, labels.get(key))
            if existing is None:
                labels[key] = value
            elif existing != value:
                log.warning(
                    "topology value collision",
                    driver=name,
                    label=key,
                    reported=value,
                    existing=existing,
                )
    if labels:
        changes["labels"] = labels
    return changes


def _node_ids(node: Node) -> object:
    """The ids that the Node's annotation tells; None for what is no JSON."""
    text = node.metadata.annotations.get(NODE_ID_ANNOTATION, "{}")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _differ(known: CSINode, drivers: tuple[CSINodeDriver, ...]) -> bool:
    in_order = sorted(known.spec.drivers, key=lambda each: each.name)
    migrated = known.metadata.annotations.get(MIGRATED_ANNOTATION)
    return tuple(in_order) != drivers or migrated != MIGRATED_PLUGINS


def _differ_in_limits(known: CSINode, drivers: tuple[CSINodeDriver, ...]) -> bool:
    """True if the numbers of volumes of some drivers are all that has changed."""
    in_order = tuple(sorted(known.spec.drivers, key=lambda each: each.name))
    return in_order != drivers and (
        tuple(evolve(each, allocatable=None) for each in in_order)
        == tuple(evolve(each, allocatable=None) for each in drivers)
    )


def _evolved(known: CSINode, drivers: tuple[CSINodeDriver, ...]) -> CSINode:
    annotations = {**known.metadata.annotations, MIGRATED_ANNOTATION: MIGRATED_PLUGINS}
    return evolve(
        known,
        metadata=evolve(known.metadata, annotations=annotations),
        spec=CSINodeSpec(drivers=drivers),
    )
