"""How the node is watched: its statistics and metrics, and the routes to them.

Nothing here acts on pods: all of it may fail, or be slow, and they run on.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trio_kubelet.core import Core
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.server import Route
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.stats.endpoint import stats_routes
from trio_kubelet.stats.system_processes import SystemProcesses
from trio_kubelet.volumes import PodFolders


class Monitoring:
    """What is told of the node's use and work; `run` before anybody is answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.stats = StatsProvider(_sources(core))

    async def run(self) -> None:
        """Read what is asked for, until cancelled."""
        await self.stats.run()

    def routes(self) -> Sequence[Route]:
        """What is told without a secret in it."""
        return stats_routes(self.stats, self._core.node_name)


def _sources(core: Core) -> StatsSources:
    configuration = core.settings.configuration
    folders, logs = PodFolders(core.root), Path(configuration.pod_logs_dir)

    def paths(pod: ObservedPod) -> PodPaths:
        return PodPaths(
            uid=pod.uid,
            volumes=folders.volumes(pod.uid),
            logs=logs / f"{pod.namespace}_{pod.name}_{pod.uid}",
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
