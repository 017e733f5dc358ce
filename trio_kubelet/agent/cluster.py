"""The parts that an API server adds to the agent, and those in their place where there is none.

`Cluster` is made as soon as there are clients, before the runtime has answered: the Node object is
kept from then on, and says that the node is not ready. `ClusterPods` is made with the parts that
run pods: it brings the pods that are bound to this node to the sync loop, and statuses and mirrors
of static pods to the API. An API server that is away holds nothing up: what the node has from
elsewhere runs, and what runs goes on.
"""

import math
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog
import trio

from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.policies import EVICTION_FIELDS
from trio_kubelet.agent.traces import Traces
from trio_kubelet.csi import DriverSettings, NoDriverSettings, VolumeLimits
from trio_kubelet.dra import ResourceSliceRemoval
from trio_kubelet.k8s import NODES, Node, Pod, PodStatus
from trio_kubelet.k8s.client import ApiClients, ApiError
from trio_kubelet.node.csi_node import CSINodeInfo
from trio_kubelet.node.lease import NodeLease
from trio_kubelet.node.observer import NodeObserver, Readiness, relist_errors
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.reporter import NodeReporter, NodeView
from trio_kubelet.references import NoReferences, References
from trio_kubelet.runtime.handlers import RuntimeClasses
from trio_kubelet.runtime.lifecycle.sandbox_creator import default_handler
from trio_kubelet.sources import PodUpdates, Source, watch_api_pods
from trio_kubelet.sources.mirrors import MirrorPods
from trio_kubelet.status import StatusWriter
from trio_kubelet.sync.pod_task import PodRequest
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.telemetry import EventType
from trio_kubelet.volumes import StagedVolumes

log = structlog.get_logger("cluster")

CHANCE = random.Random()  # noqa: S311 - it only spreads load

REFRESH_SECONDS = 5.0
"""The time that admission waits for the newest version of the node."""

Recall = Callable[[Pod], None]
"""Takes up what an earlier agent has told of the containers of a static pod, by its mirror."""

OpenClients = Callable[[Traces | None], AbstractAsyncContextManager[ApiClients]]
"""Opens the clients; may wait long for credentials. Raises StartError."""


class NoPodObjects:
    """The pods of a node without an API server: they are in its sources alone."""

    async def run(self) -> None:
        """There is nothing to follow."""
        await trio.lowlevel.checkpoint()

    def is_told(self, _uid: str) -> bool:
        """Nobody has to be told anything."""
        return True


