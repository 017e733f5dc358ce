"""The first stage of the agent: its parts that need nothing but settings and host.

They are there from the first moment, whether runtime and API server are or not, and they are what
the later stages (`cluster.py`, `pod_parts.py`, `pods.py`, `ports.py`) are made of. Nothing here
runs by itself or asks anybody: `start.py` starts it.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from trio_kubelet.agent.live_settings import LiveSettings
from trio_kubelet.agent.policies import (
    EVICTION_FIELDS,
    IMAGE_FIELDS,
    ROTATION_FIELDS,
    eviction_policy,
    image_policy,
    problems_of_machine,
    rotation_policy,
)
from trio_kubelet.agent.resource_parts import make_resource_managers
from trio_kubelet.agent.traces import make_traces, traced_transport
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.eviction import Signal
from trio_kubelet.config.settings import Settings
from trio_kubelet.csi import CSIDrivers, VolumeUsages
from trio_kubelet.debugging import LongTurn, LongTurnLog, LoopMeter
from trio_kubelet.devices import (
    DeviceManager,
    DevicePluginRegistration,
    DevicePlugins,
    DeviceRecords,
    device_amounts,
)
from trio_kubelet.dra import ClaimRecords, DRADrivers
from trio_kubelet.errors import StartError
from trio_kubelet.eviction.memory_events import MemoryEvents
from trio_kubelet.eviction.pressure_record import PressureRecord
from trio_kubelet.eviction.records import EvictionRecords
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import Pod
from trio_kubelet.logs.rotator import LogRotator
from trio_kubelet.node import node_name, node_resources
from trio_kubelet.node.allocatable import reservations
from trio_kubelet.node.host import Host
from trio_kubelet.node.shutdown import FILE as SHUTDOWN_FILE
from trio_kubelet.node.shutdown import NodeShutdown, grace_periods
from trio_kubelet.node.shutdown_record import ShutdownRecord
from trio_kubelet.node.system_cgroups import system_cgroup_paths
from trio_kubelet.pleg import Pleg, PodChange
from trio_kubelet.plugins import PluginRegistry
from trio_kubelet.pod_clients.share import ProbeShares
from trio_kubelet.ports.pod_events import PodEvents
from trio_kubelet.ports.pod_resources import PodResourcesLister
from trio_kubelet.ports.pods_api import PodsApi
from trio_kubelet.probes import ProbeChange
from trio_kubelet.resource_managers.cpu_watch import CpuWatch
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.rpc.watched import RpcCall, WatchedTransport
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import pod_log_folder
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.images.access import Verification, VerificationPolicy
from trio_kubelet.runtime.images.collector import ImageCollector
from trio_kubelet.runtime.images.filesystem import ImageDisk
from trio_kubelet.runtime.images.manager import ImageLookup
from trio_kubelet.runtime.images.pull_records import ImageAccess, PullRecords
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.cpuset_reconciler import CpusetReconciler
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.runtime.lifecycle.start_limiter import default_start_limiter
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.server import AnswerWriters
from trio_kubelet.sources import Source
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.stats.cgroup_reader import SystemProcesses
from trio_kubelet.status import Statuses
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.sync.store import PodStore
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.turns import Turns
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.telemetry.event_writer import EventWriter
from trio_kubelet.telemetry.verbosity import set_verbosity, set_vmodule
from trio_kubelet.volumes import PodFolders, VolumeOperations
from trio_kubelet.volumes.folders import make_folders

PLUGINS_REGISTRY = "plugins_registry"
DEVICE_PLUGINS, POD_RESOURCES, PODS_API = "device-plugins", "pod-resources", "pods-api"
CSI_PLUGIN, DEVICE_PLUGIN, DRA_PLUGIN = "CSIPlugin", "DevicePlugin", "DRAPlugin"
"""The types by which CSI drivers, device plugins and drivers of resource claims register."""

PLEG_CHANNEL_SIZE = 1000
PROBE_CHANNEL_SIZE = 100
IDLE_SECONDS = 0.1
"""The time without a start or stop of a pod after which events are written."""


class NodeParts:
    """The parts that depend on settings and host alone, each an attribute.

    `sources_known` is set when all sources have told which pods there are to be, `serves_others`
    when the port for others is open, or is not to be.
    Raises StartError for a node that reserves more than the machine has.
    """

    def __init__(self, settings: Settings, clock: Clock, host: Host) -> None:
        configuration = settings.configuration
        self.live = LiveSettings(settings, partial(problems_of_machine, machine=host.machine))
        self.clock = clock
        self.host = host
        self.root = Path(settings.options.root_dir)
        self.node_name = node_name(settings)
        self.resources = node_resources(settings, host.machine)
        if problem := self.resources.problem():
            raise StartError(problem)

        # Journal, events, and what metrics count
        self.journal = Journal(clock)
        self.recorder = EventRecorder(self.journal, self.node_name)
        self.loop_meter = LoopMeter(clock.now_ns)
        self.loop_meter.on_long_turn.add(LongTurnLog().take)
        self.loop_meter.on_long_turn.add(self._note_long_turn)
        self.runtime_calls: Callbacks[[RpcCall]] = Callbacks()
        self.cgroup_operations: Callbacks[[str, float]] = Callbacks()
        self.resize_tries: Callbacks[[float, bool]] = Callbacks()
        self.status_syncs: Callbacks[[float]] = Callbacks()
        self.sleeps_cut_short: Callbacks[[]] = Callbacks()
        self.http_fallbacks: Callbacks[[]] = Callbacks()
        self.image_lookups: Callbacks[[ImageLookup]] = Callbacks()
        self.image_pulls: Callbacks[[str, float]] = Callbacks()
        self.credential_plugin_runs: Callbacks[[str, float, bool]] = Callbacks()

        # The container runtime
        self.traces = make_traces(settings, clock, self.node_name)
        runtime, images, tasks = host.transports
        self.client = RuntimeClient(
            WatchedTransport(traced_transport(runtime, self.traces), self.runtime_calls),
            WatchedTransport(traced_transport(images, self.traces), self.runtime_calls),
            tasks,
            request_timeout_seconds=configuration.runtime_request_timeout.total_seconds(),
            streams_lists=settings.gates["CRIListStreaming"],
        )
        self.runtime_health = RuntimeHealth()
        self.oom_kills = _oom_kills(settings, host)
        self.inspector = PodInspector(client=self.client, oom_kills=self.oom_kills)
        self.cache = RuntimeCache()
        changes, self.runtime_changes = trio.open_memory_channel[PodChange](PLEG_CHANNEL_SIZE)
        self.pleg = Pleg(
            inspector=self.inspector,
            cache=self.cache,
            changes=changes,
            journal=self.journal,
            clock=clock,
            events_enabled=settings.gates["EventedPLEG"],
        )
        self.image_access = _image_access(settings, clock)

        # Plugins of the node
        self.csi_drivers = CSIDrivers()
        period_seconds = configuration.volume_stats_agg_period.total_seconds()
        self.volume_usages = VolumeUsages(self.csi_drivers, clock, period_seconds)
        self.volume_operations = VolumeOperations()
        device_plugins = DevicePlugins(self.journal)
        self.devices = DeviceManager(
            device_plugins,
            DeviceRecords(self.root / DEVICE_PLUGINS),
            wait_seconds=settings.options.device_plugin_wait.total_seconds(),
        )
        device_plugins.on_change.add(self._set_devices)
        self.device_registration = DevicePluginRegistration(
            self.root / DEVICE_PLUGINS, device_plugins
        )
        self.dra_drivers = DRADrivers()
        self.claim_records = ClaimRecords(self.root)
        self.plugins = PluginRegistry(
            self.root / PLUGINS_REGISTRY,
            {
                CSI_PLUGIN: self.csi_drivers.handle,
                DEVICE_PLUGIN: self.device_registration.handle,
                DRA_PLUGIN: self.dra_drivers.handle,
            },
        )

        # Measurements of the node and of what runs on it, and who writes answers that tell of them
        self.writers = AnswerWriters()
        self.stats = StatsProvider(_stats_sources(self))
        evictions = eviction_policy(configuration)
        self.pressure = PressureWatch(
            thresholds=evictions.thresholds,
            transition_seconds=evictions.transition_seconds,
            read=self.stats.node_since,
            journal=self.journal,
            by_mem_available=settings.options.eviction_mem_available,
        )
        self.pressure_record = PressureRecord(
            self.root, evictions.thresholds, host.machine.boot_id, clock
        )
        self.pressure.on_observed.add(self.pressure_record.observed)
        self.memory_events = _memory_events(self)
        self.shutdown = NodeShutdown(
            periods=grace_periods(configuration),
            open_logind=host.open_logind,
            file=self.root / SHUTDOWN_FILE,
            clock=clock,
            journal=self.journal,
            recorder=self.recorder,
            record=ShutdownRecord(self.root),
        )
        self.eviction_records = EvictionRecords(self.root)

        # Pods
        self.store = PodStore()
        self.statuses = Statuses()
        self.allocations = Allocations(self.root, trio.CapacityLimiter(1))
        self.resizes = ResizeProgress(self.allocations, self.journal)
        self.managers = make_resource_managers(
            settings, host.machine.topology, self.resources, self.root, self.devices
        )
        self.cpusets = CpusetReconciler(
            self.managers,
            self.client,
            self.cache,
            self.runtime_health,
            configuration.cpu_manager_reconcile_period.total_seconds(),
        )
        self.cpu_watch = CpuWatch(
            self.managers,
            host.sysfs,
            self.active_pods,
            configuration.cpu_manager_reconcile_period.total_seconds(),
            takes_new=host.cgroups is None or host.cgroups.version > 1,
        )
        self.monitor = LoopMonitor()
        self.activity = Activity()
        self.pod_resources = PodResourcesLister(
            self.root / POD_RESOURCES,
            self.managers,
            self.claim_records if settings.gates["KubeletPodResourcesDynamicResources"] else None,
            self.active_pods,
            self.pod,
        )
        self.start_limiter = default_start_limiter(self.activity)
        self.stop_turns = Turns()
        self.probe_shares = ProbeShares()
        self.sources_known = trio.Event()
        self.pods_api = _pods_api(self)
        self.image_garbage = _image_collector(self)
        self.log_rotator = _log_rotator(self)
        self.cache.on_observation.add(self.log_rotator.pod_changed)
        self.tell_of_probe, self.probe_changes = trio.open_memory_channel[ProbeChange](
            PROBE_CHANNEL_SIZE
        )

        # The API server
        self.events = EventWriter(
            self.node_name, clock, wait_idle=partial(self.activity.wait_idle, IDLE_SECONDS)
        )
        self.serves_others = trio.Event()
        self._follow_settings()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.live.in_force

    def _follow_settings(self) -> None:
        """Have changed settings taken over by those parts that can."""
        follow = self.live.follow
        follow(("logging.verbosity",), lambda: set_verbosity(self._configuration.logging.verbosity))
        follow(("logging.vmodule",), lambda: set_vmodule(self._configuration.logging.vmodule))
        follow(
            IMAGE_FIELDS,
            lambda: self.image_garbage.use(image_policy(self.settings)),
        )
        follow(
            ROTATION_FIELDS,
            lambda: self.log_rotator.use(rotation_policy(self._configuration)),
        )
        follow(
            ("containerLogMaxWorkers",),
            lambda: self.log_rotator.use_workers(self._configuration.container_log_max_workers),
        )
        follow(EVICTION_FIELDS, self._use_thresholds)

    def _use_thresholds(self) -> None:
        # What hard thresholds keep available pods may not ask for.
        self.resources.set_reservations(reservations(self._configuration, self.settings.options))
        new = eviction_policy(self._configuration)
        self.pressure.use(new.thresholds, new.transition_seconds)

    @property
    def _configuration(self) -> KubeletConfiguration:
        return self.settings.configuration

    @property
    def static_sources(self) -> frozenset[Source]:
        """The sources of static pods that the configuration names."""
        configuration = self.settings.configuration
        named = {
            Source.FILE: configuration.static_pod_path,
            Source.HTTP: configuration.static_pod_url,
        }
        return frozenset(source for source, where in named.items() if where)

    def pods(self) -> Iterable[Pod]:
        """The pods of the sources with their newest statuses."""
        return [self.statuses.with_status(stored.pod) for stored in self.store]

    def pod_of_uid(self, uid: str) -> Pod | None:
        """A pod of the sources with its newest status."""
        stored = self.store.get(uid)
        return self.statuses.with_status(stored.pod) if stored is not None else None

    def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod of the sources by its name, with its newest status."""
        for pod in self.pods():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return pod
        return None

    def active_pods(self) -> Iterable[Pod]:
        """The pods that hold resources, with what they were allocated."""
        return [self.allocations.allocated(stored.pod) for stored in self.store.active()]

    def _note_long_turn(self, turn: LongTurn) -> None:
        self.journal.note(
            "loop",
            turn.pod or self.node_name,
            "LongTurn",
            f"one task held the event loop: {turn.task}",
            duration_seconds=turn.cpu_seconds,
        )

    def _set_devices(self) -> None:
        self.resources.set_devices(*device_amounts(self.devices.plugins))

    def make_folders(self) -> None:
        """Make the agent's folders. Blocks. Raises StartError, and records an event of it."""
        logs = Path(self.settings.configuration.pod_logs_dir)
        for what, folder, mode in (
            ("root directory", self.root, 0o750),
            (f'pod logs root directory "{logs}"', logs, 0o755),
            ("pods directory", PodFolders(self.root).pods, 0o750),
            ("plugins directory", self.root / "plugins", 0o750),
            ("plugins registry directory", self.root / PLUGINS_REGISTRY, 0o750),
            ("device plugins directory", self.root / DEVICE_PLUGINS, 0o750),
            ("podresources directory", self.root / POD_RESOURCES, 0o750),
            ("checkpoint directory", self.root / "checkpoints", 0o700),
            *((("pods API directory", self.root / PODS_API, 0o750),) if self.pods_api else ()),
        ):
            try:
                make_folders(folder, mode)
            except OSError as error:
                why = f"mkdir {error.filename}: {str(error.strerror).lower()}"
                message = f"error creating {what}: {why}"
                self.recorder.node(EventType.WARNING, "KubeletSetupFailed", message)
                setting = "podLogsDir" if folder == logs else "--root-dir"
                raise StartError(f"{folder}: {error.strerror}; check {setting}") from error


