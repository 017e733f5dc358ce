"""The second stage of the agent: the parts that act on pods, made when the runtime has answered.

Nothing here decides or acts on a pod; it only says which part is made of what.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import structlog
from attrs import field, frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.agent.cluster import Cluster, Recall, Standalone
from trio_kubelet.agent.image_parts import make_image_manager
from trio_kubelet.agent.node_cgroups import NodeCgroups, make_cgroups
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.policies import crash_backoff
from trio_kubelet.devices.allocation import ContainerAllocation
from trio_kubelet.devices.health import within_limits
from trio_kubelet.dra import ClaimManager
from trio_kubelet.k8s import Container, Pod, ResourceStatus
from trio_kubelet.node.host import gather_dns, gather_facts
from trio_kubelet.node.node_object import declared_features
from trio_kubelet.pod_source import is_static
from trio_kubelet.probes import ProbeRunner, Probes
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.resources import may_swap
from trio_kubelet.runtime.garbage.collector import DeadContainerLimits, GarbageCollector
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.images.container_images import ContainerImageManager
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStarter
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper
from trio_kubelet.runtime.lifecycle.container_workers import OpenProbes
from trio_kubelet.runtime.lifecycle.hooks import Hooks
from trio_kubelet.runtime.lifecycle.pod_runtime import PodRuntime
from trio_kubelet.runtime.lifecycle.resizer import PodResizer
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.user_namespaces import IDS_PER_POD, PodIdRanges, ids_of_sandboxes
from trio_kubelet.status import NodeIdentity, StatusReporter
from trio_kubelet.sync.admission import Admission
from trio_kubelet.sync.admission.node_match import refused_under_pressure
from trio_kubelet.sync.admission.resize_fit import ResizeAdmission
from trio_kubelet.sync.housekeeping import LeftoverSources
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.volumes import (
    CSIParts,
    CSIStages,
    DiskStages,
    NodeOfVolumes,
    PodFolders,
    PodStorage,
    StagedVolumes,
    disk_kinds,
    local_volumes,
)
from trio_kubelet.volumes.volumes import Volumes

log = structlog.get_logger("agent")

RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=5.0)
FILE_THREADS = 8
"""Threads for the small files of pods: hosts files, log folders, secrets."""


@frozen(kw_only=True)
class AnsweredRuntime:
    """The runtime's account of itself."""

    name: str
    cgroup_driver: CgroupDriver


@frozen(kw_only=True)
class PodParts:
    """The parts that act on pods.

    `sync` is what pods' tasks act with; housekeeping looks for remains of pods in
    `leftover_sources`; `recall` takes up what an earlier agent has told of the containers of a
    static pod. `staged` are the volumes that are staged at the node, `csi_stages` those of CSI
    drivers among them.
    """

    admission: Admission
    resize_admission: ResizeAdmission
    probes: Probes
    sync: SyncDependencies
    leftover_sources: LeftoverSources
    garbage: GarbageCollector
    recall: Recall
    cgroups: NodeCgroups
    staged: StagedVolumes
    csi_stages: CSIStages


async def ask_runtime(parts: NodeParts) -> AnsweredRuntime:
    """Return name and cgroup driver of the runtime; it is asked until it answers."""
    retries = Retries(RETRY)
    while True:
        await parts.runtime_health.wait_up()
        try:
            version = await parts.client.version()
            return AnsweredRuntime(
                name=version.runtime_name, cgroup_driver=await _cgroup_driver(parts)
            )
        except RpcError as error:
            retries.warn(log, "runtime request failed during start, will retry", error=str(error))
            await retries.wait()


async def _cgroup_driver(parts: NodeParts) -> CgroupDriver:
    """The runtime's cgroup driver, where it tells; else the configured one."""
    configured = CgroupDriver(parts.settings.configuration.cgroup_driver)
    try:
        answer = await parts.client.runtime_config()
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


