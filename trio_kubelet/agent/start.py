"""The agent: how it starts, and what runs from when on.

`NodeParts` are there from the first moment; READY=1 goes out as soon as they run, whether runtime
and API server are there or not. What needs an answer of theirs is made when that is there
(`Cluster`, `PodParts`), so that nothing exists half. `Pods` come last: no source is read before the
runtime was listed completely, the node measured, and the records of pulled images loaded.

A new part is made in the file of its stage and started here, in one line; those of the cluster and
of cgroups are started by their own stages (`cluster.py`, `node_cgroups.py`).
"""

import sys
from contextlib import nullcontext
from functools import partial

import structlog
import trio

from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.agent.cluster import Cluster, OpenClients, Standalone
from trio_kubelet.agent.monitoring import Monitoring
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.pod_parts import PodParts, ask_runtime, make_pod_parts
from trio_kubelet.agent.pods import Pods, running_containers
from trio_kubelet.agent.ports import Ports
from trio_kubelet.config.settings import Settings
from trio_kubelet.debugging import metered
from trio_kubelet.errors import StartError
from trio_kubelet.k8s.client import ApiClients
from trio_kubelet.kernel.systemd import ServiceNotifier, feed_watchdog, watchdog_seconds
from trio_kubelet.node.host import Host, resolv_conf_warnings
from trio_kubelet.node.iptables import keep_chains
from trio_kubelet.node.pod_cidr import PodCidr, pod_cidr_of
from trio_kubelet.node.system_oom import SystemOomWatch
from trio_kubelet.rpc import look_over
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.health import RuntimeState, check_runtime
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventType

log = structlog.get_logger("agent")


