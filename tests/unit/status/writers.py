"""A writer of statuses with the node around it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from tests.unit.status.api import PodsApi, a_named_pod
from trio_kubelet.k8s import (
    Pod,
    PodStatus,
)
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.status.writer import (
    StatusWriter,
)

RUNNING, SUCCEEDED = PodStatus(phase="Running"), PodStatus(phase="Succeeded")
SOON = 60.0


def refused(code: int, reason: str = "", retry_after_seconds: float | None = None) -> ApiError:
    return ApiError(code, reason, "no", retry_after_seconds=retry_after_seconds)


@define
class Node:
    """A writer with the node around it: statuses, tasks that have ended, and the watch."""

    api: PodsApi = field(factory=PodsApi)
    statuses: dict[str, PodStatus] = field(factory=dict)
    over: set[str] = field(factory=set)
    watching: bool = True
    known: dict[str, Pod] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.api.on_change = self._watched
        self.writer = StatusWriter(self.api, self.statuses.get, self.over.__contains__)  # type: ignore[arg-type]

    writer: StatusWriter = field(init=False)

    def _watched(self, name: str, pod: Pod | None) -> None:
        if not self.watching:
            return
        if pod is None:
            self.writer.removed(self.known.pop(name))
        else:
            self.known[name] = pod
            self.writer.changed(pod)

    def add(self, *names: str) -> None:
        for name in names:
            self.api.put(a_named_pod(name))

    def report(self, name: str, status: PodStatus) -> None:
        uid = f"uid-{name}"
        self.statuses[uid] = status
        self.writer.status_changed(a_named_pod(name), status)

    def finish(self, name: str) -> None:
        self.over.add(f"uid-{name}")
        self.writer.look_at(f"uid-{name}")

    def phase(self, name: str) -> str:
        return self.api.pods[name].status.phase

    async def until(self, log: Iterable[str], within: float = SOON) -> None:
        """Wait until these are all the requests that were made, and no more come."""
        await trio.sleep(within)
        assert self.api.log == list(log)


@asynccontextmanager
async def running(*names: str) -> AsyncIterator[Node]:
    node = Node()
    node.add(*names)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.writer.run)
        yield node
        nursery.cancel_scope.cancel()
