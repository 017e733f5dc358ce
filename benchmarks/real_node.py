"""What the benchmarks on a real runtime share: a private containerd, bare calls, agents, a watcher.

The agent and bare pods are never there at the same time: an agent takes pods that nobody wants
away. When something ran or had stopped is asked of the runtime by a client of our own.
"""

import itertools
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import trio
from attrs import frozen

from benchmarks.bare import BareNode, BarePod, StartedPod, image_of_pods
from benchmarks.manifests import manifest
from lab.agent import LabAgent
from lab.containerd import Containerd
from lab.host import detach_mounts_below
from trio_kubelet.rpc import Channel, Code, RpcError, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import POD_UID_LABEL

SETTLE_SECONDS = 2.0
"""After its start an agent lists, asks what there is and tidies up: not what is measured."""

DEADLINE_SECONDS = 120.0
MAX_PODS = 200
_POLL_SECONDS = 0.005
_NUMBERS = itertools.count(1)


@frozen(kw_only=True)
class RealNode:
    """A running containerd, and a client of it that no agent knows of."""

    containerd: Containerd
    folder: Path
    client: RuntimeClient
    bare: BareNode
    rounds: int = 0

    def rounds_or(self, usual: int) -> int:
        """How often to measure: as the command line says, else as usual."""
        return self.rounds or usual

    async def bare_pods(self, count: int) -> list[BarePod]:
        """Configs of some pods, with their files made."""
        return [
            await trio.to_thread.run_sync(self.bare.pod, f"bare-{next(_NUMBERS)}")
            for _ in range(count)
        ]

    async def remove(self, pods: Collection[StartedPod]) -> None:
        """Remove bare pods, a few at a time."""
        limiter = trio.CapacityLimiter(4)

        async def remove(pod: StartedPod) -> None:
            async with limiter:
                await pod.remove(self.client)

        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(remove, pod)

    async def bare_burst(self, count: int, width: int) -> float:
        """Seconds until the last of some pods runs, `width` of them at a time, by bare calls."""
        limiter = trio.CapacityLimiter(width)
        started: list[StartedPod] = []

        async def start(pod: BarePod) -> None:
            async with limiter:
                started.append(await pod.start(self.client))

        pods = await self.bare_pods(count)
        began_at = time.time_ns()
        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(start, pod)
        last = max([await self.container_started_at(pod.container_id) for pod in started])
        await self.remove(started)
        return (last - began_at) / 1e9

    @asynccontextmanager
    async def agent(self, **settings: object) -> AsyncIterator["RunningAgent"]:
        """An agent that was just started and has settled; leaves no pod behind."""
        running = RunningAgent(self.containerd, self.folder / f"agent-{next(_NUMBERS)}")
        try:
            await running.start(**settings)
            await trio.sleep(SETTLE_SECONDS)
            yield running
            await trio.to_thread.run_sync(running.agent.cleanup)
        finally:
            with trio.CancelScope(shield=True):
                await running.stop()
                detach_mounts_below(running.agent.folder)  # its root folder, made a shared mount

    async def started_at(
        self, uids: Collection[str], poll_seconds: float = 0.05
    ) -> Mapping[str, int]:
        """When the container of each pod started: nanoseconds since the epoch, by the runtime.

        Waits until all run. Raises trio.TooSlowError.
        """
        with trio.fail_after(DEADLINE_SECONDS):
            while True:
                listed = await self.client.list_containers()
                running = {
                    container.labels.get(POD_UID_LABEL, ""): container.id
                    for container in listed
                    if container.state == cri.ContainerState.CONTAINER_RUNNING
                }
                if running.keys() >= set(uids):
                    break
                await trio.sleep(poll_seconds)
        return {uid: await self.container_started_at(running[uid]) for uid in uids}

    async def container_started_at(self, container_id: str) -> int:
        """When a container started, in nanoseconds since the epoch."""
        return (await self.client.container_status(container_id)).status.started_at

    async def sandbox_of(self, uid: str) -> str:
        """The id of a pod's sandbox."""
        selector = {POD_UID_LABEL: uid}
        found = await self.client.list_pod_sandboxes(cri.PodSandboxFilter(label_selector=selector))
        return found[0].id

    async def wait_not_ready(self, sandbox_id: str) -> float:
        """Wait until a sandbox is not ready any more, or gone; trio's clock then."""
        with trio.fail_after(DEADLINE_SECONDS):
            while True:
                if not await self._is_ready(sandbox_id):
                    return trio.current_time()
                await trio.sleep(_POLL_SECONDS)

    async def _is_ready(self, sandbox_id: str) -> bool:
        try:
            response = await self.client.pod_sandbox_status(sandbox_id)
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return False
            raise
        return response.status.state == cri.PodSandboxState.SANDBOX_READY


class RunningAgent:
    """An agent, and the manifests of measured pods that were made ready for it."""

    def __init__(self, containerd: Containerd, folder: Path) -> None:
        self._containerd = containerd
        self._folder = folder
        self._ready: list[tuple[Path, Path]] = []
        self._released: list[Path] = []
        self.agent = self._agent()

    async def start(self, **settings: object) -> None:
        """Start the agent, or another one in its place, with further settings."""
        await self.stop()
        self.agent = self._agent(**settings)
        await trio.to_thread.run_sync(self.agent.start)

    async def stop(self) -> None:
        """End the agent; its pods run on."""
        await trio.to_thread.run_sync(self.agent.stop)

    def _agent(self, **settings: object) -> LabAgent:
        return LabAgent(
            self._folder,
            endpoint=self._containerd.endpoint,
            settings={"maxPods": MAX_PODS, **settings},
            cgroup_root=self._containerd.cgroup_root,
        )

    def prepare(self, count: int) -> list[str]:
        """Write manifests under names that do not count; the UIDs of their pods."""
        uids = [str(uuid4()) for _ in range(count)]
        for uid in uids:
            name = f"pod-{next(_NUMBERS)}"
            path = self.agent.write(f".{name}.json", manifest(name, uid))
            self._ready.append((path, path.with_name(f"{name}.json")))
        return uids

    def release(self) -> None:
        """Give the manifests their names, at once."""
        self._released += [path.rename(target) for path, target in self._ready]
        self._ready.clear()

    def take_away(self) -> None:
        """Remove them."""
        for path in self._released:
            path.unlink()
        self._released.clear()


@contextmanager
def private_containerd(version: str, folder: Path) -> Iterator[Containerd]:
    """A containerd of our own. Blocks; raises LabError, UnavailableError for its version."""
    with Containerd(version, folder / "containerd") as containerd:
        yield containerd


@asynccontextmanager
async def open_real_node(
    containerd: Containerd, folder: Path, rounds: int
) -> AsyncIterator[RealNode]:
    """Make the clients and the bare side, while the body runs."""
    async with open_rpc_loop():
        client = RuntimeClient(Channel(containerd.endpoint))
        bare = BareNode(
            folder=folder,
            cgroup_root=f"{containerd.cgroup_root}/bare",
            image=await image_of_pods(client),
        )
        yield RealNode(
            containerd=containerd, folder=folder, client=client, bare=bare, rounds=rounds
        )
