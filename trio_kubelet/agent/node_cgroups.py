"""The node's cgroups: made when the runtime has said by which driver, before the first pod."""

from collections.abc import Callable

import structlog
import trio
from attrs import frozen

from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.node.enforcement import Enforcer, enforcement, memory_reserve
from trio_kubelet.node.machine import is_kernel_older_than
from trio_kubelet.node.system_cgroups import SystemCgroups
from trio_kubelet.resources import (
    CgroupDriver,
    Cgroups,
)
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups

log = structlog.get_logger("cgroups")


@frozen(kw_only=True)
class NodeCgroups:
    """The cgroups of pods, and the limits of those above and beside them.

    `enforcer` is None where pods have no cgroups, `system` where settings name none.
    """

    pods: PodCgroups | NoCgroups
    enforcer: Enforcer | None = None
    system: SystemCgroups | None = None

    async def run(self) -> None:
        """Bring the cgroups in line with what they are to be, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self.enforcer is not None:
                nursery.start_soon(self.enforcer.run)
            if self.system is not None:
                nursery.start_soon(self.system.run)
            nursery.start_soon(self.pods.tend_classes)


async def make_cgroups(parts: NodeParts, driver: CgroupDriver) -> NodeCgroups:
    """Make the cgroups above the pods, and limit those of the system. Raises StartError."""
    if parts.host.cgroups is None:
        return NodeCgroups(pods=NoCgroups())
    if parts.settings.gates["MemoryQoS"] and is_kernel_older_than(parts.host.machine, (5, 9)):
        log.warning(
            "MemoryQoS is on with a kernel older than 5.9, where processes above memory.high hang",
            kernel=parts.host.machine.kernel_version,
        )
    cgroups = Cgroups(
        parts.host.cgroups,
        parts.settings.configuration,
        driver=driver,
        hugepage_sizes=tuple(parts.host.machine.size.hugepages),
        is_without_quota=_is_without_quota(parts),
        reserve=memory_reserve(parts.settings.configuration, parts.settings.gates, parts.resources),
    )
    cgroups.on_operation.add(parts.cgroup_operations.call)
    try:
        if problem := await cgroups.driver_change_problem():
            raise StartError(problem)
        await cgroups.remove_cgroups_of_other_driver()
        enforcer = await _enforce(parts, cgroups)
    except (OSError, BusError) as error:
        raise StartError(f"cannot make the cgroups of pods: {error}") from error
    system = SystemCgroups.of(parts.host.cgroups, parts.settings.configuration)
    if system is not None:
        await system.start()
    pods = PodCgroups(cgroups, parts.active_pods)
    return NodeCgroups(pods=pods, enforcer=enforcer, system=system)


def _is_without_quota(parts: NodeParts) -> Callable[[Pod], bool]:
    """Says which pods no quota holds up on their own CPUs."""
    if parts.settings.gates["DisableCPUQuotaWithExclusiveCPUs"]:
        return parts.managers.is_without_quota
    return lambda _pod: False


async def _enforce(parts: NodeParts, cgroups: Cgroups) -> Enforcer | None:
    if not parts.settings.configuration.cgroups_per_qos:
        return None
    limits = enforcement(
        parts.settings.configuration,
        parts.resources,
        max_pids=parts.host.machine.max_pids,
        keeps_reserved=parts.settings.gates["MemoryQoS"],
    )
    enforcer = Enforcer(cgroups, parts.recorder, limits)
    await enforcer.start()
    return enforcer
