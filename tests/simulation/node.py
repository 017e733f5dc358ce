"""A node under simulation: the hollow runtime, which lives all day, and the agent, which may not.

The agent is the real one, but it serves no HTTP; its API server is that of the tests, in memory.
It is killed as `kill -9` does it and started anew on the same folders and the same runtime.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol

import httpx
import structlog
import trio
from attrs import evolve
from structlog.typing import EventDict

from state_machines.probe import ProbeKind
from tests.apiserver.server import URL, ApiServer
from tests.simulation.health import COMMAND, ask_container
from tests.simulation.load import CAPACITY, Load
from tests.simulation.shapes import DEVICE
from tests.simulation.transport import RuntimeTransport
from tests.trio_clock import TrioClock
from tests.turns import making_test_data
from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.node_parts import DEVICE_PLUGINS
from trio_kubelet.agent.pod_parts import PodParts
from trio_kubelet.agent.pods import Pods
from trio_kubelet.agent.ports import Ports
from trio_kubelet.agent.start import Agent
from trio_kubelet.agent.traces import Traces
from trio_kubelet.config.eviction import Resource
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.devices.records import CHECKPOINT
from trio_kubelet.errors import StartError
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.eviction.records import FILE as EVICTIONS
from trio_kubelet.hollow import HollowRuntime
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.k8s import Pod, PodStatus
from trio_kubelet.k8s.client import ApiClient, ApiClients
from trio_kubelet.node.host import Host, read_hosts
from trio_kubelet.node.machine import MachineSize, read_machine
from trio_kubelet.resource_managers.machine_topology import MachineTopology
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.images.collection import DiskSpace
from trio_kubelet.runtime.lifecycle.allocations import ALLOCATED
from trio_kubelet.sync.pod_task import PodTask
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.telemetry.journal import Entry

LogEntry = Mapping[str, object]
Told = ParamSpec("Told")

NODE = "node"
RESTART_SECONDS = 10.0
"""How long a service manager waits before it starts an agent again."""
NODE_IP = "192.0.2.10"
DEVICE_WAIT = timedelta(hours=3)
"""No pod is rejected because its plugin stays away for a round of faults."""


class WallClock(TrioClock):
    """A time of day that somebody sets now and then, for agent, runtime and API server alike.

    It never says the same time twice, as no real one does: events are named after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._offset_ns = 0
        self._reads = 0

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._offset_ns += round(seconds * 1e9)

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        self._reads += 1
        return super().now_ns() + self._offset_ns + self._reads


class ApiTransport(httpx.AsyncBaseTransport):
    """The way from one life of the agent to the API server, which can be cut."""

    def __init__(self, api: ApiServer) -> None:
        self._inner = api.transport()
        self._is_cut = False

    def cut(self) -> None:
        """Let nothing through from now on."""
        self._is_cut = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As the transport of the server."""
        if self._is_cut:
            raise httpx.ConnectError("the agent is dead", request=request)
        return await self._inner.handle_async_request(request)


class NoPorts(Ports):
    """An agent's ports where there are no sockets."""

    async def serve(self) -> None:
        await trio.sleep_forever()


