"""Builds the parts and opens the root nursery; the only file that knows them all.

`Agent.steps` is the order of a start, as a table. READY=1 goes out as soon as the sync loop
turns, whether the runtime is there or not; no pod is synced before the first complete listing.
"""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import structlog
import trio

from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.assembly import (
    Foundation,
    assemble,
    build_admission,
    build_image_access,
    build_oom_kills,
    build_pressure_monitor,
    cgroup_driver,
)
from trio_kubelet.clock import Clock
from trio_kubelet.cluster import Cluster, OpenClients
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod
from trio_kubelet.listeners import Listeners
from trio_kubelet.node import node_name
from trio_kubelet.node.host_warnings import gather_host_warnings
from trio_kubelet.pleg import Pleg, PodChange, RuntimeCache
from trio_kubelet.pod_endpoints import PodEndpoints
from trio_kubelet.process import (
    ServiceNotifier,
    feed_watchdog,
    raise_open_files_limit,
    set_oom_score,
    watchdog_seconds,
)
from trio_kubelet.references import NoReferences
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.rpc import Code, RpcError, Transport, look_over
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.garbage.collector import DeadContainerLimits, GarbageCollector
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState, check_runtime
from trio_kubelet.runtime.images.filesystem import watch_image_filesystem
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.sandbox_creator import default_handler
from trio_kubelet.runtime.lifecycle.start_limiter import default_start_limiter
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.secure_port import SecurePort
from trio_kubelet.sources import (
    PodUpdate,
    Source,
    SourceMerge,
    watch_manifest_files,
    watch_manifest_url,
)
from trio_kubelet.sources.adoption import adoptable_uid
from trio_kubelet.startup import StartError, Step, forever, once, run_steps
from trio_kubelet.status import Statuses
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.housekeeping import Housekeeper
from trio_kubelet.sync.loop import SyncLoop
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.sync.pod_task import pod_key
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.store import PodStore
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.volumes.folders import make_folders
from trio_kubelet.volumes.mount import make_shared

log = structlog.get_logger("agent")

CONFIG_CHANNEL_SIZE = 64
PLEG_CHANNEL_SIZE = 1000
RUNTIME_RETRY_SECONDS = 0.5


Transports = tuple[Transport, Transport, Transport | None]
"""Where CRI's runtime service and image service are, and containerd's own, if it may have them."""