class Agent:
    """One agent, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        host: Host,
        notifier: ServiceNotifier | None = None,
        open_clients: OpenClients | None = None,
    ) -> None:
        self.parts = NodeParts(settings, clock, host)
        self._notifier = notifier or ServiceNotifier()
        self._open_clients = open_clients
        parts = self.parts
        self.monitoring = Monitoring(parts)
        self.ports = Ports(parts, self.monitoring)
        if open_clients is not None:
            parts.recorder.on_event.add(parts.events.take)

    async def run(self) -> None:
        """Start everything and keep it running. Raises StartError, and whatever is a bug."""
        parts = self.parts
        log.info(
            "agent starting",
            version=__version__,
            kubernetes=KUBERNETES_VERSION,
            node=parts.node_name,
            python=sys.version.split()[0],
        )
        parts.recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
        parts.runtime_health.on_change.add(self._on_runtime_state)
        parts.make_folders()
        parts.host.set_up(parts.settings)
        with metered(parts.loop_meter):
            await self._run_parts()

    async def serve_plugins(self) -> None:
        """Answer on the sockets that speak gRPC, inside `open_rpc_loop()`, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self.parts.pods_api is not None:
                nursery.start_soon(self.parts.pods_api.run)
            await self.parts.devices.plugins.running.wait()
            nursery.start_soon(self.parts.device_registration.run)
            nursery.start_soon(self.parts.pod_resources.run)

    async def _run_parts(self) -> None:
        parts = self.parts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.warn_of_host)
            nursery.start_soon(self._watch_system_ooms)
            nursery.start_soon(self._keep_iptables_chains)
            nursery.start_soon(parts.stats.run)
            nursery.start_soon(parts.writers.run)
            nursery.start_soon(parts.devices.run)
            nursery.start_soon(parts.plugins.run)
            nursery.start_soon(parts.volume_usages.run)
            nursery.start_soon(self.ports.serve)
            nursery.start_soon(check_runtime, parts.client, parts.runtime_health)
            nursery.start_soon(self._tell_service_manager)
            open_clients = self._open_clients
            async with open_clients(parts.traces) if open_clients else nullcontext() as clients:
                cluster = self._cluster(clients)
                nursery.start_soon(self.ports.serve_others, cluster, nursery)
                await self._run_node(cluster)

    def _cluster(self, clients: ApiClients | None) -> Cluster | Standalone:
        if clients is None:
            return Standalone()
        cluster = Cluster(self.parts, clients)
        self.monitoring.watch_api(clients, cluster.reporter)
        return cluster

    async def warn_of_host(self) -> None:
        """Record an event for each thing that the node's users should know of its host."""
        parts = self.parts
        for gather in (
            parts.host.warnings,
            partial(resolv_conf_warnings, parts.settings.configuration),
        ):
            for warning in await run_in_thread(gather):
                parts.recorder.node(EventType.WARNING, warning.reason, warning.message)

    async def _watch_system_ooms(self) -> None:
        parts = self.parts
        if parts.host.kernel_log is not None:
            boot_id = parts.host.machine.boot_id
            await SystemOomWatch(parts.host.kernel_log, parts.root, boot_id, parts.recorder).run()

    async def _keep_iptables_chains(self) -> None:
        parts = self.parts
        # The rules of a host are not those of a runtime without a kernel.
        if parts.settings.configuration.make_iptables_util_chains and parts.host.privileged:
            await keep_chains()

    async def _tell_service_manager(self) -> None:
        self._notifier.ready()
        period = watchdog_seconds()
        if period is not None:
            await feed_watchdog(self._notifier, period, self.parts.monitor.seconds_busy)

    async def _run_node(self, cluster: Cluster | Standalone) -> None:
        parts = self.parts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.stop_turns.give)
            nursery.start_soon(parts.probe_shares.give_turns)
            nursery.start_soon(self._pod_cidr(cluster).run)
            async with trio.open_nursery() as before_pods:
                before_pods.start_soon(nursery.start, self._watch_pressure)
                nursery.start_soon(parts.pressure_record.run)
                if parts.memory_events is not None:
                    nursery.start_soon(parts.memory_events.run)
                before_pods.start_soon(nursery.start, self._keep_pull_records)
                before_pods.start_soon(parts.devices.plugins.running.wait)
                await nursery.start(cluster.run)
                pod_parts = await make_pod_parts(parts, await ask_runtime(parts), cluster)
                cluster.follow_volumes(pod_parts.staged)
                await nursery.start(pod_parts.staged.run)
                await nursery.start(pod_parts.csi_stages.run)
                pods = self.make_pods(pod_parts, cluster, nursery)
                self.monitoring.watch_pods(pods.tasks, pod_parts.probes, pods.resizing)
                self.monitoring.watch_evictions(pods.evictions)
                self.monitoring.watch_claims(pod_parts.sync.claims)
                gates, health = parts.settings.gates, pod_parts.sync.claims.health
                if gates["ResourceHealthStatus"]:
                    with_messages = gates["ResourceHealthStatusMessage"]
                    nursery.start_soon(partial(health.run, with_messages=with_messages))
                await nursery.start(pods.loop.run)
                await nursery.start(parts.pleg.run)
            parts.devices.recover(running_containers(parts.cache.pods()))
            nursery.start_soon(pods.watch_static_sources)
            nursery.start_soon(pods.watch_api)
            nursery.start_soon(parts.cpusets.run)
            nursery.start_soon(parts.cpu_watch.run)
            nursery.start_soon(pod_parts.garbage.run)
            nursery.start_soon(pod_parts.cgroups.run)
            nursery.start_soon(parts.image_garbage.run)
            nursery.start_soon(pods.evictions.run)
            nursery.start_soon(parts.shutdown.run, pods.of_shutdown())
            nursery.start_soon(parts.log_rotator.run)
            nursery.start_soon(look_over, cri)

    def _pod_cidr(self, cluster: Cluster | Standalone) -> PodCidr:
        parts = self.parts
        if isinstance(cluster, Standalone):
            cidr = parts.settings.configuration.pod_cidr
            return PodCidr(parts.client, parts.runtime_health, lambda: cidr)
        told = PodCidr(parts.client, parts.runtime_health, lambda: pod_cidr_of(cluster.node()))
        cluster.view.on_version.add(told.look)
        return told

    def make_pods(
        self, pod_parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> Pods:
        """Make what runs pods, in tasks of the nursery."""
        return Pods(self.parts, pod_parts, cluster, nursery)

    async def _watch_pressure(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Observe the node for ever, going on from what an earlier agent has seen."""
        parts = self.parts
        earlier = await parts.pressure_record.load()
        if earlier is not None:
            parts.pressure.resume(earlier)
        await parts.pressure.run(task_status=task_status)

    async def _keep_pull_records(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        parts = self.parts
        try:
            await parts.image_access.load()
        except OSError as error:
            raise StartError(f"{error.filename}: {error.strerror}; check --root-dir") from error
        task_status.started()
        await parts.image_access.tend(parts.client, parts.runtime_health)

    def _on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self.parts.pleg.runtime_returned()
        self._notifier.status(status_line(after))
        log.info(
            "runtime state changed",
            up=after.up,
            network_ready=after.network_ready,
            reason=after.reason or after.network_reason,
        )


def status_line(state: RuntimeState) -> str:
    """The line that `systemctl status` shows."""
    if not state.up:
        return f"waiting for the container runtime: {state.reason}"
    if not state.network_ready:
        return f"network is not ready: {state.network_reason}"
    return "running"