class SimulatedAgent(Agent):
    """The agent without sockets."""

    def __init__(
        self,
        settings: Settings,
        clock: WallClock,
        host: Host,
        api: httpx.AsyncBaseTransport,
    ) -> None:
        @asynccontextmanager
        async def clients(_traces: Traces | None) -> AsyncIterator[ApiClients]:
            make = partial(ApiClient, URL, api, clock=clock)
            yield ApiClients(URL, make(), make(), make(), make())

        super().__init__(settings, clock, host, open_clients=clients)
        self.ports = NoPorts(self.parts, self.monitoring)
        self.recorded: list[tuple[float, RecordedEvent]] = []
        """All events of this agent, and when it recorded them."""
        self.parts.recorder.on_event.add(
            lambda event: self.recorded.append((trio.current_time(), event))
        )
        self._tasks: PodTasks | None = None

    def make_pods(
        self, pod_parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> Pods:
        pods = super().make_pods(pod_parts, cluster, nursery)
        self._tasks = pods.tasks
        return pods

    def task(self, uid: str) -> PodTask | None:
        """The task that lives under a UID."""
        return self._tasks.get(uid) if self._tasks is not None else None


class NodeWatcher(Protocol):
    """Who is told what happens on the node."""

    def on_log(self, entry: LogEntry) -> None:
        """The agent logs something."""

    def on_status(self, pod: Pod, status: PodStatus) -> None:
        """A pod has a new status."""

    def on_observed(self, assessment: Assessment) -> None:
        """The agent has observed what the node is short of."""

    def on_recorded(self, event: RecordedEvent) -> None:
        """The agent has recorded an event."""

    def on_agent_ended(self, journal: tuple[Entry, ...]) -> None:
        """An agent has ended, by itself or not; its journal."""

    def on_probe(self, container_id: str, kind: ProbeKind, succeeded: bool) -> None:
        """The answer to a probe has reached the agent."""


class Node:
    """Folders, clock, runtime, and one agent at a time."""

    read_hosts = staticmethod(read_hosts)

    def __init__(
        self,
        root: Path,
        clock: WallClock,
        runtime: HollowRuntime,
        nursery: trio.Nursery,
        watcher: NodeWatcher,
        *,
        chance: random.Random | None = None,
        doubling: float = 0.0,
    ) -> None:
        self.root = root
        self.manifests = root / "manifests"
        self.pod_folders = root / "kubelet" / "pods"
        self._kept_manifests = root / "kubelet" / "static-pods"
        self.logs = root / "logs" / "pods"
        self.log_links = root / "logs" / "containers"
        self.clock = clock
        self.runtime = runtime
        self.api = ApiServer(clock=clock)
        self.agent: SimulatedAgent | None = None
        self.lives = 0
        self.boots = 0
        self.image_disk_is_full = False
        self._nursery = nursery
        self._chance = chance or random.Random(0)
        self._watcher = watcher
        self._doubling = doubling
        self._runtime_transport: RuntimeTransport | None = None
        self._api_transport: ApiTransport | None = None
        self._life = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self.settings: Mapping[str, Any] = {"eviction_hard": {}}
        self._machine_root = root / "machine"
        self.load = Load(self._machine_root, runtime)
        self._machine = evolve(
            read_machine(root),
            storage_bytes=CAPACITY[Resource.STORAGE],
            max_pids=CAPACITY[Resource.PIDS],
        )
        self.boot()
        self.manifests.mkdir(parents=True)
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                self._on_log,
            ],
            cache_logger_on_first_use=False,
        )

    @property
    def topology(self) -> MachineTopology:
        """The CPUs that are online, and the NUMA nodes, since the last agent was made."""
        return self._machine.topology

    def set_topology(self, topology: MachineTopology) -> None:
        """Let the machine have these CPUs and NUMA nodes from the next agent on."""
        size = MachineSize(
            cpu_milli=1000 * len(topology.cpus),
            memory_bytes=sum(node.memory_bytes for node in topology.numa_nodes),
        )
        self._machine = evolve(self._machine, size=size, topology=topology)

    def boot(self) -> None:
        """Let the machine start anew. There is no agent."""
        self.boots += 1
        self._machine = evolve(self._machine, boot_id=f"boot-{self.boots}")

    def write_manifest(self, name: str, text: str) -> None:
        """Put a manifest into the folder of static pods, whole from the first moment."""
        scratch = self.manifests / ".scratch"
        scratch.write_text(text)
        scratch.rename(self.manifests / f"{name}.json")

    def keeps(self, uid: str) -> bool:
        """Whether the agent has a copy of the manifest of a static pod."""
        return any(uid in each.read_text() for each in self._kept_manifests.glob("*/*.json"))

    def has_allocated(self, uid: str) -> bool:
        """Whether the agent has it on the disk what it gave to a pod."""
        file = self.root / "kubelet" / ALLOCATED
        return file.exists() and uid in file.read_text()

    def knows_devices(self) -> bool:
        """Whether the agent has it on the disk that a plugin offers devices."""
        file = self.root / "kubelet" / DEVICE_PLUGINS / CHECKPOINT
        return file.exists() and DEVICE in file.read_text()

    def eviction_records(self) -> str:
        """The decisions to evict that the agent has on the disk."""
        file = self.root / "kubelet" / EVICTIONS
        return file.read_text() if file.exists() else ""

    def start_agent(self) -> None:
        """Start an agent; there must be none."""
        assert self.agent is None, "one agent at a time"
        self._life, self._ended = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._live, self._make_agent(), self._life, self._ended)

    def _make_agent(self) -> SimulatedAgent:
        self.lives += 1
        self._runtime_transport = RuntimeTransport(
            self.runtime, self._chance, self._doubling, self._on_command
        )
        self._api_transport = ApiTransport(self.api)
        ask = ask_container(self.runtime.containers.get, self._watcher.on_probe, NODE_IP)
        # A real agent is made before its event loop serves anybody.
        with making_test_data():
            host = hollow_host(
                self._runtime_transport,
                self._machine,
                self.read_hosts,
                ask,
                self._measure_image_disk,
                str(self._machine_root),
            )
            self.agent = SimulatedAgent(self._settings(), self.clock, host, self._api_transport)
        parts, watcher = self.agent.parts, self._watcher
        parts.statuses.on_change.add(self._while_alive(watcher.on_status))
        parts.pressure.on_observed.add(self._while_alive(watcher.on_observed))
        parts.recorder.on_event.add(self._while_alive(watcher.on_recorded))
        return self.agent

    def _while_alive(self, tell: Callable[Told, None]) -> Callable[Told, None]:
        """The call, made as long as nobody has ended the agent."""

        def tell_if_alive(*args: Told.args, **kwargs: Told.kwargs) -> None:
            if not self._life.cancel_called:
                tell(*args, **kwargs)

        return tell_if_alive

    def _measure_image_disk(self, _folder: str) -> DiskSpace:
        """A disk that is full of other things at times, whatever images go."""
        available = 0 if self.image_disk_is_full else 100
        return DiskSpace(available_bytes=available, capacity_bytes=100)

    def kill_agent(self) -> None:
        """End the agent in the middle of whatever it does, as SIGKILL would."""
        if self._runtime_transport is not None and self._api_transport is not None:
            self._runtime_transport.cut()
            self._api_transport.cut()
        self.stop_agent()

    def stop_agent(self) -> None:
        """End the agent as SIGTERM does: shielded calls come to their end."""
        self._life.cancel()

    async def agent_ended(self) -> None:
        """Return when there is no agent."""
        await self._ended.wait()

    async def _live(self, agent: SimulatedAgent, life: trio.CancelScope, ended: trio.Event) -> None:
        """Run an agent, and one more where one cannot start: a service manager does that."""
        try:
            with life:
                while not await self._comes_to_its_end(agent):
                    await trio.sleep(RESTART_SECONDS)
                    agent = self._make_agent()
        finally:
            self.agent = None
            ended.set()

    async def _comes_to_its_end(self, agent: SimulatedAgent) -> bool:
        """Run an agent; whether it could start."""
        could_start = True
        try:
            await agent.run()
        except* StartError:
            could_start = False
        finally:
            self._watcher.on_agent_ended(tuple(agent.parts.journal.entries()))
        return could_start

    def _settings(self) -> Settings:
        return Settings(
            configuration=KubeletConfiguration(
                static_pod_path=str(self.manifests),
                pod_logs_dir=str(self.logs),
                resolv_conf="",
                healthz_port=0,
                enable_server=False,
                # Nothing is short on this node unless somebody sets thresholds.
                **self.settings,
            ),
            options=NodeOptions(
                root_dir=str(self.root / "kubelet"),
                hostname_override=NODE,
                node_ip=NODE_IP,
                hollow=True,
                device_plugin_wait=DEVICE_WAIT,
            ),
        )

    def _on_command(self, request: cri.ExecSyncRequest, succeeded: bool) -> None:
        word, *kind = request.cmd
        if word == COMMAND:
            self._watcher.on_probe(request.container_id, ProbeKind(kind[0]), succeeded)

    def _on_log(self, logger: object, method: str, entry: EventDict) -> EventDict:
        self._watcher.on_log(entry)
        raise structlog.DropEvent