async def make_pod_parts(
    parts: NodeParts, runtime: AnsweredRuntime, cluster: Cluster | Standalone
) -> PodParts:
    """Build everything; the cgroups above the pods are made at once. Raises StartError."""
    await parts.allocations.load()
    await parts.managers.load()
    await parts.eviction_records.load()
    await parts.shutdown.record.load()
    cgroups = await make_cgroups(parts, runtime.cgroup_driver)
    node = await run_in_thread(
        partial(
            gather_facts,
            parts.settings,
            parts.host.machine,
            parts.resources.allocatable,
            cgroups=parts.host.cgroups,
            driver=runtime.cgroup_driver,
        )
    )
    folders = PodFolders(parts.root)
    csi = CSIParts(
        drivers=parts.csi_drivers,
        usages=parts.volume_usages,
        settings=cluster.csi_settings,
        node=parts.node_name,
        node_object=cluster.node,
        journal=parts.journal,
        recorder=parts.recorder,
        clock=parts.clock,
        privileged=parts.host.privileged,
        look_seconds=parts.settings.configuration.sync_frequency.total_seconds(),
        limits=cluster.volume_limits,
        selinux=node.selinux,
        operations=parts.volume_operations,
    )
    staged = StagedVolumes(parts.root, parts.journal, cluster.node, parts.volume_operations)
    csi_stages = CSIStages(csi, folders, cluster.references, staged)
    attaches = parts.settings.configuration.enable_controller_attach_detach
    disks = DiskStages(
        folders,
        staged,
        disk_kinds(cluster.references),
        attaches=attaches and isinstance(cluster, Cluster),
        recorder=parts.recorder,
    )
    volumes = local_volumes(
        folders,
        parts.resources.memory_for,
        data=cluster.references,
        node=NodeOfVolumes(
            allocatable=parts.resources.allocatable,
            object=cluster.node,
            recorder=parts.recorder,
            plugin_folder=Path(parts.settings.configuration.volume_plugin_dir),
            disks=disks,
        ),
        clock=parts.clock,
        privileged=parts.host.privileged,
    ).with_csi(csi_stages)
    await volumes.tell_found()
    namespaces = parts.settings.configuration.user_namespaces
    id_ranges = await PodIdRanges.open(
        parts.root,
        await volumes.pods_on_disk(),
        ids_per_pod=(namespaces.ids_per_pod if namespaces else None) or IDS_PER_POD,
        max_pods=parts.settings.configuration.max_pods,
        ask=partial(ids_of_sandboxes, parts.client),
    )
    claims = ClaimManager(parts.dra_drivers, parts.claim_records, cluster.references, parts.journal)
    await claims.records.load()
    builder = _Builder(
        parts=parts,
        cluster=cluster,
        runtime_name=runtime.name,
        node=node,
        cgroups=cgroups,
        volumes=volumes,
        staged=staged,
        csi_stages=csi_stages,
        id_ranges=id_ranges,
        claims=claims,
    )
    return builder.build()


