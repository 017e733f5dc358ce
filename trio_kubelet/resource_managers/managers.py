"""The resource managers of a node as one: admission, configs and pods' ends ask here."""

from collections.abc import Callable, Iterable
from time import perf_counter

import structlog
from attrs import evolve

from trio_kubelet.config.topology_policy import NONE, SINGLE_NUMA_NODE
from trio_kubelet.devices import DeviceManager
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers.cpu_draft import SMT_ALIGNMENT_ERROR
from trio_kubelet.resource_managers.cpu_manager import CpuManager
from trio_kubelet.resource_managers.cpu_sets import cpu_list
from trio_kubelet.resource_managers.device_draft import DeviceDraft
from trio_kubelet.resource_managers.machine_topology import MachineTopology
from trio_kubelet.resource_managers.memory_manager import MemoryManager
from trio_kubelet.resource_managers.placement import (
    Boundary,
    ContainerPlacement,
    Refusal,
    RefusedError,
)
from trio_kubelet.resource_managers.pod_level import is_served_whole
from trio_kubelet.resource_managers.topology_manager import (
    TOO_MANY_RESOURCES,
    TOPOLOGY_AFFINITY_ERROR,
    TopologyPolicy,
)
from trio_kubelet.resources.pod_resources import has_pod_level_resources
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("resources")


