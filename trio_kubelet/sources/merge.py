"""Turns what the sources say into one stream of changes.

Every source yields its full set of pods, again and again. `SourceMerge` remembers what each said
last and answers with what changed since, as operations of the Go kubelet: ADD, UPDATE (spec,
labels, annotations or the deletion changed), DELETE (an UPDATE that asks for a graceful
deletion), REMOVE (no longer in the source), RECONCILE (only the status differs). The first set
of a source always yields an ADD, if only an empty one: that is how sources-ready is known.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from attrs import evolve, frozen

from trio_kubelet.clock import Clock
from trio_kubelet.k8s import Pod
from trio_kubelet.sources.annotations import (
    CONFIG_SEEN,
    CONFIG_SOURCE,
    LOCAL_ANNOTATIONS,
    Source,
    rfc3339_nanoseconds,
)
from trio_kubelet.telemetry import EventRecorder, EventType


class PodOperation(StrEnum):
    """What happened to the pods of an update."""

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


class SourceMerge:
    """What every source said last; owned by the task that feeds the config channel."""

    __slots__ = ("_clock", "_events", "_pods")

    def __init__(self, clock: Clock, events: EventRecorder) -> None:
        self._clock = clock
        self._events = events
        self._pods: dict[Source, Mapping[str, Pod]] = {}

    @property
    def seen(self) -> frozenset[Source]:
        """The sources that have delivered a complete set."""
        return frozenset(self._pods)

    def apply(self, source: Source, pods: Iterable[Pod]) -> list[PodUpdate]:
        """Take the full set of pods of a source and return what changed.

        A pod whose full name or UID another pod of the set has already is left out, with an
        event `FailedValidation`. Pods carry the annotations of their source and of the time
        when they were first seen.
        """
        first = source not in self._pods
        before = self._pods.get(source, {})
        changes: dict[PodOperation, list[Pod]] = {op: [] for op in _ORDER}
        after: dict[str, Pod] = {}
        for given in self._without_duplicates(source, pods):
            uid = given.metadata.uid
            known = before.get(uid)
            seen = "" if known is None else known.metadata.annotations.get(CONFIG_SEEN, "")
            pod = _annotated(given, source, seen or rfc3339_nanoseconds(self._clock.now_ns()))
            op = PodOperation.ADD if known is None else _difference(known, pod)
            after[uid] = pod
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

    def _without_duplicates(self, source: Source, pods: Iterable[Pod]) -> Iterable[Pod]:
        names: set[tuple[str, str]] = set()
        uids: set[str] = set()
        for pod in pods:
            meta = pod.metadata
            name = (meta.namespace, meta.name)
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
