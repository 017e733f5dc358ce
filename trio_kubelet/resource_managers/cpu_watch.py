"""Follows which CPUs of the machine are online, and has the managers take what came or went.

The kernel tells of it in a file that is read each period; nothing else is read until it has
changed. An agent that did not run meanwhile repairs its record at its start (`cpu_state.py`).
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import evolve

from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers.cpu_sets import CpuSet
from trio_kubelet.resource_managers.machine_topology import (
    MachineTopology,
    online_cpus,
    read_topology,
)
from trio_kubelet.resource_managers.managers import ResourceManagers
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("resources")


class CpuWatch:
    """Watches `sysfs`, a folder such as `/sys/devices/system`; None where there is none.

    `active_pods` are those that hold resources. Without `takes_new` CPUs that come are left alone:
    cgroups of version 1 that were made before do not have them. `run` returns when cancelled, or at
    once if no CPUs are assigned.
    """

    def __init__(
        self,
        managers: ResourceManagers,
        sysfs: Path | None,
        active_pods: Callable[[], Iterable[Pod]],
        period_seconds: float,
        *,
        takes_new: bool = True,
    ) -> None:
        self._managers = managers
        self._sysfs = sysfs
        self._active_pods = active_pods
        self._period_seconds = period_seconds
        self._takes_new = takes_new
        self._is_failing = False

    async def run(self) -> None:
        """Look each period, and tell the managers of a change."""
        if self._sysfs is None or self._managers.cpus.policy is None:
            return
        while True:
            known = self._managers.cpus.policy.topology.all
            read = partial(changed_topology, self._sysfs, known, takes_new=self._takes_new)
            topology = await self._read(read)
            if topology is not None:
                self._managers.adopt(topology, self._active_pods())
            await trio.sleep(self._period_seconds)

    async def _read(self, read: Callable[[], MachineTopology | None]) -> MachineTopology | None:
        """Read; a CPU may go while its files are read, which the next look will see."""
        try:
            topology = await run_in_thread(read)
        except (OSError, ValueError) as error:
            if not self._is_failing:
                self._is_failing = True
                log.warning("CPU topology read failed, will retry", error=str(error))
            return None
        self._is_failing = False
        return topology


def changed_topology(
    sysfs: Path, known: CpuSet, *, takes_new: bool = True
) -> MachineTopology | None:
    """Return the topology if other CPUs than these are online, else None. Blocks.

    Without `takes_new` it has none but these. Raises OSError and ValueError as `read_topology`
    does.
    """
    online = online_cpus(sysfs)
    used = online if takes_new else online & known
    if not used or used == known:
        return None
    topology = read_topology(sysfs, len(online))
    return evolve(topology, cpus=tuple(cpu for cpu in topology.cpus if cpu.id in used))
