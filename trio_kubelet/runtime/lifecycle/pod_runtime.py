"""Carries out the plans of one pod through the runtime, and inspects what came of them.

`PodContainers` is what one incarnation of a pod has in the runtime, and owns what is remembered
of it: the table of its containers, its images, the tasks beside them. `sync` plans (`planning.py`),
carries out, inspects, and plans again until nothing is left to do now: when a sidecar has started,
the next init container begins without waiting for a relist. What can overlap does: images are
pulled and volumes made while the sandbox is. After each round the pod is inspected and put into the
cache, so that its status is sent without a relist.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog
import trio
from attrs import evolve, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.container import ContainerStage
from state_machines.machine import IllegalTransition
from state_machines.pod import ORPHAN_GRACE_SECONDS, StopEvidence
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.config.container_hash import ContainerHashes
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.garbage.removal import ContainerRemover, surplus_containers
from trio_kubelet.runtime.images.container_images import ContainerImages, EnsureImages
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.images.pod_images import PodImages
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_starter import (
    ContainerStarter,
    ContainerStartError,
    StartContext,
)
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper, own_grace_seconds
from trio_kubelet.runtime.lifecycle.container_table import (
    CRASH_LOOP_BACK_OFF,
    ContainerTable,
    Reason,
)
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers, OpenProbes
from trio_kubelet.runtime.lifecycle.plan import (
    NewContainers,
    NewSandbox,
    Plan,
    PlanContext,
    PlanResult,
    RuntimeOutcome,
    StartContainer,
    failed_outcome,
)
from trio_kubelet.runtime.lifecycle.planning import plan_pod
from trio_kubelet.runtime.lifecycle.resize_plan import plan_resize
from trio_kubelet.runtime.lifecycle.resizer import PodResizer, ResizeError
from trio_kubelet.runtime.lifecycle.sandbox_creator import SandboxCreator, SandboxError
from trio_kubelet.runtime.observed import ObservedPod, ObservedSandbox
from trio_kubelet.runtime.restarts import all_containers
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import run_concurrently, run_for_each
from trio_kubelet.tasks.future import Future
from trio_kubelet.telemetry import EventRecorder, EventType, Journal

log = structlog.get_logger("runtime")

MOST_TIME_LOOKING = 0.1
"""The part of the time until its images are there in which a pod is looked at."""
IMAGES_AT_ONCE = 32
"""Looked for or pulled for a pod, in the order in which its containers start."""
NO_SANDBOX = Reason(reason="FailedCreatePodSandBox")
STILL_RUNNING = Reason(reason="FailedKillPod")
NOT_RESIZED = Reason(reason="ResizeError")


@frozen(kw_only=True)
class PodRuntime:
    """The parts that act on the containers of all pods. Holds no state of any of them.

    `dead_per_container` is the flag --maximum-dead-containers-per-container.
    """

    inspector: PodInspector
    cache: RuntimeCache
    ensure_images: EnsureImages
    sandboxes: SandboxCreator
    starter: ContainerStarter
    stopper: ContainerStopper
    remover: ContainerRemover
    resizer: PodResizer
    allocations: Allocations
    recorder: EventRecorder
    journal: Journal
    clock: Clock
    crash_backoff: Callable[[], BackoffPolicy]
    open_probes: OpenProbes
    dead_per_container: int = 1

    def open(self, pod: Pod) -> "PodContainers":
        """Make the containers of a new incarnation of a pod."""
        return PodContainers(self, pod)


class PodContainers:
    """The containers of one incarnation of a pod, and all that is remembered of it.

    Its methods are called by the pod's task, one at a time, while `running` is held. `acted_at` is
    when the last call that may have changed the pod had ended, or was given up, in trio's clock; 0
    if there was none. `waits_for_image`: a sync waits for an image while containers run already.
    """

    def __init__(self, parts: PodRuntime, pod: Pod) -> None:
        self._parts = parts
        self._uid = pod.metadata.uid
        self._workers = ContainerWorkers()
        self._probes = parts.open_probes(pod, self._workers)
        self._table = ContainerTable(parts.journal)
        self._images = PodImages()
        self._hashes = ContainerHashes()
        self.acted_at = 0.0
        self.waits_for_image = False
        self._next_look_at = 0.0
        self._is_given_up = False

    def running(self) -> AbstractAsyncContextManager[None]:
        """Held by the pod's task as long as it lives: what runs beside its containers is in it."""
        return self._workers.running()

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why containers wait, by name."""
        return self._table.reasons

    @property
    def restarting(self) -> frozenset[str]:
        """The names of containers that are to run, whatever their last instances ended with."""
        return frozenset() if self._is_given_up else self._table.restarting

    async def look(self, pod: Pod) -> ObservedPod:
        """Ask the runtime about the pod and put the answer into the cache. Raises RpcError."""
        return await self._look(pod, None)

    async def sync(
        self,
        pod: Pod,
        observed: ObservedPod,
        inputs: Future[PodInputs],
        report: Callable[[ObservedPod], object] = lambda _observed: None,
    ) -> RuntimeOutcome:
        """Bring the pod's containers closer to its spec; the sandbox does not wait for inputs.

        `report` is called with what there is before something else takes the place of what was
        stopped, and before a wait for an image, if containers run or have run meanwhile.
        Cancelled, it leaves what was done; the outcome of the call in flight is then unknown
        and the next look tells. Raises RpcError when the runtime cannot be asked, and whatever
        the future of the inputs raises.
        """
        with self._parts.cache.suspend_inspection(self._uid):
            return await self._sync(_Sync(pod, observed, inputs, report))

    async def stop(self, pod: Pod, grace_seconds: int) -> StopEvidence:
        """Stop all that runs of the pod, and look what still does. Raises RpcError.

        What to stop is taken from the cache if this agent has acted on the pod and inspected it
        since. Otherwise the pod is inspected first: a call of an earlier agent may have started
        something after the last relist.
        """
        self._probes.pod_stops()
        cache = self._parts.cache
        with cache.suspend_inspection(self._uid):
            if self.acted_at > 0 and cache.is_newer_than(self._uid, self.acted_at):
                observed = cache.get(self._uid)
            else:
                observed = await self.look(pod)
            self._step_at_the_end(pod, partial(self._observe, pod, observed))
            self._step_at_the_end(pod, partial(self._table.stop, pod))
            if not observed.is_empty:
                try:
                    await self._parts.stopper.stop_pod(pod, observed, grace_seconds)
                finally:
                    self.acted_at = trio.current_time()
                observed = await self.look(pod)
        self._step_at_the_end(pod, partial(self._observe, pod, observed))
        return StopEvidence(
            listed_at=observed.observed_at,
            last_call_ended_at=self.acted_at,
            running=observed.running_parts,
        )

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's stopped containers and sandboxes. Raises RpcError.

        This agent has started nothing since the pod was seen to have stopped. What a late call of
        an earlier agent has started is stopped first.
        """
        cache = self._parts.cache
        is_known = cache.is_newer_than(self._uid, self.acted_at)
        observed = cache.get(self._uid) if is_known else await self.look(pod)
        if observed.living:
            evidence = await self.stop(pod, ORPHAN_GRACE_SECONDS)
            if evidence.running:
                raise RpcError(Code.FAILED_PRECONDITION, f"{evidence.running[0]} still runs")
            observed = cache.get(self._uid)
        with cache.suspend_inspection(self._uid):
            self._step_at_the_end(pod, partial(self._observe, pod, observed))
            self._step_at_the_end(pod, partial(self._table.remove, pod))
            self.acted_at = trio.current_time()
            await self._parts.remover.remove_pod(observed)
            cache.forget(self._uid)

    async def _look(self, pod: Pod, made: NewContainers | None) -> ObservedPod:
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

    async def _sync(self, sync: "_Sync") -> RuntimeOutcome:
        pod, observed = sync.pod, sync.before
        hashes = await self._hashes.of(each for each, _ in all_containers(pod))
        self._observe(pod, observed)
        # A pod whose containers all restart takes the most rounds: they are stopped, removed, the
        # cause after the others; then comes each init container, the regular ones, and a look that
        # finds nothing to do. A resize may take two more. The others have their turn if a sandbox
        # or a container ends at once.
        for _ in range(8 + len(pod.spec.init_containers)):
            plan = plan_pod(pod, observed, await self._context(pod, observed, hashes))
            self._table.decide(pod, plan.decisions)
            self._is_given_up = plan.gives_up
            self._note_postponed(pod, plan)
            if plan.starts_over:
                self._table.start_over()
            if plan.is_empty:
                break
            try:
                done = await self._carry_out(sync, plan, observed)
            finally:
                self.acted_at = trio.current_time()
            observed = await self._look(pod, done.made if observed.is_empty else None)
            self._observe(pod, observed)
            if plan.stop:
                sync.report(observed)  # What takes its place may have to wait for its image.
            living = {container.id for container in observed.living}
            if any(order.container.id in living for order in plan.stop):
                done = evolve(done, failures=(*done.failures, STILL_RUNNING))
            if done.failures:
                return failed_outcome(done, plan, observed)
            if plan.gives_up:
                break
        else:
            # What the last look showed has no plan yet, and nobody else will tell of it.
            return RuntimeOutcome(observed=observed, due_ns=self._parts.clock.now_ns())
        surplus = surplus_containers(observed, self._parts.dead_per_container)
        await self._parts.remover.remove_containers(observed, surplus)
        return RuntimeOutcome(observed=observed, due_ns=plan.due_ns)

    async def _context(self, pod: Pod, seen: ObservedPod, hashes: Mapping[str, str]) -> PlanContext:
        allocations, resize = self._parts.allocations, None
        if not allocations.is_actuated(self._uid):
            resize = plan_resize(pod, allocations.actuated_pod(pod), seen)
            if resize is not None:
                resizer, sandbox = self._parts.resizer, seen.ready_sandbox
                resize = await resizer.without_vain_restarts(pod, resize, sandbox)
        return PlanContext(
            now_ns=self._parts.clock.now_ns(),
            containers=self._table.records,
            hashes=hashes,
            backoff_policy=self._parts.crash_backoff(),
            failed_probes=self._probes.failed(),
            unstarted=self._probes.unstarted(),
            resize=resize,
        )

    def _step_at_the_end(self, pod: Pod, step: Callable[[], object]) -> None:
        """Step the table of a pod that ends. A refused event is logged, and holds up nothing."""
        try:
            step()
        except IllegalTransition as error:
            log.exception("container event refused", pod=pod_full_name(pod))
            self._parts.journal.note("container", pod.metadata.key, "Refused", str(error))

    def _observe(self, pod: Pod, observed: ObservedPod) -> None:
        """Step the table by what was seen, and tell of instances that started and ended.

        Raises IllegalTransition.
        """
        seen = self._table.observe(pod, observed)
        for container_id in seen.ended:
            self._workers.end(container_id)
            self._probes.container_ended(container_id)
        # Hundreds may have started at once, and each is looked for among hundreds.
        containers = {each.name: each for each in pod.spec.all_containers} if seen.started else {}
        for instance in seen.started:
            container = containers.get(instance.name)
            if container is not None:
                self._probes.container_started(pod, container, instance)

    async def _carry_out(self, sync: "_Sync", plan: Plan, observed: ObservedPod) -> PlanResult:
        parts, pod = self._parts, sync.pod
        if plan.stop_pod:
            await parts.stopper.stop_pod(pod, observed, own_grace_seconds(pod))
        else:
            await parts.stopper.stop_containers(pod, observed, plan.stop)
        if plan.remove:
            sync.report(observed)  # What ended how is known from the status alone after that.
            await parts.remover.remove_containers(observed, plan.remove, keep_logs=True)
        if plan.resize is None:
            return await self._make(sync, plan, observed)
        # After what is restarted has stopped, and before anything is started.
        error = ""
        try:
            sandbox = None if plan.stop_pod else observed.ready_sandbox
            await parts.resizer.resize(pod, plan.resize, sandbox)
        except ResizeError as failure:
            error = failure.message
        done = await self._make(sync, plan, observed)
        if not error:
            return done
        return evolve(done, failures=(*done.failures, NOT_RESIZED), resize_error=error)

    async def _make(self, sync: "_Sync", plan: Plan, observed: ObservedPod) -> PlanResult:
        """Make the sandbox, if there is to be another one, and start containers."""
        parts, pod, sandbox = self._parts, sync.pod, plan.sandbox
        if sandbox is None or not (plan.start or isinstance(sandbox, NewSandbox)):
            return PlanResult()
        if plan.stop_pod:
            # Nothing is made before all that it replaces was seen to have stopped.
            seen = await self.look(pod)
            self._observe(pod, seen)
            if seen.living:
                return PlanResult(failures=(STILL_RUNNING,))
            sync.report(seen)
        if isinstance(sandbox, NewSandbox) and sandbox.replaces:
            self._tell_of_replaced_sandbox(pod, sandbox.replaces)
        try:
            return await self._start_all(sync, sandbox, plan.start, observed)
        except SandboxError as error:
            parts.sandboxes.failed(pod, error)
            return PlanResult(failures=(NO_SANDBOX,))

    async def _start_all(
        self,
        sync: "_Sync",
        sandbox: NewSandbox | ObservedSandbox,
        orders: Sequence[StartContainer],
        observed: ObservedPod,
    ) -> PlanResult:
        """Make the sandbox while images are got, then start containers in their order.

        Raises SandboxError.
        """
        parts, pod = self._parts, sync.pod
        config = await parts.sandboxes.config(pod, sandbox)
        images = {order.container.name: Future[ContainerImages]() for order in orders}
        done: list[PlanResult] = []

        async def start() -> None:
            ready = await parts.sandboxes.ensure(pod, sandbox, config)
            context = StartContext(
                pod=pod, sandbox=ready, inputs=await sync.inputs.result(), observed=observed
            )
            done.append(await self._start_in(context, orders, images, sync))

        async def get_image(container: Container) -> None:
            await images[container.name].run(partial(self._find_image, pod, container, config))

        wanted = [order.container for order in orders]
        await run_concurrently(start, partial(run_for_each, wanted, get_image, IMAGES_AT_ONCE))
        return done[0]

    async def _start_in(
        self,
        context: StartContext,
        orders: Iterable[StartContainer],
        images: Mapping[str, Future[ContainerImages]],
        sync: "_Sync",
    ) -> PlanResult:
        """Start containers in a sandbox, one after another, each when its image is there."""
        parts = self._parts
        made: list[str] = []
        failures: list[Reason] = []
        for order in orders:
            name = order.container.name
            if self._table[name].state is not ContainerStage.WAITING:
                failures.append(STILL_RUNNING)  # none is made beside another
                continue
            if not images[name].is_settled:
                if made or context.observed.living:
                    so_far = NewContainers(sandbox_id=context.sandbox.id, containers=tuple(made))
                    await self._wait_for(images[name], so_far, context.observed, sync)
                elif context.observed is not sync.before:
                    sync.report(context.observed)  # What has run in this sync has ended since.
            try:
                found = await images[name].result()
                await parts.starter.remove_unstarted_predecessor(order, context.observed)
                await parts.resizer.expect_start(context.pod, name)
                self._table.attempt(name, parts.crash_backoff(), parts.clock.now_ns())
                made.append(await parts.starter.start(order, found, context))
            except (ImageError, ContainerStartError) as error:
                error.__traceback__ = None  # It goes through here to the future that has the error.
                failures.append(_reason_of(error))
                self._table.waits(name, failures[-1])
            else:
                self._table.started(name, parts.clock.now_ns())
        if failures:
            return PlanResult(failures=tuple(failures))
        return PlanResult(made=NewContainers(sandbox_id=context.sandbox.id, containers=tuple(made)))

    async def _wait_for(
        self,
        image: Future[ContainerImages],
        made: NewContainers,
        before: ObservedPod,
        sync: "_Sync",
    ) -> None:
        """Report what runs, then wait until an image is there or cannot be had.

        Meanwhile the pod is inspected as if no sync were under way, and `waits_for_image` tells
        whoever learns of a change to report it.
        """
        with trio.move_on_at(self._next_look_at):
            await image.wait()
            return
        self.acted_at = began_at = trio.current_time()
        observed = await self._look(sync.pod, made if before.is_empty else None)
        self._observe(sync.pod, observed)
        sync.report(observed)
        # A look is at all that there is: one before each of a thousand containers would be all
        # that the agent does.
        took_seconds = trio.current_time() - began_at
        self._next_look_at = began_at + took_seconds / MOST_TIME_LOOKING
        self.waits_for_image = True
        try:
            with self._parts.cache.resume_inspection(self._uid):
                await image.wait()
        finally:
            self.waits_for_image = False

    async def _find_image(
        self, pod: Pod, container: Container, config: cri.PodSandboxConfig
    ) -> ContainerImages:
        """The container's images. Raises ImageError after its status says so."""
        try:
            return await self._parts.ensure_images(pod, container, self._images, config)
        except ImageError as error:
            self._table.waits(container.name, _reason_of(error))
            raise

    def _tell_of_replaced_sandbox(self, pod: Pod, why: str) -> None:
        key = pod.metadata.key
        log.info("sandbox cannot be used, making another", pod=key, why=why)
        self._parts.journal.note("sandbox", key, "SandboxReplaced", why)
        message = "Pod sandbox changed, it will be killed and re-created."
        self._parts.recorder.pod(pod, EventType.NORMAL, "SandboxChanged", message)

    def _note_postponed(self, pod: Pod, plan: Plan) -> None:
        """Containers in back-off say so in their status, and once for each wait in an event."""
        for postponed in plan.postponed:
            name = postponed.container.name
            reason = Reason(reason=CRASH_LOOP_BACK_OFF, message=postponed.message)
            if self._table.waits(name, reason):
                self._parts.recorder.pod(
                    pod,
                    EventType.WARNING,
                    "BackOff",
                    f"Back-off restarting failed container {name} in pod {pod_full_name(pod)}",
                    container=name,
                )


@frozen
class _Sync:
    """The arguments of one sync."""

    pod: Pod
    before: ObservedPod
    inputs: Future[PodInputs]
    report: Callable[[ObservedPod], object]


def _reason_of(error: ImageError | ContainerStartError) -> Reason:
    """Put into a status why a container could not be started."""
    until_ns = error.until_ns if isinstance(error, ImageError) else None
    return Reason(reason=error.reason, message=error.message, until_ns=until_ns)
