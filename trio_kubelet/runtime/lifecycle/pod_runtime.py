"""Bringing one pod to what its plan says, through the runtime, and looking what came of it.

`PodContainers` is what one incarnation of a pod has in the runtime, and owns what is remembered
of it: the table of its containers, its images, the tasks beside its containers. `sync` plans
(`actions.py`), carries out, looks, and plans again until nothing is left to do now: a sidecar
that just started lets the next init container begin without waiting for anyone's tick. What can
overlap does: images are pulled, and volumes made, while the sandbox is. Whatever was done, the
pod is read back at once and put into the cache, so that its status is sent without a relist.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Protocol

import trio
from attrs import evolve, field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.image import WAITING_REASONS, ImageState
from state_machines.pod import StopEvidence
from trio_kubelet.clock import Clock
from trio_kubelet.concurrency import run_concurrently
from trio_kubelet.future import Future
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.garbage.removal import ContainerRemover, surplus_containers
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.actions import PlanContext, PodActions, plan_pod
from trio_kubelet.runtime.lifecycle.container_starter import (
    ContainerStarter,
    ContainerStartError,
    StartContext,
)
from trio_kubelet.runtime.lifecycle.container_stopper import (
    ContainerStopper,
    container_spec,
    own_grace_seconds,
)
from trio_kubelet.runtime.lifecycle.container_table import ContainerTable, Reason
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.lifecycle.inputs import PodInputs
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator, SandboxError
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.telemetry import EventRecorder, EventType, Journal

IMAGE_PULL_BACK_OFF = WAITING_REASONS[ImageState.BACK_OFF]
NO_SANDBOX = Reason(reason="FailedCreatePodSandBox")
STILL_RUNNING = Reason(reason="FailedKillPod")


class ObservationStore(Protocol):
    """Where observations are kept; see `pleg/cache.py`."""

    def get(self, uid: str) -> ObservedPod:
        """The newest observation of a pod."""
        ...

    def is_newer_than(self, uid: str, instant: float) -> bool:
        """Whether the pod was observed after `instant`."""
        ...

    def put(self, observed: ObservedPod) -> ObservedPod:
        """Store a newer observation; returns it as stored, with the pod's IPs kept."""
        ...

    def forget(self, uid: str) -> None:
        """Nothing of the pod is left."""
        ...

    def suspend_inspection(self, uid: str) -> AbstractContextManager[None]:
        """Held while a pod's own task acts on it."""
        ...


class ImageManager(Protocol):
    """Sees that an image is there."""

    async def ensure(
        self, pod: Pod, container: Container, known: PodImages, sandbox: cri.PodSandboxConfig
    ) -> cri.Image:
        """The image, pulled if the policy says so. Raises ImageError; may wait long."""
        ...


class PodProbes(Protocol):
    """The probes of one incarnation of a pod. Plain functions, called by its `PodContainers`."""

    def container_started(
        self, pod: Pod, container: Container, instance: ObservedContainer
    ) -> None:
        """An instance was seen to run, for the first time by this agent."""
        ...

    def container_ended(self, container_id: str) -> None:
        """An instance was seen not to run any more; its workers have been cancelled."""
        ...

    def pod_stops(self) -> None:
        """The pod is being stopped: no container of it is restarted any more."""
        ...

    def failed(self) -> Mapping[str, str]:
        """The probe that failed (`liveness`, `startup`), by the ids of containers to restart."""
        ...

    def unstarted(self) -> frozenset[str]:
        """The ids of running containers whose startup probe has not succeeded yet."""
        ...


class OpenProbes(Protocol):
    """Makes the probes of a new incarnation of a pod."""

    def __call__(self, pod: Pod, workers: ContainerWorkers) -> PodProbes:
        """Called once for each incarnation; `workers` run the probes of its containers."""
        ...


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


@frozen(kw_only=True)
class RuntimeOutcome:
    """What a sync came to.

    `failed`: something did not work and is to be tried again. `due_ns`: the earliest time
    (nanoseconds since the epoch) at which a postponed container may start.
    """

    observed: ObservedPod
    failed: bool = False
    due_ns: int | None = None


