"""Builds the parts and opens the root nursery; the only file that knows them all.

`Agent.steps` is the order of a start, as a table. READY=1 goes out as soon as the sync loop
turns, whether the runtime is there or not; no pod is synced before the first complete listing.
SIGTERM and SIGINT cancel the root: the agent ends, calls whose outcome must be known are
finished, and the containers run on.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from state_machines.container import crash_loop_policy
from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.clock import Clock, SystemClock
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod
from trio_kubelet.mountinfo import mount_points
from trio_kubelet.node import gather_dns, gather_facts, node_name
from trio_kubelet.pleg import Pleg, PodChange, RuntimeCache
from trio_kubelet.process import (
    FileLock,
    ServiceNotifier,
    feed_watchdog,
    hold_lock,
    raise_open_files_limit,
    set_oom_score,
    watchdog_seconds,
)
from trio_kubelet.resources import (
    CgroupDriver,
    CgroupError,
    Cgroups,
    CgroupSettings,
    CgroupTree,
    PodCgroupSettings,
    SystemdError,
    pod_limits,
)
from trio_kubelet.rpc import Channel, Code, RpcError, Transport, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.container_hash import container_hash
from trio_kubelet.runtime.container_starter import ContainerStarter
from trio_kubelet.runtime.container_stopper import ContainerStopper
from trio_kubelet.runtime.credentials import credential_files, read_keyring
from trio_kubelet.runtime.garbage import DeadContainerLimits, GarbageCollector
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState, check_runtime
from trio_kubelet.runtime.images import Images, PullRate
from trio_kubelet.runtime.names import CONFIG_SOURCE_ANNOTATION
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.runtime.pod_runtime import PodRuntime, default_start_slots
from trio_kubelet.server import (
    healthz_routes,
    listen_tcp,
    listen_unix,
    read_only_routes,
    route,
    serve_http,
)
from trio_kubelet.sources import (
    PodUpdate,
    Source,
    SourceMerge,
    watch_manifest_files,
    watch_manifest_url,
)
from trio_kubelet.startup import Step, once, run_steps
from trio_kubelet.status import NodeIdentity, Statuses
from trio_kubelet.sync.admission import Admission
from trio_kubelet.sync.housekeeping import Housekeeper
from trio_kubelet.sync.loop import SyncLoop
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.session import Parts
from trio_kubelet.sync.store import PodStore
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.folders import make_folders
from trio_kubelet.wiring import HousekeepingPlaces, NoCgroups, PodCgroups, PodStorage, PodSubPaths

log = structlog.get_logger("agent")

CONFIG_CHANNEL_SIZE = 64
PLEG_CHANNEL_SIZE = 1000
SHUTDOWN_SECONDS = 10
LOOP_STUCK_SECONDS = 30.0
RUNTIME_RETRY_SECONDS = 0.5
AGENT_SOCKET = "agent.sock"
INTERRUPTED = 128 + signal.SIGINT


class StartError(Exception):
    """The agent cannot start: one line that says what is wrong and what to do."""


def run_agent(settings: Settings) -> int:
    """Run the agent until it is told to stop; returns the exit code. Blocks."""
    faulthandler.enable()  # The watchdog's SIGABRT leaves in the log where it hung.
    try:
        trio.run(_run, settings)
    except (KeyboardInterrupt, BaseExceptionGroup, StartError) as error:
        if _is_interrupt(error):
            return INTERRUPTED
        start_error, others = _start_error(error)
        if others is not None or start_error is None:
            raise
        print(f"trio-kubelet: {start_error}", file=sys.stderr)
        return 1
    finally:
        signal.alarm(0)
    return 0


def _is_interrupt(error: BaseException) -> bool:
    """Whether Control-C was pressed once more while the agent was ending."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _start_error(error: BaseException) -> tuple[StartError | None, BaseException | None]:
    """The first StartError in an exception, and what there is beside StartErrors."""
    if isinstance(error, StartError):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    ours, others = error.split(StartError)
    first: BaseException | None = ours
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return (first if isinstance(first, StartError) else None), others


