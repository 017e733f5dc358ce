"""The probes of one incarnation of a pod: a task for each probe of each container that runs.

A task begins when an instance of its container was seen to run and ends with it. It walks the
probe machine (`state_machines/probe.py`), keeps to its period whatever a run takes, and puts what
changes about its container into the node's verdicts before it sends word to the sync loop. What
fails only because its container has ended is told to nobody and costs no container its life: the
runtime is asked before whether the container still runs. What looks as if it had been cut off by
such an end counts later, while the probe goes on; a success shows at once that the container ran
on.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

import structlog
import trio
from attrs import define, field, frozen

from state_machines.probe import (
    PROBE,
    RUNS_IN,
    ProbeEvent,
    ProbeEvidence,
    ProbeKind,
    ProbeState,
    ProbeVerdict,
    Streak,
    Verdict,
    first_run_seconds,
    lengthened,
    verdict,
)
from trio_kubelet.k8s import Container, ContainerStatus, Pod, PodStatus, Probe
from trio_kubelet.pod_clients.result import FinishedRun, ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShares, Target
from trio_kubelet.probes.runner import (
    ProbeMessage,
    ProbeRunner,
    message_of,
    message_of_error,
)
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.observed import ObservedContainer
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import EventRecorder, Journal, Walk

log = structlog.get_logger("probes")

CONNECTION_SETTLE_SECONDS, COMMAND_SETTLE_SECONDS = 1.0, 5.0
"""The time that a runtime may take a container for running whose processes have ended.

