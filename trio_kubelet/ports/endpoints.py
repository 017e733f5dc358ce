"""Endpoints for operators on the node's port: of the node itself, and of its pods.

The node's are its logs, and how the agent is; those of pods are behind `kubectl logs` and `exec`.
Each group is there as its switch in the configuration or its feature gate says. One that is
switched off is answered as the Go kubelet does: 405 and why, or 404 for what only a gate adds.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import trio
from attrs import frozen

from trio_kubelet import KUBERNETES_VERSION
from trio_kubelet.config.flags import flag_values
from trio_kubelet.config.settings import Settings
from trio_kubelet.debugging import LoopMeter, flag_routes, profile_routes, turn_routes
from trio_kubelet.debugging.z_pages import ProgramFacts, flagz_route, statusz_route
from trio_kubelet.k8s import Pod
from trio_kubelet.logs import ContainerLogs, LogChanges, LogReader, log_routes
from trio_kubelet.logs.system_logs import SystemLogs, system_log_routes
from trio_kubelet.ports.checkpoints import Checkpoints, checkpoint_routes
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.server import (
    ADMIN,
    NODE_LOGS,
    PROFILES,
    AnswerWriters,
    Route,
    configz_routes,
    disabled_routes,
    journal_routes,
    running_pods_routes,
)
from trio_kubelet.streaming import PodStreams, stream_routes
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import Journal
from trio_kubelet.telemetry.verbosity import set_verbosity

FLAGS_PATH = "/debug/flags/v"
PATHS = ("/configz", "/debug", "/healthz")


@frozen(kw_only=True)
class NodeEndpoints:
    """Makes the routes; `clock` says since when the agent runs.

    `settings` are those of the start, `in_force` gives those that the agent acts on.
    """

    settings: Settings
    in_force: Callable[[], Settings]
    clock: Clock
    journal: Journal
    loop_meter: LoopMeter
    writers: AnswerWriters

    def routes(self) -> Sequence[Route]:
        """The routes that there are with debugging handlers on."""
        return tuple(self._routes())

    def _routes(self) -> Iterator[Route]:
        configuration, gates = self.settings.configuration, self.settings.gates
        yield from configz_routes(lambda: self.in_force().configuration)
        yield from journal_routes(self.journal, self.writers)
        yield from turn_routes(self.loop_meter)
        if configuration.enable_system_log_handler:
            queries = configuration.enable_system_log_query and gates["NodeLogQuery"]
            yield from system_log_routes(SystemLogs(queries=queries))
        else:
            yield from disabled_routes("logs endpoint is disabled.", NODE_LOGS)
        if configuration.enable_profiling_handler:
            yield from profile_routes()
        else:
            yield from disabled_routes("profiling endpoint is disabled.", PROFILES)
        if configuration.enable_debug_flags_handler:
            yield from flag_routes(set_verbosity)
        else:
            yield from disabled_routes("flags endpoint is disabled.", {FLAGS_PATH: ADMIN})
        if gates["ComponentStatusz"]:
            yield statusz_route(self._facts(), self._now)
        if gates["ComponentFlagz"]:
            options = self.settings.options
            yield flagz_route(lambda: flag_values(self.in_force().configuration, options))

    def _facts(self) -> ProgramFacts:
        version = KUBERNETES_VERSION.removeprefix("v")
        has_flagz = self.settings.gates["ComponentFlagz"]
        return ProgramFacts(
            started_at=self._now(),
            binary_version=version,
            emulation_version=version.rpartition(".")[0],
            python_version=platform.python_version(),
            paths=tuple(sorted((*PATHS, *(("/flagz",) if has_flagz else ())))),
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC)


@frozen(kw_only=True)
class PodEndpoints:
    """`find_pod` gives a pod by namespace and name, with its newest status.

    `settings` are those of the start, `in_force` gives those that the agent acts on.
    """

    settings: Settings
    in_force: Callable[[], Settings]
    clock: Clock
    cache: RuntimeCache
    runtime: RuntimeClient
    writers: AnswerWriters
    find_pod: Callable[[str, str], Pod | None]

    def open(self, nursery: trio.Nursery) -> Sequence[Route]:
        """The routes, with what they need running in a nursery."""
        configuration = self.settings.configuration
        changes = LogChanges()
        nursery.start_soon(changes.run)
        self.cache.on_observation.add(changes.pod_changed)
        logs = ContainerLogs(
            find_pod=self.find_pod,
            observed=self.cache.get,
            root=configuration.pod_logs_dir,
            reader=LogReader(changes),
            clock=self.clock,
            streams=self.settings.gates["PodLogsQuerySplitStreams"],
        )
        streams = PodStreams(
            find_pod=self.find_pod,
            observed=self.cache.get,
            runtime=self.runtime,
            idle_seconds=self._idle_seconds,
            takes_websockets=self.settings.gates["ExtendWebSocketsToKubelet"],
        )
        return (
            *log_routes(logs),
            *stream_routes(streams),
            *running_pods_routes(self.cache.pods, self.writers),
            *self._checkpoint_routes(),
        )

    def _idle_seconds(self) -> float:
        return self.in_force().configuration.streaming_connection_idle_timeout.total_seconds()

    def _checkpoint_routes(self) -> Sequence[Route]:
        if not self.settings.gates["ContainerCheckpoint"]:
            return ()
        checkpoints = Checkpoints(
            find_pod=self.find_pod,
            observed=self.cache.get,
            runtime=self.runtime,
            folder=Path(self.settings.options.root_dir) / "checkpoints",
            clock=self.clock,
        )
        return checkpoint_routes(checkpoints)
