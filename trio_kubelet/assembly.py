"""Builds the parts that act on pods, once it is known what the machine and the runtime can do.

Nothing here decides or acts on a pod; it only says which part is made of what.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import evolve, frozen

from state_machines.container import crash_loop_policy
from trio_kubelet.clock import Clock
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Node, NodeFeatures, Pod, Quantity
from trio_kubelet.mountinfo import mount_points
from trio_kubelet.node import Pressures, gather_dns, gather_facts, read_hosts
from trio_kubelet.node.allocatable import allocatable
from trio_kubelet.node.enforcement import (
    ENFORCED_MESSAGE,
    ENFORCED_REASON,
    FAILED_REASON,
    failed_message,
    pods_cgroup_config,
)
from trio_kubelet.node.machine import apparmor_enabled, read_machine
from trio_kubelet.node.pressure_monitor import PressureMonitor
from trio_kubelet.node.profile import (
    IMPLEMENTED_FEATURES,
    NodeProfile,
    node_profile,
    profile_problem,
)
from trio_kubelet.node.signals import MeasuredPlaces
from trio_kubelet.node.thresholds import configured_thresholds
from trio_kubelet.pleg import RuntimeCache
from trio_kubelet.references import NoReferences, References
from trio_kubelet.resources import (
    CgroupDriver,
    Cgroups,
    CgroupSettings,
    CgroupTree,
    PodCgroupSettings,
    SystemdError,
    pod_limits,
)
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.gate import RuntimeGate
from trio_kubelet.runtime.images.access import Verification, VerificationPolicy
from trio_kubelet.runtime.images.credentials import credential_files, pod_keyring, read_keyring
from trio_kubelet.runtime.images.manager import ImageManager, PullRate
from trio_kubelet.runtime.images.pull_records import ImageAccess, PullRecords, UnverifiedAccess
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStarter
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper
from trio_kubelet.runtime.lifecycle.pod_runtime import PodRuntime
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator, default_handler
from trio_kubelet.runtime.lifecycle.start_limiter import StartLimiter
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.startup import StartError
from trio_kubelet.status import NodeIdentity, Statuses
from trio_kubelet.sync.admission import Admission
from trio_kubelet.sync.admission.pressure import refused_under_pressure
from trio_kubelet.sync.housekeeping import LeftoverSources
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.sync.store import PodStore
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.volumes import PodFolders, PodStorage, local_volumes

log = structlog.get_logger("agent")

FILE_THREADS = 8
"""Threads for the small files of pods: hosts files, logs, termination messages."""


@frozen(kw_only=True)
class Foundation:
    """The parts that are there from the first moment, before the runtime has answered."""

    settings: Settings
    clock: Clock
    client: RuntimeClient
    cache: RuntimeCache
    store: PodStore
    gate: RuntimeGate
    journal: Journal
    recorder: EventRecorder
    start_limiter: StartLimiter
    image_access: ImageAccess
    allocations: Allocations
    pressure: PressureMonitor
    activity: Activity
    oom_kills: OomKills | None


@frozen(kw_only=True)
class Assembled:
    """What was built. `places` are where housekeeping looks for what is left of pods."""

    node: NodeFacts
    statuses: Statuses
    parts: SyncDependencies
    places: LeftoverSources


async def assemble(
    base: Foundation,
    *,
    driver: CgroupDriver,
    runtime_name: str,
    references: References | NoReferences,
    runtime_handler: Callable[[Pod], Awaitable[str]] = default_handler,
) -> Assembled:
    """Build everything. Raises StartError. `runtime_handler` is as for SandboxCreator."""
    settings = base.settings
    await base.allocations.load()
    profile = await trio.to_thread.run_sync(read_profile, settings)
    tree = None if settings.options.hollow else CgroupTree.find(mount_points())
    cgroup_v2 = tree is not None and tree.version != 1
    node = await trio.to_thread.run_sync(
        partial(gather_facts, settings, cgroup_v2=cgroup_v2, driver=driver)
    )
    node = evolve(node, allocatable=allocatable(profile.capacity, profile.reservations))
    cgroups = await build_cgroups(base, node, tree, profile)
    node = evolve(
        node,
        swap_controller=tree is not None and await trio.to_thread.run_sync(tree.can_limit_swap),
        swap_capacity_bytes=profile.machine.swap_bytes,
    )
    files = trio.CapacityLimiter(FILE_THREADS)
    volumes = local_volumes(
        PodFolders(Path(settings.options.root_dir)),
        partial(_memory_available, node),
        data=references,
        allocatable=lambda: node.allocatable,
        clock=base.clock,
        privileged=False if settings.options.hollow else None,
    )
    storage = PodStorage(volumes, references, base.recorder, node, files)
    statuses = Statuses(
        base.clock,
        NodeIdentity(
            host_ips=node.host_ips,
            runtime_name=runtime_name,
        ),
        base.allocations,
        runtime_features=lambda: base.gate.state.runtime_features,
    )
    parts = SyncDependencies(
        runtime=build_runtime(
            base,
            node,
            sub_paths=storage,
            files=files,
            images=build_images(base, references),
            runtime_handler=runtime_handler,
        ),
        cache=base.cache,
        statuses=statuses,
        storage=storage,
        cgroups=cgroups,
        allocations=base.allocations,
        gate=base.gate,
        activity=base.activity,
        recorder=base.recorder,
        clock=base.clock,
    )
    return Assembled(
        node=node,
        statuses=statuses,
        parts=parts,
        places=LeftoverSources(
            runtime=base.cache.pods,
            records=base.allocations.uids,
            folders=volumes.pods_on_disk,
            cgroups=cgroups.list_pod_uids,
            logs=storage.pods_with_logs,
        ),
    )


def read_profile(settings: Settings) -> NodeProfile:
    """What the settings make of this machine. Blocks. Raises StartError."""
    try:
        machine = read_machine(Path(settings.options.root_dir))
    except (OSError, ValueError) as error:
        raise StartError(f"the size of the machine cannot be read: {error}") from error
    profile = node_profile(settings, machine)
    if problem := profile_problem(profile):
        raise StartError(problem)
    return profile


def _memory_available(node: NodeFacts, pod: Pod) -> int:
    """Bytes that a pod may use: its limit, or what the node has for pods."""
    limit = pod_limits(pod).get("memory") or node.allocatable.get("memory")
    return limit.value if limit is not None else node.memory_capacity_bytes


def build_runtime(
    base: Foundation,
    node: NodeFacts,
    *,
    sub_paths: PodStorage,
    files: trio.CapacityLimiter,
    images: ImageManager,
    runtime_handler: Callable[[Pod], Awaitable[str]],
) -> PodRuntime:
    """What acts on containers."""
    settings = base.settings
    configuration = settings.configuration
    stopper = ContainerStopper(client=base.client, recorder=base.recorder, node=node)
    remover = ContainerRemover(
        client=base.client, node=node, file_limiter=files, oom_kills=base.oom_kills
    )
    starter = ContainerStarter(
        client=base.client,
        stopper=stopper,
        remover=remover,
        sub_paths=sub_paths,
        recorder=base.recorder,
        node=node,
        start_limiter=base.start_limiter,
        file_limiter=files,
        runtime_features=lambda: base.gate.state.runtime_features,
        oom_kills=base.oom_kills,
        read_host_file=read_hosts,
    )
    longest = configuration.crash_loop_back_off.max_container_restart_period
    return PodRuntime(
        inspector=PodInspector(client=base.client, file_limiter=files, oom_kills=base.oom_kills),
        cache=base.cache,
        images=images,
        sandboxes=SandboxCreator(
            client=base.client,
            recorder=base.recorder,
            journal=base.journal,
            node=node,
            read_dns=partial(gather_dns, settings, node.host_ips),
            start_limiter=base.start_limiter,
            file_limiter=files,
            runtime_handler=runtime_handler,
        ),
        starter=starter,
        stopper=stopper,
        remover=remover,
        dead_per_container=settings.options.maximum_dead_containers_per_container,
        recorder=base.recorder,
        journal=base.journal,
        clock=base.clock,
        crash_backoff=crash_loop_policy(
            longest.total_seconds() if longest is not None else None,
            reduced_decay=settings.gates["ReduceDefaultCrashLoopBackOffDecay"],
        ),
    )


def cgroup_driver(configured: CgroupDriver, answer: cri.RuntimeConfigResponse) -> CgroupDriver:
    """The cgroup driver that the runtime names; the configured one if nobody knows that."""
    told = {
        cri.CgroupDriver.SYSTEMD: CgroupDriver.SYSTEMD,
        cri.CgroupDriver.CGROUPFS: CgroupDriver.CGROUPFS,
    }.get(answer.linux.cgroup_driver)
    if told is None:
        number = int(answer.linux.cgroup_driver)
        log.warning("runtime reports an unknown cgroup driver", number=number)
        return configured
    if told is not configured:
        log.info("cgroup driver taken from the runtime", driver=str(told))
    return told


def build_admission(
    settings: Settings,
    *,
    allocatable: Callable[[], Mapping[str, Quantity]],
    node: Callable[[], Node | None],
    refresh_node: Callable[[], Awaitable[None]] | None,
    runtime_features: Callable[[], NodeFeatures | None],
    pressures: Callable[[], Pressures | None],
) -> Admission:
    """What decides which pods may run here; `refresh_node` is there with an API server.

    A node that declares no features (gate NodeDeclaredFeatures) has none that pods may need.
    """
    configuration, gates = settings.configuration, settings.gates
    declares = gates["NodeDeclaredFeatures"]
    features = tuple(name for name in IMPLEMENTED_FEATURES if declares and gates[name])
    return Admission(
        max_pods=configuration.max_pods,
        allowed_sysctls=configuration.allowed_unsafe_sysctls,
        allocatable=allocatable,
        node=node,
        refresh_node=refresh_node,
        runtime_classes=refresh_node is not None,
        apparmor=settings.options.hollow or apparmor_enabled(),
        runtime_features=runtime_features,
        declared_features=lambda: features,
        compare_taints=gates["TaintTolerationComparisonOperators"],
        first=(lambda pod, _others: refused_under_pressure(pod, pressures()),),
    )


def build_pressure_monitor(settings: Settings, client: RuntimeClient) -> PressureMonitor:
    """What measures the node."""
    configuration = settings.configuration

    def find_places() -> MeasuredPlaces:
        tree = None if settings.options.hollow else CgroupTree.find(mount_points())
        name = kubepods_name(configuration.cgroup_root or "/")
        return MeasuredPlaces(
            root_folder=Path(settings.options.root_dir),
            tree=tree,
            pods_cgroups=tuple(name.path(driver) for driver in CgroupDriver),
        )

    return PressureMonitor(
        thresholds=configured_thresholds(configuration),
        transition_seconds=configuration.eviction_pressure_transition_period.total_seconds(),
        client=None if settings.options.hollow else client,
        find_places=find_places,
    )


def build_oom_kills(settings: Settings) -> OomKills | None:
    """What knows which containers the kernel killed; None without a kernel."""
    if settings.options.hollow:
        return None
    configuration = settings.configuration
    return OomKills(
        lambda: CgroupTree.find(mount_points()),
        PodFolders(Path(settings.options.root_dir)).pods,
        cgroup_root=configuration.cgroup_root or "/",
        whole=not configuration.single_process_oom_kill,
    )


def build_images(base: Foundation, references: References | NoReferences) -> ImageManager:
    """What gets images."""
    configuration = base.settings.configuration
    parallel = 1 if configuration.serialize_image_pulls else configuration.max_parallel_image_pulls
    files = credential_files(base.settings.options.root_dir, os.environ.get("HOME", "/root"))
    return ImageManager(
        client=base.client,
        recorder=base.recorder,
        journal=base.journal,
        clock=base.clock,
        limiter=trio.CapacityLimiter(parallel) if parallel else None,
        rate=PullRate(configuration.registry_pull_qps, configuration.registry_burst),
        read_keyring=partial(read_keyring, files),
        pod_keyring=partial(pod_keyring, references.pull_secrets),
        access=base.image_access,
    )


def build_image_access(settings: Settings, clock: Clock) -> PullRecords | UnverifiedAccess:
    """What knows who may use an image that is on the node already."""
    if not settings.gates["KubeletEnsureSecretPulledImages"]:
        return UnverifiedAccess()
    configuration = settings.configuration
    verification = Verification(
        policy=VerificationPolicy(configuration.image_pull_credentials_verification_policy),
        allowlist=configuration.preloaded_images_verification_allowlist,
    )
    return PullRecords(Path(settings.options.root_dir), verification, clock)


async def build_cgroups(
    base: Foundation, node: NodeFacts, tree: CgroupTree | None, profile: NodeProfile
) -> PodCgroups | NoCgroups:
    """What makes cgroups; those above the pods are made at once. Raises StartError."""
    if tree is None:
        return NoCgroups()
    configuration = base.settings.configuration
    settings = CgroupSettings(
        driver=node.cgroup_driver,
        cgroup_root=node.cgroup_root,
        cgroups_per_qos=configuration.cgroups_per_qos,
        pod=PodCgroupSettings(
            cpu_cfs_quota=node.cpu_cfs_quota,
            cpu_cfs_quota_period_us=node.cpu_cfs_quota_period_us,
            pod_pids_limit=configuration.pod_pids_limit,
            hugepage_sizes=node.hugepage_sizes,
        ),
    )
    cgroups = Cgroups(tree, settings)
    try:
        if problem := await cgroups.driver_change_problem():
            raise StartError(problem)
        await _start_cgroups(base, cgroups, profile)
    except (OSError, SystemdError) as error:
        raise StartError(f"cannot make the cgroups of pods: {error}") from error
    allocated = base.allocations.allocated
    return PodCgroups(cgroups, lambda: [allocated(stored.pod) for stored in base.store.active()])


async def _start_cgroups(base: Foundation, cgroups: Cgroups, profile: NodeProfile) -> None:
    """Make those above the pods, with what all pods may use, or without where that is refused."""
    configuration = base.settings.configuration
    if not configuration.cgroups_per_qos:
        return
    limits = pods_cgroup_config(
        profile.capacity,
        profile.reservations,
        configuration.enforce_node_allocatable,
        profile.machine.max_pids,
    )
    try:
        await cgroups.start(limits)
    except (OSError, SystemdError) as error:
        where = kubepods_name(configuration.cgroup_root).cgroupfs_path
        message = failed_message(where, error)
        base.recorder.node(EventType.WARNING, FAILED_REASON, message)
        await cgroups.start()
    else:
        base.recorder.node(EventType.NORMAL, ENFORCED_REASON, ENFORCED_MESSAGE)
