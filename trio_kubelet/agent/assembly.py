"""Builds the parts that act on pods, once the runtime has answered.

Nothing here decides or acts on a pod; it only says which part is made of what.
"""

import os
from collections.abc import Collection
from functools import partial

import structlog
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from state_machines.container import crash_loop_policy
from trio_kubelet.agent.cluster import Cluster, Recall, Standalone
from trio_kubelet.agent.core import Core
from trio_kubelet.errors import StartError
from trio_kubelet.node import gather_dns, gather_facts
from trio_kubelet.node.allocatable import (
    ENFORCED_MESSAGE,
    ENFORCED_REASON,
    FAILED_REASON,
    failed_message,
)
from trio_kubelet.node.profile import IMPLEMENTED_FEATURES
from trio_kubelet.node.status import lacking_features
from trio_kubelet.probes import ProbeRunner, Probes
from trio_kubelet.resources import (
    CgroupDriver,
    Cgroups,
    CgroupSettings,
    PodCgroupSettings,
    SystemdError,
)
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.images.credentials import PodKeyrings, credential_files, read_keyring
from trio_kubelet.runtime.images.manager import ImageManager, PullRate
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStarter
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper
from trio_kubelet.runtime.lifecycle.container_workers import OpenProbes
from trio_kubelet.runtime.lifecycle.hooks import Hooks
from trio_kubelet.runtime.lifecycle.pod_runtime import PodRuntime
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.user_namespaces import IDS_PER_POD, PodIdRanges, ids_of_sandboxes
from trio_kubelet.status import NodeIdentity, StatusReporter
from trio_kubelet.sync.admission import Admission
from trio_kubelet.sync.admission.tolerations import refused_under_pressure
from trio_kubelet.sync.housekeeping import LeftoverSources
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventType
from trio_kubelet.volumes import PodFolders, PodStorage, local_volumes

log = structlog.get_logger("agent")

RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=5.0)
FILE_THREADS = 8
"""Threads for the small files of pods: hosts files, logs, termination messages."""
FILE_THREADS_OF_POD = 2


@frozen(kw_only=True)
class AnsweredRuntime:
    """The runtime's account of itself."""

    name: str
    cgroup_driver: CgroupDriver


@frozen(kw_only=True)
class PodParts:
    """The parts that act on pods; housekeeping looks for remains of them in `leftover_sources`.

    `recall` takes up what an earlier agent has told of the containers of a static pod.
    """

    node: NodeFacts
    id_ranges: PodIdRanges
    probes: Probes
    sync: SyncDependencies
    leftover_sources: LeftoverSources
    recall: Recall


async def ask_runtime(core: Core) -> AnsweredRuntime:
    """Return name and cgroup driver of the runtime; it is asked until it answers."""
    retries = Retries(RETRY)
    while True:
        await core.gate.wait_up()
        try:
            version = await core.client.version()
            return AnsweredRuntime(
                name=version.runtime_name, cgroup_driver=await _cgroup_driver(core)
            )
        except RpcError as error:
            retries.warn(log, "runtime request failed during start, will retry", error=str(error))
            await retries.wait()


async def _cgroup_driver(core: Core) -> CgroupDriver:
    """The runtime's cgroup driver, where it tells; else the configured one."""
    configured = CgroupDriver(core.settings.configuration.cgroup_driver)
    try:
        answer = await core.client.runtime_config()
    except RpcError as error:
        if error.code is Code.UNIMPLEMENTED:
            return configured
        raise
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


