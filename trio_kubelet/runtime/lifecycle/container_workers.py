"""Tasks beside the containers of one pod: probes, watchers of ports, followers of logs.

They live in the nursery of the pod's task. A worker belongs to one instance of a container and
ends with it, at the latest with the pod. A bug in one is that worker's problem: it is logged,
and the worker is started again after a while. A bug in the pod's task ends them all; they are
started again with it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import structlog
import trio
from attrs import define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.runtime.observed import ObservedContainer
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("containers")

RETRY = BackoffPolicy(initial_seconds=10.0, cap_seconds=60.0)


@define(eq=False)
class _Worker:
    """Work that has not returned yet, for one instance of a container."""

    container_id: str
    work: Callable[[], Awaitable[object]]
    scope: trio.CancelScope = field(factory=trio.CancelScope)


class ContainerWorkers:
    """Owns the workers of one incarnation of a pod."""

    def __init__(self) -> None:
        self._tasks = BackgroundTasks()
        self._unfinished: list[_Worker] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Workers may be started while this is held; at its end all are cancelled.

        Held again, it starts those anew that were cut off, unless their container has ended.
        """
        tasks = self._tasks = BackgroundTasks()
        for worker in self._unfinished:
            worker.scope = trio.CancelScope()
            tasks.start(partial(self._run, worker))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    def start(self, container_id: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work until it returns, or until the container has ended."""
        worker = _Worker(container_id, work)
        self._unfinished.append(worker)
        self._tasks.start(partial(self._run, worker))

    def end(self, container_id: str) -> None:
        """Cancel the workers of a container."""
        for worker in tuple(self._unfinished):
            if worker.container_id == container_id:
                worker.scope.cancel()
                self._unfinished.remove(worker)

    async def _run(self, worker: _Worker) -> None:
        retries = Retries(RETRY)
        with worker.scope:
            while True:
                try:
                    await worker.work()
                except Exception:
                    log.exception(
                        "container worker failed, will retry", container=worker.container_id
                    )
                else:
                    break
                await retries.wait()
        if worker in self._unfinished:
            self._unfinished.remove(worker)


class ProbeControl(Protocol):
    """The probes of one incarnation of a pod. Plain functions, called by its `PodContainers`."""

    def container_started(
        self, pod: Pod, container: Container, instance: ObservedContainer
    ) -> None:
        """An instance was seen to run, for the first time by this agent."""
        ...

    def container_ended(self, container_id: str) -> None:
        """An instance was seen not to run any more; its workers have been cancelled."""
        ...

    def pod_stops(self) -> None:
        """The pod is being stopped: no container of it is restarted any more."""
        ...

    def failed(self) -> Mapping[str, str]:
        """The probe that failed (`liveness`, `startup`), by the ids of containers to restart."""
        ...

    def unstarted(self) -> frozenset[str]:
        """The ids of running containers whose startup probe has not succeeded yet."""
        ...


OpenProbes = Callable[[Pod, ContainerWorkers], ProbeControl]
"""Makes the probes of a new incarnation of a pod, which the workers run."""