@frozen(kw_only=True)
class Made:
    """A sandbox and the containers that were started in it, by their ids."""

    sandbox_id: str
    containers: tuple[str, ...]


@frozen(kw_only=True)
class Done:
    """What came of a plan: why something failed, else what it made, if it was to make anything."""

    failures: tuple[Reason, ...] = ()
    made: Made | None = None


@frozen(kw_only=True)
class PodRuntime:
    """What acts on the containers of all pods. Holds no state of any of them.

    `dead_per_container` is the flag --maximum-dead-containers-per-container.
    """

    inspector: PodInspector
    cache: ObservationStore
    images: ImageManager
    sandboxes: SandboxCreator
    starter: ContainerStarter
    stopper: ContainerStopper
    remover: ContainerRemover
    recorder: EventRecorder
    journal: Journal
    clock: Clock
    crash_backoff: BackoffPolicy
    dead_per_container: int = 1
    open_probes: OpenProbes = field(default=NoProbes)

    def open(self, pod: Pod) -> "PodContainers":
        """Make the containers of a new incarnation of a pod."""
        return PodContainers(self, pod)


class PodContainers:
    """What one incarnation of a pod has in the runtime, and all that is remembered of it.

    Its methods are called by the pod's task, one at a time, while `running` is held.
    """

    def __init__(self, parts: PodRuntime, pod: Pod) -> None:
        self._parts = parts
        self._uid = pod.metadata.uid
        self._workers = ContainerWorkers()
        self._probes = parts.open_probes(pod, self._workers)
        self._table = ContainerTable(parts.journal)
        self._images = PodImages()
        self._acted_at = 0.0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Held by the pod's task as long as it lives: what runs beside its containers is in it."""
        return self._workers.running()

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why containers wait, by name."""
        return self._table.reasons

    @property
    def acted_at(self) -> float:
        """When the last call that may have changed the pod had ended, or was given up.

        In trio's clock; 0 if there was none.
        """
        return self._acted_at

    async def look(self, pod: Pod) -> ObservedPod:
        """Ask the runtime about the pod and put the answer into the cache. Raises RpcError."""
        return await self._look(pod, None)

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs]
    ) -> RuntimeOutcome:
        """Bring the pod's containers closer to its spec; the sandbox does not wait for inputs.

        Cancelled, it leaves what was done; the outcome of the call in flight is then unknown
        and the next look tells. Raises RpcError when the runtime cannot be asked, and whatever
        the future of the inputs raises.
        """
        with self._parts.cache.suspend_inspection(self._uid):
            return await self._sync(pod, observed, inputs)

    async def stop(self, pod: Pod, grace_seconds: int) -> StopEvidence:
        """Stop all that runs of the pod, and look what still does. Raises RpcError.

        What to stop is known where this agent has acted on the pod and seen what came of it. Of
        what an earlier agent left under way the last relist may know nothing.
        """
        self._probes.pod_stops()
        cache = self._parts.cache
        with cache.suspend_inspection(self._uid):
            if self._acted_at > 0 and cache.is_newer_than(self._uid, self._acted_at):
                observed = cache.get(self._uid)
            else:
                observed = await self.look(pod)
            try:
                await self._parts.stopper.stop_pod(pod, observed, grace_seconds)
            finally:
                self._acted_at = trio.current_time()
            observed = await self.look(pod)
        self._observe(pod, observed)
        return StopEvidence(
            listed_at=observed.observed_at,
            last_call_ended_at=self._acted_at,
            running=running_parts(observed),
        )

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's stopped containers and sandboxes. Raises RpcError.

        Nothing was started since it was seen to have stopped. Should the runtime have anything of
        it all the same, the next relist shows it and housekeeping takes it away.
        """
        cache = self._parts.cache
        with cache.suspend_inspection(self._uid):
            is_known = cache.is_newer_than(self._uid, self._acted_at)
            observed = cache.get(self._uid) if is_known else await self.look(pod)
            self._acted_at = trio.current_time()
            await self._parts.remover.remove_pod(observed)
            cache.forget(self._uid)

    async def _look(self, pod: Pod, made: Made | None) -> ObservedPod:
        """Look at what was just made, if that is all there is of the pod; else at what there is.

        To ask what there is takes twice the calls, which counts when many pods start.
        """
        parts = self._parts
        meta, inspector = pod.metadata, parts.inspector
        known = evolve(parts.cache.get(self._uid), name=meta.name, namespace=meta.namespace)
        if made is None:
            return parts.cache.put(await inspector.inspect(known))
        observed = await inspector.inspect_listed(
            known,
            [cri.PodSandbox(id=made.sandbox_id)],
            [cri.Container(id=each, pod_sandbox_id=made.sandbox_id) for each in made.containers],
            trio.current_time(),
        )
        return parts.cache.put(observed)

    async def _sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs]
    ) -> RuntimeOutcome:
        self._observe(pod, observed)
        rounds = 2 + len(pod.spec.init_containers)
        for _ in range(rounds):
            plan = plan_pod(pod, observed, self._context())
            self._note_postponed(pod, plan)
            if plan.is_empty:
                break
            try:
                done = await self._carry_out(pod, plan, observed, inputs)
            finally:
                self._acted_at = trio.current_time()
            is_all_there_is = not observed.sandboxes and not observed.containers
            observed = await self._look(pod, done.made if is_all_there_is else None)
            self._observe(pod, observed)
            if done.failures:
                return _failed(observed, plan, done.failures)
            if plan.stop_pod and not plan.create_sandbox:
                break
        else:
            # What the last look showed has no plan yet, and nobody else will tell of it.
            return RuntimeOutcome(observed=observed, due_ns=self._parts.clock.now_ns())
        surplus = surplus_containers(observed, self._parts.dead_per_container)
        await self._parts.remover.remove_containers(observed, surplus)
        return RuntimeOutcome(observed=observed, due_ns=_due(plan))

    def _context(self) -> PlanContext:
        return PlanContext(
            now_ns=self._parts.clock.now_ns(),
            backoff_policy=self._parts.crash_backoff,
            backoffs=self._table.backoffs,
            failed_probes=self._probes.failed(),
            unstarted=self._probes.unstarted(),
        )

    def _observe(self, pod: Pod, observed: ObservedPod) -> None:
        """Step the table by what was seen, and tell of instances that started and ended."""
        seen = self._table.observe(pod, observed)
        for container_id in seen.ended:
            self._workers.end(container_id)
            self._probes.container_ended(container_id)
        for instance in seen.started:
            container = container_spec(pod, instance.name)
            if container is not None:
                self._probes.container_started(pod, container, instance)

    async def _carry_out(
        self, pod: Pod, plan: PodActions, observed: ObservedPod, inputs: Future[PodInputs]
    ) -> Done:
        """One plan."""
        parts = self._parts
        if plan.stop_pod:
            await parts.stopper.stop_pod(pod, observed, own_grace_seconds(pod))
        else:
            await parts.stopper.stop_containers(pod, observed, plan.stop)
        if not plan.create_sandbox and not plan.start:
            return Done()
        if (plan.stop_pod or plan.stop) and not await self._have_stopped(pod, plan):
            return Done(failures=(STILL_RUNNING,))
        if plan.sandbox_changed:
            parts.recorder.pod(
                pod,
                EventType.NORMAL,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            )
        try:
            return await self._start_all(pod, plan, observed, inputs)
        except SandboxError as error:
            parts.sandboxes.failed(pod, error)
            return Done(failures=(NO_SANDBOX,))

    async def _have_stopped(self, pod: Pod, plan: PodActions) -> bool:
        """Look whether all that had to stop has: only then anything takes its place."""
        observed = await self.look(pod)
        self._observe(pod, observed)
        alive = alive_containers(observed)
        if plan.stop_pod:
            return not alive
        return alive.isdisjoint(order.container.id for order in plan.stop)

    async def _start_all(
        self, pod: Pod, plan: PodActions, observed: ObservedPod, inputs: Future[PodInputs]
    ) -> Done:
        """Make the sandbox while images are got, then start containers in their order.

        Raises SandboxError.
        """
        parts = self._parts
        config = await parts.sandboxes.config(pod, plan)
        images = {order.container.name: Future[cri.Image]() for order in plan.start}
        made: list[str] = []
        failures: list[Reason] = []
        sandbox_id = plan.sandbox_id

        async def start() -> None:
            nonlocal sandbox_id
            sandbox = await parts.sandboxes.ensure(pod, plan, config, observed)
            sandbox_id = sandbox.id
            context = StartContext(
                pod=pod, sandbox=sandbox, inputs=await inputs.result(), observed=observed
            )
            for order in plan.start:
                name = order.container.name
                try:
                    image = await images[name].result()
                    await parts.starter.remove_unstarted_predecessor(order, observed)
                    self._table.attempt(order, parts.crash_backoff, parts.clock.now_ns())
                    self._table.decide(pod, order)
                    made.append(await parts.starter.start(order, image, context))
                except (ImageError, ContainerStartError) as error:
                    failures.append(_reason(error))
                    self._table.waits(name, failures[-1])
                else:
                    self._table.started(name)

        async def get_image(container: Container) -> None:
            find = partial(self._find_image, pod, container, config)
            await images[container.name].run(find)

        await run_concurrently(start, *(partial(get_image, each.container) for each in plan.start))
        if failures:
            return Done(failures=tuple(failures))
        return Done(made=Made(sandbox_id=sandbox_id, containers=tuple(made)))

    async def _find_image(
        self, pod: Pod, container: Container, config: cri.PodSandboxConfig
    ) -> cri.Image:
        """The container's image. Raises ImageError after its status says so."""
        try:
            return await self._parts.images.ensure(pod, container, self._images, config)
        except ImageError as error:
            self._table.waits(container.name, _reason(error))
            raise

    def _note_postponed(self, pod: Pod, plan: PodActions) -> None:
        """Containers in back-off say so in their status, and once for each wait in an event."""
        for postponed in plan.postponed:
            name = postponed.container.name
            reason = Reason(reason="CrashLoopBackOff", message=postponed.message)
            if self._table.waits(name, reason):
                self._parts.recorder.pod(
                    pod,
                    EventType.WARNING,
                    "BackOff",
                    f"Back-off restarting failed container {name} in pod {pod_full_name(pod)}",
                    container=name,
                )