class ResourceManagers:
    """Gives pods their parts of the machine. Plain methods but for those that touch the disk.

    `on_admission` is called whenever a new pod was placed, with the seconds that it took, and with
    True unless the topology was in the way; `on_boundary` with a boundary, `container` or `pod`,
    and whether the CPUs of one are inside of it; `on_refused` with `cpu` or `memory` that could not
    be assigned, and `node` or `pod` that should have given it; `on_released(uid)` when what a pod
    had is free.
    """

    def __init__(
        self,
        cpus: CpuManager,
        memory: MemoryManager,
        devices: DeviceManager,
        topology: TopologyPolicy,
    ) -> None:
        self.cpus = cpus
        self.memory = memory
        self.devices = devices
        self._topology = topology
        self._anywhere = evolve(topology, name=NONE)
        self._to_place: set[str] = set()
        self.on_change = cpus.on_change
        self.on_admission: Callbacks[[float, bool]] = Callbacks()
        self.on_boundary: Callbacks[[Boundary, str, bool]] = Callbacks()
        self.on_refused: Callbacks[[str, str]] = Callbacks()
        self.on_released: Callbacks[[str]] = Callbacks()
        cpus.on_aligned.add(lambda boundary: self.on_boundary.call(boundary, "container", True))

    @property
    def assigns_cpus(self) -> bool:
        """True if it depends on others on which CPUs a container may run."""
        return self.cpus.policy is not None

    @property
    def static(self) -> tuple[str, ...]:
        """The resources of which a pod's part stays what it was given."""
        policies = {"cpu": self.cpus.policy, "memory": self.memory.policy}
        return tuple(resource for resource, policy in policies.items() if policy is not None)

    def is_whole(self, pod: Pod) -> bool:
        """True if a pod has its CPUs and memory as one part of the machine."""
        return is_served_whole(pod, self._topology.pod_level)

    async def load(self) -> None:
        """Read what an earlier agent kept. Before the first pod."""
        await self.cpus.load()
        await self.memory.load()

    def reserve(self, pod: Pod, is_gone: Callable[[str], bool]) -> Refusal | None:
        """Reserve what a new pod needs, at its admission; return why it cannot have it, or None.

        `is_gone(uid)`: nothing is left of a pod that may have something still.
        """
        began_at = perf_counter()
        self._release_gone(is_gone)
        return self._admitted(pod, began_at)

    def recall(self, pod: Pod, is_gone: Callable[[str], bool]) -> None:
        """Take up a pod that was admitted before, which keeps what it has.

        What it lacks it is given now, wherever it is: the pod may have been admitted under another
        policy. It runs on beside all others if there is none.
        """
        self._release_gone(is_gone)
        refusal = self._placed(pod, self._anywhere)
        if refusal is not None:
            log.warning("pod runs without exclusive resources", error=refusal.message)
        if self._topology.name != NONE and self._device_draft(pod).lacks_devices:
            self._to_place.add(pod.metadata.uid)

    def place_anew(self, pod: Pod) -> Refusal | None:
        """Place a pod again whose devices were not known when it was admitted, or taken up.

        Not before its plugins serve. Its CPUs and memory may become others, near the devices: no
        container of it may have been made. Return why the topology policy refuses it, or None.
        """
        uid, began_at = pod.metadata.uid, perf_counter()
        if uid not in self._to_place or self._device_draft(pod).awaits_plugins:
            return None
        self._to_place.discard(uid)
        self.devices.unreserve(uid)
        return self._admitted(pod, began_at, anew=True)

    def adopt(self, topology: MachineTopology, pods: Iterable[Pod]) -> None:
        """Take the machine as it is now: CPUs came or went. `pods` are those that hold resources.

        Containers whose CPUs went are given others, wherever they are, as they run.
        """
        self._topology = evolve(self._topology, topology=topology)
        self._anywhere = evolve(self._topology, name=NONE)
        self.cpus.adopt(topology, pods, lambda pod, draft: self._anywhere.place(pod, [draft]))

    def _admitted(self, pod: Pod, began_at: float, *, anew: bool = False) -> Refusal | None:
        """Place a pod by the node's policy, and tell how long that took."""
        refusal = self._placed(pod, self._topology, anew=anew)
        is_aligned = refusal is None or refusal.reason != TOPOLOGY_AFFINITY_ERROR.reason
        self.on_admission.call(perf_counter() - began_at, is_aligned)
        if self._topology.name == SINGLE_NUMA_NODE and (refusal is None or not is_aligned):
            self._count_nodes(pod, is_aligned=is_aligned)
        return refusal

    def _count_nodes(self, pod: Pod, *, is_aligned: bool) -> None:
        """Tell of what was to be served from one NUMA node: a pod, or its containers."""
        by_pod = self._topology.by_pod
        count = 1 if by_pod or not is_aligned else len(pod.spec.admitted_containers)
        for _ in range(count):
            scope = "pod" if by_pod else "container"
            self.on_boundary.call(Boundary.NUMA_NODE, scope, is_aligned)

    def _release_gone(self, is_gone: Callable[[str], bool]) -> None:
        for uid in filter(is_gone, self.uids()):
            log.info("resources of a pod that has gone are free", uid=uid)
            self.release(uid)

    def _device_draft(self, pod: Pod) -> DeviceDraft:
        nodes = tuple(node.id for node in self._topology.topology.numa_nodes)
        return DeviceDraft(pod, self.devices, nodes)

    def _placed(self, pod: Pod, topology: TopologyPolicy, *, anew: bool = False) -> Refusal | None:
        cpus, memory = self.cpus.draft(pod, anew=anew), self.memory.draft(pod, anew=anew)
        devices = self._device_draft(pod) if topology.name != NONE else None
        try:
            topology.place(pod, [draft for draft in (cpus, memory, devices) if draft is not None])
        except RefusedError as error:
            self._count_failure(pod, error)
            return error.refusal
        if cpus is not None:
            self.cpus.commit(cpus)
        if memory is not None:
            self.memory.commit(memory)
        if devices is not None:
            self.devices.reserve(pod.metadata.uid, devices.chosen, devices.nodes)
            if devices.awaits_plugins:
                self._to_place.add(pod.metadata.uid)
        self.devices.remember(pod)
        return None

    def _count_failure(self, pod: Pod, error: RefusedError) -> None:
        if error.refusal.reason in (TOPOLOGY_AFFINITY_ERROR.reason, TOO_MANY_RESOURCES):
            return
        manager = self.memory if error.is_of_memory else self.cpus
        manager.on_pinned.call(False)
        source = "pod" if self.is_whole(pod) else "node"
        self.on_refused.call("memory" if error.is_of_memory else "cpu", source)
        if error.refusal.reason == SMT_ALIGNMENT_ERROR:
            self.on_boundary.call(Boundary.PHYSICAL_CPU, "container", False)

    def release(self, uid: str) -> None:
        """Take back what a pod has: nothing of it runs any more."""
        self._to_place.discard(uid)
        had_some = uid in self.uids()
        self.cpus.release(uid)
        self.memory.release(uid)
        if had_some:
            self.on_released.call(uid)

    def placement(self, uid: str, container_name: str) -> ContainerPlacement:
        """Return what a container of a pod may use now."""
        cpus = self.cpus.cpus_of(uid, container_name)
        return ContainerPlacement(
            cpuset_cpus=self.cpus.shared if cpus is None else cpu_list(cpus),
            cpuset_mems=cpu_list(self.memory.nodes_of(uid, container_name)),
            has_exclusive_cpus=self.cpus.is_alone(uid, container_name),
        )

    def is_without_quota(self, pod: Pod) -> bool:
        """True if a pod may use all the time of the CPUs that its containers have for themselves.

        Of a pod with resources of its own all must have some: for those that share its limit holds.
        """
        alone = self.cpus.cpus_of_pod(pod.metadata.uid)
        if has_pod_level_resources(pod):
            return bool(alone) and all(each.name in alone for each in pod.spec.admitted_containers)
        return bool(alone)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that something is recorded of."""
        return self.cpus.uids() | self.memory.uids()

    async def keep(self) -> bool:
        """Return when all reservations are on the disk, or could not be written; True if so."""
        is_kept = [await self.cpus.keep(), await self.memory.keep()]
        return all(is_kept)
