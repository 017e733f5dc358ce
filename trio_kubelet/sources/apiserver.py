"""The pods that the API server binds to this node, by list and watch.

Nothing is handed out before the first complete list. From then on each version of a pod goes
through the merge alone, so that a change of one pod costs the same beside ten pods and beside
two hundred. Mirrors are the API's picture of static pods: they are shown to whoever keeps them
and never run. Followers see every version first, so that a status which the sync loop makes of
it finds its object there.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
from attrs import define, field

from trio_kubelet.foreign_text import PATH_PART, is_path_part
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.client import (
    Api,
    ObjectChanged,
    ObjectRemoved,
    Selection,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.errors import FieldError, duplicate, format_errors, invalid
from trio_kubelet.k8s.kinds import PODS
from trio_kubelet.pod_source import CONFIG_MIRROR, Source
from trio_kubelet.sources.merge import PodUpdate, SourceMerge

log = structlog.get_logger("sources")

SendUpdates = Callable[[Iterable[PodUpdate]], Awaitable[None]]
"""Takes what changed, in order; may wait while the sync loop is behind."""


def unusable_names(pod: Pod) -> tuple[FieldError, ...]:
    """The problems of a pod's names that become parts of paths, or tell things apart.

    The API server lets no such pod pass. Another one, or what stands before it, might.
    """
    meta, spec = pod.metadata, pod.spec
    named = [("metadata.uid", meta.uid), ("metadata.name", meta.name)]
    named.append(("metadata.namespace", meta.namespace))
    lists: tuple[tuple[str, list[str]], ...] = (
        ("spec.volumes", [volume.name for volume in spec.volumes]),
        ("spec.initContainers", [container.name for container in spec.init_containers]),
        ("spec.containers", [container.name for container in spec.containers]),
        ("spec.ephemeralContainers", [container.name for container in spec.ephemeral_containers]),
    )
    named += ((f"{path}[{n}].name", name) for path, names in lists for n, name in enumerate(names))
    containers = [name for _, names in lists[1:] for name in names]
    doubles = (
        duplicate(path, name)
        for path, names in (("spec.volumes", lists[0][1]), ("spec.containers", containers))
        for name, count in Counter(names).items()
        if count > 1
    )
    unfit = (invalid(path, name, PATH_PART) for path, name in named if not is_path_part(name))
    return (*unfit, *doubles)


class PodFollower(Protocol):
    """Wants to know which pods, or mirrors, the API has. Plain methods, in the order of events."""

    def changed(self, pod: Pod) -> None:
        """There is this pod, or this newer version of it."""
        ...

    def removed(self, pod: Pod) -> None:
        """The pod is gone; its last version."""
        ...

    def synced(self) -> None:
        """All pods that there are have been told of; again after each gap in the watch."""
        ...


def is_mirror(pod: Pod) -> bool:
    """True if the object only shows a static pod of this node."""
    return CONFIG_MIRROR in pod.metadata.annotations


async def watch_api_pods(
    api: Api,
    node_name: str,
    send: SendUpdates,
    *,
    merge: SourceMerge,
    pods: PodFollower,
    mirrors: PodFollower,
) -> None:
    """Follow the pods of this node for ever; an API server that is away is waited for.

    Cancelling loses nothing but the place in the stream: the next run begins with a full list.
    """
    api_pods = ApiPods(send, merge=merge, pods=pods, mirrors=mirrors)
    await reflect(api, PODS, api_pods.take, Selection(fields=f"spec.nodeName={node_name}"))


@define(eq=False)
class ApiPods:
    """Collects the pods of the first list; after it every event is passed on at once."""

    _send: SendUpdates
    _merge: SourceMerge = field(kw_only=True)
    _pods: PodFollower = field(kw_only=True)
    _mirrors: PodFollower = field(kw_only=True)
    _first: dict[str, Pod] | None = field(init=False, factory=dict)

    async def take(self, event: WatchEvent[Pod]) -> None:
        if isinstance(event, ObjectChanged):
            await self._changed(event.object)
        elif isinstance(event, ObjectRemoved):
            await self._removed(event.object)
        else:
            await self._synced()

    async def _changed(self, pod: Pod) -> None:
        if is_mirror(pod):
            self._mirrors.changed(pod)
            return
        if problems := unusable_names(pod):
            log.warning(
                "pod from the API server is invalid, ignoring it",
                pod=pod.metadata.key,
                uid=pod.metadata.uid,
                error=format_errors(problems),
            )
            return
        self._pods.changed(pod)
        if self._first is not None:
            self._first[pod.metadata.uid] = pod
        else:
            await self._send(self._merge.change(Source.API, pod))

    async def _removed(self, pod: Pod) -> None:
        if is_mirror(pod):
            self._mirrors.removed(pod)
            return
        self._pods.removed(pod)
        if self._first is not None:
            self._first.pop(pod.metadata.uid, None)
        else:
            await self._send(self._merge.remove(Source.API, pod))

    async def _synced(self) -> None:
        self._pods.synced()
        self._mirrors.synced()
        if self._first is None:
            return
        pods, self._first = tuple(self._first.values()), None
        log.info("pods of this node listed", pods=len(pods))
        await self._send(self._merge.apply(Source.API, pods))
