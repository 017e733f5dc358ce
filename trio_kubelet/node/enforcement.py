"""What the pods of a node may use together: the values of the cgroup above all of them.

That is allocatable without the eviction thresholds, so that eviction has room to act before the
kernel does (enforceNodeAllocatable: pods). Without that enforcement it is the whole machine: the
CPU shares are needed all the same, the kernel's default would starve the pods.
"""

from collections.abc import Collection

from trio_kubelet.k8s import Quantity
from trio_kubelet.node.allocatable import CPU, MEMORY, Reservations, Resources, reserved
from trio_kubelet.resources import CgroupConfig
from trio_kubelet.resources.cgroup_config import hugepage_limits, milli_cpu_to_shares

ENFORCE_PODS = "pods"
PIDS = "pid"
"""A resource that can be reserved but is in no node's capacity."""

ENFORCED_REASON = "NodeAllocatableEnforced"
ENFORCED_MESSAGE = "Updated Node Allocatable limit across pods"
FAILED_REASON = "FailedNodeAllocatableEnforcement"


def pods_cgroup_config(
    capacity: Resources,
    reservations: Reservations,
    enforced: Collection[str],
    max_pids: int | None = None,
) -> CgroupConfig:
    """The values of the cgroup of all pods.

    `enforced` is enforceNodeAllocatable; `max_pids` is how many processes the kernel allows in
    all, None if unknown.
    """
    whole = {**capacity, **({PIDS: Quantity(max_pids)} if max_pids is not None else {})}
    kept = Reservations(system=reservations.system, kube=reservations.kube)
    taken = reserved(whole, kept) if ENFORCE_PODS in enforced else {}
    nothing = Quantity(0)
    left = {name: max(nothing, amount - taken.get(name, nothing)) for name, amount in whole.items()}
    return CgroupConfig(
        cpu_shares=milli_cpu_to_shares(left[CPU].milli_value),
        memory_limit_bytes=left[MEMORY].value,
        pids_limit=left[PIDS].value if PIDS in left else None,
        hugepage_limits=hugepage_limits(left, ()),
    )


def failed_message(cgroup: str, error: Exception) -> str:
    """What the event says when the values could not be written."""
    return f'Failed to update Node Allocatable Limits "{cgroup}": {error}'