def _image_access(settings: Settings, clock: Clock) -> ImageAccess:
    """Make the part that knows which pods may use an image that is on the node already."""
    if not settings.gates["KubeletEnsureSecretPulledImages"]:
        return ImageAccess()
    configuration = settings.configuration
    verification = Verification(
        policy=VerificationPolicy(configuration.image_pull_credentials_verification_policy),
        allowlist=configuration.preloaded_images_verification_allowlist,
    )
    return PullRecords(Path(settings.options.root_dir), verification, clock)


def _image_collector(parts: NodeParts) -> ImageCollector:
    """Make the part that removes images which nobody uses."""
    measure = parts.host.measure_image_disk
    return ImageCollector(
        client=parts.client,
        runtime_health=parts.runtime_health,
        policy=image_policy(parts.settings),
        disk=ImageDisk(client=parts.client, measure_space=measure) if measure else None,
        pods=lambda: [stored.pod for stored in parts.store.active()],
        sources_known=parts.sources_known,
        on_removed=partial(parts.image_access.tidy, parts.client),
        root=parts.root,
        clock=parts.clock,
        journal=parts.journal,
        recorder=parts.recorder,
    )


def _log_rotator(parts: NodeParts) -> LogRotator:
    """Make the part that rotates the logs of containers."""
    configuration = parts.settings.configuration
    return LogRotator(
        parts.client,
        parts.runtime_health,
        configuration.pod_logs_dir,
        rotation_policy(configuration),
        parts.clock,
        configuration.container_log_max_workers,
    )


