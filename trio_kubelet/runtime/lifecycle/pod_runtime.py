"""Bringing one pod to what its plan says, through the runtime, and looking what came of it.

`sync` plans (`actions.py`), carries out, looks, and plans again until nothing is left to do now:
a sidecar that just started lets the next init container begin without waiting for anyone's
tick. What can overlap does: images are pulled, and volumes made, while the sandbox is. Whatever
was done, the pod is read back at once and put into the cache, so that its status is sent without
a relist.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy, next_backoff
from state_machines.image import WAITING_REASONS, ImageState
from state_machines.pod import StopEvidence
from trio_kubelet.clock import Clock
from trio_kubelet.concurrency import run_concurrently
from trio_kubelet.future import Future
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.pod_source import is_static
from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.dns import NodeDns, dns_config
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.inspection import inspect_listed, inspect_pod
from trio_kubelet.runtime.lifecycle.actions import PlanContext, PodActions, StartContainer, plan_pod
from trio_kubelet.runtime.lifecycle.container_starter import ContainerStarter, ReadySandbox
from trio_kubelet.runtime.lifecycle.container_stopper import ContainerStopper, own_grace_seconds
from trio_kubelet.runtime.lifecycle.inputs import PodInputs
from trio_kubelet.runtime.lifecycle.memory import PodMemory, Reason
from trio_kubelet.runtime.lifecycle.pod_files import make_pod_log_directory
from trio_kubelet.runtime.lifecycle.start_limiter import Precedence, StartLimiter
from trio_kubelet.runtime.lifecycle.state_tracker import ContainerStateTracker
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.telemetry import EventRecorder, EventType, Journal

log = structlog.get_logger("runtime")

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


class SandboxError(Exception):
    """There is no sandbox to work in. `reason` and text are those of the pod's event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def not_made(cls, why: str) -> "SandboxError":
        """The runtime, or what it is asked with, allows none."""
        return cls("FailedCreatePodSandBox", f"Failed to create pod sandbox: {why}")

    @classmethod
    def not_seen(cls, why: str) -> "SandboxError":
        """It was made, and the runtime does not tell its state and addresses."""
        return cls("FailedPodSandBoxStatus", f"Unable to get pod sandbox status: {why}")


async def default_handler(_pod: Pod) -> str:
    """Return the runtime's own default: where there are no runtime classes."""
    return ""