A busy one takes seconds. Servers also close connections for reasons of their own, and are to be
restarted soon; a command is killed by hardly anything else.
"""


@frozen(kw_only=True)
class ProbeChange:
    """The verdict of a probe has changed."""

    uid: str
    kind: ProbeKind
    verdict: Verdict


@frozen(kw_only=True)
class ProbeRun:
    """One run of a probe that came to its end, for whoever counts them.

    `outcome` is unknown where the probe could not be run. Runs that were cut off are not told of,
    nor are those that failed because their container had ended.
    """

    pod: Pod
    container: str
    kind: ProbeKind
    outcome: ProbeOutcome
    duration_seconds: float


@frozen(kw_only=True)
class Probes:
    """The parts that the probes of all pods are made of.

    `verdicts` is what they say of containers that run, `probed_by` has the probes of the pod that
    each of these belongs to; both by the containers' ids. `pod_ip` returns a pod's address,
    `chance` the share of a period that the first run of a probe waits where many would come at
    once. `on_run` is called after each run.
    """

    runner: ProbeRunner
    recorder: EventRecorder
    journal: Journal
    clock: Clock
    changes: trio.MemorySendChannel[ProbeChange]
    pod_ip: Callable[[Pod], str]
    shares: ProbeShares
    chance: Callable[[], float] = random.random
    verdicts: dict[str, ProbeVerdict] = field(factory=dict)
    on_run: Callbacks[[ProbeRun]] = field(factory=Callbacks)
    probed_by: dict[str, "PodProbes"] = field(factory=dict)

    def recall(self, mirror: Pod) -> None:
        """Take up what an earlier agent has told of a static pod, of containers that still run.

        What this agent has found out itself stands.
        """
        spec = mirror.spec
        probed = {
            each.name
            for each in (*spec.containers, *spec.init_containers)
            if each.startup_probe is not None or each.readiness_probe is not None
        }
        for status in _statuses_of(mirror):
            container_id = status.container_id.rpartition("://")[2]
            if status.name not in probed or not container_id:
                continue
            told = ProbeVerdict(started=bool(status.started), ready=status.ready)
            if container_id in self.probed_by:
                self.probed_by[container_id].recall(container_id, told)
            else:
                self.verdicts.setdefault(container_id, told)

    def open(self, pod: Pod, workers: ContainerWorkers) -> "PodProbes":
        """Make the probes of a new incarnation of a pod, whose tasks are some of its workers."""
        return PodProbes(self, pod, workers)


@define(eq=False)
class _ContainerProbe:
    """One probe of one instance of a container.

    `due` is when it runs next, once its task has begun: one that is started again keeps to it.
    `doubtful` are the runs that count if the container runs on. `scope` is that of its task, if
    there is one.
    """

    kind: ProbeKind
    spec: Probe
    walk: Walk[ProbeState, ProbeEvent, ProbeEvidence]
    streak: Streak = field(factory=Streak)
    due: float | None = None
    doubtful: list[FinishedRun] = field(factory=list)
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    @property
    def state(self) -> ProbeState:
        """Its state."""
        return self.walk.state

    @property
    def verdict(self) -> Verdict:
        """Its verdict on its container now."""
        return verdict(self.kind, self.state)

    @property
    def period(self) -> int:
        """Seconds from run to run."""
        return self.spec.period_seconds or 1

    def came_out(self, *, succeeded: bool) -> ProbeEvidence:
        """Count a run, and return what the machine asks about it."""
        self.streak = lengthened(self.streak, succeeded=succeeded)
        threshold = self.spec.success_threshold if succeeded else self.spec.failure_threshold
        return ProbeEvidence(kind=self.kind, in_a_row=self.streak.length, threshold=threshold or 1)


@frozen(kw_only=True)
class _Instance:
    """An instance of a container that runs, with its probes."""

    pod: Pod
    container: Container
    id: str
    started_at_ns: int
    probes: Mapping[ProbeKind, _ContainerProbe]

    def says(self, kind: ProbeKind) -> Verdict:
        """The verdict of its probe of a kind; one that it does not have has nothing against it."""
        probe = self.probes.get(kind)
        return probe.verdict if probe is not None else Verdict.SUCCESS


class PodProbes:
    """The probes of one incarnation of a pod. Plain functions, called by the pod's task."""

    def __init__(self, node: Probes, pod: Pod, workers: ContainerWorkers) -> None:
        self._node = node
        self._uid = pod.metadata.uid
        self._share = node.shares.of(self._uid, pod.metadata.namespace)
        self._workers = workers
        self._opened_at_ns = node.clock.now_ns()
        self._instances: dict[str, _Instance] = {}
        self._pod_stops = False
        self._told_in: PodStatus | None = None
        self._told: Mapping[str, ProbeVerdict] = {}
        """By the container ids in that status: hundreds may start at once."""

    def container_started(
        self, pod: Pod, container: Container, instance: ObservedContainer
    ) -> None:
        """An instance was seen to run: its probes begin, or go on where an earlier agent was."""
        if not _has_probes(container):
            return
        probes = {
            kind: _ContainerProbe(
                kind=kind, spec=spec, walk=self._walk(pod, container, kind, state)
            )
            for kind, spec, state in _beginnings(container, self._last_told(pod, instance.id))
        }
        known = _Instance(
            pod=pod,
            container=container,
            id=instance.id,
            started_at_ns=instance.started_at,
            probes=probes,
        )
        self._instances[instance.id] = known
        self._node.probed_by[instance.id] = self
        self._tell(known)
        for probe in probes.values():
            probe.walk.begin("Began")
            if self._pod_stops:
                probe.walk.step(ProbeEvent.POD_ENDS, ProbeEvidence(kind=probe.kind))
            self._start(known, probe)

    def container_ended(self, container_id: str) -> None:
        """An instance was seen not to run any more."""
        self._node.verdicts.pop(container_id, None)
        self._node.probed_by.pop(container_id, None)
        instance = self._instances.pop(container_id, None)
        if instance is None:
            return
        for probe in instance.probes.values():
            probe.scope.cancel()
            if not PROBE.is_terminal(probe.state):
                probe.walk.step(ProbeEvent.CONTAINER_ENDED)

    def recall(self, container_id: str, told: ProbeVerdict) -> None:
        """The API tells what an earlier agent had found of an instance that runs."""
        instance = self._instances[container_id]
        startup = instance.probes.get(ProbeKind.STARTUP)
        if startup is not None and told.started and startup.state is ProbeState.UNDECIDED:
            startup.walk.step(ProbeEvent.RECALLED, ProbeEvidence(kind=startup.kind))
            startup.scope.cancel()
            self._let_others_begin(instance)
        readiness = instance.probes.get(ProbeKind.READINESS)
        if readiness is not None and told.ready and readiness.state is ProbeState.UNDECIDED:
            readiness.walk.step(ProbeEvent.RECALLED, ProbeEvidence(kind=readiness.kind))
        self._tell(instance)

    def pod_stops(self) -> None:
        """The pod is being stopped: from now on only readiness is asked for."""
        self._pod_stops = True
        for _instance, probe in self._living():
            probe.walk.step(ProbeEvent.POD_ENDS, ProbeEvidence(kind=probe.kind))
            if probe.state not in RUNS_IN:
                probe.scope.cancel()

    def failed(self) -> Mapping[str, str]:
        """The probe that failed (`liveness`, `startup`), by the ids of containers to restart."""
        return {
            instance.id: probe.kind.lower()
            for instance, probe in self._living()
            if probe.state is ProbeState.FAILED
        }

    def unstarted(self) -> frozenset[str]:
        """The ids of running containers whose startup probe has not succeeded yet."""
        return frozenset(
            instance.id
            for instance in self._instances.values()
            if instance.says(ProbeKind.STARTUP) is not Verdict.SUCCESS
        )

    def _last_told(self, pod: Pod, container_id: str) -> ProbeVerdict | None:
        """The verdict that an earlier agent last told of this very instance, if it did."""
        if self._told_in is not pod.status:
            self._told_in = pod.status
            self._told = {
                each.container_id.rpartition("://")[2]: ProbeVerdict(
                    started=bool(each.started), ready=each.ready
                )
                for each in _statuses_of(pod)
            }
        return self._told.get(container_id) or self._node.verdicts.get(container_id)

    def _living(self) -> Iterator[tuple[_Instance, _ContainerProbe]]:
        for instance in tuple(self._instances.values()):
            for probe in instance.probes.values():
                if not PROBE.is_terminal(probe.state):
                    yield instance, probe

    def _start(self, instance: _Instance, probe: _ContainerProbe) -> None:
        if probe.state in RUNS_IN:
            self._workers.start(instance.id, lambda: self._keep_probing(instance, probe))

    async def _keep_probing(self, instance: _Instance, probe: _ContainerProbe) -> None:
        """Run a probe each period until it is over."""
        probe.doubtful.clear()
        with trio.CancelScope() as probe.scope:
            if probe.due is None:
                probe.due = trio.current_time() + self._first_run_seconds(instance, probe)
            async with trio.open_nursery() as nursery:
                while probe.state in RUNS_IN:
                    await trio.sleep_until(probe.due)
                    await self._ask(instance, probe, nursery)
                    probe.due += probe.period
                    missed = max(0.0, trio.current_time() - probe.due) // probe.period
                    probe.due += missed * probe.period

    def _first_run_seconds(self, instance: _Instance, probe: _ContainerProbe) -> float:
        """At an agent's start what is well is asked at times of its own, not all at once."""
        age_ns = self._node.clock.now_ns() - instance.started_at_ns
        seconds = first_run_seconds(
            probe.kind,
            initial_delay_seconds=probe.spec.initial_delay_seconds or 0,
            period_seconds=probe.period,
            age_seconds=age_ns / 1e9,
        )
        if instance.started_at_ns < self._opened_at_ns and probe.verdict is Verdict.SUCCESS:
            return max(seconds, self._node.chance() * probe.period)
        return seconds

    async def _ask(
        self, instance: _Instance, probe: _ContainerProbe, nursery: trio.Nursery
    ) -> None:
        """Run a probe once; what may have been cut off counts later, by a task in the nursery."""
        run = await self._run(instance, probe)
        if run.may_be_cut_off:
            probe.doubtful.append(run)
            nursery.start_soon(self._count_later, instance, probe, run)
        elif run.is_certain or await self._node.runner.runs(instance.id):
            await self._count(instance, probe, run)
        else:
            await self._count_of_ended(instance, probe, run)

    async def _run(self, instance: _Instance, probe: _ContainerProbe) -> FinishedRun:
        target = Target(
            container=instance.container,
            container_id=instance.id,
            pod_ip=self._node.pod_ip(instance.pod),
            share=self._share,
        )
        await self._share.wait()
        came: ProbeResult | ProbeError
        async with self._share.connections if probe.spec.exec is None else nullcontext():
            began = trio.current_time()
            try:
                came = await self._node.runner.run(probe.spec, target)
            except ProbeError as error:
                came = error
            return FinishedRun(came=came, seconds=trio.current_time() - began)

    async def _count_later(
        self, instance: _Instance, probe: _ContainerProbe, run: FinishedRun
    ) -> None:
        """Count a run if its container runs on. Word of an end that had cut it off cancels this."""
        is_command = probe.spec.exec is not None
        await trio.sleep(COMMAND_SETTLE_SECONDS if is_command else CONNECTION_SETTLE_SECONDS)
        if run not in probe.doubtful:
            return
        runs_on = await self._node.runner.runs(instance.id)
        if run not in probe.doubtful or probe.state not in RUNS_IN:
            return
        probe.doubtful.remove(run)
        if runs_on:
            await self._count(instance, probe, run)
        else:
            await self._count_of_ended(instance, probe, run)
        if probe.state not in RUNS_IN:
            probe.scope.cancel()

    async def _count(self, instance: _Instance, probe: _ContainerProbe, run: FinishedRun) -> None:
        """Tell of a run and step by it; before a success, by those that it leaves no doubt of."""
        runs = [run]
        if run.succeeded:
            runs, probe.doubtful = [*probe.doubtful, run], []
        for each in runs:
            if probe.state not in RUNS_IN:
                return
            self._ran(instance, probe, each)
            if isinstance(each.came, ProbeError):
                self._event(instance, message_of_error(probe.kind, each.came))
                probe.walk.step(ProbeEvent.ERRORED)
            else:
                self._event(instance, message_of(probe.kind, each.came))
                await self._take(instance, probe, succeeded=each.succeeded)

    async def _count_of_ended(
        self, instance: _Instance, probe: _ContainerProbe, run: FinishedRun
    ) -> None:
        """Count a failure of a container that has ended against its readiness, and tell nobody.

        While its pod's task waits for a call of the runtime, or for a hook of another container,
        nothing else says that it serves nobody.
        """
        is_readiness = probe.kind is ProbeKind.READINESS and probe.state in RUNS_IN
        if is_readiness and run.outcome is ProbeOutcome.FAILURE:
            await self._take(instance, probe, succeeded=False)

    def _ran(self, instance: _Instance, probe: _ContainerProbe, run: FinishedRun) -> None:
        self._node.on_run.call(
            ProbeRun(
                pod=instance.pod,
                container=instance.container.name,
                kind=probe.kind,
                outcome=run.outcome,
                duration_seconds=run.seconds,
            )
        )

    async def _take(self, instance: _Instance, probe: _ContainerProbe, *, succeeded: bool) -> None:
        """Step by how a run came out; who has to act on it is told of a change."""
        before = probe.verdict
        event = ProbeEvent.SUCCEEDED if succeeded else ProbeEvent.FAILED
        probe.walk.step(event, probe.came_out(succeeded=succeeded))
        if probe.verdict is before:
            return
        if probe.state is ProbeState.PASSED:
            self._let_others_begin(instance)
        self._tell(instance)
        log.info(
            "probe verdict changed",
            container=instance.container.name,
            probe=str(probe.kind),
            verdict=str(probe.verdict),
        )
        await self._node.changes.send(
            ProbeChange(uid=self._uid, kind=probe.kind, verdict=probe.verdict)
        )

    def _let_others_begin(self, instance: _Instance) -> None:
        for probe in instance.probes.values():
            if probe.state is ProbeState.HELD:
                probe.walk.step(ProbeEvent.STARTED_UP)
                self._start(instance, probe)

    def _tell(self, instance: _Instance) -> None:
        """Put what the probes say into the node's verdicts, where statuses find it."""
        self._node.verdicts[instance.id] = ProbeVerdict(
            started=instance.says(ProbeKind.STARTUP) is Verdict.SUCCESS,
            ready=instance.says(ProbeKind.READINESS) is Verdict.SUCCESS,
        )

    def _event(self, instance: _Instance, message: ProbeMessage | None) -> None:
        if message is not None:
            self._node.recorder.pod(
                instance.pod,
                message.type,
                message.reason,
                message.message,
                container=instance.container.name,
            )

    def _walk(
        self, pod: Pod, container: Container, kind: ProbeKind, state: ProbeState
    ) -> Walk[ProbeState, ProbeEvent, ProbeEvidence]:
        key = f"{pod.metadata.key}/{container.name}/{kind.lower()}"
        return Walk(PROBE, state, self._node.journal, key, entered_at=trio.current_time())