def running_parts(observed: ObservedPod) -> tuple[str, ...]:
    """The containers and sandboxes of a pod that run, or may run."""
    alive = alive_containers(observed)
    return (
        *(f"container {c.name}" for c in observed.containers if c.id in alive),
        *(f"sandbox {s.id}" for s in observed.sandboxes if s.ready),
    )


def alive_containers(observed: ObservedPod) -> frozenset[str]:
    """The ids of the containers that run, or may run."""
    states = (ObservedState.RUNNING, ObservedState.UNKNOWN)
    return frozenset(c.id for c in observed.containers if c.state in states)


def _reason(error: ImageError | ContainerStartError) -> Reason:
    until_ns = error.until_ns if isinstance(error, ImageError) else None
    return Reason(reason=error.reason, message=error.message, until_ns=until_ns)


def _failed(
    observed: ObservedPod, plan: PodActions, failures: Collection[Reason]
) -> RuntimeOutcome:
    """What did not work is tried again: soon, or when the back-off of its image is over.

    A pull that has just failed is looked at again soon, too: that look finds the back-off, and
    then the status says ImagePullBackOff.
    """
    times = [reason.until_ns for reason in failures if reason.until_ns is not None]
    return RuntimeOutcome(
        observed=observed,
        failed=any(reason.reason != IMAGE_PULL_BACK_OFF for reason in failures),
        due_ns=min([*times, *(postponed.until_ns for postponed in plan.postponed)], default=None),
    )


def _due(plan: PodActions) -> int | None:
    return min((postponed.until_ns for postponed in plan.postponed), default=None)