class PodRuntime:
    """Does what plans say, for all pods. What it remembers of a pod is in the pod's memory.

    `runtime_handler` names the handler for a pod's sandbox, or raises ConfigError.
    """

    def __init__(
        self,
        *,
        client: RuntimeClient,
        cache: ObservationStore,
        starter: ContainerStarter,
        stopper: ContainerStopper,
        recorder: EventRecorder,
        journal: Journal,
        clock: Clock,
        node: NodeFacts,
        read_dns: Callable[[], NodeDns],
        start_limiter: StartLimiter,
        file_limiter: trio.CapacityLimiter,
        crash_backoff: BackoffPolicy,
        runtime_handler: Callable[[Pod], Awaitable[str]] = default_handler,
        oom_kills: OomKills | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._starter = starter
        self._stopper = stopper
        self._recorder = recorder
        self._journal = journal
        self._clock = clock
        self._node = node
        self._read_dns = read_dns
        self._start_limiter = start_limiter
        self._file_limiter = file_limiter
        self._oom_kills = oom_kills
        self._crash_backoff = crash_backoff
        self._runtime_handler = runtime_handler

    async def look(self, pod: Pod) -> ObservedPod:
        """Ask the runtime about one pod and put the answer into the cache. Raises RpcError."""
        return await self._look(pod, None)

    async def _look(self, pod: Pod, made: Made | None) -> ObservedPod:
        """Look at what was just made, if that is all there is of the pod; else at what there is.

        To ask what there is takes twice the calls, which counts when many pods start.
        """
        meta = pod.metadata
        inspect = partial(inspect_pod, self._client, meta.uid)
        if made is not None:
            inspect = partial(
                inspect_listed,
                self._client,
                meta.uid,
                [cri.PodSandbox(id=made.sandbox_id)],
                [
                    cri.Container(id=each, pod_sandbox_id=made.sandbox_id)
                    for each in made.containers
                ],
                observed_at=trio.current_time(),
            )
        observed = await inspect(
            name=meta.name,
            namespace=meta.namespace,
            known=self._cache.get(meta.uid),
            file_limiter=self._file_limiter,
            oom_kills=self._oom_kills,
        )
        return self._cache.put(observed)

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], memory: PodMemory
    ) -> RuntimeOutcome:
        """Bring the pod's containers closer to its spec; the sandbox does not wait for inputs.

        Cancelled, it leaves what was done; the outcome of the call in flight is then unknown
        and the next look tells. Raises RpcError when the runtime cannot be asked, and whatever
        the future of the inputs raises.
        """
        with self._cache.suspend_inspection(pod.metadata.uid):
            return await self._sync(pod, observed, inputs, memory)

    async def _sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], memory: PodMemory
    ) -> RuntimeOutcome:
        states = ContainerStateTracker(self._journal, pod, memory)
        states.observe(observed)
        rounds = 2 + len(pod.spec.init_containers)
        for _ in range(rounds):
            plan = plan_pod(pod, observed, self._context(memory))
            self._note_postponed(pod, plan, memory)
            if plan.is_empty:
                break
            try:
                done = await self._carry_out(pod, plan, observed, inputs, memory)
            finally:
                memory.acted_at = trio.current_time()
            is_all_there_is = not observed.sandboxes and not observed.containers
            observed = await self._look(pod, done.made if is_all_there_is else None)
            states.observe(observed)
            if done.failures:
                return _failed(observed, plan, done.failures)
            if plan.stop_pod and not plan.create_sandbox:
                break
        else:
            # What the last look showed has no plan yet, and nobody else will tell of it.
            return RuntimeOutcome(observed=observed, due_ns=self._clock.now_ns())
        await self._stopper.remove_surplus(observed)
        return RuntimeOutcome(observed=observed, due_ns=_due(plan))

    async def stop(self, pod: Pod, grace_seconds: int, memory: PodMemory) -> StopEvidence:
        """Stop all that runs of a pod, and look what still does. Raises RpcError.

        What to stop is known where this agent has acted on the pod and seen what came of it. Of
        what an earlier agent left under way the last relist may know nothing.
        """
        uid = pod.metadata.uid
        with self._cache.suspend_inspection(uid):
            if memory.acted_at > 0 and self._cache.is_newer_than(uid, memory.acted_at):
                observed = self._cache.get(uid)
            else:
                observed = await self.look(pod)
            try:
                await self._stopper.stop_pod(pod, observed, grace_seconds)
            finally:
                memory.acted_at = trio.current_time()
            observed = await self.look(pod)
        ContainerStateTracker(self._journal, pod, memory).observe(observed)
        return StopEvidence(
            listed_at=observed.observed_at,
            last_call_ended_at=memory.acted_at,
            running=running_parts(observed),
        )

    async def remove(self, pod: Pod, memory: PodMemory) -> None:
        """Remove the stopped containers and sandboxes of a pod. Raises RpcError.

        Nothing was started since it was seen to have stopped. Should the runtime have anything of
        it all the same, the next relist shows it and housekeeping takes it away.
        """
        uid = pod.metadata.uid
        with self._cache.suspend_inspection(uid):
            is_known = self._cache.is_newer_than(uid, memory.acted_at)
            observed = self._cache.get(uid) if is_known else await self.look(pod)
            memory.acted_at = trio.current_time()
            await self._stopper.remove_pod(observed)
            self._cache.forget(uid)

    def _context(self, memory: PodMemory) -> PlanContext:
        return PlanContext(
            now_ns=self._clock.now_ns(),
            backoff_policy=self._crash_backoff,
            backoffs=memory.crash_backoffs,
        )

    async def _carry_out(
        self,
        pod: Pod,
        plan: PodActions,
        observed: ObservedPod,
        inputs: Future[PodInputs],
        memory: PodMemory,
    ) -> Done:
        """One plan."""
        if plan.stop_pod:
            grace = own_grace_seconds(pod)
            await self._stopper.stop_pod(pod, observed, grace)
        else:
            await self._stopper.stop_containers(pod, observed, plan.stop)
        if not plan.create_sandbox and not plan.start:
            return Done()
        if (plan.stop_pod or plan.stop) and not await self._have_stopped(pod, plan, memory):
            return Done(failures=(STILL_RUNNING,))
        if plan.sandbox_changed:
            self._recorder.pod(
                pod,
                EventType.NORMAL,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            )
        try:
            node_dns = await trio.to_thread.run_sync(
                self._prepare_sandbox, pod, limiter=self._file_limiter
            )
            config = self._sandbox_config(pod, plan, node_dns)
        except (ConfigError, OSError) as error:
            self._sandbox_failed(pod, SandboxError.not_made(str(error)))
            return Done(failures=(NO_SANDBOX,))
        return await self._start_all(pod, plan, config, observed, inputs, memory)

    async def _have_stopped(self, pod: Pod, plan: PodActions, memory: PodMemory) -> bool:
        """Look whether all that had to stop has: only then anything takes its place."""
        observed = await self.look(pod)
        ContainerStateTracker(self._journal, pod, memory).observe(observed)
        alive = alive_containers(observed)
        if plan.stop_pod:
            return not alive
        return alive.isdisjoint(order.container.id for order in plan.stop)

    async def _start_all(
        self,
        pod: Pod,
        plan: PodActions,
        config: cri.PodSandboxConfig,
        observed: ObservedPod,
        inputs: Future[PodInputs],
        memory: PodMemory,
    ) -> Done:
        """Make the sandbox while images are got, then start containers in their order."""
        images = {order.container.name: Future[cri.Image | None]() for order in plan.start}
        sandbox: ReadySandbox
        made: list[str] = []
        failed: list[str] = []

        async def start() -> None:
            nonlocal sandbox
            sandbox = await self._sandbox(pod, plan, config, observed)
            prepared = await inputs.result()
            for order in plan.start:
                name = order.container.name
                image = await images[name].result()
                if image is None or not await self._starter.remove_unstarted_predecessor(
                    order, memory
                ):
                    failed.append(name)
                    continue
                self._note_attempt(order, memory)
                ContainerStateTracker(self._journal, pod, memory).decide(order)
                started = await self._starter.start(
                    pod, order, image, sandbox, prepared, observed, memory
                )
                if started is None:
                    failed.append(name)
                else:
                    made.append(started)

        async def get_image(container: Container) -> None:
            find = partial(self._starter.find_image, pod, container, memory, config)
            await images[container.name].run(find)

        try:
            await run_concurrently(
                start, *(partial(get_image, each.container) for each in plan.start)
            )
        except SandboxError as error:
            self._sandbox_failed(pod, error)
            return Done(failures=(NO_SANDBOX,))
        if failed:
            return Done(failures=tuple(memory.reasons[name] for name in failed))
        return Done(made=Made(sandbox_id=sandbox.id, containers=tuple(made)))

    async def _sandbox(
        self,
        pod: Pod,
        plan: PodActions,
        config: cri.PodSandboxConfig,
        observed: ObservedPod,
    ) -> ReadySandbox:
        """The sandbox to work in, made if the plan says so. Raises SandboxError."""
        if not plan.create_sandbox:
            present = observed.ready_sandbox
            return ReadySandbox(
                id=plan.sandbox_id,
                config=config,
                ips=present.ips if present is not None else (),
                runtime_handler=present.runtime_handler if present is not None else "",
            )
        precedence = Precedence.STATIC_SANDBOX if is_static(pod) else Precedence.SANDBOX
        try:
            handler = await self._runtime_handler(pod)
            async with self._start_limiter.slot(precedence):
                began = trio.current_time()
                sandbox_id = await self._client.run_pod_sandbox(config, handler)
        except (RpcError, ConfigError) as error:
            raise SandboxError.not_made(error.message) from error
        try:
            response = await self._client.pod_sandbox_status(sandbox_id)
        except RpcError as error:
            raise SandboxError.not_seen(error.message) from error
        self._journal.note(
            "sandbox",
            f"{pod.metadata.namespace}/{pod.metadata.name}",
            "SandboxCreated",
            sandbox_id,
            duration_seconds=trio.current_time() - began,
        )
        network = response.status.network
        ips = (network.ip, *(extra.ip for extra in network.additional_ips))
        return ReadySandbox(
            id=sandbox_id,
            config=config,
            ips=tuple(ip for ip in ips if ip),
            runtime_handler=handler,
        )

    def _prepare_sandbox(self, pod: Pod) -> NodeDns:
        """Make the folder of the pod's logs, and read what may have changed since. Blocks."""
        make_pod_log_directory(pod, self._node)
        return self._read_dns()

    def _sandbox_config(
        self, pod: Pod, plan: PodActions, node_dns: NodeDns
    ) -> cri.PodSandboxConfig:
        dns, warnings = dns_config(pod, node_dns)
        if plan.create_sandbox:
            for warning in warnings:
                if warning.for_node:
                    self._recorder.node(EventType.WARNING, warning.reason, warning.message)
                else:
                    self._recorder.pod(pod, EventType.WARNING, warning.reason, warning.message)
        return sandbox_config(pod, self._node, attempt=plan.attempt, dns=dns)

    def _sandbox_failed(self, pod: Pod, error: SandboxError) -> None:
        log.warning("sandbox creation failed", pod=pod_full_name(pod), error=str(error))
        self._recorder.pod(pod, EventType.WARNING, error.reason, str(error))

    def _note_attempt(self, order: StartContainer, memory: PodMemory) -> None:
        """Each start after an exit lengthens the back-off that the next exit will meet."""
        last = order.predecessor
        if last is None or last.state is not ObservedState.EXITED:
            return
        name = order.container.name
        memory.crash_backoffs[name] = next_backoff(
            memory.crash_backoffs.get(name),
            self._crash_backoff,
            failed_at_ns=last.finished_at,
            now_ns=self._clock.now_ns(),
        )

    def _note_postponed(self, pod: Pod, plan: PodActions, memory: PodMemory) -> None:
        """Containers in back-off say so in their status, and once for each wait in an event."""
        for postponed in plan.postponed:
            reason = Reason(reason="CrashLoopBackOff", message=postponed.message)
            name = postponed.container.name
            if memory.reasons.get(name) == reason:
                continue
            memory.reasons[name] = reason
            self._recorder.pod(
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
