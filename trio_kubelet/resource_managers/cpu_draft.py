"""Exclusive CPUs for the containers of one pod: who is to have some, and which he is given. Pure.

All other containers share what is left. A pod's CPUs are chosen for all of its containers together:
init containers run one after the other, so their CPUs are used again by what runs later; a sidecar
keeps its own. So a pod never holds more than the scheduler counts for it. A pod with resources of
its own may have its CPUs as one part (`pod_level.py`).
"""

import math
from collections.abc import Mapping

from attrs import define, field, frozen

from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.config.topology_policy import MOST_NODES
from trio_kubelet.k8s import Container, Pod, Quantity
from trio_kubelet.k8s.totals import container_requests, most_at_once, passing_containers
from trio_kubelet.resource_managers.cpu_assignment import (
    NOTHING,
    CpuChooser,
    NotEnoughCpusError,
)
from trio_kubelet.resource_managers.cpu_sets import CpuSet, cpu_list, parsed_cpus
from trio_kubelet.resource_managers.hints import (
    Hints,
    NodeMask,
    TopologyHint,
    fewest_nodes,
    hints_by_size,
    mask_of,
    nodes_in,
    sums_over,
)
from trio_kubelet.resource_managers.machine_topology import Level, MachineTopology
from trio_kubelet.resource_managers.placement import Refusal, RefusedError, unexpected_refusal
from trio_kubelet.resource_managers.pod_level import (
    PodLevel,
    guaranteed_containers,
    has_slices,
    is_served_whole,
    partitioned_cpus,
)
from trio_kubelet.resources.pod_resources import has_pod_level_resources, whole_requests

CPU = "cpu"
SMT_ALIGNMENT_ERROR = "SMTAlignmentError"

ContainerCpus = Mapping[str, CpuSet]
"""The exclusive CPUs of a pod's containers, by their names."""


@frozen(kw_only=True)
class StaticCpuPolicy:
    """The policy `static` on one machine. `reserved` are the CPUs that no container has alone."""

    topology: MachineTopology
    reserved: CpuSet
    options: CpuPolicyOptions = field(factory=CpuPolicyOptions)
    pod_level: PodLevel = PodLevel.SHARED

    @property
    def chooser(self) -> CpuChooser:
        """Chooses CPUs by the options."""
        return CpuChooser(self.topology, self.options)

    @property
    def allocatable(self) -> CpuSet:
        """The CPUs that containers can have for themselves, whoever has them."""
        return self.topology.all - self.reserved

    def free(self, assigned: CpuSet) -> CpuSet:
        """The CPUs that containers can have for themselves while others are assigned."""
        free = self.allocatable - assigned
        return self.topology.of_whole_cores(free) if self.options.full_pcpus_only else free

    def shared(self, assigned: CpuSet) -> CpuSet:
        """The CPUs of all containers that have none of their own.

        With strict reservation nothing may be left: then they run on the reserved ones, as those
        of others are promised.
        """
        shared = self.topology.all - assigned
        if self.options.strict_cpu_reservation:
            shared -= self.reserved
        return shared or self.reserved


def static_cpu_policy(
    topology: MachineTopology,
    options: CpuPolicyOptions,
    *,
    reserved_cpus: str,
    reserved_milli: int,
    pod_level: PodLevel = PodLevel.SHARED,
) -> StaticCpuPolicy:
    """Make the policy, which reserves the CPUs of a list, or whole ones for an amount.

    Raises ValueError for a machine or a reservation that it cannot work with.
    """
    if options.align_by_socket and topology.sockets > topology.nodes:
        raise ValueError(
            "Align by socket is not compatible with hardware where number of sockets are more "
            "than number of NUMA"
        )
    if options.distribute_cpus_across_numa and topology.nodes > MOST_NODES:
        raise ValueError(
            "distribute-cpus-across-numa is unsupported on machines with CPUs in more than "
            f"{MOST_NODES} NUMA Nodes: this one has them in {topology.nodes}"
        )
    if reserved_cpus:
        reserved = parsed_cpus(reserved_cpus)
        if gone := reserved - topology.all:
            raise ValueError(
                f"unable to reserve CPUs {cpu_list(gone)}: CPUs {cpu_list(topology.all)} are "
                "online; change reservedSystemCPUs"
            )
    else:
        count = math.ceil(reserved_milli / 1000)
        try:
            reserved = CpuChooser(topology).take(topology.all, count)
        except NotEnoughCpusError as error:
            raise ValueError(f"unable to reserve {count} CPUs: {error}") from error
    return StaticCpuPolicy(
        topology=topology, reserved=reserved, options=options, pod_level=pod_level
    )


