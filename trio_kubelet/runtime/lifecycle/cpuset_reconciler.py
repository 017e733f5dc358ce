"""Keeps the CPUs of containers that run what the resource managers say.

A container is made with the CPUs that it is to have. When others are given CPUs of their own, or
give them back, those that share the rest are told at once. Each period all are looked over again,
for what could not be done. After a restart of the agent all are told once: it does not know what
they have.
"""

import structlog
import trio

from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.tasks.concurrency import run_for_each

log = structlog.get_logger("runtime")

AT_ONCE = 8
"""Updates at a time: each is a call that writes a file of a cgroup."""


class CpusetReconciler:
    """Updates containers; `run` returns when cancelled, or at once if nothing is to be assigned.

    `period_seconds` is cpuManagerReconcilePeriod.
    """

    def __init__(
        self,
        managers: ResourceManagers,
        client: RuntimeClient,
        cache: RuntimeCache,
        runtime_health: RuntimeHealth,
        period_seconds: float,
    ) -> None:
        self._managers = managers
        self._client = client
        self._cache = cache
        self._runtime_health = runtime_health
        self._period_seconds = period_seconds
        self._applied: dict[str, str] = {}
        self._failing: set[str] = set()
        self._changed = trio.Event()

    def made(self, container_id: str, cpuset_cpus: str) -> None:
        """A container was made with these CPUs."""
        if self._managers.assigns_cpus:
            self._applied[container_id] = cpuset_cpus

    async def run(self) -> None:
        """Update containers whenever what they are to have differs from what they have."""
        if not self._managers.assigns_cpus:
            return
        self._managers.on_change.add(self._wake)
        self._cache.on_observation.add(self._observed)
        while True:
            await self._runtime_health.wait_up()
            self._changed = trio.Event()
            outdated = [each for pod in self._cache.pods() for each in self._outdated(pod)]
            await run_for_each(outdated, self._update, AT_ONCE)
            with trio.move_on_after(self._period_seconds):
                await self._changed.wait()

    def _observed(self, before: ObservedPod, after: ObservedPod) -> None:
        """Forget containers that have gone; look at those that run."""
        for gone in {each.id for each in before.containers} - {
            each.id for each in after.containers
        }:
            self._applied.pop(gone, None)
            self._failing.discard(gone)
        if self._outdated(after):
            self._wake()

    def _outdated(self, pod: ObservedPod) -> list[tuple[str, str]]:
        """The containers that run on other CPUs than they are to, with those they are to have."""
        wanted = ((each.id, self._wanted(pod, each.name)) for each in pod.containers if _runs(each))
        return [each for each in wanted if self._applied.get(each[0]) != each[1]]

    def _wanted(self, pod: ObservedPod, container_name: str) -> str:
        return self._managers.placement(pod.uid, container_name).cpuset_cpus

    async def _update(self, outdated: tuple[str, str]) -> None:
        container_id, cpus = outdated
        resources = cri.LinuxContainerResources(cpuset_cpus=cpus)
        try:
            await self._client.update_container_resources(container_id, resources)
        except RpcError as error:
            if error.code is not Code.NOT_FOUND and container_id not in self._failing:
                self._failing.add(container_id)
                log.warning(
                    "container CPUs not changed, will retry",
                    container_id=container_id,
                    cpus=cpus,
                    error=error.message,
                )
            return
        self._applied[container_id] = cpus
        self._failing.discard(container_id)

    def _wake(self) -> None:
        self._changed.set()


def _runs(container: ObservedContainer) -> bool:
    return container.state is ObservedState.RUNNING
