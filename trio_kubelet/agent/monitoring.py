"""The watch over the node: its statistics and metrics, and the routes to them.

Nothing here acts on pods: all of it may fail, or be slow, and they run on.
"""

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import ParamSpec
from urllib.parse import urlsplit

import structlog
import trio

from state_machines.pod import PodState
from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.agent.core import Core
from trio_kubelet.config.gates import KNOWN_GATES, Stage
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.client import ApiClients
from trio_kubelet.metrics.cadvisor import MachineFacts, cadvisor_metrics
from trio_kubelet.metrics.counted import EventCounter
from trio_kubelet.metrics.definitions import SHOWN_AS
from trio_kubelet.metrics.endpoint import metrics_routes
from trio_kubelet.metrics.http_requests import counted
from trio_kubelet.metrics.node_startup import NodeStartup
from trio_kubelet.metrics.resource import resource_metrics
from trio_kubelet.metrics.state import (
    RUNTIME_ONLY,
    AgentState,
    log_families,
    process_families,
    process_start_family,
    pull_record_families,
    state_families,
)
from trio_kubelet.metrics.text import exposition, families_of
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.node.reporter import NodeReporter
from trio_kubelet.pod_source import is_static
from trio_kubelet.probes import Probes
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.runtime.config.names import pod_log_folder
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.server import Handler, Route
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.stats.endpoint import stats_routes
from trio_kubelet.stats.system_processes import SystemProcesses
from trio_kubelet.stats.topology import read_topology
from trio_kubelet.sync.pod_task import PodTask
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.volumes import PodFolders

log = structlog.get_logger("metrics")

P = ParamSpec("P")

_LIFECYCLES = {PodState.SYNC_POD: "sync", PodState.TERMINATING: "terminating"}
_PORT = "readwrite"
"""The Go kubelet's name of the port for others in its metrics."""


class Monitoring:
    """Statistics and metrics of the node; `run` them before anybody is answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.stats = StatsProvider(_sources(core))
        self._machine: MachineFacts | None = None
        self._tasks: Iterable[PodTask] = ()
        self._has_api = False
        self._counter = counter = EventCounter(
            core.clock.now_ns, self._pod, self._seen_ago, core.resources.allocatable
        )
        core.runtime_calls.add(safe(counter.runtime_called))
        core.cache.on_observation.add(safe(counter.observed))
        core.cgroup_operations.add(safe(counter.cgroup_operation))
        core.pleg.on_relist.add(safe(counter.relisted))
        core.pleg.on_event.add(safe(counter.runtime_event))
        core.journal.on_entry.add(safe(counter.journal_entry))
        core.statuses.on_change.add(safe(counter.status_changed))
        core.status_syncs.add(safe(counter.status_synced))
        core.loop_meter.on_long_turn.add(safe(counter.loop_held))
        core.sleeps_cut_short.add(safe(counter.sleep_cut_short))
        self.stats.on_disk_walk.add(safe(counter.disk_walked))
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._startup = NodeStartup(counter.counts, core.clock.now_ns, uptime)
        core.journal.on_entry.add(safe(self._startup.journal_entry))

    def watch_pods(self, tasks: PodTasks, probes: Probes) -> None:
        """Be told of the work for pods, and of their probes, from now on."""
        self._tasks = tasks
        tasks.on_work.add(safe(self._counter.worked))
        tasks.on_finished.add(safe(self._finished))
        probes.on_run.add(safe(self._counter.probe_run))

    def watch_api(self, clients: ApiClients, reporter: NodeReporter) -> None:
        """Be told of requests to the API server, and of the node's registration, from now on."""
        reporter.on_registered.add(safe(self._startup.registered))
        self._has_api = True
        host = urlsplit(clients.server).netloc
        for client in (clients.main, clients.heartbeat, clients.events, clients.reviews):
            client.on_answer.add(safe(partial(self._counter.api_answered, host)))

    def watched(self, handler: Handler, labels: frozenset[str]) -> Handler:
        """A handler that counts what it passes on."""
        return counted(handler, self._counter.counts, _PORT, labels)

    async def run(self) -> None:
        """Read what is asked for, until cancelled."""
        await self.stats.run()

    def routes(self) -> Sequence[Route]:
        """The metrics that the port without authentication has."""
        scrapes = {
            "/metrics": self._agent,
            "/metrics/cadvisor": self._cadvisor,
            "/metrics/probes": self._probes,
            "/metrics/resource": self._resource,
        }
        return (*stats_routes(self.stats, self._core.node_name), *metrics_routes(scrapes))

    # Threads write what was put together: the lines of a pod of a thousand containers take long.

    async def _resource(self) -> bytes:
        return await run_in_thread(resource_metrics, await self.stats.usage())

    async def _cadvisor(self) -> bytes:
        if self._machine is None:
            self._machine = await run_in_thread(_machine_facts, self._core.host.machine)
        return await run_in_thread(
            cadvisor_metrics, await self.stats.detailed_usage(), self._machine
        )

    async def _agent(self) -> bytes:
        pods = {pod.uid: pod for pod in self._core.cache.pods()}
        disks = await self.stats.disks()
        used = [(pods[uid], disk) for uid, disk in disks.items() if uid in pods]
        state = self._state()
        registry, root = self._counter.counts.registry, self._core.root
        return await run_in_thread(
            lambda: exposition(
                [
                    *families_of(registry.collect(), SHOWN_AS),
                    *state_families(state),
                    *log_families(used),
                    *process_families(),
                    *pull_record_families(root),
                ]
            )
        )

    async def _probes(self) -> bytes:
        registry = self._counter.probe_counts.registry
        return await run_in_thread(
            lambda: exposition([*families_of(registry.collect(), {}), process_start_family()])
        )

    def _finished(self, uid: str, incarnation: int) -> None:
        self._counter.finished(uid)
        stored = self._core.store.get(uid)
        if stored is not None and stored.incarnation != incarnation:
            self._counter.came_back(stored.pod)

    def _pod(self, uid: str) -> Pod | None:
        stored = self._core.store.get(uid)
        return stored.pod if stored is not None else None

    def _seen_ago(self, uid: str) -> float:
        stored = self._core.store.get(uid)
        return trio.current_time() - stored.added_at if stored is not None else 0.0

    def _state(self) -> AgentState:
        core = self._core
        seen = core.cache.pods()
        age = core.pleg.seconds_since_relist()
        cgroups = core.host.cgroups
        return AgentState(
            node_name=core.node_name,
            cgroup_version=cgroups.version if cgroups is not None else None,
            desired=Counter(is_static(each.pod) for each in core.store if each.admitted),
            active=Counter(is_static(each.pod) for each in core.store.active()),
            working=Counter(self._work_of(task) for task in self._tasks),
            mirrors=sum(is_static(each.pod) for each in core.store) if self._has_api else 0,
            running_pods=sum(pod.ready_sandbox is not None for pod in seen),
            containers=Counter(str(each.state) for pod in seen for each in pod.containers),
            ephemeral_containers=sum(len(s.pod.spec.ephemeral_containers) for s in core.store),
            relisted_at=core.clock.now_ns() / 1e9 - age if math.isfinite(age) else 0.0,
            dropped_changes=core.pleg.dropped,
            journal_dropped=core.journal.dropped,
            features=_features(core),
            versions={
                "version": __version__,
                "kubernetes_version": KUBERNETES_VERSION,
                "python_version": platform.python_version(),
            },
        )

    def _work_of(self, task: PodTask) -> tuple[str, str, bool]:
        """Labels of a task's count: whether a source has its pod, how far it is, whether static."""
        if task.pod.metadata.uid in self._core.store:
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


