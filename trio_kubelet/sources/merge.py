"""Turns what the sources say into one stream of changes, in order, in one channel.

Every source yields its full set of pods, again and again. `SourceMerge` remembers what each said
last and answers with what changed since, as operations of the Go kubelet: ADD, UPDATE (spec,
labels, annotations or the deletion changed), DELETE (an UPDATE that asks for a graceful
deletion), REMOVE (no longer in the source), RECONCILE (only the status differs). The first set
of a source always yields an ADD, if only an empty one: that is how sources-ready is known. A
source that knows what changed says so (`change`, `remove`) and need not repeat all the others.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

import structlog
import trio
from attrs import define, evolve, field, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import (
    CONFIG_SEEN,
    CONFIG_SOURCE,
    LOCAL_ANNOTATIONS,
    Source,
    rfc3339_nanoseconds,
)
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("sources")


class PodOperation(StrEnum):
    """The change of the pods of an update."""

    ADD = "ADD"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    REMOVE = "REMOVE"
    RECONCILE = "RECONCILE"


_ORDER = (
    PodOperation.REMOVE,
    PodOperation.ADD,
    PodOperation.UPDATE,
    PodOperation.DELETE,
    PodOperation.RECONCILE,
)
"""Removals first, so that a pod that was replaced starts after its predecessor's end."""


@frozen(kw_only=True)
class PodUpdate:
    """Pods of one source to which the same thing happened."""

    op: PodOperation
    pods: tuple[Pod, ...]
    source: Source


ComparedPod = tuple[Pod, PodOperation | None]
"""A pod with the annotations of its source, and what has happened to it."""


@define(eq=False)
class SourceMerge:
    """The last word of every source; owned by the task that feeds the config channel.

    Without `pod_level_resources` (gate PodLevelResources) pods have no resources as a whole,
    whatever their specs say.
    """

    _clock: Clock
    _events: EventRecorder
    _pod_level_resources: bool = field(default=True, kw_only=True)
    _pods: dict[Source, dict[str, Pod]] = field(init=False, factory=dict)

    def apply(self, source: Source, pods: Iterable[Pod]) -> list[PodUpdate]:
        """Take the full set of pods of a source and return what changed.

        A pod whose full name or UID another pod of the set has already is left out, with an
        event `FailedValidation`. Pods carry the annotations of their source and of the time
        when they were first seen.
        """
        return self.conclude(source, self.compare_all(source, pods))

    def compare_all(self, source: Source, pods: Iterable[Pod]) -> Iterator[ComparedPod]:
        """Compare the pods of a full set with what is known, one by one: `apply` in two parts."""
        before = self._pods.get(source, {})
        for found in self._without_duplicates(source, pods):
            yield self._compare(source, before.get(found.metadata.uid), found)

    def conclude(self, source: Source, compared: Iterable[ComparedPod]) -> list[PodUpdate]:
        """Take the full set of pods that was compared; nothing of it may have changed since."""
        first = source not in self._pods
        before = self._pods.get(source, {})
        changes: dict[PodOperation, list[Pod]] = {op: [] for op in _ORDER}
        after: dict[str, Pod] = {}
        for pod, op in compared:
            after[pod.metadata.uid] = pod
            if op is not None:
                changes[op].append(pod)
        changes[PodOperation.REMOVE] = [pod for uid, pod in before.items() if uid not in after]
        self._pods[source] = after
        updates = [
            PodUpdate(op=op, pods=tuple(changes[op]), source=source) for op in _ORDER if changes[op]
        ]
        if first and not updates:
            return [PodUpdate(op=PodOperation.ADD, pods=(), source=source)]
        return updates

    def change(self, source: Source, pod: Pod) -> list[PodUpdate]:
        """Take one pod that is new or has changed in a set that was delivered before.

        A pod that had the same full name under another UID is gone: nobody may have said so yet.
        """
        pods = self._pods[source]
        known = pods.get(pod.metadata.uid)
        updates = [] if known is not None else self._replaced(source, pod)
        annotated, op = self._compare(source, known, pod)
        pods[annotated.metadata.uid] = annotated
        if op is not None:
            updates.append(PodUpdate(op=op, pods=(annotated,), source=source))
        return updates

    def remove(self, source: Source, pod: Pod) -> list[PodUpdate]:
        """Note that the source has this pod no longer."""
        known = self._pods[source].pop(pod.metadata.uid, None)
        if known is None:
            return []
        return [PodUpdate(op=PodOperation.REMOVE, pods=(known,), source=source)]

    def _replaced(self, source: Source, pod: Pod) -> list[PodUpdate]:
        name = _full_name(pod)
        same_name = [p for p in self._pods[source].values() if _full_name(p) == name]
        return [update for each in same_name for update in self.remove(source, each)]

    def _compare(self, source: Source, known: Pod | None, found: Pod) -> ComparedPod:
        """The pod with the annotations of its source, and what has happened to it."""
        if not self._pod_level_resources and found.spec.resources is not None:
            found = evolve(found, spec=evolve(found.spec, resources=None))
        seen = "" if known is None else known.metadata.annotations.get(CONFIG_SEEN, "")
        pod = _annotated(found, source, seen or rfc3339_nanoseconds(self._clock.now_ns()))
        return pod, PodOperation.ADD if known is None else _difference(known, pod)

    def _without_duplicates(self, source: Source, pods: Iterable[Pod]) -> Iterable[Pod]:
        names: set[tuple[str, str]] = set()
        uids: set[str] = set()
        for pod in pods:
            meta, name = pod.metadata, _full_name(pod)
            if name in names or meta.uid in uids:
                what = f'pod name "{meta.name}"' if name in names else f'pod UID "{meta.uid}"'
                self._events.pod(
                    pod,
                    EventType.WARNING,
                    "FailedValidation",
                    f"Error validating pod {meta.name}_{meta.namespace}({meta.uid}) from {source} "
                    f"due to duplicate {what}, ignoring",
                )
                continue
            names.add(name)
            uids.add(meta.uid)
            yield pod