def _pods_api(parts: NodeParts) -> PodsApi | None:
    """Make the part that tells programs of the node of its pods; None without its gate."""
    if not parts.settings.gates["PodsAPI"]:
        return None
    return PodsApi(
        parts.root / PODS_API,
        PodEvents(parts.store, parts.statuses, parts.pod_of_uid),
        parts.pods,
        parts.pod_of_uid,
        parts.sources_known,
    )


def _memory_events(parts: NodeParts) -> MemoryEvents | None:
    """Make the part that hears the kernel's words about memory; None without cgroups."""
    if parts.host.cgroups is None:
        return None
    name = kubepods_name(parts.settings.configuration.cgroup_root)
    events = MemoryEvents(
        parts.host.cgroups,
        {
            Signal.MEMORY: ("/",),
            Signal.ALLOCATABLE_MEMORY: tuple(name.path(driver) for driver in CgroupDriver),
        },
        lambda: parts.pressure.thresholds,
        parts.pressure.look_now,
    )
    parts.pressure.on_observed.add(events.observed)
    return events


def _oom_kills(settings: Settings, host: Host) -> OomKills | None:
    """Make the part that knows which containers the kernel killed; None without cgroups."""
    if host.cgroups is None:
        return None
    configuration = settings.configuration
    return OomKills(
        host.cgroups,
        PodFolders(Path(settings.options.root_dir)).pods,
        cgroup_root=configuration.cgroup_root,
        whole=not configuration.single_process_oom_kill,
    )