def _features(core: Core) -> dict[tuple[str, str], bool]:
    """Feature gates by name and stage, which is empty for one that is generally available."""
    return {
        (name, "" if gate.stage is Stage.GA else str(gate.stage)): core.settings.gates[name]
        for name, gate in KNOWN_GATES.items()
    }


def _sources(core: Core) -> StatsSources:
    configuration = core.settings.configuration
    folders, logs = PodFolders(core.root), Path(configuration.pod_logs_dir)

    def paths(pod: ObservedPod) -> PodPaths:
        return PodPaths(
            uid=pod.uid,
            namespace=pod.namespace,
            volumes=folders.volumes(pod.uid),
            logs=logs / pod_log_folder(pod.namespace, pod.name, pod.uid),
        )

    return StatsSources(
        client=core.client,
        clock=core.clock,
        reader=CgroupReader(
            tree=core.host.cgroups,
            cgroup_root=configuration.cgroup_root or "/",
            max_tasks=core.host.machine.max_pids,
        ),
        pods=core.cache.pods,
        paths=paths,
        processes=SystemProcesses(_runtime_socket(core)).find,
        root_folder=core.root,
        images_on_disk=core.host.images_on_disk,
        volume_seconds=configuration.volume_stats_agg_period.total_seconds(),
    )


def _runtime_socket(core: Core) -> str:
    """Where the runtime listens; empty if it has no process of its own."""
    if core.host.cgroups is not None:
        with suppress(ValueError):
            return socket_path(core.settings.configuration.container_runtime_endpoint)
    return ""


def _machine_facts(machine: MachineInfo) -> MachineFacts:
    cpus = machine.size.cpu_milli // 1000
    return MachineFacts(
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        boot_id=machine.boot_id,
        kernel_version=machine.kernel_version,
        os_image=machine.os_image,
        cpus=cpus,
        topology=read_topology(cpus),
    )
