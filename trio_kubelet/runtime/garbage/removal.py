"""The one way by which containers and sandboxes leave the runtime.

Whatever a container holds on the node is released here when it is removed: the runtime's own
records and a task that it has lost, the notice of OOM kills, its logs and the links to them. What
is removed is decided by others: the surplus of a pod at the end of its sync, an instance that
never started before its successor is made, all of a pod when it goes, the rest by the garbage
collector. A pod's folders, its log folder among them, are removed after its containers.
"""

from collections.abc import Collection
from functools import partial

import structlog
from attrs import field, frozen

from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.garbage.logs import remove_logs
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.tasks.concurrency import run_all, run_all_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter

log = structlog.get_logger("runtime")

STOP_SECONDS = 10
"""The grace of a container of unknown state, should it run after all."""
CONTAINERS_AT_ONCE = 8
"""Of a pod. Each of 500 costs a millisecond of the processor; nobody waits for their removal."""

LOG_THREADS = 4
"""Threads that remove logs."""


@frozen(kw_only=True)
class ContainerRemover:
    """Removes containers and sandboxes of all pods. Holds no state of any of them.

    `logs` has the threads in which logs are removed.
    """

    client: RuntimeClient
    node: NodeFacts
    oom_kills: OomKills | None = None
    # Its own: the garbage of the node must not wait for what hangs on a volume of some pod.
    logs: FairLimiter = field(
        init=False, factory=partial(FairLimiter, LOG_THREADS, LOG_THREADS // 2, 1)
    )

    async def remove_containers(
        self,
        pod: ObservedPod,
        containers: Collection[ObservedContainer],
        *,
        keep_logs: bool = False,
    ) -> None:
        """Remove containers of a pod that do not run, with their logs unless they are to stay.

        One that cannot be removed keeps none of the others; then raises RpcError. Cancelled, it
        may leave logs, which the garbage collector takes.
        """
        if not containers:
            return
        await run_all_for_each(containers, partial(self._remove, pod), CONTAINERS_AT_ONCE)
        if keep_logs:
            return
        remove = partial(remove_logs, pod, containers, self.node)
        await self.logs.share_of(pod).run_sync(remove)

    async def remove_pod(self, pod: ObservedPod) -> None:
        """Remove all containers and sandboxes of a pod; nothing of it may run. Raises RpcError."""
        await run_all_for_each(pod.containers, partial(self._remove, pod), CONTAINERS_AT_ONCE)
        await run_all(*(partial(self.remove_sandbox, each.id) for each in pod.sandboxes))
        if self.oom_kills is not None:
            await self.oom_kills.forget(pod.uid)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox; stop it once more if the runtime calls it ready. Raises RpcError."""
        try:
            await self.client.remove_pod_sandbox(sandbox_id)
        except RpcError:
            await self.client.stop_pod_sandbox(sandbox_id)
            await self.client.remove_pod_sandbox(sandbox_id)

    async def _remove(self, pod: ObservedPod, container: ObservedContainer) -> None:
        log.debug("removing container", pod=pod.key, container=container.name, id=container.id)
        try:
            if container.state is ObservedState.UNKNOWN:
                await self.client.stop_container(container.id, STOP_SECONDS)
            await self.client.remove_container(container.id)
        except RpcError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        if self.oom_kills is not None:
            await self.oom_kills.forget_container(pod.uid, container.id)


def surplus_containers(observed: ObservedPod, keep: int) -> tuple[ObservedContainer, ...]:
    """The dead containers of each name beyond the newest `keep`; none if that is negative.

    The newest container of a name is never surplus, dead or not: the pod's status is made of
    it, and whether an init container is through. (Flag --maximum-dead-containers-per-container)
    """
    if keep < 0:
        return ()
    newest: set[str] = set()
    dead: dict[str, int] = {}
    surplus: list[ObservedContainer] = []
    for container in observed.containers:
        is_newest = container.name not in newest
        newest.add(container.name)
        if container.state is not ObservedState.EXITED:
            continue
        dead[container.name] = dead.get(container.name, 0) + 1
        if dead[container.name] > keep and not is_newest:
            surplus.append(container)
    return tuple(surplus)
