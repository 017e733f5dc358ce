"""The answers of the resource managers: what a container was given, or why a pod is refused."""

from enum import StrEnum

from attrs import frozen

from trio_kubelet.errors import UNEXPECTED_ADMISSION_ERROR, unexpected


@frozen(kw_only=True)
class ContainerPlacement:
    """The parts of the machine that a container may use; empty where it may use all.

    `cpuset_cpus` is a list such as `0-2,7`, `cpuset_mems` one of NUMA nodes. `has_exclusive_cpus`:
    nobody else's containers run on these CPUs.
    """

    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    has_exclusive_cpus: bool = False


class AssignmentKind(StrEnum):
    """The part of the machine that a container was assigned, in the words of metrics."""

    NODE_EXCLUSIVE = "node_exclusive"
    POD_EXCLUSIVE = "pod_exclusive"
    POD_SHARED = "pod_shared"


class Boundary(StrEnum):
    """The boundaries that CPUs of a container, or all of a pod, should not reach across."""

    NUMA_NODE = "numa_node"
    PHYSICAL_CPU = "physical_cpu"
    UNCORE_CACHE = "uncore_cache"


ANYWHERE = ContainerPlacement()
"""The placement of a container where nothing is assigned to anybody."""


@frozen(kw_only=True)
class Refusal:
    """Why a pod cannot get what it needs: the reason and message of its rejection."""

    reason: str
    message: str


class RefusedError(Exception):
    """A pod cannot get what it needs. `is_of_memory`: it is memory that it cannot get."""

    def __init__(self, refusal: Refusal, *, is_of_memory: bool = False) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.is_of_memory = is_of_memory


def unexpected_refusal(why: str, *, is_of_memory: bool = False) -> RefusedError:
    """The error for a pod for which the scheduler saw room and there is none."""
    refusal = Refusal(
        reason=UNEXPECTED_ADMISSION_ERROR,
        message=unexpected(why),
    )
    return RefusedError(refusal, is_of_memory=is_of_memory)
