"""The node's cgroups: made when the runtime has said by which driver, before the first pod."""

import trio
from attrs import frozen

from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.errors import StartError
from trio_kubelet.node.enforcement import Enforcer, enforcement
from trio_kubelet.resources import (
    CgroupDriver,
    Cgroups,
    SystemdError,
)
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups


@frozen(kw_only=True)
class NodeCgroups:
    """The cgroups of pods, and the limits of those above and beside them.

    `enforcer` is None where pods have no cgroups.
    """

    pods: PodCgroups | NoCgroups
    enforcer: Enforcer | None = None

    async def run(self) -> None:
        """Bring the cgroups in line with what they are to be, until cancelled."""
        if self.enforcer is not None:
            await self.enforcer.run()
        await trio.sleep_forever()


async def make_cgroups(parts: NodeParts, driver: CgroupDriver) -> NodeCgroups:
    """Make the cgroups above the pods, and limit those of the system. Raises StartError."""
    if parts.host.cgroups is None:
        return NodeCgroups(pods=NoCgroups())
    cgroups = Cgroups(
        parts.host.cgroups,
        parts.settings.configuration,
        driver=driver,
        hugepage_sizes=tuple(parts.host.machine.size.hugepages),
    )
    cgroups.on_operation.add(parts.cgroup_operations.call)
    try:
        if problem := await cgroups.driver_change_problem():
            raise StartError(problem)
        await cgroups.remove_cgroups_of_other_driver()
        enforcer = await _enforce(parts, cgroups)
    except (OSError, SystemdError) as error:
        raise StartError(f"cannot make the cgroups of pods: {error}") from error
    return NodeCgroups(pods=PodCgroups(cgroups, parts.active_pods), enforcer=enforcer)


async def _enforce(parts: NodeParts, cgroups: Cgroups) -> Enforcer | None:
    if not parts.settings.configuration.cgroups_per_qos:
        return None
    limits = enforcement(
        parts.settings.configuration,
        parts.resources,
        max_pids=parts.host.machine.max_pids,
        protects_memory=parts.settings.gates["MemoryQoS"],
    )
    enforcer = Enforcer(cgroups, parts.recorder, limits)
    await enforcer.start()
    return enforcer
