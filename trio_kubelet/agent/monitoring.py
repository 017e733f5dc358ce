"""The metrics of the node and of the agent's work, and the routes to them and to the statistics.

Nothing here acts on pods: all of it may fail, or be slow, and they run on.
"""

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, ParamSpec
from urllib.parse import urlsplit

import structlog
import trio

from state_machines.pod import PodState
from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.agent.live_settings import CREDENTIAL_PROVIDERS
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.config.gates import KNOWN_GATES, Stage
from trio_kubelet.dra import ClaimManager
from trio_kubelet.eviction.manager import EvictionManager
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.k8s.client import ApiClients
from trio_kubelet.metrics.cadvisor import cadvisor_metrics
from trio_kubelet.metrics.counted import EventCounter, NodeStartup
from trio_kubelet.metrics.counted_volumes import VolumeCounter
from trio_kubelet.metrics.definitions import (
    SHOWN_AS,
    CredentialProviderCounts,
    SpanCounts,
    rotation_ages,
)
from trio_kubelet.metrics.http_requests import counted
from trio_kubelet.metrics.resource import resource_metrics
from trio_kubelet.metrics.state import (
    CLIENT_RENEW_ERRORS,
    RUNTIME_ONLY,
    SERVER_RENEW_ERRORS,
    AgentState,
    CertificateMetrics,
    log_families,
    process_families,
    process_start_family,
    pull_record_families,
    state_families,
    volume_families,
)
from trio_kubelet.metrics.text import exposition, families_of, metrics_routes
from trio_kubelet.node.reporter import NodeReporter
from trio_kubelet.pod_source import is_static
from trio_kubelet.probes import Probes
from trio_kubelet.resources.qos_memory import memory_requests, protects_memory
from trio_kubelet.server import Handler, Route
from trio_kubelet.stats.summary import stats_routes
from trio_kubelet.sync.pod_task import PodTask
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.resize_decisions import ResizeDecisions

log = structlog.get_logger("metrics")

if TYPE_CHECKING:  # It takes much that a node without rotation does not need.
    from trio_kubelet.node.rotation import Rotation

P = ParamSpec("P")

_LIFECYCLES = {PodState.SYNC_POD: "sync", PodState.TERMINATING: "terminating"}
_PORT = "readwrite"
"""The Go kubelet's name of the port for others in its metrics."""


