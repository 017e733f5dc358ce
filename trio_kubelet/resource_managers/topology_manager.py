"""The topology manager: parts of the machine for one container that are near to one another.

The drafts of a pod, one of each manager, say from which NUMA nodes a container can be served
(`hints.py`); the policy chooses, and refuses a pod whose containers would be served worse than it
allows. Then each draft takes what the container needs from the nodes that were chosen.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from attrs import evolve, frozen

from trio_kubelet.config.topology_policy import BEST_EFFORT, NONE, SINGLE_NUMA_NODE
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.resource_managers.hints import (
    ANY_NODE,
    NO_NODE,
    Hints,
    MaskOrder,
    NodeMask,
    TopologyHint,
    best_hint,
    by_distance,
    by_size,
    mask_of,
)
from trio_kubelet.resource_managers.machine_topology import MachineTopology
from trio_kubelet.resource_managers.placement import Refusal, RefusedError
from trio_kubelet.resource_managers.pod_level import PodLevel, is_served_whole

TOPOLOGY_AFFINITY_ERROR = Refusal(
    reason="TopologyAffinityError", message="Resources cannot be allocated with Topology locality"
)
NO_AFFINITY_OF_POD = evolve(
    TOPOLOGY_AFFINITY_ERROR,
    message="Pod Scope pod with pod-level resources failed admission under pod-scope topology "
    "manager",
)
"""The refusal of a pod that is to have its CPUs and memory as one part."""
TOO_MANY_RESOURCES = "TooManyResources"

PLACEMENT_WORK = 32_768
"""The work of placing one pod, at which nobody else has a turn, in sets of nodes that are looked at
for a resource of a container. So many take 50 ms."""
FIXED_WORK = 32
"""The work for a resource of a container beside that for its sets of nodes, in the same measure."""
LEAST_DEMANDS = 32
"""On machines with more NUMA nodes than are allowed by default."""


class Draft(Protocol):
    """The resources of one manager for one pod, taken container by container; kept by nobody yet.

    `demands` is the number of resources that a container is given; it costs next to nothing.
    `hints` and `pod_hints` say from where those of a container, or of the whole pod, can be had, by
    the name of each resource: what a container has already is had from where it is. `take` takes
    those of a container, from the nodes first if there are any. Raises RefusedError.

    A manager of other resources has a draft of its own, which `ResourceManagers.reserve` places
    with the others: none is committed unless all can be taken.
    """

    def demands(self, container: Container) -> int: ...

    def hints(self, container: Container) -> Hints: ...

    def pod_hints(self) -> Hints: ...

    def take(self, container: Container, nodes: NodeMask | None) -> None: ...


@frozen(kw_only=True)
class TopologyPolicy:
    """A policy on one machine. `by_pod`: all containers of a pod are served from the same nodes."""

    topology: MachineTopology
    name: str = NONE
    by_pod: bool = False
    prefer_closest: bool = False
    pod_level: PodLevel = PodLevel.SHARED

    def problem(self, max_nodes: int) -> str:
        """Return why the machine cannot be dealt with; empty if it can."""
        count = len(self.topology.numa_nodes)
        if self.name == NONE or count <= max_nodes:
            return ""
        return (
            f"unsupported on machines with more than {max_nodes} NUMA Nodes: this one has {count}; "
            "set max-allowable-numa-nodes in topologyManagerPolicyOptions"
        )

    def place(self, pod: Pod, drafts: Sequence[Draft]) -> None:
        """Take what all containers of a pod need. Raises RefusedError."""
        nodes = None
        if self.name != NONE:
            self._check_demands(pod, drafts)
        if self.by_pod and self.name != NONE:
            is_whole = is_served_whole(pod, self.pod_level)
            refusal = NO_AFFINITY_OF_POD if is_whole else TOPOLOGY_AFFINITY_ERROR
            nodes = self._chosen((draft.pod_hints() for draft in drafts), refusal)
        for container in pod.spec.admitted_containers:
            if not self.by_pod and self.name != NONE:
                nodes = self._chosen(draft.hints(container) for draft in drafts)
            for draft in drafts:
                draft.take(container, nodes)

    def _check_demands(self, pod: Pod, drafts: Sequence[Draft]) -> None:
        """Raise RefusedError for a pod that would hold up all others while it is placed."""
        count = sum(
            draft.demands(each) for each in pod.spec.admitted_containers for draft in drafts
        )
        if count > self.most_demands:
            message = (
                f"resources of containers at NUMA nodes: Too many: {count}: must have at most "
                f"{self.most_demands} items together"
            )
            raise RefusedError(Refusal(reason=TOO_MANY_RESOURCES, message=message))

    @cached_property
    def most_demands(self) -> int:
        """The number of resources that containers of a pod can be given together, each counted."""
        masks = (1 << len(self.topology.numa_nodes)) - 1
        return max(LEAST_DEMANDS, PLACEMENT_WORK // (masks + FIXED_WORK))

    def _chosen(
        self, hints: Iterable[Hints], refusal: Refusal = TOPOLOGY_AFFINITY_ERROR
    ) -> NodeMask | None:
        """The nodes for which the policy decides; None for wherever. Raises RefusedError."""
        each = [_filled(of_one) for resources in hints for of_one in resources.values()]
        if self.name == SINGLE_NUMA_NODE:
            each = [[hint for hint in of_one if _is_single(hint)] for of_one in each]
        best = best_hint(each, self._every_node, self._order)
        if not best.preferred and self.name != BEST_EFFORT:
            raise RefusedError(refusal)
        return None if best.nodes == self._every_node else best.nodes

    @cached_property
    def _every_node(self) -> NodeMask:
        return mask_of(node.id for node in self.topology.numa_nodes)

    @cached_property
    def _order(self) -> MaskOrder:
        return by_distance(self.topology.distances) if self.prefer_closest else by_size


def _filled(hints: Sequence[TopologyHint] | None) -> Sequence[TopologyHint]:
    if hints is None:
        return [ANY_NODE]
    return hints or [NO_NODE]


def _is_single(hint: TopologyHint) -> bool:
    return hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)