def _full_name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


def _difference(known: Pod, pod: Pod) -> PodOperation | None:
    """Return what an observer of `known` must be told to arrive at `pod`."""
    if _asked_for(known) != _asked_for(pod):
        deleted = pod.metadata.deletion_timestamp is not None
        return PodOperation.DELETE if deleted else PodOperation.UPDATE
    return PodOperation.RECONCILE if known.status != pod.status else None


def _asked_for(pod: Pod) -> tuple[object, ...]:
    meta = pod.metadata
    return (
        pod.spec,
        meta.labels,
        meta.deletion_timestamp,
        meta.deletion_grace_period_seconds,
        {key: value for key, value in meta.annotations.items() if key not in LOCAL_ANNOTATIONS},
    )


def _annotated(pod: Pod, source: Source, seen: str) -> Pod:
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: str(source), CONFIG_SEEN: seen}
    return evolve(pod, metadata=evolve(pod.metadata, annotations=annotations))


CHANNEL_SIZE = 64
PODS_IN_A_TURN = 100
"""To compare one takes ten microseconds; a source may have thousands."""


class PodUpdates:
    """Sends updates into `channel`. `on_update` is called with each of them before."""

    def __init__(self, merge: SourceMerge) -> None:
        self.merge = merge
        self.on_update: Callbacks[[PodUpdate]] = Callbacks()
        self._channel_in, self.channel = trio.open_memory_channel[PodUpdate](CHANNEL_SIZE)

    async def take(self, source: Source, pods: tuple[Pod, ...]) -> None:
        """Take the full set of pods that a source has now; waits while the sync loop is behind."""
        compared: list[ComparedPod] = []
        for each in self.merge.compare_all(source, pods):
            compared.append(each)
            if not len(compared) % PODS_IN_A_TURN:
                await trio.lowlevel.checkpoint()
        await self.send(self.merge.conclude(source, compared))

    async def send(self, updates: Iterable[PodUpdate]) -> None:
        """Hand on what changed in a source; waits while the sync loop is behind."""
        for update in updates:
            try:
                self.on_update.call(update)
            except Exception:  # whatever becomes of mirrors, the pods themselves are dealt with
                names = [pod.metadata.key for pod in update.pods]
                log.exception("mirror pod sync failed", pods=names)
            await self._channel_in.send(update)
