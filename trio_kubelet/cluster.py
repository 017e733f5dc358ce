"""The parts that only a node of a cluster has, and when each of them starts.

    api        the clients, once there are credentials, which a bootstrap asks for
    events     events of the recorder                             → API
    node       the Node object: watched, registered, reported; its lease
    pods       pods that are bound to this node                   → sync loop
    statuses   statuses of pods, and deleted pods                 → API
    mirrors    static pods                                        → API
    references secrets, config maps, tokens, services of the pods here
    classes    the runtime classes

A node without an API server has none of this. One whose API server is away starts all the same:
what it has from elsewhere runs, and what runs goes on.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog
import trio

from trio_kubelet.assembly import Foundation, read_profile
from trio_kubelet.k8s import NODES, Node, PodStatus
from trio_kubelet.k8s.client import ApiClients, ApiError
from trio_kubelet.node.lease import NodeLease
from trio_kubelet.node.observer import NodeObserver
from trio_kubelet.node.readiness import Readiness, relist_errors
from trio_kubelet.node.reporter import NodeReporter
from trio_kubelet.node.view import NodeView
from trio_kubelet.pleg import Pleg
from trio_kubelet.references import References
from trio_kubelet.runtime.runtime_classes import RuntimeClasses
from trio_kubelet.sources import PodUpdate, Source, SourceMerge
from trio_kubelet.sources.apiserver import watch_api_pods
from trio_kubelet.sources.mirrors import MirrorPods
from trio_kubelet.startup import Step, forever, once
from trio_kubelet.status import Statuses, StatusWriter
from trio_kubelet.sync.mailbox import Request
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.telemetry.event_writer import EventWriter

log = structlog.get_logger("cluster")

CHANCE = random.Random()  # noqa: S311 - it only spreads load

IDLE_SECONDS = 0.1
"""When no pod has been started or stopped for so long, events are written."""

REFRESH_SECONDS = 5.0
"""How long admission waits for the newest version of the node."""

OpenClients = Callable[[], AbstractAsyncContextManager[ApiClients]]
"""Opens the clients; may wait long for credentials. Raises StartError."""


class Cluster:
    """What joins the agent to a cluster.

    `clients` and all that is made with them are there from the step `api` on, the reporter from
    `report` on. `send` takes what changed in a source.
    """

    clients: ApiClients
    references: References
    classes: RuntimeClasses
    writer: StatusWriter
    mirrors: MirrorPods
    reporter: NodeReporter

    def __init__(
        self,
        base: Foundation,
        open_clients: OpenClients,
        *,
        node_name: str,
        tasks: PodTasks,
        pleg: Pleg,
        merge: SourceMerge,
        send: Callable[[Iterable[PodUpdate]], Awaitable[None]],
        static_sources: frozenset[Source],
    ) -> None:
        self._base = base
        self._open_clients = open_clients
        self._node_name = node_name
        self._tasks = tasks
        self._pleg = pleg
        self._merge = merge
        self._send = send
        self._static_sources = static_sources
        self._statuses: Statuses | None = None
        self.view = NodeView(node_name)
        self._events = EventWriter(
            node_name, base.clock, wait_idle=partial(base.activity.wait_idle, IDLE_SECONDS)
        )
        base.recorder.add_sink(self._events.take)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The order of the start; `folders`, `listing` and `loop` are the agent's.

        Node and lease do not wait for the runtime: a node without one says that it is not ready.
        """
        return (
            Step("api", (), self._connect),
            Step("events", ("api",), forever(self._write_events)),
            Step("node", ("api",), forever(self._watch_node)),
            Step("references", ("api",), self._keep_references),
            Step("classes", ("api",), forever(self._follow_classes)),
            Step("statuses", ("api",), self._send_statuses),
            Step("mirrors", ("api",), self._keep_mirrors),
            Step("report", ("api", "folders", "secure port"), self._report_node),
            Step("lease", ("report",), forever(self._keep_lease)),
            Step("readiness", ("report", "listing"), once(self._look_at_node)),
            Step("pods of the API", ("listing", "loop", "pressure"), forever(self._watch_pods)),
        )

    def add_parts(self, statuses: Statuses) -> None:
        """Take over what is known once the runtime has answered."""
        self._statuses = statuses
        statuses.on_change.add(self.writer.status_changed)
        statuses.on_change.add(self.mirrors.status_changed)

    def static_pods(self, update: PodUpdate) -> None:
        """A source of static pods has said something."""
        self.mirrors.static_changed(update)

    def pod_released(self, uid: str) -> None:
        """A pod holds nothing any more that others could want."""
        self.mirrors.released(uid)

    def pod_finished(self, uid: str) -> None:
        """The task of a pod has ended."""
        self.writer.look_at(uid)

    async def refresh_node(self) -> None:
        """Fetch the Node object; where that fails or takes too long, what is known counts."""
        try:
            node = await self.clients.main.get(
                NODES, self._node_name, deadline_seconds=REFRESH_SECONDS
            )
        except ApiError as error:
            log.info("node fetch for admission failed", error=str(error))
        else:
            self.view.offer(node)

    async def _connect(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with self._open_clients() as self.clients:
            self._make_parts()
            task_status.started()
            await trio.sleep_forever()

    def _make_parts(self) -> None:
        configuration, base = self._base.settings.configuration, self._base
        api = self.clients.main
        self.references = References(
            api,
            clock=base.clock,
            on_change=lambda uid: self._tasks.put(uid, Request(why=("configuration data",))),
            strategy=configuration.config_map_and_secret_change_detection_strategy,
            trust_bundles=base.settings.gates["ClusterTrustBundleProjection"],
        )
        self.classes = RuntimeClasses(api)
        self.writer = StatusWriter(api, self._newest_status, self._is_over)
        self.mirrors = MirrorPods(
            api,
            self._node_name,
            self._static_sources,
            self._tasks.is_released,
            self._newest_status,
            self.writer.mirror_changed,
        )
        self.view.on_version.add(self._on_node)

    def _on_node(self, node: Node | None) -> None:
        if node is None or node.metadata.deletion_timestamp is not None:
            self.mirrors.node_changed("")
        else:
            self.mirrors.node_changed(node.metadata.uid)

    def _newest_status(self, uid: str) -> PodStatus | None:
        """The node's status of a pod; none while another incarnation of its UID still ends."""
        stored, task = self._base.store.get(uid), self._tasks.get(uid)
        if stored is not None and task is not None and stored.incarnation != task.incarnation:
            return None
        return self._statuses.get(uid) if self._statuses is not None else None

    def _is_over(self, uid: str) -> bool:
        """Whether a pod was here and nothing of it is left but its object."""
        stored = self._base.store.get(uid)
        return stored is not None and stored.over and uid not in self._tasks

    def _has_listed(self) -> bool:
        return math.isfinite(self._pleg.seconds_since_relist())

    def _relist_errors(self) -> tuple[str, ...]:
        pleg = self._pleg
        return relist_errors(pleg.seconds_since_relist(), pleg.health_threshold_seconds())

    async def _write_events(self) -> None:
        await self._events.run(self.clients.events)

    async def _watch_node(self) -> None:
        await self.view.watch(self.clients.main)

    async def _report_node(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        base = self._base
        profile = await trio.to_thread.run_sync(read_profile, base.settings)
        readiness = Readiness(base.gate, (self._relist_errors,), has_listed=self._has_listed)
        self.reporter = NodeReporter(
            profile=profile,
            view=self.view,
            api=self.clients.main,
            heartbeat=self.clients.heartbeat,
            observe=NodeObserver(
                profile=profile,
                client=base.client,
                gate=base.gate,
                readiness=readiness,
                pressures=base.pressure.current,
            ).observe,
            recorder=base.recorder,
            clock=base.clock,
            chance=CHANCE,
        )
        readiness.on_change.add(self.reporter.wake)
        base.pressure.on_change.add(self.reporter.wake)
        task_status.started()
        await self.reporter.run()

    async def _look_at_node(self) -> None:
        """The first listing is there: nothing else may keep the node from being ready."""
        await trio.lowlevel.checkpoint()
        self.reporter.wake()

    async def _follow_classes(self) -> None:
        await self.classes.run()

    async def _keep_references(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await self.references.run(task_status=task_status)

    async def _send_statuses(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await self.writer.run(task_status=task_status)

    async def _keep_mirrors(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await self.mirrors.run(task_status=task_status)

    async def _keep_lease(self) -> None:
        seconds = self._base.settings.configuration.node_lease_duration_seconds
        await NodeLease(
            api=self.clients.heartbeat,
            view=self.view,
            clock=self._base.clock,
            seconds=seconds,
            chance=CHANCE,
            on_return=self._api_is_back,
        ).run()

    def _api_is_back(self) -> None:
        """The heartbeat, which asks most often, has found it out."""
        self.reporter.returned()
        self.clients.main.returns.tell()

    async def _watch_pods(self) -> None:
        await self.view.wait_known()
        await watch_api_pods(
            self.clients.main,
            self._node_name,
            self._send,
            merge=self._merge,
            pods=self.writer,
            mirrors=self.mirrors,
        )