class Standalone:
    """A node without an API server."""

    has_runtime_classes = False
    refresh_node = None
    reviews = None
    sources: frozenset[Source] = frozenset()
    references = NoReferences()
    csi_settings = NoDriverSettings()
    volume_limits = None
    runtime_handler = staticmethod(default_handler)

    def node(self) -> None:
        """There is no Node object."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """There is nothing to keep up to date."""
        task_status.started()

    def follow_volumes(self, staged: StagedVolumes) -> None:
        """Nobody attaches volumes to the node."""

    def join(
        self,
        tasks: PodTasks,  # noqa: ARG002
        updates: PodUpdates,  # noqa: ARG002
        recall: Recall,  # noqa: ARG002
    ) -> NoPodObjects:
        """Nobody has pods for this node, or wants to know of any."""
        return NoPodObjects()


class Cluster:
    """The parts that make the machine a node: Node object, lease, events, objects of pods."""

    has_runtime_classes = True
    sources = frozenset({Source.API})

    def __init__(self, parts: NodeParts, clients: ApiClients) -> None:
        settings = parts.settings
        profile = NodeProfile(
            name=parts.node_name,
            settings=settings,
            machine=parts.host.machine,
            resources=parts.resources.amounts(),
        )
        self._parts = parts
        self.clients = clients
        self.reviews = clients.reviews
        self.view = NodeView(parts.node_name)
        self.references = References(
            clients.main,
            clock=parts.clock,
            strategy=settings.configuration.config_map_and_secret_change_detection_strategy,
            trust_bundles=settings.gates["ClusterTrustBundleProjection"],
        )
        self._classes = RuntimeClasses(clients.main)
        self.csi_settings = DriverSettings(clients.main)
        self.volume_limits = VolumeLimits(parts.csi_drivers, self.csi_settings)
        self.runtime_handler = self._classes.handler
        readiness = Readiness(
            parts.runtime_health,
            (self._relist_errors, parts.shutdown.errors),
            has_listed=self._has_listed,
        )
        self.reporter = NodeReporter(
            profile=profile,
            resources=parts.resources.amounts,
            view=self.view,
            api=clients.main,
            heartbeat=clients.heartbeat,
            observe=NodeObserver(
                profile=profile,
                client=parts.client,
                runtime_health=parts.runtime_health,
                readiness=readiness,
                pressures=parts.pressure.current,
            ).observe,
            recorder=parts.recorder,
            clock=parts.clock,
            chance=CHANCE,
        )
        parts.live.follow(
            ("nodeStatusReportFrequency", "nodeStatusUpdateFrequency"),
            lambda: self.reporter.use(parts.settings),
        )
        parts.live.follow(EVICTION_FIELDS, self.reporter.wake)  # Allocatable follows from them.
        for changed in (
            readiness.on_change,
            parts.pressure.on_change,
            parts.shutdown.on_change,
            parts.devices.plugins.on_change,
        ):
            changed.add(self.reporter.wake)
        self._slice_removal = ResourceSliceRemoval(parts.dra_drivers, parts.node_name, clients.main)
        self._lease = NodeLease(
            api=clients.heartbeat,
            view=self.view,
            clock=parts.clock,
            seconds=settings.configuration.node_lease_duration_seconds,
            chance=CHANCE,
            on_return=self._api_is_back,
        )

    def node(self) -> Node | None:
        """The Node object as it is known; None while there is none."""
        return self.view.current

    async def refresh_node(self) -> None:
        """Fetch the Node object; where that fails or takes too long, what is known counts."""
        try:
            node = await self.clients.main.get(
                NODES, self._parts.node_name, deadline_seconds=REFRESH_SECONDS
            )
        except ApiError as error:
            log.info("node fetch for admission failed", error=str(error))
        else:
            self.view.offer(node)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep all of it up to date until cancelled. It does not wait for the runtime."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._parts.events.run, self.clients.events)
            nursery.start_soon(self.view.watch, self.clients.main)
            nursery.start_soon(self._classes.run)
            nursery.start_soon(self.csi_settings.run)
            nursery.start_soon(self.volume_limits.run)
            nursery.start_soon(self._report)
            nursery.start_soon(self._lease.run)
            nursery.start_soon(self._slice_removal.run)
            nursery.start_soon(
                CSINodeInfo(self._parts.csi_drivers, self.view, self.clients.main).run
            )
            await nursery.start(self.references.run)
            task_status.started()

    def follow_volumes(self, staged: StagedVolumes) -> None:
        """Tell the cluster which volumes the node uses, and the volumes when they are attached."""
        self.reporter.volumes_in_use = staged.in_use
        staged.on_use.add(self.reporter.wake)
        self.view.on_version.add(lambda _: staged.node_changed())

    def join(self, tasks: PodTasks, updates: PodUpdates, recall: Recall) -> "ClusterPods":
        """Follow what becomes of pods from now on; its `run` is to be run until the end."""
        return ClusterPods(self._parts, self, tasks, updates, recall)

    async def _report(self) -> None:
        await self._parts.serves_others.wait()
        await self.reporter.run()

    def _has_listed(self) -> bool:
        return math.isfinite(self._parts.pleg.seconds_since_relist())

    def _relist_errors(self) -> tuple[str, ...]:
        pleg = self._parts.pleg
        return relist_errors(pleg.seconds_since_relist(), pleg.health_threshold_seconds())

    def _api_is_back(self) -> None:
        """The heartbeat, which asks most often, has found it out."""
        self.reporter.returned()
        self.clients.main.recovery.tell()


class ClusterPods:
    """The pods of this node in the API: those bound to it, statuses, mirrors of static pods."""

    def __init__(
        self,
        parts: NodeParts,
        cluster: Cluster,
        tasks: PodTasks,
        updates: PodUpdates,
        recall: Recall,
    ) -> None:
        api = cluster.clients.main
        self._parts = parts
        self._cluster = cluster
        self._tasks = tasks
        self._updates = updates
        self._recall = recall
        self._shown: set[str] = set()
        self._writer = StatusWriter(api, self._newest_status, self._is_over, parts.status_syncs)
        self._writer.on_refused.add(self._status_refused)
        self._mirrors = MirrorPods(
            api,
            parts.node_name,
            parts.static_sources,
            tasks.is_released,
            self._newest_status,
            self._mirror_changed,
        )
        updates.on_update.add(self._mirrors.static_changed)
        parts.statuses.on_change.add(self._writer.status_changed)
        parts.statuses.on_change.add(self._mirrors.status_changed)
        tasks.on_released.add(self._mirrors.released)
        tasks.on_finished.add(lambda uid, _: self._writer.look_at(uid))
        cluster.references.on_change.add(
            lambda uid: tasks.put(uid, PodRequest(why=("configuration data",)))
        )
        cluster.view.on_version.add(self._on_node)
        self._on_node(cluster.view.current)

    async def run(self) -> None:
        """Follow the pods, send statuses, keep mirrors, until cancelled.

        What the runtime has is known by now: nothing else may keep the node from being ready.
        """
        self._cluster.reporter.wake()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._writer.run)
            await nursery.start(self._mirrors.run)
            await self._cluster.view.wait_known()
            await watch_api_pods(
                self._cluster.clients.main,
                self._parts.node_name,
                self._updates.send,
                merge=self._updates.merge,
                pods=self._writer,
                mirrors=self._mirrors,
            )

    def is_told(self, uid: str) -> bool:
        """True if the API shows the newest status of a pod, or does not have the pod."""
        return self._writer.is_told(uid)

    def _on_node(self, node: Node | None) -> None:
        if node is None or node.metadata.deletion_timestamp is not None:
            self._mirrors.node_changed("")
        else:
            self._mirrors.node_changed(node.metadata.uid)

    def _mirror_changed(self, uid: str, mirror: Pod | None) -> None:
        """A static pod has this mirror; what the first one tells is that of an earlier agent.

        Nothing is sent to it before the pod has a status that goes on from there.
        """
        if mirror is None:
            self._shown.discard(uid)
        elif uid not in self._shown:
            self._shown.add(uid)
            self._recall(mirror)
            if (task := self._tasks.get(uid)) is not None:
                task.report()
                task.put(PodRequest(why=("mirror",)))
        self._writer.mirror_changed(uid, mirror)

    def _status_refused(self, uid: str, shown: Pod, why: str, seconds: float) -> None:
        """The API cannot be shown a pod as it is: its owner is told, and its task looks anew."""
        message = f"The API server refused the status of the pod: {why}"
        if seconds:
            message += f"; the next one is sent in {seconds:.0f} s"
        self._parts.recorder.pod(shown, EventType.WARNING, "FailedStatusUpdate", message)
        self._tasks.put(uid, PodRequest(why=("status refused",)))

    def _newest_status(self, uid: str) -> PodStatus | None:
        """The node's status of a pod; none while another incarnation of its UID still ends."""
        stored, task = self._parts.store.get(uid), self._tasks.get(uid)
        if stored is not None and task is not None and stored.incarnation != task.incarnation:
            return None
        return self._parts.statuses.get(uid)

    def _is_over(self, uid: str) -> bool:
        """True if a pod was here and nothing of it is left but its object."""
        stored = self._parts.store.get(uid)
        return stored is not None and stored.over and uid not in self._tasks
