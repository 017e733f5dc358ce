"""How the node is watched: its statistics and metrics, and the routes to them.

Nothing here acts on pods: all of it may fail, or be slow, and they run on.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio

from trio_kubelet.core import Core
from trio_kubelet.metrics.cadvisor import MachineFacts, cadvisor_metrics
from trio_kubelet.metrics.endpoint import metrics_routes
from trio_kubelet.metrics.resource import resource_metrics
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.server import Route
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.stats.endpoint import stats_routes
from trio_kubelet.stats.system_processes import SystemProcesses
from trio_kubelet.stats.topology import read_topology
from trio_kubelet.volumes import PodFolders


class Monitoring:
    """What is told of the node's use and work; `run` before anybody is answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.stats = StatsProvider(_sources(core))
        self._machine: MachineFacts | None = None

    async def run(self) -> None:
        """Read what is asked for, until cancelled."""
        await self.stats.run()

    def routes(self) -> Sequence[Route]:
        """What is told without a secret in it."""
        scrapes = {"/metrics/cadvisor": self._cadvisor, "/metrics/resource": self._resource}
        return (*stats_routes(self.stats, self._core.node_name), *metrics_routes(scrapes))

    async def _resource(self) -> bytes:
        return resource_metrics(await self.stats.usage())

    async def _cadvisor(self) -> bytes:
        if self._machine is None:
            self._machine = await trio.to_thread.run_sync(_machine_facts, self._core.host.machine)
        return cadvisor_metrics(await self.stats.detailed_usage(), self._machine)


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