async def assemble(core: Core, runtime: AnsweredRuntime, cluster: Cluster | Standalone) -> PodParts:
    """Build everything; the cgroups above the pods are made at once. Raises StartError."""
    await core.allocations.load()
    cgroups = await _cgroups(core, runtime.cgroup_driver)
    node = await run_in_thread(
        partial(
            gather_facts,
            core.settings,
            core.host.machine,
            core.resources.allocatable,
            cgroups=core.host.cgroups,
            driver=runtime.cgroup_driver,
        )
    )
    files = FairLimiter(FILE_THREADS, FILE_THREADS // 2, FILE_THREADS_OF_POD)
    volumes = local_volumes(
        PodFolders(core.root),
        core.resources.memory_for,
        data=cluster.references,
        allocatable=core.resources.allocatable,
        clock=core.clock,
        privileged=core.host.privileged,
    )
    namespaces = core.settings.configuration.user_namespaces
    id_ranges = await PodIdRanges.open(
        core.root,
        await volumes.pods_on_disk(),
        ids_per_pod=(namespaces.ids_per_pod if namespaces else None) or IDS_PER_POD,
        max_pods=core.settings.configuration.max_pods,
        ask=partial(ids_of_sandboxes, core.client),
    )
    storage = PodStorage(volumes, cluster.references, core.recorder, node, files, id_ranges)
    node_parts = _NodeParts(node=node, files=files, id_ranges=id_ranges)
    probes = _probes(core, node)
    sync = SyncDependencies(
        open_containers=_pod_runtime(core, node_parts, storage, cluster, probes.open).open,
        cache=core.cache,
        statuses=StatusReporter(
            statuses=core.statuses,
            clock=core.clock,
            node=NodeIdentity(host_ips=node.host_ips, runtime_name=runtime.name),
            allocations=core.allocations,
            runtime_features=core.gate.runtime_features,
            probed=probes.verdicts,
        ),
        storage=storage,
        cgroups=cgroups,
        allocations=core.allocations,
        runtime_state=lambda: core.gate.state,
        busy=core.activity.busy,
        recorder=core.recorder,
        clock=core.clock,
    )
    leftover_sources = LeftoverSources(
        runtime=core.cache.pods,
        records=core.allocations.uids,
        folders=volumes.pods_on_disk,
        cgroups=cgroups.list_pod_uids,
        logs=storage.pods_with_logs,
    )
    return PodParts(
        node=node,
        id_ranges=id_ranges,
        probes=probes,
        sync=sync,
        leftover_sources=leftover_sources,
        recall=probes.recall,
    )


@frozen(kw_only=True)
class _NodeParts:
    """Parts of the node for others. `files` limits the threads for the files of pods."""

    node: NodeFacts
    files: FairLimiter
    id_ranges: PodIdRanges


def _pod_runtime(
    core: Core,
    node_parts: _NodeParts,
    storage: PodStorage,
    cluster: Cluster | Standalone,
    open_probes: OpenProbes,
) -> PodRuntime:
    """Make the parts that act on containers."""
    settings, node, files = core.settings, node_parts.node, node_parts.files
    configuration = settings.configuration
    hooks = Hooks(
        client=core.client, recorder=core.recorder, on_sleep_cut_short=core.sleeps_cut_short
    )
    stopper = ContainerStopper(client=core.client, recorder=core.recorder, node=node, hooks=hooks)
    remover = ContainerRemover(client=core.client, node=node, files=files, oom_kills=core.oom_kills)
    starter = ContainerStarter(
        client=core.client,
        stopper=stopper,
        hooks=hooks,
        remover=remover,
        bind_sub_path=storage.bind,
        recorder=core.recorder,
        node=node,
        start_limiter=core.start_limiter,
        files=files,
        runtime_features=core.gate.runtime_features,
        oom_kills=core.oom_kills,
        read_host_file=core.host.read_hosts,
    )
    longest = configuration.crash_loop_back_off.max_container_restart_period
    return PodRuntime(
        inspector=PodInspector(client=core.client, files=files, oom_kills=core.oom_kills),
        cache=core.cache,
        ensure_image=_images(core, cluster).ensure,
        sandboxes=SandboxCreator(
            client=core.client,
            recorder=core.recorder,
            journal=core.journal,
            node=node,
            read_dns=partial(gather_dns, settings, node.host_ips),
            start_limiter=core.start_limiter,
            files=files,
            runtime_handler=cluster.runtime_handler,
            runtime_features=core.gate.runtime_features,
            user_namespace=node_parts.id_ranges.mapping,
        ),
        starter=starter,
        stopper=stopper,
        remover=remover,
        open_probes=open_probes,
        dead_per_container=settings.options.maximum_dead_containers_per_container,
        recorder=core.recorder,
        journal=core.journal,
        clock=core.clock,
        crash_backoff=crash_loop_policy(
            longest.total_seconds() if longest is not None else None,
            reduced_decay=settings.gates["ReduceDefaultCrashLoopBackOffDecay"],
        ),
    )


def _probes(core: Core, node: NodeFacts) -> Probes:
    """Make the part that runs the probes of all pods."""
    settings = core.settings
    runner = ProbeRunner(
        client=core.client,
        ask_over_network=core.host.ask_over_network,
        exec_timeouts=settings.gates["ExecProbeTimeout"],
    )
    return Probes(
        runner=runner,
        recorder=core.recorder,
        journal=core.journal,
        clock=core.clock,
        changes=core.tell_of_probe,
        pod_ip=lambda pod: node.address_of(pod, core.cache.get(pod.metadata.uid).ips),
    )


def _images(core: Core, cluster: Cluster | Standalone) -> ImageManager:
    configuration = core.settings.configuration
    parallel = 1 if configuration.serialize_image_pulls else configuration.max_parallel_image_pulls
    files = credential_files(core.settings.options.root_dir, os.environ.get("HOME", "/root"))
    return ImageManager(
        client=core.client,
        recorder=core.recorder,
        journal=core.journal,
        clock=core.clock,
        limiter=FairLimiter(parallel, parallel) if parallel else None,
        rate=PullRate(configuration.registry_pull_qps, configuration.registry_burst),
        read_keyring=partial(read_keyring, files),
        pod_keyring=PodKeyrings(cluster.references.pull_secrets).keyring,
        access=core.image_access,
    )


def build_admission(core: Core, cluster: Cluster | Standalone, id_ranges: PodIdRanges) -> Admission:
    """Make the admission of pods.

    A node that declares no features (gate NodeDeclaredFeatures) has none that pods may need.
    """
    configuration, gates = core.settings.configuration, core.settings.gates
    declares = gates["NodeDeclaredFeatures"]
    features = frozenset(name for name in IMPLEMENTED_FEATURES if declares and gates[name])

    def declared() -> Collection[str]:
        return features - lacking_features(core.gate.runtime_features())

    return Admission(
        max_pods=configuration.max_pods,
        allowed_sysctls=configuration.allowed_unsafe_sysctls,
        allocatable=core.resources.allocatable,
        node=cluster.node,
        refresh_node=cluster.refresh_node,
        runtime_classes=cluster.has_runtime_classes,
        apparmor=core.host.apparmor,
        runtime_features=lambda: core.gate.state.runtime_features.features,
        declared_features=declared,
        no_user_namespace=lambda pod: id_ranges.refusal(pod, core.gate.runtime_features()),
        compare_taints=gates["TaintTolerationComparisonOperators"],
        under_pressure=lambda pod: refused_under_pressure(pod, core.pressure.current()),
    )


async def _cgroups(core: Core, driver: CgroupDriver) -> PodCgroups | NoCgroups:
    """Make the owner of cgroups; those above the pods are made at once. Raises StartError."""
    if core.host.cgroups is None:
        return NoCgroups()
    configuration = core.settings.configuration
    settings = CgroupSettings(
        driver=driver,
        cgroup_root=configuration.cgroup_root or "/",
        cgroups_per_qos=configuration.cgroups_per_qos,
        pod=PodCgroupSettings(
            cpu_cfs_quota=configuration.cpu_cfs_quota,
            cpu_cfs_quota_period_us=round(configuration.cpu_cfs_quota_period.total_seconds() * 1e6),
            pod_pids_limit=configuration.pod_pids_limit,
            hugepage_sizes=tuple(core.host.machine.size.hugepages),
        ),
    )
    cgroups = Cgroups(core.host.cgroups, settings)
    cgroups.on_operation.add(core.cgroup_operations.call)
    try:
        if problem := await cgroups.driver_change_problem():
            raise StartError(problem)
        await cgroups.remove_cgroups_of_other_driver()
        await _start_cgroups(core, cgroups)
    except (OSError, SystemdError) as error:
        raise StartError(f"cannot make the cgroups of pods: {error}") from error
    return PodCgroups(cgroups, core.active_pods)


async def _start_cgroups(core: Core, cgroups: Cgroups) -> None:
    """Make those above the pods, with what all pods may use, or without where that is refused."""
    configuration = core.settings.configuration
    if not configuration.cgroups_per_qos:
        return
    limits = core.resources.pods_limits(
        configuration.enforce_node_allocatable, core.host.machine.max_pids
    )
    try:
        await cgroups.start(limits)
    except (OSError, SystemdError) as error:
        where = kubepods_name(configuration.cgroup_root).cgroupfs_path
        message = failed_message(where, error)
        core.recorder.node(EventType.WARNING, FAILED_REASON, message)
        await cgroups.start()
    else:
        core.recorder.node(EventType.NORMAL, ENFORCED_REASON, ENFORCED_MESSAGE)