class Agent:
    """The parts that are there from the first moment, and the steps that add the others.

    `node`, `statuses` and `parts` are there once the runtime has answered; no pod is started
    before.
    """

    node: NodeFacts
    statuses: Statuses
    parts: SyncDependencies
    loop: SyncLoop

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        transports: Transports,
        notifier: ServiceNotifier | None = None,
        open_clients: OpenClients | None = None,
    ) -> None:
        configuration = settings.configuration
        self.settings = settings
        self.clock = clock
        self.node_name = node_name(settings)
        self.notifier = notifier or ServiceNotifier()
        self.journal = Journal(clock)
        self.recorder = EventRecorder(self.journal, self.node_name)
        self.client = RuntimeClient(
            *transports,
            request_timeout_seconds=configuration.runtime_request_timeout.total_seconds(),
        )
        self.gate = RuntimeGate()
        self.gate.on_change.add(self._on_runtime_state)
        self.cache = RuntimeCache()
        self.store = PodStore()
        self.pressure = build_pressure_monitor(settings, self.client)
        self.allocations = Allocations(Path(settings.options.root_dir), trio.CapacityLimiter(1))
        self.monitor = LoopMonitor()
        self.config_in, config_out = trio.open_memory_channel[PodUpdate](CONFIG_CHANNEL_SIZE)
        pleg_in, pleg_out = trio.open_memory_channel[PodChange](PLEG_CHANNEL_SIZE)
        activity = Activity()
        self.tasks = PodTasks(
            open_syncer=lambda pod: self.parts.open_syncer(pod),
            journal=self.journal,
            recorder=self.recorder,
            resync_seconds=configuration.sync_frequency.total_seconds(),
            cleaning=CleaningTurns(activity.wait_idle),
            on_released=self._on_released,
            on_finished=self._on_finished,
        )
        admission = build_admission(
            settings,
            allocatable=lambda: self.node.allocatable,
            node=lambda: self.cluster.view.current if self.cluster else None,
            refresh_node=self._refresh_node if open_clients is not None else None,
            runtime_features=lambda: self.gate.state.runtime_features.features,
            pressures=self.pressure.current,
        )
        self.loop = SyncLoop(
            store=self.store,
            tasks=self.tasks,
            admit=admission,
            has_room=admission.has_room,
            allocations=self.allocations,
            prepare=admission.prepare,
            gate=self.gate,
            monitor=self.monitor,
            config=config_out,
            pleg=pleg_out,
            clean_up=self._clean_up,
            recorder=self.recorder,
            runs=self._runs,
        )
        oom_kills = build_oom_kills(settings)
        inspector = PodInspector(client=self.client, oom_kills=oom_kills)
        self.pleg = Pleg(
            inspector=inspector,
            cache=self.cache,
            changes=pleg_in,
            journal=self.journal,
            clock=clock,
            events_enabled=settings.gates["EventedPLEG"],
        )
        self.merge = SourceMerge(clock, self.recorder)
        self.listeners = Listeners(
            settings=settings, journal=self.journal, monitor=self.monitor, pods=self._pods
        )
        self.housekeeper: Housekeeper | None = None
        self.image_access = build_image_access(settings, clock)
        self.foundation = Foundation(
            settings=settings,
            clock=clock,
            client=self.client,
            cache=self.cache,
            store=self.store,
            gate=self.gate,
            journal=self.journal,
            recorder=self.recorder,
            image_access=self.image_access,
            allocations=self.allocations,
            pressure=self.pressure,
            start_limiter=default_start_limiter(activity),
            activity=activity,
            oom_kills=oom_kills,
        )
        self.cluster: Cluster | None = None
        if open_clients is not None:
            self.cluster = Cluster(
                self.foundation,
                open_clients,
                node_name=self.node_name,
                tasks=self.tasks,
                pleg=self.pleg,
                merge=self.merge,
                send=self._send,
                static_sources=self.static_sources,
            )

    @property
    def steps(self) -> tuple[Step, ...]:
        """The order of the start: name, what it needs, what it does."""
        return (
            Step("folders", (), once(self._make_folders)),
            Step("limits", (), once(self._set_limits)),
            Step("warnings", (), once(self._warn_of_host)),
            Step("health", (), self.listeners.serve_health),
            Step("pods", ("folders", "limits"), self.tasks.run),
            Step("loop", ("pods",), self.loop.run),
            Step("watchdog", ("loop",), self._tell_service_manager),
            Step("runtime", ("folders",), self._watch_runtime),
            Step("pressure", ("folders",), self.pressure.run),
            Step("pull records", ("folders",), self._keep_pull_records),
            Step("parts", ("runtime", "api", "pull records"), once(self._build_parts)),
            Step("listing", ("parts",), self.pleg.run),
            Step("sources", ("listing", "loop", "pressure"), self._watch_sources),
            Step("garbage", ("sources",), self._collect_garbage),
            Step("image filesystem", ("listing",), forever(self._watch_image_filesystem)),
            Step("messages", ("sources",), forever(partial(look_over, cri))),
            Step("server", ("folders",), self.listeners.serve_pods),
            Step("secure port", ("folders", "api"), self._serve_others),
            *(self.cluster.steps if self.cluster else (Step("api", (), once(_nothing)),)),
        )

    async def run(self) -> None:
        """Start everything and keep it running. Raises StartError, and whatever is a bug."""
        log.info(
            "starting",
            version=__version__,
            kubernetes=KUBERNETES_VERSION,
            node=self.node_name,
            python=sys.version.split()[0],
        )
        self.recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
        await run_steps(self.steps, self._announce)

    def _announce(self, step: str) -> None:
        if step == "loop":
            self.notifier.ready()

    async def _serve_others(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        if not self.settings.configuration.enable_server:
            task_status.started()
            return
        cluster = self.cluster
        endpoints = PodEndpoints(
            settings=self.settings,
            clock=self.clock,
            cache=self.cache,
            runtime=self.client,
            find_pod=self._pod,
        )
        async with trio.open_nursery() as nursery:
            await SecurePort(
                settings=self.settings,
                clock=self.clock,
                node_name=self.node_name,
                routes=(*self.listeners.public_routes(), *await endpoints.open(nursery)),
                reviews=(lambda: cluster.clients.reviews) if cluster is not None else None,
            ).serve(task_status=task_status)

    async def _make_folders(self) -> None:
        root = Path(self.settings.options.root_dir)
        logs = Path(self.settings.configuration.pod_logs_dir)
        for what, folder, mode in (
            ("root directory", root, 0o750),
            (f'pod logs root directory "{logs}"', logs, 0o755),
            ("pods directory", root / "pods", 0o750),
            ("plugins directory", root / "plugins", 0o750),
            ("plugins registry directory", root / "plugins_registry", 0o750),
            ("podresources directory", root / "pod-resources", 0o750),
            ("checkpoint directory", root / "checkpoints", 0o700),
        ):
            try:
                make_folders(folder, mode)
            except OSError as error:
                why = f"mkdir {error.filename}: {str(error.strerror).lower()}"
                message = f"error creating {what}: {why}"
                self.recorder.node(EventType.WARNING, "KubeletSetupFailed", message)
                setting = "podLogsDir" if folder == logs else "--root-dir"
                raise StartError(f"{folder}: {error.strerror}; check {setting}") from error
        if not self.settings.options.hollow:
            _share_mounts(root)

    async def _warn_of_host(self) -> None:
        for warning in await trio.to_thread.run_sync(gather_host_warnings, self.settings):
            self.recorder.node(EventType.WARNING, warning.reason, warning.message)

    async def _set_limits(self) -> None:
        if not self.settings.options.hollow:
            raise_open_files_limit(self.settings.configuration.max_open_files)
            set_oom_score(self.settings.configuration.oom_score_adj)

    async def _watch_runtime(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_runtime, self.client, self.gate)
            await self.gate.wait_up()
            task_status.started()

    async def _keep_pull_records(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await self.image_access.load()
        except OSError as error:
            raise StartError(f"{error.filename}: {error.strerror}; check --root-dir") from error
        task_status.started()
        await self.image_access.tend(self.client, self.gate)

    async def _build_parts(self) -> None:
        """Everything that depends on what the machine and the runtime can do."""
        driver, runtime_name = await self._ask_runtime()
        assembled = await assemble(
            self.foundation,
            driver=driver,
            runtime_name=runtime_name,
            references=self.cluster.references if self.cluster else NoReferences(),
            runtime_handler=self.cluster.classes.handler if self.cluster else default_handler,
        )
        self.node, self.statuses = assembled.node, assembled.statuses
        self.parts = assembled.parts
        if self.cluster is not None:
            self.cluster.add_parts(assembled.statuses)
        self.housekeeper = Housekeeper(
            store=self.store,
            tasks=self.tasks,
            sources_ready=lambda: self.loop.sources_seen >= self.sources,
            places=assembled.places,
        )

    async def _ask_runtime(self) -> tuple[CgroupDriver, str]:
        """The runtime's cgroup driver and name; asked until it answers."""
        while True:
            await self.gate.wait_up()
            try:
                version = await self.client.version()
                return await self._cgroup_driver(), version.runtime_name
            except RpcError as error:
                log.warning("container runtime went away during start", error=str(error))
                await trio.sleep(RUNTIME_RETRY_SECONDS)

    async def _cgroup_driver(self) -> CgroupDriver:
        """The runtime's cgroup driver, where it tells; else the configured one."""
        configured = CgroupDriver(self.settings.configuration.cgroup_driver)
        try:
            answer = await self.client.runtime_config()
        except RpcError as error:
            if error.code is Code.UNIMPLEMENTED:
                return configured
            raise
        return cgroup_driver(configured, answer)

    @property
    def sources(self) -> frozenset[Source]:
        """All sources of pods that this node has."""
        api = {Source.API} if self.cluster is not None else set()
        return self.static_sources | api

    @property
    def static_sources(self) -> frozenset[Source]:
        """The sources that the configuration names."""
        configuration = self.settings.configuration
        named = {
            Source.FILE: configuration.static_pod_path,
            Source.HTTP: configuration.static_pod_url,
        }
        return frozenset(source for source, where in named.items() if where)

    async def _watch_sources(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        configuration = self.settings.configuration
        kept = Path(self.settings.options.root_dir, "static-pods")
        async with trio.open_nursery() as nursery:
            if Source.FILE in self.sources:
                nursery.start_soon(
                    partial(
                        watch_manifest_files,
                        Path(configuration.static_pod_path),
                        partial(self.take, Source.FILE),
                        node_name=self.node_name,
                        kept_folder=kept / "file",
                        adopt=partial(adoptable_uid, self.cache.pods),
                        journal=self.journal,
                        check_seconds=configuration.file_check_frequency.total_seconds(),
                    )
                )
            if Source.HTTP in self.sources:
                nursery.start_soon(
                    partial(
                        watch_manifest_url,
                        configuration.static_pod_url,
                        partial(self.take, Source.HTTP),
                        node_name=self.node_name,
                        kept_folder=kept / "http",
                        adopt=partial(adoptable_uid, self.cache.pods),
                        journal=self.journal,
                        headers=configuration.static_pod_url_header,
                        check_seconds=configuration.http_check_frequency.total_seconds(),
                    )
                )
            task_status.started()

    async def _collect_garbage(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        options = self.settings.options
        remover = ContainerRemover(
            client=self.client,
            node=self.node,
            file_limiter=trio.CapacityLimiter(1),
            oom_kills=self.foundation.oom_kills,
        )
        collector = GarbageCollector(
            remover=remover,
            inspector=PodInspector(client=self.client, oom_kills=self.foundation.oom_kills),
            cache=self.cache,
            wanted=lambda: [stored.pod.metadata.uid for stored in self.store],
            limits=DeadContainerLimits(
                per_container=options.maximum_dead_containers_per_container,
                total=options.maximum_dead_containers,
                minimum_age=options.minimum_container_ttl_duration,
            ),
            gate=self.gate,
            clock=self.clock,
            recorder=self.recorder,
        )
        task_status.started()
        await collector.run()

    async def _watch_image_filesystem(self) -> None:
        if self.settings.options.hollow:
            return  # Its images are in memory.
        await watch_image_filesystem(self.client, self.gate, self.recorder, trio.CapacityLimiter(1))

    async def take(self, source: Source, pods: tuple[Pod, ...]) -> None:
        """Take the full set of pods that a source has now; waits while the sync loop is behind."""
        await self._send(self.merge.apply(source, pods))

    async def _send(self, updates: Iterable[PodUpdate]) -> None:
        """Hand to the sync loop what changed in a source; who mirrors static pods is told too."""
        for update in updates:
            if self.cluster is not None:
                self._mirror(self.cluster, update)
            await self.config_in.send(update)

    def _mirror(self, cluster: Cluster, update: PodUpdate) -> None:
        try:
            cluster.static_pods(update)
        except Exception:  # whatever becomes of mirrors, the pods themselves are dealt with
            pods = [pod_key(pod) for pod in update.pods]
            log.exception("mirror pod sync failed", pods=pods)

    def _on_released(self, uid: str) -> None:
        """A pod holds nothing any more that others could want."""
        if self.cluster is not None:
            self.cluster.pod_released(uid)

    def _on_finished(self, uid: str, incarnation: int) -> None:
        """A pod's task has ended."""
        self.loop.on_finished(uid, incarnation)
        if self.cluster is not None:
            self.cluster.pod_finished(uid)

    async def _clean_up(self) -> None:
        """One round of housekeeping; none before the parts that know what there is."""
        if self.housekeeper is not None:
            await self.housekeeper.clean_up()

    async def _refresh_node(self) -> None:
        assert self.cluster is not None, "only a node of a cluster has a Node object"
        await self.cluster.refresh_node()

    def _runs(self, uid: str) -> bool:
        """Whether something of a pod runs; what could not be looked at yet may run."""
        return uid in self.cache.unseen or self.cache.get(uid).is_running

    def _on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self.pleg.runtime_returned()
        self.notifier.status(status_line(after))
        log.info(
            "runtime",
            up=after.up,
            network_ready=after.network_ready,
            reason=after.reason or after.network_reason,
        )

    async def _tell_service_manager(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        period = watchdog_seconds()
        if period is None:
            return
        await feed_watchdog(self.notifier, period, self.monitor.seconds_busy)

    def _pod(self, namespace: str, name: str) -> Pod | None:
        """A pod of the sources by its name, with its newest status."""
        for stored in self.store:
            metadata = stored.pod.metadata
            if (metadata.namespace, metadata.name) == (namespace, name):
                return self.statuses.with_status(stored.pod)
        return None

    def _pods(self) -> Iterable[Pod]:
        """The pods of the sources; there are none before the parts that make statuses."""
        return [self.statuses.with_status(stored.pod) for stored in self.store]


def _share_mounts(root: Path) -> None:
    """Let pods see each other's mounts below the root folder where they ask for it."""
    try:
        if make_shared(root):
            log.info("root folder made a shared mount", path=str(root))
    except OSError as error:
        log.warning(
            "root folder cannot be made a shared mount, pods with mountPropagation will not see "
            "what is mounted later",
            path=str(root),
            error=str(error),
        )


async def _nothing() -> None:
    """Without an API server there is nobody to connect to."""
    await trio.lowlevel.checkpoint()


def status_line(state: RuntimeState) -> str:
    """What `systemctl status` shows."""
    if not state.up:
        return f"waiting for the container runtime: {state.reason}"
    if not state.network_ready:
        return f"network is not ready: {state.network_reason}"
    return "running"
