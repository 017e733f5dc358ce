"""The third stage of the agent: what brings pods from their sources to their tasks."""

from collections.abc import Collection, Iterable, Iterator

import trio

from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.pod_parts import PodParts
from trio_kubelet.agent.static_sources import watch_static_sources
from trio_kubelet.devices import RunningContainer
from trio_kubelet.eviction.decision import GracePolicy, Reclaim
from trio_kubelet.eviction.manager import EvictionManager, NodePods
from trio_kubelet.k8s import Pod
from trio_kubelet.node.shutdown import ShutdownPods
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.sources import PodUpdates, SourceMerge
from trio_kubelet.sync.admission import Admission
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.housekeeping import Housekeeper
from trio_kubelet.sync.loop import SyncLoop
from trio_kubelet.sync.machine_parts import MachineParts
from trio_kubelet.sync.pod_task import PodRequest, SharedByTasks
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.resize_decisions import ResizeDecisions
from trio_kubelet.sync.undecided import UndecidedPods


class Pods:
    """The parts that bring pods from the sources to their tasks. Those run in the nursery."""

    def __init__(
        self,
        parts: NodeParts,
        pod_parts: PodParts,
        cluster: Cluster | Standalone,
        nursery: trio.Nursery,
    ) -> None:
        self._parts, configuration = parts, parts.settings.configuration
        self.tasks = PodTasks(
            nursery,
            open_syncer=pod_parts.sync.open_syncer,
            shared=SharedByTasks(
                journal=parts.journal,
                recorder=parts.recorder,
                resync_seconds=configuration.sync_frequency.total_seconds(),
                cleaning=CleaningTurns(parts.activity.wait_idle),
                tracer=parts.traces.tracer if parts.traces is not None else None,
            ),
        )
        pod_parts.staged.on_ready.add(lambda uid: self.tasks.put(uid, PodRequest(why=("volume",))))
        merge = SourceMerge(
            parts.clock,
            parts.recorder,
            pod_level_resources=parts.settings.gates["PodLevelResources"],
        )
        self._updates = PodUpdates(merge)
        self._objects = cluster.join(self.tasks, self._updates, pod_parts.recall)
        self.watch_api = self._objects.run
        self.resizing = ResizeDecisions(
            resizes=parts.resizes,
            allocations=parts.allocations,
            statuses=parts.statuses,
            store=parts.store,
            admission=pod_parts.resize_admission,
            recorder=parts.recorder,
        )
        self.loop = SyncLoop(
            store=parts.store,
            tasks=self.tasks,
            admit=pod_parts.admission,
            fits=pod_parts.admission.fits,
            allocations=parts.allocations,
            parts=MachineParts(
                managers=parts.managers,
                store=parts.store,
                tasks=self.tasks,
                runs=parts.cache.may_run,
                sources_known=parts.sources_known,
            ),
            resizing=self.resizing,
            undecided=_undecided_pods(pod_parts.admission, cluster),
            runtime_health=parts.runtime_health,
            monitor=parts.monitor,
            config=self._updates.channel,
            pleg=parts.runtime_changes,
            probes=parts.probe_changes,
            sources=parts.static_sources | cluster.sources,
            clean_up=Housekeeper(
                store=parts.store, tasks=self.tasks, leftover_sources=pod_parts.leftover_sources
            ).clean_up,
            recorder=parts.recorder,
            runs=parts.cache.may_run,
            sources_known=parts.sources_known,
            unfinished_end=lambda uid: (
                parts.eviction_records.open_record(uid) or parts.shutdown.record.ended(uid)
            ),
        )
        self.evictions = EvictionManager(
            watch=parts.pressure,
            stats=parts.stats,
            pods=NodePods(
                active=parts.active_pods,
                source_version=self._source_version,
                all_known=parts.sources_known,
                end=self.loop.end,
                is_gone=lambda uid: uid not in self.tasks,
            ),
            reclaims={
                Reclaim.DEAD_CONTAINERS: pod_parts.garbage.delete_all_unused_containers,
                Reclaim.UNUSED_IMAGES: parts.image_garbage.delete_unused_images,
            },
            records=parts.eviction_records,
            grace=_eviction_grace(parts),
            own_limits=configuration.local_storage_capacity_isolation,
            recorder=parts.recorder,
            clock=parts.clock,
        )
        parts.live.follow(
            ("evictionMaxPodGracePeriod",),
            lambda: self.evictions.use_grace(_eviction_grace(parts)),
        )
        self.tasks.on_finished.add(self.evictions.pod_finished)
        self.tasks.on_finished.add(parts.shutdown.look_again)
        parts.status_syncs.add(parts.shutdown.look_again)
        for owner in (parts.devices, pod_parts.sync.claims):
            owner.on_pods.add(self._devices_changed)
            owner.on_health.add(self._health_changed)

    def of_shutdown(self) -> ShutdownPods:
        """The pods, for who ends them all."""
        return ShutdownPods(
            active=self._parts.active_pods,
            end=self.loop.end,
            is_gone=lambda uid: uid not in self.tasks,
            is_told=self._objects.is_told,
        )

    def _health_changed(self, uids: Collection[str]) -> None:
        """Show the health of pods' devices."""
        for uid in uids:
            if (task := self.tasks.get(uid)) is not None:
                task.report()

    def _devices_changed(self, uids: Collection[str]) -> None:
        """Let pods go on that wait for devices."""
        for uid in uids:
            if (task := self.tasks.get(uid)) is not None:
                task.put(PodRequest(why=("devices",)))

    def _source_version(self, uid: str) -> Pod | None:
        stored = self._parts.store.get(uid)
        return stored.pod if stored is not None else None

    async def watch_static_sources(self) -> None:
        """Read the folder and the URL of static pods, where they are set, until cancelled."""
        await watch_static_sources(self._parts, self._updates)


def running_containers(pods: Iterable[ObservedPod]) -> Iterator[RunningContainer]:
    """The containers that may run, for who has to know what they hold."""
    for pod in pods:
        for container in pod.living:
            yield RunningContainer(
                pod_uid=pod.uid,
                name=container.name,
                created_at_ns=container.created_at,
                annotations=container.annotations,
            )


def _eviction_grace(parts: NodeParts) -> GracePolicy:
    return GracePolicy(most_seconds=parts.settings.configuration.eviction_max_pod_grace_period)


def _undecided_pods(admission: Admission, cluster: Cluster | Standalone) -> UndecidedPods | None:
    """New pods that wait for the Node object; None where there is none."""
    if cluster.refresh_node is None:
        return None
    return UndecidedPods(admission.wants_newer_node, cluster.refresh_node)