async def _run(settings: Settings) -> None:
    _check_preconditions(settings)
    notifier = ServiceNotifier()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await nursery.start(_end_on_signal, nursery.cancel_scope, notifier)
        if settings.options.lock_file:
            lock = await _locked(Path(settings.options.lock_file), stack, notifier)
            if settings.options.exit_on_lock_contention:
                nursery.start_soon(_end_on_contention, lock, nursery.cancel_scope, notifier)
        await stack.enter_async_context(open_rpc_loop())
        clock = SystemClock()
        transports = await stack.enter_async_context(_transports(settings, clock))
        await Agent(settings, clock, transports, notifier).run()


def _check_preconditions(settings: Settings) -> None:
    """Refuse what cannot go well. Raises StartError."""
    if settings.options.hollow:
        return
    if os.geteuid() != 0:
        raise StartError(
            "must be run as root, because it mounts volumes and makes cgroups; "
            "try sudo, or --hollow for a runtime without a kernel"
        )
    try:
        tree = CgroupTree.find(mount_points())
    except CgroupError as error:
        raise StartError(f"{error}; mount the cgroup hierarchies") from error
    if tree.version == 1 and settings.configuration.fail_cgroup_v1:
        raise StartError(
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is "
            "unsupported and will be removed in a future release; set failCgroupV1: false in the "
            "configuration to run all the same"
        )
    if settings.configuration.fail_swap_on and (swap := _swap_in_use()):
        raise StartError(
            "running with swap on is not supported, please disable swap or set --fail-swap-on "
            f"flag to false. {Path('/proc/swaps')} contained: {swap}"
        )


def _swap_in_use() -> str:
    """The names of the swap areas in use, memory file systems aside."""
    try:
        lines = Path("/proc/swaps").read_text().splitlines()[1:]
    except FileNotFoundError:
        return ""
    return ", ".join(line.split()[0] for line in lines if not line.startswith("/dev/zram"))


async def _locked(path: Path, stack: AsyncExitStack, notifier: ServiceNotifier) -> FileLock:
    """Wait for the lock and hold it as long as the stack. Raises StartError."""

    def say() -> None:
        log.warning("waiting for the lock file; another agent holds it", path=str(path))
        notifier.status(f"waiting for the lock file {path}; another agent holds it")

    try:
        return await stack.enter_async_context(hold_lock(path, say))
    except OSError as error:
        raise StartError(f"--lock-file: {path}: {error.strerror}; choose another path") from error


async def _end_on_contention(
    lock: FileLock, scope: trio.CancelScope, notifier: ServiceNotifier
) -> None:
    """End the agent as soon as another one wants the lock (flag --exit-on-lock-contention)."""
    await lock.wanted()
    _end("somebody else wants the lock file", scope, notifier)