def exclusive_cpu_counts(pod: Pod, pod_level: PodLevel = PodLevel.SHARED) -> Mapping[str, int]:
    """The numbers of CPUs that containers are to have for themselves, of those that do not share.

    For all at once: the class of a pod is told from all of its containers.
    """
    if not has_slices(pod, pod_level):
        return {}
    if is_served_whole(pod, pod_level) and not whole_cpu_count(pod, pod_level):
        return {}
    counts = {
        each.name: _whole_cpus(container_requests(each)) for each in guaranteed_containers(pod)
    }
    return {name: count for name, count in counts.items() if count}


def whole_cpu_count(pod: Pod, pod_level: PodLevel) -> int:
    """The number of CPUs that a pod is to have as one part; 0 if it has none, or a fraction."""
    return _whole_cpus(whole_requests(pod)) if is_served_whole(pod, pod_level) else 0


def _whole_cpus(requests: Mapping[str, Quantity]) -> int:
    """The number of CPUs that are asked for; 0 for a fraction of one, or of several."""
    count, fraction = divmod(requests.get("cpu", Quantity(0)).milli_value, 1000)
    return 0 if fraction else count


@define
class CpuDraft:
    """The exclusive CPUs of one pod's containers, chosen one after the other; kept by nobody yet.

    `free` are the CPUs that nobody has, `known` those that containers of this pod have already,
    `counts` the numbers that its containers are to have. `whole` is the one part of a pod that is
    served so, as it is known and then as it is chosen.
    See `Draft` for what the methods promise.
    """

    pod: Pod
    policy: StaticCpuPolicy
    free: CpuSet
    known: ContainerCpus = field(factory=dict)
    counts: Mapping[str, int] = field()
    whole: CpuSet = NOTHING
    chosen: dict[str, CpuSet] = field(init=False, factory=dict)
    _whole_count: int = field(init=False)
    _passing: frozenset[str] = field(init=False)
    _reusable: CpuSet = field(init=False, default=NOTHING)

    @counts.default
    def _counts_of_pod(self) -> Mapping[str, int]:
        return exclusive_cpu_counts(self.pod, self.policy.pod_level)

    @_whole_count.default
    def _whole_count_of_pod(self) -> int:
        return whole_cpu_count(self.pod, self.policy.pod_level)

    @_passing.default
    def _passing_of_pod(self) -> frozenset[str]:
        return passing_containers(self.pod.spec)

    @property
    def sharing(self) -> frozenset[str]:
        """The containers that share the pool of the pod."""
        if not has_pod_level_resources(self.pod):
            return frozenset()
        slices = {
            each.name
            for each in guaranteed_containers(self.pod)
            if _whole_cpus(container_requests(each))
        }
        return frozenset(self.chosen.keys() - slices)

    def demands(self, container: Container) -> int:
        return int(bool(self.counts.get(container.name, 0)))

    def hints(self, container: Container) -> Hints:
        known = self.known.get(container.name, NOTHING)
        if known:
            return {CPU: self._hints(len(known), known, NOTHING)}
        count = self.counts.get(container.name, 0)
        return {CPU: self._hints(count, self.free, self._reusable)} if count else {}

    def pod_hints(self) -> Hints:
        counts = {name: {CPU: count} for name, count in self.counts.items()}
        count = self._whole_count or most_at_once(self.pod.spec, counts).get(CPU, 0)
        known = self.whole.union(*self.known.values())
        return {CPU: self._hints(count, self.free, known)} if count else {}

    def take(self, container: Container, nodes: NodeMask | None) -> None:
        if self._whole_count and not self.known:
            self._take_whole(nodes)
            return
        cpus = self.known.get(container.name)
        count = self.counts.get(container.name, 0)
        if cpus is None and not count:
            return
        if cpus is None:
            cpus = self._chosen(count, self._near(nodes))
        self.free -= cpus
        self.chosen[container.name] = cpus
        if container.name in self._passing:
            self._reusable |= cpus
        else:
            self._reusable -= cpus

    def _take_whole(self, nodes: NodeMask | None) -> None:
        """Choose the one part of the pod with its first container, and divide it."""
        if self.chosen:
            return
        if not self.whole:
            self.whole = self._chosen(self._whole_count, self._near(nodes))
        take = self.policy.chooser.take
        self.chosen = partitioned_cpus(self.pod, self.whole, self.counts, take)

    def _hints(self, count: int, free: CpuSet, used: CpuSet) -> list[TopologyHint]:
        """The sets of nodes that have so many CPUs to give, all that the pod has used among them.

        Preferred are those of as few nodes as can be, or in as few sockets.
        """
        groups = self.policy.topology.groups[Level.NODE]
        usable = free | used
        again = mask_of(node for node, cpus in groups.items() if not cpus.isdisjoint(used))
        sizes = sums_over({node: len(cpus & usable) for node, cpus in groups.items()})
        fewest = fewest_nodes(map(len, groups.values()), count)
        masks = [mask for mask, size in sizes.items() if size >= count and mask & again == again]
        if not self.policy.options.align_by_socket:
            hints = hints_by_size(tuple(groups), fewest)
            return [hints[mask] for mask in masks]
        topology = self.policy.topology
        sockets = -(-fewest // (topology.nodes // topology.sockets))
        return [
            TopologyHint(mask, preferred=len(topology.sockets_of(nodes_in(mask))) == sockets)
            for mask in masks
        ]

    def _near(self, nodes: NodeMask | None) -> CpuSet:
        """The CPUs of these nodes, or of their sockets."""
        topology = self.policy.topology
        if nodes is None:
            return topology.all
        level, numbers = Level.NODE, nodes_in(nodes)
        if self.policy.options.align_by_socket:
            level, numbers = Level.SOCKET, topology.sockets_of(numbers)
        groups = topology.groups[level]
        return NOTHING.union(*(groups[number] for number in numbers if number in groups))

    def _chosen(self, count: int, near: CpuSet) -> CpuSet:
        """Choose CPUs, those first that an earlier container of the pod had, and near ones."""
        policy, available = self.policy, len(self.free) + len(self._reusable)
        if policy.options.full_pcpus_only:
            per_core = policy.topology.cpus_per_core
            if count % per_core:
                raise _not_whole_cores(
                    f"requested {count} cpus not multiple cpus per core = {per_core}"
                )
            if count > available:
                raise _no_whole_cores(available, count, per_core)
        if count > available:
            raise unexpected_refusal(str(NotEnoughCpusError(count, available)))
        cpus = NOTHING
        for group in (self._reusable, self.free):
            for part in (group & near, group - near):
                if wanted := min(count - len(cpus), len(part)):
                    cpus |= policy.chooser.take(part, wanted)
        # Where cores differ in size, the number alone does not say that they are whole.
        if policy.options.full_pcpus_only and policy.topology.of_whole_cores(cpus) != cpus:
            raise _no_whole_cores(available, count, policy.topology.cpus_per_core)
        return cpus


def _no_whole_cores(available: int, count: int, per_core: int) -> RefusedError:
    return _not_whole_cores(
        f"not enough free physical CPUs: available physical CPUs = {available}, "
        f"requested CPUs = {count}, CPUs per core = {per_core}"
    )


def _not_whole_cores(problem: str) -> RefusedError:
    message = f"SMT Alignment Error: {problem}"
    return RefusedError(Refusal(reason=SMT_ALIGNMENT_ERROR, message=message))