@frozen(kw_only=True)
class _Builder:
    """Makes the parts out of what had to be waited for. `node` are the facts of the node."""

    parts: NodeParts
    cluster: Cluster | Standalone
    runtime_name: str
    node: NodeFacts
    cgroups: NodeCgroups
    volumes: Volumes
    staged: StagedVolumes
    csi_stages: CSIStages
    id_ranges: PodIdRanges
    claims: ClaimManager
    files: FairLimiter = field(
        init=False, factory=partial(FairLimiter, FILE_THREADS, FILE_THREADS // 2, 2)
    )

    def build(self) -> PodParts:
        parts = self.parts
        storage = PodStorage(
            self.volumes,
            self.cluster.references,
            parts.recorder,
            self.node,
            self.files,
            self.id_ranges,
        )
        remover = ContainerRemover(client=parts.client, node=self.node, oom_kills=parts.oom_kills)
        probes = self.probes()
        statuses = StatusReporter(
            statuses=parts.statuses,
            clock=parts.clock,
            node=NodeIdentity(
                host_ips=self.node.host_ips,
                runtime_name=self.runtime_name,
                tells_image_digests=self.parts.settings.gates["ImageVolumeWithDigest"],
            ),
            allocations=parts.allocations,
            resizes=parts.resizes,
            devices=self._device_statuses,
            runtime_features=parts.runtime_health.runtime_features,
            probed=probes.verdicts,
        )
        return PodParts(
            admission=self.admission(),
            resize_admission=self.resize_admission(),
            probes=probes,
            sync=SyncDependencies(
                open_containers=self.pod_runtime(storage, remover, probes.open).open,
                cache=parts.cache,
                statuses=statuses,
                storage=storage,
                cgroups=self.cgroups.pods,
                allocations=parts.allocations,
                managers=parts.managers,
                devices=parts.devices,
                claims=self.claims,
                resizes=parts.resizes,
                runtime_state=lambda: parts.runtime_health.state,
                busy=parts.activity.busy,
                recorder=parts.recorder,
                clock=parts.clock,
            ),
            leftover_sources=LeftoverSources(
                runtime=parts.cache.pods,
                records=lambda: {
                    *parts.allocations.uids(),
                    *parts.managers.uids(),
                    *parts.devices.records.uids(),
                    *self.claims.records.uids(),
                },
                folders=self.volumes.pods_on_disk,
                cgroups=self.cgroups.pods.list_pod_uids,
                logs=storage.pods_with_logs,
            ),
            garbage=self.garbage(remover),
            recall=probes.recall,
            cgroups=self.cgroups,
            staged=self.staged,
            csi_stages=self.csi_stages,
        )

    def _device_statuses(self, pod: Pod) -> Mapping[str, tuple[ResourceStatus, ...]]:
        """The health of a pod's devices, where statuses are to have it."""
        gates = self.parts.settings.gates
        if not gates["ResourceHealthStatus"]:
            return {}
        of_plugins = self.parts.devices.resource_statuses(pod.metadata.uid)
        of_claims = self.claims.resource_statuses(
            pod, with_messages=gates["ResourceHealthStatusMessage"]
        )
        names = {*of_plugins, *of_claims}
        return within_limits(
            {name: (*of_plugins.get(name, ()), *of_claims.get(name, ())) for name in names}
        )

    async def _allocation(self, pod: Pod, container: Container) -> ContainerAllocation:
        """The devices and settings that plugins and claims give a container. Raises ConfigError."""
        allocation = await self.parts.devices.allocation(pod, container)
        return self.claims.added(pod, container, allocation)

    def admission(self) -> Admission:
        parts, cluster = self.parts, self.cluster
        configuration, gates = parts.settings.configuration, parts.settings.gates
        return Admission(
            max_pods=configuration.max_pods,
            allowed_sysctls=configuration.allowed_unsafe_sysctls,
            allocatable=parts.resources.allocatable,
            node=cluster.node,
            runtime_classes=cluster.has_runtime_classes,
            apparmor=parts.host.apparmor,
            runtime_features=lambda: parts.runtime_health.state.runtime_features.features,
            declared_features=lambda: declared_features(
                gates, parts.runtime_health.runtime_features()
            ),
            no_user_namespace=lambda pod: self.id_ranges.refusal(
                pod, parts.runtime_health.runtime_features()
            ),
            compare_taints=gates["TaintTolerationComparisonOperators"],
            goes_down=lambda: parts.shutdown.is_under_way,
            under_pressure=lambda pod: refused_under_pressure(pod, parts.pressure.current()),
            devices=parts.devices.refusal,
            is_device=parts.devices.is_device,
        )

    def resize_admission(self) -> ResizeAdmission:
        """The part that decides on other resources for pods that run."""
        gates = self.parts.settings.gates
        return ResizeAdmission(
            allocatable=self.parts.resources.allocatable,
            may_swap=lambda pod, container: may_swap(pod, container, self.node),
            pod_level=gates["InPlacePodLevelResourcesVerticalScaling"],
            init_containers=gates["InPlacePodVerticalScalingInitContainers"],
            static_managers=self.parts.managers.static,
            is_whole=self.parts.managers.is_whole,
        )

    def probes(self) -> Probes:
        """The part that runs the probes of all pods."""
        parts, node = self.parts, self.node
        runner = ProbeRunner(
            client=parts.client,
            ask_over_network=parts.host.ask_over_network,
            exec_timeouts=parts.settings.gates["ExecProbeTimeout"],
        )
        return Probes(
            runner=runner,
            recorder=parts.recorder,
            journal=parts.journal,
            clock=parts.clock,
            changes=parts.tell_of_probe,
            pod_ip=lambda pod: node.address_of(pod, parts.cache.get(pod.metadata.uid).ips),
            shares=parts.probe_shares,
        )

    def pod_runtime(
        self, storage: PodStorage, remover: ContainerRemover, open_probes: OpenProbes
    ) -> PodRuntime:
        """The parts that act on containers."""
        parts, node, files = self.parts, self.node, self.files
        settings = parts.settings
        hooks = Hooks(
            client=parts.client,
            recorder=parts.recorder,
            shares=parts.probe_shares,
            on_sleep_cut_short=parts.sleeps_cut_short,
            on_http_fallback=parts.http_fallbacks,
        )
        stopper = ContainerStopper(
            client=parts.client,
            recorder=parts.recorder,
            node=node,
            hooks=hooks,
            turns=parts.stop_turns,
        )
        return PodRuntime(
            inspector=parts.inspector,
            cache=parts.cache,
            ensure_images=ContainerImageManager(make_image_manager(parts, self.cluster)).ensure,
            sandboxes=SandboxCreator(
                client=parts.client,
                recorder=parts.recorder,
                journal=parts.journal,
                node=node,
                read_dns=partial(gather_dns, settings, node.host_ips),
                start_limiter=parts.start_limiter,
                files=files,
                runtime_handler=self.cluster.runtime_handler,
                runtime_features=parts.runtime_health.runtime_features,
                user_namespace=self.id_ranges.mapping,
            ),
            starter=ContainerStarter(
                client=parts.client,
                stopper=stopper,
                hooks=hooks,
                remover=remover,
                bind_sub_path=storage.bind,
                recorder=parts.recorder,
                node=node,
                start_limiter=parts.start_limiter,
                files=files,
                runtime_features=parts.runtime_health.runtime_features,
                oom_kills=parts.oom_kills,
                read_host_file=parts.host.read_hosts,
                managers=parts.managers,
                cpusets=parts.cpusets,
                allocation=self._allocation,
            ),
            stopper=stopper,
            remover=remover,
            resizer=PodResizer(
                client=parts.client,
                cgroups=self.cgroups.pods,
                allocations=parts.allocations,
                node=node,
                on_try=parts.resize_tries,
            ),
            allocations=parts.allocations,
            open_probes=open_probes,
            dead_per_container=settings.options.maximum_dead_containers_per_container,
            recorder=parts.recorder,
            journal=parts.journal,
            clock=parts.clock,
            crash_backoff=lambda: crash_backoff(parts.settings),
        )

    def garbage(self, remover: ContainerRemover) -> GarbageCollector:
        """The part that removes dead containers, sandboxes without a pod and old logs."""
        parts, options = self.parts, self.parts.settings.options
        return GarbageCollector(
            remover=remover,
            inspector=parts.inspector,
            cache=parts.cache,
            wanted=lambda: [stored.pod.metadata.uid for stored in parts.store],
            ended=lambda: [pod.metadata.uid for pod in parts.store.ended() if not is_static(pod)],
            limits=DeadContainerLimits(
                per_container=options.maximum_dead_containers_per_container,
                total=options.maximum_dead_containers,
                minimum_age=options.minimum_container_ttl_duration,
            ),
            runtime_health=parts.runtime_health,
            clock=parts.clock,
            recorder=parts.recorder,
        )
