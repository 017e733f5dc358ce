"""The agent: how it starts, and what runs from when on.

Two stages. `Core` is there from the first moment; READY=1 goes out as soon as it runs, whether
runtime and API server are there or not. What needs an answer of theirs is made when that is there
(`Cluster`, `Pods`), so that nothing exists half. Pods come last: no source is read before the
runtime was listed completely, the node measured, and the records of pulled images loaded.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import structlog
import trio

from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.agent.assembly import PodParts, ask_runtime, assemble, build_admission
from trio_kubelet.agent.cluster import Cluster, OpenClients, Standalone
from trio_kubelet.agent.core import Core
from trio_kubelet.agent.monitoring import Monitoring
from trio_kubelet.config.settings import Settings
from trio_kubelet.debugging import metered
from trio_kubelet.errors import StartError
from trio_kubelet.k8s.client import ApiClients
from trio_kubelet.kernel.systemd import ServiceNotifier, feed_watchdog, watchdog_seconds
from trio_kubelet.node.host import Host
from trio_kubelet.node.host_warnings import resolv_conf_warnings
from trio_kubelet.ports.listeners import Listeners
from trio_kubelet.ports.node_endpoints import NodeEndpoints
from trio_kubelet.ports.pod_endpoints import PodEndpoints
from trio_kubelet.ports.secure_port import SecurePort
from trio_kubelet.rpc import look_over
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.garbage.collector import DeadContainerLimits, GarbageCollector
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.gate import RuntimeState, check_runtime
from trio_kubelet.runtime.images.filesystem import watch_image_filesystem
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.server import DEBUGGING_PATHS, Route, disabled_routes
from trio_kubelet.sources import (
    ManifestContext,
    PodUpdates,
    Source,
    SourceMerge,
    watch_manifest_files,
    watch_manifest_url,
)
from trio_kubelet.sources.manifests import adoptable_uid
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.housekeeping import Housekeeper
from trio_kubelet.sync.loop import SyncLoop
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventType

log = structlog.get_logger("agent")


class Agent:
    """One agent, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        host: Host,
        notifier: ServiceNotifier | None = None,
        open_clients: OpenClients | None = None,
    ) -> None:
        self.core = Core(settings, clock, host)
        self._notifier = notifier or ServiceNotifier()
        self._open_clients = open_clients or nullcontext
        core = self.core
        self._monitoring = Monitoring(core)
        self._listeners = Listeners(
            settings=settings,
            journal=core.journal,
            loop_meter=core.loop_meter,
            monitor=core.monitor,
            pods=core.pods,
            monitoring=self._monitoring.routes(),
        )
        if open_clients is not None:
            core.recorder.on_event.add(core.events.take)

    async def run(self) -> None:
        """Start everything and keep it running. Raises StartError, and whatever is a bug."""
        core = self.core
        log.info(
            "agent starting",
            version=__version__,
            kubernetes=KUBERNETES_VERSION,
            node=core.node_name,
            python=sys.version.split()[0],
        )
        core.recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
        core.gate.on_change.add(self._on_runtime_state)
        core.make_folders()
        core.host.set_up(core.settings)
        with metered(core.loop_meter):
            await self._run_parts()

    async def _run_parts(self) -> None:
        core = self.core
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.warn_of_host)
            nursery.start_soon(self._monitoring.run)
            nursery.start_soon(self.serve)
            nursery.start_soon(check_runtime, core.client, core.gate)
            nursery.start_soon(self._tell_service_manager)
            async with self._open_clients() as clients:
                cluster = self._cluster(clients)
                nursery.start_soon(self.serve_others, cluster, nursery)
                await self._run_node(cluster)

    def _cluster(self, clients: ApiClients | None) -> Cluster | Standalone:
        if clients is None:
            return Standalone()
        cluster = Cluster(self.core, clients)
        self._monitoring.watch_api(clients, cluster.reporter)
        return cluster

    async def warn_of_host(self) -> None:
        """Record an event for each thing that the node's users should know of its host."""
        core = self.core
        for gather in (
            core.host.warnings,
            partial(resolv_conf_warnings, core.settings.configuration),
        ):
            for warning in await run_in_thread(gather):
                core.recorder.node(EventType.WARNING, warning.reason, warning.message)

    async def serve(self) -> None:
        """Answer on the agent's socket and ports until cancelled. Raises StartError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listeners.serve_health)
            nursery.start_soon(self._listeners.serve_pods)

    async def serve_others(self, cluster: Cluster | Standalone, nursery: trio.Nursery) -> None:
        """Open the port for others, served in the nursery, if it is on. Raises StartError.

        Pods do not wait for it, but the Node object does, which tells the port.
        """
        core = self.core
        if not core.settings.configuration.enable_server:
            core.serves_others.set()
            return
        port = SecurePort(
            settings=core.settings,
            clock=core.clock,
            node_name=core.node_name,
            routes=self.routes(nursery),
            reviews=cluster.reviews,
            watched=self._monitoring.watched,
        )
        await nursery.start(port.serve)
        core.serves_others.set()

    def routes(self, nursery: trio.Nursery) -> Sequence[Route]:
        """All that the port for others answers, with what it needs running in the nursery."""
        shared = self._listeners.shared_routes()
        return (*shared, *self._debugging_routes(nursery))

    def _debugging_routes(self, nursery: trio.Nursery) -> Sequence[Route]:
        """The endpoints that `enableDebuggingHandlers` is about."""
        core = self.core
        if not core.settings.configuration.enable_debugging_handlers:
            return disabled_routes("Debug endpoints are disabled.", DEBUGGING_PATHS)
        pods = PodEndpoints(
            settings=core.settings,
            clock=core.clock,
            cache=core.cache,
            runtime=core.client,
            find_pod=core.pod,
        )
        node = NodeEndpoints(
            settings=core.settings,
            clock=core.clock,
            journal=core.journal,
            loop_meter=core.loop_meter,
        )
        return (*pods.open(nursery), *node.routes())

    async def _tell_service_manager(self) -> None:
        self._notifier.ready()
        period = watchdog_seconds()
        if period is not None:
            await feed_watchdog(self._notifier, period, self.core.monitor.seconds_busy)

    async def _run_node(self, cluster: Cluster | Standalone) -> None:
        core = self.core
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as before_pods:
                before_pods.start_soon(nursery.start, core.pressure.run)
                before_pods.start_soon(nursery.start, self._keep_pull_records)
                await nursery.start(cluster.run)
                parts = await assemble(core, await ask_runtime(core), cluster)
                pods = self.make_pods(parts, cluster, nursery)
                self._monitoring.watch_pods(pods.tasks, parts.probes)
                await nursery.start(pods.loop.run)
                await nursery.start(core.pleg.run)
            nursery.start_soon(pods.watch_static_sources)
            nursery.start_soon(pods.watch_api)
            nursery.start_soon(pods.collect_garbage)
            nursery.start_soon(self._watch_image_filesystem)
            nursery.start_soon(look_over, cri)

    def make_pods(
        self, parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> "Pods":
        """Make what runs pods, in tasks of the nursery."""
        return Pods(self.core, parts, cluster, nursery)

    async def _keep_pull_records(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        core = self.core
        try:
            await core.image_access.load()
        except OSError as error:
            raise StartError(f"{error.filename}: {error.strerror}; check --root-dir") from error
        task_status.started()
        await core.image_access.tend(core.client, core.gate)

    async def _watch_image_filesystem(self) -> None:
        core = self.core
        if core.host.images_on_disk:
            limiter = trio.CapacityLimiter(1)
            await watch_image_filesystem(core.client, core.gate, core.recorder, limiter)

    def _on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self.core.pleg.runtime_returned()
        self._notifier.status(status_line(after))
        log.info(
            "runtime state changed",
            up=after.up,
            network_ready=after.network_ready,
            reason=after.reason or after.network_reason,
        )


class Pods:
    """The parts that bring pods from the sources to their tasks. Those run in the nursery."""

    def __init__(
        self, core: Core, parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> None:
        self._core = core
        self._node = parts.node
        self.tasks = PodTasks(
            nursery,
            open_syncer=parts.sync.open_syncer,
            journal=core.journal,
            recorder=core.recorder,
            resync_seconds=core.settings.configuration.sync_frequency.total_seconds(),
            cleaning=CleaningTurns(core.activity.wait_idle),
        )
        self._updates = PodUpdates(SourceMerge(core.clock, core.recorder))
        self.watch_api = cluster.join(self.tasks, self._updates, parts.recall)
        admission = build_admission(core, cluster, parts.id_ranges)
        self.loop = SyncLoop(
            store=core.store,
            tasks=self.tasks,
            admit=admission,
            fits=admission.fits,
            allocations=core.allocations,
            prepare=admission.prepare,
            gate=core.gate,
            monitor=core.monitor,
            config=self._updates.channel,
            pleg=core.runtime_changes,
            probes=core.probe_changes,
            sources=core.static_sources | cluster.sources,
            clean_up=Housekeeper(
                store=core.store, tasks=self.tasks, leftover_sources=parts.leftover_sources
            ).clean_up,
            recorder=core.recorder,
            runs=core.cache.may_run,
        )

    async def watch_static_sources(self) -> None:
        """Read the folder and the URL of static pods, where they are set, until cancelled."""
        core, configuration = self._core, self._core.settings.configuration
        kept = core.root / "static-pods"
        context = partial(
            ManifestContext,
            node_name=core.node_name,
            adopt=partial(adoptable_uid, core.cache.pods),
            journal=core.journal,
        )
        async with trio.open_nursery() as nursery:
            if configuration.static_pod_path:
                nursery.start_soon(
                    partial(
                        watch_manifest_files,
                        Path(configuration.static_pod_path),
                        partial(self._updates.take, Source.FILE),
                        context(kept_folder=kept / "file"),
                        check_seconds=configuration.file_check_frequency.total_seconds(),
                    )
                )
            if configuration.static_pod_url:
                nursery.start_soon(
                    partial(
                        watch_manifest_url,
                        configuration.static_pod_url,
                        partial(self._updates.take, Source.HTTP),
                        context(kept_folder=kept / "http"),
                        headers=configuration.static_pod_url_header,
                        check_seconds=configuration.http_check_frequency.total_seconds(),
                    )
                )

    async def collect_garbage(self) -> None:
        """Remove dead containers, sandboxes without a pod and old logs, until cancelled."""
        core, options = self._core, self._core.settings.options
        remover = ContainerRemover(
            client=core.client,
            node=self._node,
            files=FairLimiter(1, 1),
            oom_kills=core.oom_kills,
        )
        await GarbageCollector(
            remover=remover,
            inspector=PodInspector(client=core.client, oom_kills=core.oom_kills),
            cache=core.cache,
            wanted=lambda: [stored.pod.metadata.uid for stored in core.store],
            limits=DeadContainerLimits(
                per_container=options.maximum_dead_containers_per_container,
                total=options.maximum_dead_containers,
                minimum_age=options.minimum_container_ttl_duration,
            ),
            gate=core.gate,
            clock=core.clock,
            recorder=core.recorder,
        ).run()


def status_line(state: RuntimeState) -> str:
    """The line that `systemctl status` shows."""
    if not state.up:
        return f"waiting for the container runtime: {state.reason}"
    if not state.network_ready:
        return f"network is not ready: {state.network_reason}"
    return "running"
