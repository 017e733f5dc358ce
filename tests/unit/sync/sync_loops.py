"""A sync loop whose pods' syncers do nothing and remember what they were asked."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
import trio.testing
from attrs import frozen

from state_machines.pod import StopEvidence
from state_machines.pod_ending import Ending
from tests.trio_clock import TrioClock
from tests.unit.resource_managers.machines import no_managers
from tests.unit.sync.fake_syncer import FakeSyncer, stopped
from trio_kubelet.eviction.records import EvictionRecord
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, Time
from trio_kubelet.node.shutdown_record import EndedPod
from trio_kubelet.pleg import PodChange
from trio_kubelet.probes import ProbeChange
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.sources import PodOperation, PodUpdate, Source
from trio_kubelet.status import Statuses
from trio_kubelet.sync.admission import Admission, AdmissionResult, Rejection
from trio_kubelet.sync.admission.resize_fit import ResizeAdmission
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.loop import SyncLoop
from trio_kubelet.sync.machine_parts import MachineParts
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.sync.pod_task import SharedByTasks, SyncResult
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.resize_decisions import ResizeDecisions
from trio_kubelet.sync.store import PodStore
from trio_kubelet.sync.undecided import UndecidedPods
from trio_kubelet.telemetry import EventRecorder, Journal

UP = RuntimeState(up=True, network_ready=True)

RESYNC_SECONDS = 86_400
"""Longer than any test lasts, stops of an hour included."""


def remembering(
    log: list[str], name: str, stop_seconds: float, release: Callable[[], None] = lambda: None
) -> FakeSyncer:
    """A syncer that does nothing, and writes down what it was asked.

    `release` is called when nothing runs any more.
    """

    async def sync(pod: Pod) -> SyncResult:
        log.append(f"sync {name} {pod.spec.containers[0].image}")
        return SyncResult()

    async def stop(ending: Ending) -> StopEvidence:
        log.append(f"stop {name} {ending.cause}")
        await trio.sleep(stop_seconds)
        release()
        return await stopped(ending)

    async def note(step: str) -> None:
        log.append(f"{step} {name}")

    syncer = FakeSyncer()
    syncer.on_sync, syncer.on_terminate = sync, stop
    syncer.on_release, syncer.on_clean = partial(note, "release"), partial(note, "clean")
    syncer.on_leave_remains = partial(note, "leave remains of")
    syncer.on_let_go = lambda: log.append(f"let go {name}")
    syncer.on_report = lambda: log.append(f"report {name}")
    return syncer


@frozen(kw_only=True)
class Loop:
    loop: SyncLoop
    resizing: ResizeDecisions
    store: PodStore
    tasks: PodTasks
    activity: Activity
    runtime_health: RuntimeHealth
    monitor: LoopMonitor
    config: trio.MemorySendChannel[PodUpdate]
    pleg: trio.MemorySendChannel[PodChange]
    probes: trio.MemorySendChannel[ProbeChange]
    recorder: EventRecorder
    journal: Journal
    log: list[str]

    async def say(self, op: PodOperation, *pods: Pod, source: Source = Source.FILE) -> None:
        await self.config.send(PodUpdate(op=op, pods=pods, source=source))
        await trio.testing.wait_all_tasks_blocked()

    def heard(self) -> list[str]:
        heard, self.log[:] = list(self.log), []
        return heard


@asynccontextmanager
async def running(
    reject: str = "",
    *,
    admission: Admission | None = None,
    stop_seconds: Mapping[str, float] | None = None,
    runs: str = "",
    up: bool = True,
    undecided: UndecidedPods | None = None,
    sources: Iterable[Source] = (),
    clean_up: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    allocations: Allocations | None = None,
    managers: ResourceManagers | None = None,
    unfinished: EvictionRecord | EndedPod | None = None,
) -> AsyncIterator[Loop]:
    """A loop whose consumers run. `unfinished` is the end of a pod that an earlier agent began."""
    log: list[str] = []
    journal = Journal(TrioClock())
    recorder = EventRecorder(journal, "node")
    given = managers or no_managers()
    store, runtime_health, monitor = PodStore(), RuntimeHealth(), LoopMonitor()
    activity, sources_known = Activity(), trio.Event()
    config_in, config_out = trio.open_memory_channel[PodUpdate](10)
    pleg_in, pleg_out = trio.open_memory_channel[PodChange](10)
    probes_in, probes_out = trio.open_memory_channel[ProbeChange](10)

    def admit(pod: Pod, active: Iterable[Pod]) -> AdmissionResult:
        others = tuple(active)
        log.append(f"admit {pod.metadata.name} beside {len(others)}")
        if admission is not None:
            return admission(pod, others)
        if pod.metadata.name != reject:
            return None
        return Rejection(reason="NodePorts", message="no free port")

    def is_running(uid: str) -> bool:
        return uid == runs

    def open_syncer(pod: Pod) -> FakeSyncer:
        name = pod.metadata.name
        release = partial(given.release, pod.metadata.uid)
        return remembering(log, name, (stop_seconds or {}).get(name, 1), release)

    async with trio.open_nursery() as nursery:
        tasks = PodTasks(
            nursery,
            open_syncer=open_syncer,
            shared=SharedByTasks(
                journal=journal,
                recorder=recorder,
                resync_seconds=RESYNC_SECONDS,
                cleaning=CleaningTurns(activity.wait_idle),
            ),
        )
        known = allocations or Allocations(Path("/nowhere"), trio.CapacityLimiter(1))
        resizing = ResizeDecisions(
            resizes=ResizeProgress(known, journal),
            allocations=known,
            statuses=Statuses(),
            store=store,
            admission=ResizeAdmission(
                allocatable=admission.allocatable if admission is not None else dict,
                may_swap=lambda _pod, _container: False,
            ),
            recorder=recorder,
        )
        loop = SyncLoop(
            store=store,
            tasks=tasks,
            admit=admit,
            fits=admission.fits if admission is not None else lambda _pod, _others: True,
            allocations=known,
            parts=MachineParts(
                managers=given,
                store=store,
                tasks=tasks,
                runs=is_running,
                sources_known=sources_known,
            ),
            resizing=resizing,
            runtime_health=runtime_health,
            monitor=monitor,
            config=config_out,
            pleg=pleg_out,
            probes=probes_out,
            sources=frozenset(sources),
            clean_up=clean_up,
            recorder=recorder,
            runs=is_running,
            sources_known=sources_known,
            undecided=undecided,
            unfinished_end=lambda uid: unfinished if unfinished and unfinished.uid == uid else None,
        )
        await nursery.start(loop.run)
        if up:
            runtime_health.update(UP)
        yield Loop(
            loop=loop,
            resizing=resizing,
            store=store,
            tasks=tasks,
            activity=activity,
            runtime_health=runtime_health,
            monitor=monitor,
            config=config_in,
            pleg=pleg_in,
            probes=probes_in,
            recorder=recorder,
            journal=journal,
            log=log,
        )
        nursery.cancel_scope.cancel()


def make_pod(name: str, *, image: str = "i", created: int = 0, uid: str = "") -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=uid or f"uid-{name}",
            creation_timestamp=Time.from_ns(created * 10**9) if created else None,
        ),
        spec=PodSpec(containers=(Container(name="c", image=image),)),
    )
