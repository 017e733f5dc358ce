"""The resource managers, made of the settings and of what the machine has."""

from pathlib import Path

import trio

from trio_kubelet.config.cpu_policy import STATIC, cpu_policy_options
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.settings import Settings
from trio_kubelet.config.topology_policy import NONE, max_numa_nodes, prefers_closest_nodes
from trio_kubelet.devices import DeviceManager
from trio_kubelet.errors import StartError
from trio_kubelet.node.resources import NodeResources
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.cpu_manager import CpuManager
from trio_kubelet.resource_managers.machine_topology import MachineTopology
from trio_kubelet.resource_managers.memory_draft import StaticMemoryPolicy, static_memory_policy
from trio_kubelet.resource_managers.memory_manager import MemoryManager
from trio_kubelet.resource_managers.memory_state import STATIC as STATIC_MEMORY
from trio_kubelet.resource_managers.pod_level import PodLevel
from trio_kubelet.resource_managers.topology_manager import TopologyPolicy


def make_resource_managers(
    settings: Settings,
    machine: MachineTopology,
    resources: NodeResources,
    root: Path,
    devices: DeviceManager,
) -> ResourceManagers:
    """Make the part that gives pods their parts of the machine. Raises StartError."""
    configuration = settings.configuration
    by_pod = configuration.topology_manager_scope == "pod"
    pod_level = _pod_level(settings, by_pod=by_pod)
    policy = None
    if configuration.cpu_manager_policy == STATIC:
        try:
            policy = static_cpu_policy(
                machine,
                cpu_policy_options(configuration.cpu_manager_policy_options),
                reserved_cpus=configuration.reserved_system_cpus,
                reserved_milli=resources.reserved_cpu_milli(),
                pod_level=pod_level,
            )
        except ValueError as error:
            raise StartError(f"[cpumanager] {error}") from error
    topology_options = configuration.topology_manager_policy_options
    topology = TopologyPolicy(
        topology=machine,
        name=configuration.topology_manager_policy,
        by_pod=by_pod,
        prefer_closest=prefers_closest_nodes(topology_options),
        pod_level=pod_level,
    )
    if problem := topology.problem(max_numa_nodes(topology_options)):
        raise StartError(f"[topologymanager] {problem}")
    limiter = trio.CapacityLimiter(1)
    return ResourceManagers(
        CpuManager(policy, root, limiter),
        MemoryManager(memory_policy(configuration, machine, resources, pod_level), root, limiter),
        devices,
        topology,
    )


def _pod_level(settings: Settings, *, by_pod: bool) -> PodLevel:
    """The way in which pods with resources of their own are served. KEP-5526."""
    gates = settings.gates
    if not (gates["PodLevelResourceManagers"] and gates["PodLevelResources"]):
        return PodLevel.SHARED
    is_aligned = settings.configuration.topology_manager_policy != NONE
    return PodLevel.BY_POD if by_pod and is_aligned else PodLevel.BY_CONTAINER


def memory_policy(
    configuration: KubeletConfiguration,
    machine: MachineTopology,
    resources: NodeResources,
    pod_level: PodLevel = PodLevel.SHARED,
) -> StaticMemoryPolicy | None:
    """Make the policy of the memory manager; None where it assigns nothing. Raises StartError."""
    if configuration.memory_manager_policy != STATIC_MEMORY:
        return None
    try:
        return static_memory_policy(
            machine,
            configuration.reserved_memory,
            resources.reserved_memory_bytes(),
            pod_level,
        )
    except ValueError as error:
        raise StartError(f"[memorymanager] {error}") from error
