"""A node whose pods are carried out by the agent's own parts, on a hollow runtime."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
from attrs import frozen

from state_machines.container import crash_loop_policy
from tests.node_facts import configured, node_facts
from tests.trio_clock import TrioClock
from tests.unit.resource_managers.machines import no_managers
from trio_kubelet.devices.allocation import NOTHING_ALLOCATED, ContainerAllocation
from trio_kubelet.hollow import (
    Behaviour,
    HollowOptions,
    HollowRuntime,
    ScriptedFaults,
    open_hollow_runtime,
)
from trio_kubelet.k8s import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
)
from trio_kubelet.pod_clients.share import ProbeShares
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups
from trio_kubelet.rpc import InProcess
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.config.dns import NodeDns
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.images.container_images import ContainerImages
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStarter
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.lifecycle.cpuset_reconciler import CpusetReconciler
from trio_kubelet.runtime.lifecycle.hooks import Hooks
from trio_kubelet.runtime.lifecycle.plan import RuntimeOutcome
from trio_kubelet.runtime.lifecycle.pod_runtime import PodContainers, PodRuntime
from trio_kubelet.runtime.lifecycle.resizer import PodResizer
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator, default_handler
from trio_kubelet.runtime.lifecycle.start_limiter import StartLimiter
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.future import Future
from trio_kubelet.tasks.turns import Turns
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(
    metadata=ObjectMeta(name="web", namespace="shop", uid="u"),
    spec=PodSpec(containers=(Container(name="c", image="busybox"),), restart_policy="Always"),
)


NO_INPUTS = PodInputs()


@frozen
class ImageManager:
    """Has every image, unless `refusal` says why not."""

    refusal: Callable[[], ImageError | None] = lambda: None

    async def ensure(
        self, pod: Pod, container: Container, known: PodImages, sandbox: cri.PodSandboxConfig
    ) -> ContainerImages:
        await trio.lowlevel.checkpoint()
        if error := self.refusal():
            raise error
        return ContainerImages(own=cri.Image(id=container.image), volumes={})


async def nothing_allocated(_pod: Pod, _container: Container) -> ContainerAllocation:
    """The devices of a container on a node without device plugins."""
    await trio.lowlevel.checkpoint()
    return NOTHING_ALLOCATED


class NoProbes:
    """Nobody probes: what runs is well."""

    def __init__(self, pod: Pod, workers: ContainerWorkers) -> None:
        """There is nothing to remember."""

    def container_started(
        self, pod: Pod, container: Container, instance: ObservedContainer
    ) -> None:
        """Nothing to do."""

    def container_ended(self, container_id: str) -> None:
        """Nothing to do."""

    def pod_stops(self) -> None:
        """Nothing to do."""

    def failed(self) -> Mapping[str, str]:
        """None."""
        return {}

    def unstarted(self) -> frozenset[str]:
        """None."""
        return frozenset()


class SubPaths:
    """Volumes whose server does not answer."""

    def __init__(self) -> None:
        self.asked = trio.Event()

    async def bind(self, *_: object) -> str:
        self.asked.set()
        await trio.sleep_forever()
        raise AssertionError


@frozen(kw_only=True)
class Node:
    """What acts on containers, on a hollow runtime."""

    journal: Journal
    runtime: HollowRuntime
    client: RuntimeClient
    faults: ScriptedFaults
    pods: PodRuntime
    clock: TrioClock
    sub_paths: SubPaths
    behaviours: list[Behaviour]

    def behave(self, behaviour: Behaviour) -> None:
        """The containers that are made from now on do this."""
        self.behaviours[:] = [behaviour]

    def open(self) -> PodContainers:
        """A new incarnation, as an agent that was just started has it."""
        return self.pods.open(POD)

    async def sync(self, pod: Pod, containers: PodContainers | None = None) -> RuntimeOutcome:
        containers = containers or self.open()
        return await containers.sync(pod, await containers.look(pod), Future.resolved(NO_INPUTS))

    async def look(self, pod: Pod) -> ObservedPod:
        return await self.open().look(pod)

    def seconds_until(self, due_ns: int | None) -> float:
        assert due_ns is not None
        return (due_ns - self.clock.now_ns()) / 1e9


@asynccontextmanager
async def node(
    root: Path,
    behaviour: Behaviour | None = None,
    images: ImageManager | None = None,
    runtime_handler: Callable[[Pod], Awaitable[str]] = default_handler,
    runtime_features: RuntimeFeatures | None = None,
    cgroups: PodCgroups | NoCgroups | None = None,
) -> AsyncIterator[Node]:
    clock, faults, sub_paths = TrioClock(), ScriptedFaults(), SubPaths()
    behaviours = [behaviour or Behaviour()]
    hollow = HollowOptions(images=("busybox",), behaviours=lambda _: behaviours[0], faults=faults)
    async with open_hollow_runtime(clock, hollow) as runtime:
        client, journal = RuntimeClient(InProcess(runtime)), Journal(clock)
        recorder, start_limiter = EventRecorder(journal, "node"), StartLimiter(1)
        facts = configured(node_facts(root / "root"), pod_logs_dir=str(root / "logs"))
        files = FairLimiter(1, 1)
        allocations = Allocations(root, trio.CapacityLimiter(1))
        hooks = Hooks(client=client, recorder=recorder, shares=ProbeShares())
        turns = Turns()
        stopper = ContainerStopper(
            client=client, recorder=recorder, node=facts, hooks=hooks, turns=turns
        )
        remover = ContainerRemover(client=client, node=facts)
        cache, managers = RuntimeCache(), no_managers()
        pods = PodRuntime(
            inspector=PodInspector(client=client),
            cache=cache,
            ensure_images=(images or ImageManager()).ensure,
            sandboxes=SandboxCreator(
                client=client,
                recorder=recorder,
                journal=journal,
                node=facts,
                read_dns=NodeDns,
                start_limiter=start_limiter,
                files=files,
                runtime_handler=runtime_handler,
            ),
            starter=ContainerStarter(
                client=client,
                stopper=stopper,
                hooks=hooks,
                remover=remover,
                bind_sub_path=sub_paths.bind,
                recorder=recorder,
                node=facts,
                start_limiter=start_limiter,
                files=files,
                runtime_features=lambda: runtime_features or RuntimeFeatures(),
                read_host_file=str,
                managers=managers,
                cpusets=CpusetReconciler(managers, client, cache, RuntimeHealth(), 10.0),
                allocation=nothing_allocated,
            ),
            stopper=stopper,
            remover=remover,
            resizer=PodResizer(
                client=client,
                cgroups=cgroups or NoCgroups(),
                allocations=allocations,
                node=facts,
                on_try=Callbacks(),
            ),
            allocations=allocations,
            recorder=recorder,
            journal=journal,
            clock=clock,
            crash_backoff=crash_loop_policy,
            open_probes=NoProbes,
        )
        at = Node(
            journal=journal,
            runtime=runtime,
            client=client,
            faults=faults,
            pods=pods,
            clock=clock,
            sub_paths=sub_paths,
            behaviours=behaviours,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.give)
            yield at
            nursery.cancel_scope.cancel()
