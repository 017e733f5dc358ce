"""Endpoints of pods on the node's port: the parts behind `kubectl logs` and `exec`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import trio
from attrs import frozen

from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod
from trio_kubelet.logs import ContainerLogs, LogChanges, LogReader, log_routes
from trio_kubelet.ports.checkpoints import Checkpoints, checkpoint_routes
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.server import Route, running_pods_routes
from trio_kubelet.streaming import PodStreams, stream_routes
from trio_kubelet.tasks.clock import Clock


@frozen(kw_only=True)
class PodEndpoints:
    """`find_pod` gives a pod by namespace and name, with its newest status."""

    settings: Settings
    clock: Clock
    cache: RuntimeCache
    runtime: RuntimeClient
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
            idle_seconds=configuration.streaming_connection_idle_timeout.total_seconds(),
        )
        return (
            *log_routes(logs),
            *stream_routes(streams),
            *running_pods_routes(self.cache.pods),
            *self._checkpoint_routes(),
        )

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
