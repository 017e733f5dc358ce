"""Tasks beside the containers of one pod: probes, watchers of ports, followers of logs.

They live in the nursery of the pod's task. A worker belongs to one instance of a container and
ends with it, at the latest with the pod. A bug in one is that worker's problem: it is logged,
and the worker is started again after a while.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
import trio

log = structlog.get_logger("containers")

RETRY_SECONDS = 10.0


class ContainerWorkers:
    """Owns the workers of one incarnation of a pod, by the ids of their containers."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[str, list[trio.CancelScope]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Workers may be started while this is held; at its end all are cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def start(self, container_id: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work until it returns, or until the container has ended."""
        assert self._nursery is not None, "workers are started by the pod's task"
        scope = trio.CancelScope()
        self._scopes.setdefault(container_id, []).append(scope)
        self._nursery.start_soon(self._run, container_id, scope, work)

    def end(self, container_id: str) -> None:
        """Cancel the workers of a container."""
        for scope in self._scopes.pop(container_id, ()):
            scope.cancel()

    async def _run(
        self, container_id: str, scope: trio.CancelScope, work: Callable[[], Awaitable[object]]
    ) -> None:
        with scope:
            while True:
                try:
                    await work()
                except Exception:
                    log.exception("container worker failed, will retry", container=container_id)
                else:
                    break
                await trio.sleep(RETRY_SECONDS)
        scopes = self._scopes.get(container_id, [])
        if scope in scopes:
            scopes.remove(scope)
        if not scopes:
            self._scopes.pop(container_id, None)