class Monitoring:
    """Counts what happens from now on, and answers those who scrape."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._tasks: Iterable[PodTask] = ()
        self._has_api = False
        self._rotations: dict[tuple[str, str], Rotation] = {}
        self._counter = counter = EventCounter(
            parts.clock.now_ns, self._pod, self._seen_ago, parts.resources.allocatable
        )
        parts.runtime_calls.add(safe(counter.runtime_called))
        parts.cache.on_observation.add(safe(counter.observed))
        parts.cgroup_operations.add(safe(counter.cgroup_operation))
        parts.resize_tries.add(safe(counter.resize_tried))
        parts.managers.cpus.on_pinned.add(safe(counter.cpus_asked))
        parts.managers.memory.on_pinned.add(safe(counter.memory_asked))
        parts.managers.on_admission.add(safe(counter.topology_looked_at))
        parts.managers.on_boundary.add(safe(counter.boundary_looked_at))
        if parts.settings.gates["PodLevelResourceManagers"]:
            parts.managers.cpus.on_assigned.add(safe(partial(counter.part_assigned, "cpu")))
            parts.managers.memory.on_assigned.add(safe(partial(counter.part_assigned, "memory")))
            parts.managers.on_refused.add(safe(counter.part_refused))
        parts.pleg.on_relist.add(safe(counter.relisted))
        parts.pleg.on_event.add(safe(counter.runtime_event))
        parts.pleg.on_stream_opened.add(safe(counter.event_stream_opened))
        parts.pleg.on_stream_failed.add(safe(counter.event_stream_failed))
        parts.image_lookups.add(safe(counter.image_looked_up))
        parts.image_pulls.add(safe(counter.image_pulled))
        if parts.settings.credential_providers.providers:
            counts = CredentialProviderCounts(counter.counts.registry)
            counts.configured(parts.settings.credential_providers.hash)
            parts.live.follow(
                (CREDENTIAL_PROVIDERS,),
                lambda: counts.configured(parts.settings.credential_providers.hash),
            )
            parts.credential_plugin_runs.add(safe(counts.plugin_ran))
        parts.image_garbage.on_collected.add(safe(counter.image_collected))
        parts.statuses.on_change.add(safe(counter.status_changed))
        parts.status_syncs.add(safe(counter.status_synced))
        parts.loop_meter.on_long_turn.add(safe(counter.loop_held))
        parts.sleeps_cut_short.add(safe(counter.sleep_cut_short))
        parts.http_fallbacks.add(safe(counter.http_fell_back))
        parts.device_registration.on_request.add(safe(counter.device_plugin_registers))
        parts.devices.on_allocated.add(safe(counter.devices_allocated))
        parts.pod_resources.on_request.add(safe(counter.pod_resources_asked))
        parts.pod_resources.on_error.add(safe(counter.pod_resources_refused))
        if parts.pods_api is not None:
            parts.pods_api.events.on_dropped.add(safe(counter.pod_events_dropped))
        volumes = VolumeCounter(counter.counts)
        parts.csi_drivers.on_call.add(safe(volumes.csi_called))
        parts.volume_operations.on_operation.add(safe(volumes.volume_operated))
        parts.volume_operations.on_found.add(safe(volumes.volumes_found))
        parts.stats.on_disk_walk.add(safe(volumes.disk_walked))
        if parts.traces is not None:
            parts.traces.queue.on_dropped.add(safe(SpanCounts(counter.counts.registry).dropped))
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._startup = NodeStartup(counter.counts, parts.clock.now_ns, uptime)

    def watch_pods(self, tasks: PodTasks, probes: Probes, resizing: ResizeDecisions) -> None:
        """Be told of the work for pods, of their probes and resizes, from now on."""
        self._tasks = tasks
        tasks.on_work.add(safe(self._counter.worked))
        tasks.on_orphan.add(safe(self._counter.orphan_found))
        tasks.on_finished.add(safe(self._finished))
        probes.on_run.add(safe(self._counter.probe_run))
        resizing.on_asked.add(safe(self._counter.resize_asked))
        resizing.on_refused.add(safe(self._counter.resize_refused))
        resizing.on_deferred_granted.add(safe(self._counter.deferred_resize_granted))

    def watch_claims(self, claims: ClaimManager) -> None:
        """Be told of resource claims and of calls to their drivers from now on."""
        claims.on_operation.add(safe(self._counter.claims_handled))
        claims.on_use.add(safe(lambda: self._counter.claims_used(claims.in_use())))
        self._counter.claims_used(claims.in_use())

    def watch_evictions(self, evictions: EvictionManager) -> None:
        """Be told of evictions from now on."""
        evictions.on_evicted.add(safe(self._counter.evicted))
        evictions.on_decided.add(safe(self._counter.eviction_decided))

    def watch_api(self, clients: ApiClients, reporter: NodeReporter) -> None:
        """Be told of requests to the API server, and of the node's registration, from now on."""
        reporter.on_registered.add(safe(self._startup.registered))
        reporter.on_ready.add(safe(self._startup.ready))
        self._has_api = True
        host = urlsplit(clients.server).netloc
        for client in (clients.main, clients.heartbeat, clients.events, clients.reviews):
            client.on_answer.add(safe(partial(self._counter.api_answered, host)))

    def watch_client_certificate(self, rotation: "Rotation") -> None:
        """Tell of the certificate that the node asks the API server with."""
        self._rotations["client", CLIENT_RENEW_ERRORS] = rotation

    def watch_serving_certificate(self, rotation: "Rotation") -> None:
        """Tell of the certificate of the node's port, and how old replaced ones were."""
        self._rotations["server", SERVER_RENEW_ERRORS] = rotation
        rotation.on_rotated.add(safe(rotation_ages(self._counter.counts.registry).observe))

    def watched(self, handler: Handler, labels: frozenset[str]) -> Handler:
        """A handler that counts what it passes on."""
        return counted(handler, self._counter.counts, _PORT, labels)

    def routes(self) -> Sequence[Route]:
        """The metrics that the port without authentication has."""
        scrapes = {
            "/metrics": self._agent,
            "/metrics/cadvisor": self._cadvisor,
            "/metrics/probes": self._probes,
            "/metrics/resource": self._resource,
        }
        parts = self._parts
        return (
            *stats_routes(parts.stats, parts.node_name, parts.writers),
            *metrics_routes(scrapes, parts.writers),
        )

    # Threads write what was put together: the lines of a pod of a thousand containers take long.

    async def _resource(self) -> Callable[[], bytes]:
        return partial(resource_metrics, await self._parts.stats.usage())

    async def _cadvisor(self) -> Callable[[], bytes]:
        usage = await self._parts.stats.detailed_usage()
        return partial(cadvisor_metrics, usage, self._parts.host.machine)

    async def _agent(self) -> Callable[[], bytes]:
        pods = {pod.uid: pod for pod in self._parts.cache.pods()}
        disks = await self._parts.stats.disks()
        used = [(pods[uid], disk) for uid, disk in disks.items() if uid in pods]
        state, measured = self._state(), self._parts.volume_usages.measured()
        registry, root = self._counter.counts.registry, self._parts.root
        return lambda: exposition(
            [
                *families_of(registry.collect(), SHOWN_AS),
                *state_families(state),
                *log_families(used),
                *volume_families(measured),
                *process_families(),
                *pull_record_families(root),
            ]
        )

    async def _probes(self) -> Callable[[], bytes]:
        registry = self._counter.probe_counts.registry
        return lambda: exposition([*families_of(registry.collect(), {}), process_start_family()])

    def _finished(self, uid: str, incarnation: int) -> None:
        self._counter.finished(uid)
        stored = self._parts.store.get(uid)
        if stored is not None and stored.incarnation != incarnation:
            self._counter.came_back(stored.pod)

    def _pod(self, uid: str) -> Pod | None:
        stored = self._parts.store.get(uid)
        return stored.pod if stored is not None else None

    def _seen_ago(self, uid: str) -> float:
        stored = self._parts.store.get(uid)
        return trio.current_time() - stored.added_at if stored is not None else 0.0

    def _state(self) -> AgentState:
        parts = self._parts
        seen = parts.cache.pods()
        age = parts.pleg.seconds_since_relist()
        cgroups = parts.host.cgroups
        pending_resizes, resizes_in_progress = parts.resizes.counts()
        return AgentState(
            node_name=parts.node_name,
            cgroup_version=cgroups.version if cgroups is not None else None,
            desired=Counter(is_static(each.pod) for each in parts.store if each.admitted),
            active=Counter(is_static(each.pod) for each in parts.store.active()),
            working=Counter(self._work_of(task) for task in self._tasks),
            mirrors=sum(is_static(each.pod) for each in parts.store) if self._has_api else 0,
            running_pods=sum(pod.ready_sandbox is not None for pod in seen),
            containers=Counter(str(each.state) for pod in seen for each in pod.containers),
            ephemeral_containers=sum(len(s.pod.spec.ephemeral_containers) for s in parts.store),
            relisted_at=parts.clock.now_ns() / 1e9 - age if math.isfinite(age) else 0.0,
            volumes=parts.volume_operations.counts(),
            exclusive_cpus=len(parts.managers.cpus.assigned),
            exclusive_by_node=parts.managers.cpus.assigned_by_node,
            shared_pool_millicores=1000 * parts.managers.cpus.free_count,
            pending_resizes=pending_resizes,
            resizes_in_progress=resizes_in_progress,
            dropped_changes=parts.pleg.dropped,
            journal_dropped=parts.journal.dropped,
            features=_features(parts),
            versions={
                "version": __version__,
                "kubernetes_version": KUBERNETES_VERSION,
                "python_version": platform.python_version(),
            },
            protected_bytes=self._protected_bytes(),
            shutdown_seconds=parts.shutdown.times.seconds,
            certificates=tuple(
                CertificateMetrics(
                    side=side,
                    errors_name=errors_name,
                    seconds_left=_truncated(rotation.seconds_left()),
                    errors=rotation.failures,
                )
                for (side, errors_name), rotation in self._rotations.items()
            ),
        )

    def _protected_bytes(self) -> tuple[int, int] | None:
        parts = self._parts
        cgroups, configuration = parts.host.cgroups, parts.settings.configuration
        if cgroups is None or cgroups.version == 1 or not parts.settings.gates["MemoryQoS"]:
            return None
        if not protects_memory(configuration):
            return 0, 0
        requests = memory_requests(parts.active_pods())
        return requests[PodQOSClass.GUARANTEED], requests[PodQOSClass.BURSTABLE]

    def _work_of(self, task: PodTask) -> tuple[str, str, bool]:
        """Labels of a task's count: whether a source has its pod, how far it is, whether static."""
        if task.pod.metadata.uid in self._parts.store:
            config = "desired"
        else:  # A task that begins with the end is one of a pod that no source has had.
            config = RUNTIME_ONLY if task.began_in is PodState.TERMINATING else "orphan"
        return config, _LIFECYCLES.get(task.state, "terminated"), is_static(task.pod)


def safe(function: Callable[P, None]) -> Callable[P, None]:
    """The same function, whose bugs are logged: who tells of something must not suffer from it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            log.exception("metrics update failed")

    return call


def _truncated(seconds: float) -> float:
    return float(math.trunc(seconds)) if math.isfinite(seconds) else seconds


def _features(parts: NodeParts) -> dict[tuple[str, str], bool]:
    """Feature gates by name and stage, which is empty for one that is generally available."""
    return {
        (name, "" if gate.stage is Stage.GA else str(gate.stage)): parts.settings.gates[name]
        for name, gate in KNOWN_GATES.items()
    }
