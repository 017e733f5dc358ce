"""Housekeeping: a snapshot is taken, a pure function finds the orphaned pods, tasks end them.

A snapshot says which pods have something on this node: sandboxes and containers in the runtime,
a folder, cgroups, logs, a record of its resources. A pod that no source has and that has no task
is an orphan: it gets a task that begins in Terminating and ends with nothing left of the pod. So
there is one way for a pod to go, whether its manifest went a second ago or while the agent was
down.

Taking the snapshot takes time; pods that arrive meanwhile are left alone.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum

import structlog
import trio
from attrs import field, frozen

from state_machines.pod import ORPHAN_GRACE_SECONDS, PodEvent, PodState
from state_machines.pod_ending import Ending
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.store import PodStore

log = structlog.get_logger("housekeeping")

ListUids = Callable[[], Awaitable[Iterable[str]]]


class Leftover(StrEnum):
    """A place where something of a pod was found."""

    RUNTIME = "runtime"
    FOLDER = "folder"
    CGROUP = "cgroup"
    LOGS = "logs"
    RECORD = "record"


@frozen(kw_only=True)
class FoundPod:
    """One pod in a snapshot. Folders and cgroups know only the UID: names may be empty."""

    uid: str
    namespace: str = ""
    name: str = ""
    leftovers: frozenset[Leftover] = field(factory=frozenset)


@frozen(kw_only=True)
class Snapshot:
    """The findings on the node. `taken_at` is trio's clock before anything was listed."""

    taken_at: float
    pods: Mapping[str, FoundPod]


def combine(taken_at: float, sightings: Iterable[FoundPod]) -> Snapshot:
    """Merge what was found into one snapshot; names come from any finding that has them."""
    pods: dict[str, FoundPod] = {}
    for seen in sightings:
        known = pods.get(seen.uid)
        if known is None:
            pods[seen.uid] = seen
            continue
        pods[seen.uid] = FoundPod(
            uid=seen.uid,
            namespace=known.namespace or seen.namespace,
            name=known.name or seen.name,
            leftovers=known.leftovers | seen.leftovers,
        )
    return Snapshot(taken_at=taken_at, pods=pods)


def orphaned_pods(
    snapshot: Snapshot,
    *,
    wanted: Iterable[str],
    at_work: Iterable[str],
    gone_at: Mapping[str, float],
) -> tuple[FoundPod, ...]:
    """The pods of the snapshot that nobody wants, in a stable order.

    `wanted` are the UIDs that a source has, `at_work` those that have a task, both now; a pod
    that was added after the snapshot is in one of them. `gone_at` says when a task ended that
    the snapshot may still have seen at work: what it saw of such a pod is no longer true. A cgroup
    alone is no orphan's if its name may be that of a pod that is there.
    """
    known = frozenset(wanted) | frozenset(at_work)
    # What is read of a UID in the name of a slice of systemd, which tells `-` and `_` not apart.
    in_slices = frozenset(uid.replace("_", "-") for uid in known)
    return tuple(
        found
        for uid, found in sorted(snapshot.pods.items())
        if uid not in known
        and not (found.leftovers == {Leftover.CGROUP} and uid in in_slices)
        and gone_at.get(uid, -1.0) < snapshot.taken_at
    )


def orphaned_pod(found: FoundPod) -> Pod:
    """A pod value for something that has no spec any more."""
    return Pod(
        metadata=ObjectMeta(
            uid=found.uid, name=found.name or found.uid, namespace=found.namespace or "unknown"
        )
    )


ORPHAN_ENDING = Ending(
    causes=(PodEvent.REMOVED,),
    grace_seconds=ORPHAN_GRACE_SECONDS,
    message="no source has the pod",
    delete_remains=True,
)
"""Containers that only the runtime knows get one second of grace."""


@frozen(kw_only=True)
class LeftoverSources:
    """The pods that each part has something of: UIDs, or more where it knows more.

    `runtime` returns what the last relist or look showed. `logs` are namespace, name and UID.
    """

    runtime: Callable[[], Iterable[ObservedPod]]
    records: Callable[[], Iterable[str]]
    folders: ListUids
    cgroups: ListUids
    logs: Callable[[], Awaitable[Iterable[tuple[str, str, str]]]]

    async def look(self) -> tuple[FoundPod, ...]:
        """The findings, source by source; the disks are read concurrently."""
        found = [_found(Leftover.RUNTIME, p.uid, p.namespace, p.name) for p in self.runtime()]
        found += (_found(Leftover.RECORD, uid) for uid in self.records())

        async def look_for_uids(kind: Leftover, uids: ListUids) -> None:
            found.extend([_found(kind, uid) for uid in await uids()])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_for_uids, Leftover.FOLDER, self.folders)
            nursery.start_soon(look_for_uids, Leftover.CGROUP, self.cgroups)
            for namespace, name, uid in await self.logs():
                found.append(_found(Leftover.LOGS, uid, namespace, name))
        return tuple(found)


def _found(leftover: Leftover, uid: str, namespace: str = "", name: str = "") -> FoundPod:
    return FoundPod(uid=uid, namespace=namespace, name=name, leftovers=frozenset({leftover}))


@frozen(kw_only=True)
class Housekeeper:
    """Takes the snapshot, decides, and starts a task for each orphan."""

    _store: PodStore
    _tasks: PodTasks
    _leftover_sources: LeftoverSources

    async def clean_up(self) -> None:
        """One round, when every source has said what it wants."""
        snapshot = combine(trio.current_time(), await self._leftover_sources.look())
        await trio.lowlevel.checkpoint_if_cancelled()  # threads end although they are cancelled
        for orphan in orphaned_pods(
            snapshot,
            wanted=[stored.pod.metadata.uid for stored in self._store],
            at_work=self._tasks.uids,
            gone_at=self._tasks.finished_at,
        ):
            log.info(
                "orphaned pod found",
                pod=f"{orphan.namespace}/{orphan.name}",
                uid=orphan.uid,
                leftovers=sorted(orphan.leftovers),
            )
            self._tasks.start(
                orphaned_pod(orphan),
                incarnation=0,
                state=PodState.TERMINATING,
                ending=ORPHAN_ENDING,
            )
        self._tasks.forget_finished_before(snapshot.taken_at)