def _stats_sources(parts: NodeParts) -> StatsSources:
    """Say where statistics are read, and whose."""
    configuration = parts.settings.configuration
    folders, logs = PodFolders(parts.root), Path(configuration.pod_logs_dir)

    def paths(pod: ObservedPod) -> PodPaths:
        return PodPaths(
            uid=pod.uid,
            namespace=pod.namespace,
            volumes=folders.volumes(pod.uid),
            logs=logs / pod_log_folder(pod.namespace, pod.name, pod.uid),
        )

    return StatsSources(
        client=parts.client,
        clock=parts.clock,
        reader=CgroupReader(
            tree=parts.host.cgroups,
            cgroup_root=configuration.cgroup_root,
            host=parts.host.root,
            max_tasks=parts.host.machine.max_pids,
            system_cgroups=system_cgroup_paths(configuration, parts.settings.options),
        ),
        pods=parts.cache.pods,
        paths=paths,
        processes=SystemProcesses(_runtime_socket(parts)).find,
        root_folder=parts.root,
        images_on_disk=parts.host.images_on_disk,
        volume_seconds=configuration.volume_stats_agg_period.total_seconds(),
        of_drivers=parts.volume_usages.measured,
    )


def _runtime_socket(parts: NodeParts) -> str:
    """The socket of the runtime; empty if it has no process of its own."""
    if parts.host.cgroups is not None:
        with suppress(ValueError):
            return socket_path(parts.settings.configuration.container_runtime_endpoint)
    return ""
