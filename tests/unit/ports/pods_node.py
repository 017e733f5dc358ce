"""A node's pods and their statuses, with the part that programs of the node ask for them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve

from tests.pod_protobuf import read_pod
from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus
from trio_kubelet.ports.pod_events import PodEvents
from trio_kubelet.ports.pods_api import PodsApi
from trio_kubelet.rpc.stubs import v1alpha1 as wire
from trio_kubelet.status import Statuses
from trio_kubelet.sync.store import PodStore

ADDED, MODIFIED, DELETED, ALL_ADDED = "ADDED", "MODIFIED", "DELETED", "INITIAL_SYNC_COMPLETE"
DEADLINE_SECONDS = 60

Told = tuple[str, str, str]
"""An event: its type, the name of the pod, and the phase that its status tells."""


def a_pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"))


class PodsNode:
    """The pods of a node; its sources have told of them all, unless it is said otherwise."""

    def __init__(self, folder: Path, *, sources_known: bool = True) -> None:
        self.store = PodStore()
        self.statuses = Statuses()
        self.sources_known = trio.Event()
        if sources_known:
            self.sources_known.set()
        self.events = PodEvents(self.store, self.statuses, self.pod)
        self.api = PodsApi(folder, self.events, self.pods, self.pod, self.sources_known)

    def pods(self) -> Sequence[Pod]:
        return [self.statuses.with_status(stored.pod) for stored in self.store]

    def pod(self, uid: str) -> Pod | None:
        stored = self.store.get(uid)
        return self.statuses.with_status(stored.pod) if stored is not None else None

    def add(self, *names: str) -> None:
        for name in names:
            self.store.add(a_pod(name), 0.0)

    def report(self, name: str, phase: str) -> None:
        self.statuses.put(a_pod(name), PodStatus(phase=phase))

    def change(self, name: str, node_name: str) -> None:
        pod = a_pod(name)
        self.store.update(evolve(pod, spec=evolve(pod.spec, node_name=node_name)))

    def remove(self, name: str) -> None:
        self.store.remove(a_pod(name))
        self.statuses.forget(f"uid-{name}")

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Changes are told of until the end of the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.events.run)
            yield
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator["Watcher"]:
        """Somebody who watches."""
        async with aclosing(self.events.watch()) as events:  # type: ignore[type-var]
            yield Watcher(events)


class Watcher:
    """Somebody who watches, and what is known by the events so far."""

    def __init__(self, events: AsyncIterator[wire.WatchPodsEvent]) -> None:
        self.known: dict[str, Pod] = {}
        self._events = events

    async def event(self) -> wire.WatchPodsEvent:
        with trio.fail_after(DEADLINE_SECONDS):
            return await anext(self._events)

    async def told(self) -> Told:
        """The next event, which has to fit to what is known."""
        event = await self.event()
        kind = wire.EventType(event.type).name or ""
        if kind == ALL_ADDED:
            assert not event.pod
            return kind, "", ""
        pod = read_pod(event.pod)
        uid = pod.metadata.uid
        assert (uid in self.known) == (kind != ADDED)
        if kind == DELETED:
            del self.known[uid]
        else:
            self.known[uid] = pod
        return kind, pod.metadata.name, pod.status.phase

    async def first(self) -> Mapping[str, Pod]:
        """All pods that there are when the watch begins."""
        while (await self.told())[0] != ALL_ADDED:
            pass
        return dict(self.known)