def _statuses_of(pod: Pod) -> tuple[ContainerStatus, ...]:
    """The statuses of the containers that may have probes."""
    return (*pod.status.container_statuses, *pod.status.init_container_statuses)


def _has_probes(container: Container) -> bool:
    probes = (container.startup_probe, container.readiness_probe, container.liveness_probe)
    return any(probe is not None for probe in probes)


def _beginnings(
    container: Container, told: ProbeVerdict | None
) -> Iterator[tuple[ProbeKind, Probe, ProbeState]]:
    """The probes of an instance that runs, and where each of them begins."""
    specs = {
        ProbeKind.STARTUP: container.startup_probe,
        ProbeKind.READINESS: container.readiness_probe,
        ProbeKind.LIVENESS: container.liveness_probe,
    }
    had_started = told is not None and told.started
    was_ready = told is not None and told.ready
    is_held = container.startup_probe is not None and not had_started
    for kind, spec in specs.items():
        if spec is None:
            continue
        state = ProbeState.UNDECIDED
        if kind is ProbeKind.STARTUP and had_started:
            state = ProbeState.PASSED
        elif kind is not ProbeKind.STARTUP and is_held:
            state = ProbeState.HELD
        elif kind is ProbeKind.READINESS and was_ready:
            state = ProbeState.PASSING
        yield kind, spec, state