async def _end_on_signal(
    scope: trio.CancelScope,
    notifier: ServiceNotifier,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """SIGTERM and SIGINT end the agent at once; a second one kills it."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            _end(signal.Signals(number).name, scope, notifier)


def _end(why: str, scope: trio.CancelScope, notifier: ServiceNotifier) -> None:
    """Cancel everything. A runtime that hangs holds the end up for ten seconds, not longer."""
    log.info("ending, the containers run on", why=why)
    notifier.stopping()
    signal.signal(signal.SIGALRM, lambda *_: _give_up_waiting())
    signal.alarm(SHUTDOWN_SECONDS)
    scope.cancel()


def _give_up_waiting() -> None:
    print("trio-kubelet: ended without waiting for the runtime any longer", file=sys.stderr)
    os._exit(0)


Transports = tuple[Transport, Transport]
"""Where the runtime service and the image service are spoken to."""


@asynccontextmanager
async def _transports(settings: Settings, clock: Clock) -> AsyncIterator[Transports]:
    """The way to the runtime. Raises StartError for an endpoint that cannot be one."""
    if settings.options.hollow:
        from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
        from trio_kubelet.rpc import InProcess

        async with open_hollow_runtime(clock, HollowOptions()) as runtime:
            service = InProcess(runtime)
            yield service, service
        return
    configuration = settings.configuration
    try:
        runtime_channel = Channel(configuration.container_runtime_endpoint)
    except ValueError as error:
        raise StartError(f"containerRuntimeEndpoint: {error}") from error
    try:
        image_channel = Channel(
            configuration.image_service_endpoint or configuration.container_runtime_endpoint
        )
    except ValueError as error:
        raise StartError(f"imageServiceEndpoint: {error}") from error
    yield runtime_channel, image_channel


class Agent:
    """The parts that are there from the first moment, and the steps that add the others."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        transports: Transports,
        notifier: ServiceNotifier | None = None,
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
        self.gate.add_listener(self._on_runtime_state)
        self.cache = RuntimeCache()
        self.store = PodStore()
        self.monitor = LoopMonitor()
        self.config_in, config_out = trio.open_memory_channel[PodUpdate](CONFIG_CHANNEL_SIZE)
        pleg_in, pleg_out = trio.open_memory_channel[PodChange](PLEG_CHANNEL_SIZE)
        self.tasks = PodTasks(
            open_session=lambda pod: self.parts.open_session(pod),
            journal=self.journal,
            recorder=self.recorder,
            resync_seconds=configuration.sync_frequency.total_seconds(),
            on_finished=lambda uid, incarnation: self.loop.on_finished(uid, incarnation),
        )
        self.loop = SyncLoop(
            store=self.store,
            tasks=self.tasks,
            admit=Admission(
                max_pods=configuration.max_pods,
                allowed_sysctls=configuration.allowed_unsafe_sysctls,
                allocatable=lambda: self.node.allocatable,
            ),
            gate=self.gate,
            monitor=self.monitor,
            config=config_out,
            pleg=pleg_out,
            clean_up=self._clean_up,
            recorder=self.recorder,
        )
        self.pleg = Pleg(
            client=self.client,
            cache=self.cache,
            changes=pleg_in,
            journal=self.journal,
            clock=clock,
            events_enabled=settings.gates["EventedPLEG"],
        )
        self.merge = SourceMerge(clock, self.recorder)
        self.housekeeper: Housekeeper | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The order of the start: name, what it needs, what it does."""
        return (
            Step("folders", (), once(self._make_folders)),
            Step("limits", (), once(self._set_limits)),
            Step("health", (), self._serve_health),
            Step("pods", ("folders", "limits"), self.tasks.run),
            Step("loop", ("pods",), self.loop.run),
            Step("watchdog", ("loop",), self._tell_service_manager),
            Step("runtime", ("folders",), self._watch_runtime),
            Step("parts", ("runtime",), once(self._build_parts)),
            Step("listing", ("parts",), self.pleg.run),
            Step("sources", ("listing", "loop"), self._watch_sources),
            Step("garbage", ("sources",), self._collect_garbage),
            Step("server", ("folders",), self._serve_pods),
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

    async def _make_folders(self) -> None:
        root = Path(self.settings.options.root_dir)
        try:
            for folder, mode in (
                (root, 0o750),
                (root / "pods", 0o750),
                (root / "plugins", 0o750),
                (root / "plugins_registry", 0o750),
                (root / "pod-resources", 0o750),
                (root / "checkpoints", 0o700),
                (Path(self.settings.configuration.pod_logs_dir), 0o755),
            ):
                make_folders(folder, mode)
        except OSError as error:
            raise StartError(f"{error.filename}: {error.strerror}; check --root-dir") from error

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

    async def _build_parts(self) -> None:
        """Everything that depends on what the machine and the runtime can do."""
        settings, hollow = self.settings, self.settings.options.hollow
        tree = None if hollow else CgroupTree.find(mount_points())
        driver, runtime_name = await self._ask_runtime()
        self.node = await trio.to_thread.run_sync(
            partial(
                gather_facts,
                settings,
                cgroup_v2=tree is not None and tree.version != 1,
                driver=driver,
            )
        )
        files = trio.CapacityLimiter(8)
        folders = PodFolders(Path(settings.options.root_dir))
        volumes = local_volumes(folders, self._memory_available)
        cgroups = await self._build_cgroups(tree, driver)
        self.statuses = Statuses(
            self.clock,
            NodeIdentity(
                host_ips=self.node.host_ips,
                runtime_name=runtime_name,
                recursive_read_only=self.node.recursive_read_only,
            ),
        )
        self.parts = Parts(
            runtime=self._build_runtime(PodSubPaths(volumes), files),
            cache=self.cache,
            statuses=self.statuses,
            storage=PodStorage(volumes, self.recorder, self.node, files),
            cgroups=cgroups,
            gate=self.gate,
            recorder=self.recorder,
            clock=self.clock,
        )
        places = HousekeepingPlaces(self.cache, volumes, cgroups, self.node, files)
        self.housekeeper = Housekeeper(
            store=self.store,
            tasks=self.tasks,
            sources_ready=lambda: self.loop.sources_seen >= self.sources,
            places=(places.in_runtime, places.in_folders, places.in_cgroups, places.in_logs),
        )

    def _build_runtime(self, sub_paths: PodSubPaths, files: trio.CapacityLimiter) -> PodRuntime:
        settings = self.settings
        configuration = settings.configuration
        slots = default_start_slots()
        starter = ContainerStarter(
            client=self.client,
            images=self._build_images(),
            sub_paths=sub_paths,
            recorder=self.recorder,
            node=self.node,
            slots=slots,
            file_limiter=files,
            host_file=_host_file(),
        )
        stopper = ContainerStopper(
            client=self.client,
            recorder=self.recorder,
            dead_per_container=settings.options.maximum_dead_containers_per_container,
        )
        longest = configuration.crash_loop_back_off.max_container_restart_period
        return PodRuntime(
            client=self.client,
            cache=self.cache,
            starter=starter,
            stopper=stopper,
            recorder=self.recorder,
            journal=self.journal,
            clock=self.clock,
            node=self.node,
            dns=gather_dns(settings, self.node.host_ips),
            slots=slots,
            file_limiter=files,
            crash_backoff=crash_loop_policy(
                longest.total_seconds() if longest is not None else None,
                reduced_decay=settings.gates["ReduceDefaultCrashLoopBackOffDecay"],
            ),
        )

    def _build_images(self) -> Images:
        configuration = self.settings.configuration
        parallel = (
            1 if configuration.serialize_image_pulls else configuration.max_parallel_image_pulls
        )
        files = credential_files(self.settings.options.root_dir, os.environ.get("HOME", "/root"))
        return Images(
            client=self.client,
            recorder=self.recorder,
            journal=self.journal,
            clock=self.clock,
            limiter=trio.CapacityLimiter(parallel) if parallel else None,
            rate=PullRate(configuration.registry_pull_qps, configuration.registry_burst),
            read_keyring=partial(read_keyring, files),
        )

    async def _build_cgroups(
        self, tree: CgroupTree | None, driver: CgroupDriver
    ) -> PodCgroups | NoCgroups:
        if tree is None:
            return NoCgroups()
        configuration = self.settings.configuration
        settings = CgroupSettings(
            driver=driver,
            cgroup_root=self.node.cgroup_root,
            cgroups_per_qos=configuration.cgroups_per_qos,
            pod=PodCgroupSettings(
                cpu_cfs_quota=self.node.cpu_cfs_quota,
                cpu_cfs_quota_period_us=self.node.cpu_cfs_quota_period_us,
                pod_pids_limit=configuration.pod_pids_limit,
                hugepage_sizes=self.node.hugepage_sizes,
            ),
        )
        cgroups = Cgroups(tree, settings)
        try:
            await cgroups.start()
        except (OSError, SystemdError) as error:
            raise StartError(f"cannot make the cgroups of pods: {error}") from error
        return PodCgroups(cgroups, lambda: [stored.pod for stored in self.store.active()])

    async def _ask_runtime(self) -> tuple[CgroupDriver, str]:
        """The runtime's cgroup driver and name; asked until it answers."""
        while True:
            await self.gate.wait_up()
            try:
                version = await self.client.version()
                return await self._cgroup_driver(), version.runtime_name
            except RpcError as error:
                log.warning("the runtime went away at the start", error=str(error))
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
        told = {
            cri.CgroupDriver.SYSTEMD: CgroupDriver.SYSTEMD,
            cri.CgroupDriver.CGROUPFS: CgroupDriver.CGROUPFS,
        }[answer.linux.cgroup_driver]
        if told is not configured:
            log.info("cgroup driver taken from the runtime", driver=str(told))
        return told

    def _memory_available(self, pod: Pod) -> int:
        limit = pod_limits(pod).get("memory")
        return limit.value if limit is not None else self.node.memory_capacity_bytes

    @property
    def sources(self) -> frozenset[Source]:
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
                        adopt=self._adopt,
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
                        adopt=self._adopt,
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
        collector = GarbageCollector(
            client=self.client,
            cache=self.cache,
            wanted=lambda: [stored.pod.metadata.uid for stored in self.store],
            limits=DeadContainerLimits(
                per_container=options.maximum_dead_containers_per_container,
                total=options.maximum_dead_containers,
                minimum_age=options.minimum_container_ttl_duration,
            ),
            gate=self.gate,
            clock=self.clock,
            node=self.node,
            file_limiter=trio.CapacityLimiter(1),
        )
        task_status.started()
        await collector.run()

    async def take(self, source: Source, pods: tuple[Pod, ...]) -> None:
        """Take the full set of pods that a source has now; waits while the sync loop is behind."""
        for update in self.merge.apply(source, pods):
            await self.config_in.send(update)

    async def _clean_up(self) -> None:
        """One round of housekeeping; none before the parts that know what there is."""
        if self.housekeeper is not None:
            await self.housekeeper.clean_up()

    def _adopt(self, pod: Pod, source: Source) -> str | None:
        """The UID under which another kubelet runs this static pod, if one does."""
        return adoptable_uid(self.cache.pods(), pod, source)

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
        await feed_watchdog(self.notifier, period, self.monitor.seconds_since_turn)

    async def _serve_health(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        configuration = self.settings.configuration
        if not configuration.healthz_port:
            task_status.started()
            return
        address = configuration.healthz_bind_address
        listeners = await _listening(address, configuration.healthz_port, "healthzPort")
        routes = healthz_routes({"ping": lambda: "", "syncloop": self._loop_health})
        await serve_http(listeners, route(routes), task_status=task_status)

    def _loop_health(self) -> str:
        seconds = self.monitor.seconds_since_turn()
        return f"no turn for {seconds:.0f} s" if seconds > LOOP_STUCK_SECONDS else ""

    async def _serve_pods(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The agent's own socket, always; the read-only port where it is set."""
        configuration = self.settings.configuration
        routes = {
            **read_only_routes(self._pods, self.journal),
            **healthz_routes({"ping": lambda: "", "syncloop": self._loop_health}),
        }
        socket = Path(self.settings.options.root_dir, AGENT_SOCKET)
        try:
            own = listen_unix(socket)
        except OSError as error:
            raise StartError(
                f"{socket}: {error.strerror}; if it is another agent, end that one, or choose "
                "another --root-dir"
            ) from error
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, own, route(routes))
            if configuration.read_only_port:
                listeners = await _listening(
                    configuration.address, configuration.read_only_port, "readOnlyPort"
                )
                await nursery.start(serve_http, listeners, route(routes))
            task_status.started()

    def _pods(self) -> Iterable[Pod]:
        """The pods of the sources; there are none before the parts that make statuses."""
        return [self.statuses.with_status(stored.pod) for stored in self.store]


async def _listening(address: str, port: int, setting: str) -> Sequence[trio.SocketListener]:
    try:
        return await listen_tcp(address, port)
    except OSError as error:
        raise StartError(
            f"{setting}: cannot listen on {address}:{port}: {error.strerror}; "
            "choose another port, or 0 for none"
        ) from error


def _host_file() -> str:
    try:
        return Path("/etc/hosts").read_text()
    except OSError:
        return ""


def status_line(state: RuntimeState) -> str:
    """What `systemctl status` shows."""
    if not state.up:
        return f"waiting for the container runtime: {state.reason}"
    if not state.network_ready:
        return f"network is not ready: {state.network_reason}"
    return "running"


def adoptable_uid(running: Iterable[ObservedPod], pod: Pod, source: Source) -> str | None:
    """The UID of a running pod that is this static pod: same name, source and containers."""
    wanted = {container.name: container_hash(container) for container in pod.spec.containers}
    for candidate in running:
        sandbox = candidate.ready_sandbox
        if sandbox is None or (candidate.namespace, candidate.name) != (
            pod.metadata.namespace,
            pod.metadata.name,
        ):
            continue
        if sandbox.annotations.get(CONFIG_SOURCE_ANNOTATION) != source:
            continue
        found = {c.name: c.hash for c in reversed(candidate.containers) if c.name in wanted}
        if found and all(wanted[name] == hash_ for name, hash_ in found.items()):
            return candidate.uid
    return None
