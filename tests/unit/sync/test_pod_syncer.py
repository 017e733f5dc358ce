"""What a syncer does in which order, and with a pod that failed or whose last call did."""

from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from tests.trio_clock import TrioClock
from tests.unit.resource_managers.machines import machine, managers_of
from tests.unit.resource_managers.pods import a_pod
from tests.unit.sync.syncer_parts import (
    FailingOnce,
    Others,
    Remembering,
    Waiting,
    a_runtime_health,
    make_parts,
)
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.errors import PodUnfitError, PreparationError
from trio_kubelet.k8s import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Time,
)
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.health import RuntimeState
from trio_kubelet.runtime.lifecycle.allocations import ALLOCATED
from trio_kubelet.runtime.lifecycle.plan import RuntimeOutcome
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import Failure
from trio_kubelet.sync.pod_syncer import STOP_IS_LONG_SECONDS, SyncDependencies
from trio_kubelet.sync.pod_task import SyncResult, UnfinishedError
from trio_kubelet.tasks.future import Future
from trio_kubelet.telemetry import Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
DELETED = Ending(causes=(PodEvent.DELETED,))
REJECTED = Ending(causes=(PodEvent.REJECTED,), reason="OutOfcpu", message="Pod was rejected")


@pytest.fixture(autouse=True)
def folder_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test keeps of allocations goes into a folder of its own, the current one."""
    monkeypatch.chdir(tmp_path)


async def test_after_a_call_that_failed_the_next_sync_looks_itself_and_waits_for_no_relist(
    autojump_clock: MockClock,
) -> None:
    runtime = FailingOnce()
    syncer = make_parts(runtime, Others()).open_syncer(POD)
    assert (await syncer.sync(POD)).failed
    with trio.fail_after(5):
        assert not (await syncer.sync(POD)).failed
    assert runtime.steps == ["sync", "look", "sync"]


@pytest.mark.parametrize(("certain", "meanwhile"), [(True, ["sandbox"]), (False, [])])
async def test_a_sandbox_waits_only_for_volumes_that_may_not_come(
    autojump_clock: MockClock, certain: bool, meanwhile: list[str]
) -> None:
    runtime, others = Waiting(), Others()
    others.certain, others.prepared = certain, trio.Event()
    syncer = make_parts(runtime, others).open_syncer(POD)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(syncer.sync, POD)
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.steps == meanwhile
        others.prepared.set()
    assert runtime.steps == ["sandbox", "containers"]


@pytest.mark.parametrize("certain", [True, False])
async def test_volumes_that_do_not_come_are_told_and_tried_again(
    autojump_clock: MockClock, certain: bool
) -> None:
    runtime, others = Waiting(), Others()
    others.certain, others.refusal = certain, PreparationError("FailedMount", "no such thing")
    journal = Journal(TrioClock())
    syncer = make_parts(runtime, others, journal).open_syncer(POD)
    assert (await syncer.sync(POD)).failed
    told = [(entry.event, entry.cause) for entry in journal.entries("shop/web")]
    assert ("FailedMount", "no such thing") in told
    assert "containers" not in runtime.steps


async def test_a_pod_for_whose_volumes_there_is_no_room_is_rejected(
    autojump_clock: MockClock,
) -> None:
    runtime, others, journal = Waiting(), Others(), Journal(TrioClock())
    others.certain = False
    others.refusal = PodUnfitError("VolumeAttachmentLimitExceeded", "too many")
    ending = (await make_parts(runtime, others, journal).open_syncer(POD).sync(POD)).ending
    assert ending is not None
    assert ending.causes == (PodEvent.REJECTED,)
    assert ending.reason == "VolumeAttachmentLimitExceeded"
    assert ending.message == "Pod was rejected: too many"
    told = [(entry.event, entry.cause) for entry in journal.entries("shop/web")]
    assert ("VolumeAttachmentLimitExceeded", "too many") in told
    assert runtime.steps == []


async def test_volumes_that_wait_for_their_next_try_are_told_no_more_and_looked_at_then(
    autojump_clock: MockClock,
) -> None:
    runtime, others = Waiting(), Others()
    others.refusal = PreparationError("FailedMount", "no", is_told=True, retry_seconds=7.0)
    journal = Journal(TrioClock())
    syncer = make_parts(runtime, others, journal).open_syncer(POD)
    assert await syncer.sync(POD) == SyncResult(failed=False, due_seconds=7.0)
    assert [entry.event for entry in journal.entries("shop/web")] == []


async def test_a_pod_that_cannot_be_ended_is_told_of_once_a_minute_and_when_why_is_new(
    autojump_clock: MockClock,
) -> None:
    others, journal = Others(), Journal(TrioClock())
    syncer = make_parts(FailingOnce(), others, journal).open_syncer(POD)
    for others.stuck in (*["/v is busy"] * 12, "/w is busy"):
        with pytest.raises(UnfinishedError):
            await syncer.release(POD)
        await trio.sleep(10)
    told = [(entry.event, entry.cause) for entry in journal.entries("shop/web")]
    busy = ("FailedKillPod", "error killing pod: /v is busy")
    assert told == [busy, busy, ("FailedKillPod", "error killing pod: /w is busy")]


def asking(cpu: str, generation: int = 1) -> Pod:
    given = ResourceRequirements(requests={"cpu": Quantity(cpu)})
    container = Container(name="c", resources=given)
    metadata = ObjectMeta(name="web", namespace="shop", uid="u", generation=generation)
    return Pod(metadata=metadata, spec=PodSpec(containers=(container,)))


async def test_what_is_made_for_a_pod_is_made_for_what_it_was_allocated(
    autojump_clock: MockClock,
) -> None:
    others = Others()
    parts = make_parts(Remembering(others.given), others)
    parts.allocations.allocate(asking("1"))
    await parts.open_syncer(asking("2")).sync(asking("2"))
    assert [pod.spec for pod in others.given] == [asking("1").spec] * 3


class LookingAtTheDisk(FailingOnce):
    """A runtime that looks for the records of allocations when it is to make a sandbox."""

    recorded = False

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], _report: object
    ) -> RuntimeOutcome:
        self.recorded = await trio.Path(ALLOCATED).exists()
        return RuntimeOutcome(observed=observed)


async def test_what_a_pod_was_allocated_is_on_the_disk_before_its_sandbox_is_made(
    autojump_clock: MockClock,
) -> None:
    runtime = LookingAtTheDisk()
    parts = make_parts(runtime, Others())
    parts.allocations.allocate(asking("1"))
    await parts.open_syncer(asking("1")).sync(asking("1"))
    assert runtime.recorded


class Resizing(FailingOnce):
    """A runtime that fails to resize as long as it has a reason to."""

    def __init__(self, parts: list[SyncDependencies]) -> None:
        super().__init__()
        self.error, self.parts = "", parts

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], _report: object
    ) -> RuntimeOutcome:
        if not self.error:
            self.parts[0].allocations.actuate(pod)
        return RuntimeOutcome(observed=observed, resize_error=self.error)


async def test_a_resize_is_told_of_when_it_fails_in_another_way_and_when_it_is_done(
    autojump_clock: MockClock,
) -> None:
    journal, made = Journal(TrioClock()), list[SyncDependencies]()
    runtime = Resizing(made)
    parts = make_parts(runtime, Others(), journal)
    made.append(parts)
    parts.allocations.allocate(asking("1"))
    pod = asking("2", generation=2)
    parts.resizes.ask(pod)
    parts.resizes.grant(pod, "pod_updated")
    syncer = parts.open_syncer(pod)
    for runtime.error in ("no", "no", "never", "", ""):
        await syncer.sync(pod)
    events = [
        (entry.event, entry.cause)
        for entry in journal.entries("shop/web")
        if entry.event in ("ResizeError", "ResizeCompleted")
    ]
    summary = '"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2'
    assert events == [
        ("ResizeError", f'Pod resize error: {{{summary},"error":"no"}}'),
        ("ResizeError", f'Pod resize error: {{{summary},"error":"never"}}'),
        ("ResizeCompleted", f"Pod resize completed: {{{summary}}}"),
    ]


NO_NETWORK = RuntimeState(
    answered=True,
    up=True,
    network_reason="NetworkReady=false reason:NetworkPluginNotReady message:cni not initialized",
)


async def test_without_a_network_a_pod_is_told_what_the_runtime_said_of_it(
    autojump_clock: MockClock,
) -> None:
    runtime, journal = FailingOnce(), Journal(TrioClock())
    runtime_health = a_runtime_health()
    runtime_health.update(NO_NETWORK)
    parts = make_parts(runtime, Others(), journal, runtime_health)
    assert (await parts.open_syncer(POD).sync(POD)).failed
    assert runtime.steps == []
    assert [(entry.event, entry.cause) for entry in journal.entries("shop/web")] == [
        (
            "NetworkNotReady",
            "network is not ready: container runtime network not ready: NetworkReady=false "
            "reason:NetworkPluginNotReady message:cni not initialized",
        )
    ]


async def test_a_runtime_that_does_not_answer_is_not_a_network_that_is_not_ready(
    autojump_clock: MockClock,
) -> None:
    runtime, journal = FailingOnce(), Journal(TrioClock())
    runtime_health = a_runtime_health()
    runtime_health.mark_down("container runtime is down: connection refused")
    parts = make_parts(runtime, Others(), journal, runtime_health)
    await parts.open_syncer(POD).sync(POD)
    assert runtime.steps == ["sync"]
    assert "NetworkNotReady" not in [entry.event for entry in journal.entries("shop/web")]


@pytest.mark.parametrize(
    ("ending", "failure"),
    [
        (
            Ending(causes=(PodEvent.REJECTED,), reason="OutOfcpu", message="Pod was rejected"),
            Failure(reason="OutOfcpu", message="Pod was rejected", rejected=True),
        ),
        (
            Ending(causes=(PodEvent.PREEMPTED,), reason="Preempting", disruption="why"),
            Failure(reason="Preempting", disruption="why"),
        ),
        (Ending(causes=(PodEvent.DELETED,)), None),
    ],
)
async def test_the_status_is_told_why_a_pod_fails(
    autojump_clock: MockClock, ending: Ending, failure: Failure | None
) -> None:
    others = Others()
    await make_parts(FailingOnce(), others).open_syncer(POD).terminate(POD, ending)
    assert others.failure == failure


@pytest.mark.parametrize(
    ("ending", "seconds", "reports"),
    [
        (DELETED, 1, [(1, True)]),
        (DELETED, 20, [(STOP_IS_LONG_SECONDS, False), (20, True)]),
        (REJECTED, 1, [(0, False), (1, True)]),
    ],
)
async def test_a_pod_that_obeys_is_reported_once_when_it_has_stopped(
    autojump_clock: MockClock, ending: Ending, seconds: float, reports: list[tuple[float, bool]]
) -> None:
    runtime, others = FailingOnce(), Others()
    runtime.stop_seconds = seconds
    began = trio.current_time()
    await make_parts(runtime, others).open_syncer(POD).terminate(POD, ending)
    assert [(at - began, stopped) for at, stopped in others.reports] == reports


async def test_a_stop_that_was_not_seen_is_not_reported(autojump_clock: MockClock) -> None:
    """A call that ended after the listing may have started what that does not show."""
    runtime, others = FailingOnce(), Others()
    runtime.call_lasts_seconds = 1
    await make_parts(runtime, others).open_syncer(POD).terminate(POD, DELETED)
    assert [stopped for _, stopped in others.reports] == [False]


async def test_what_has_ended_is_reported_though_the_stop_failed(
    autojump_clock: MockClock,
) -> None:
    runtime, others = FailingOnce(), Others()
    runtime.stop_failure = RpcError(Code.UNKNOWN, "not now")
    with pytest.raises(UnfinishedError):
        await make_parts(runtime, others).open_syncer(POD).terminate(POD, DELETED)
    assert [stopped for _, stopped in others.reports] == [False]


@pytest.mark.parametrize(
    ("seconds_ago", "causes", "reports"),
    [
        (59, None, 2),
        (60, (PodEvent.DEADLINE_EXCEEDED,), 0),
    ],
)
async def test_a_pod_over_its_deadline_is_not_reported_before_it_fails(
    autojump_clock: MockClock,
    seconds_ago: int,
    causes: tuple[PodEvent, ...] | None,
    reports: int,
) -> None:
    others, limited = Others(), evolve(POD, spec=PodSpec(active_deadline_seconds=60))
    parts = make_parts(Remembering([]), others)
    others.start_time = Time.from_ns(parts.clock.now_ns() - seconds_ago * 1_000_000_000)
    syncer = parts.open_syncer(limited)
    ending = (await syncer.sync(limited)).ending
    assert (ending.causes if ending else None) == causes
    assert len(others.reports) == reports
    if ending is not None:
        await syncer.terminate(limited, ending)
        assert others.failure == Failure(reason="DeadlineExceeded", message=ending.message)


def with_cpus(root: Path, pod: Pod) -> ResourceManagers:
    """Managers that have reserved CPUs for a pod."""
    policy = static_cpu_policy(machine(), CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0)
    managers = managers_of(policy, root)
    assert managers.reserve(pod, lambda _uid: False) is None
    return managers


async def test_exclusive_cpus_are_on_the_disk_before_anything_is_made(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    pod = a_pod("u", "2")
    runtime = Waiting()
    syncer = make_parts(runtime, Others(), managers=with_cpus(tmp_path, pod)).open_syncer(pod)
    assert not (tmp_path / "cpu_manager_state").exists()
    assert not (await syncer.sync(pod)).failed
    assert '"entries":{"u":{"c0":"1,5"}}' in (tmp_path / "cpu_manager_state").read_text()


@pytest.mark.parametrize(("call_lasts_seconds", "left"), [(0, set()), (1, {"u"})])
async def test_exclusive_cpus_are_free_when_a_pod_was_seen_to_have_stopped(
    tmp_path: Path, autojump_clock: MockClock, call_lasts_seconds: float, left: set[str]
) -> None:
    pod, runtime = a_pod("u", "2"), FailingOnce()
    runtime.call_lasts_seconds = call_lasts_seconds
    managers = with_cpus(tmp_path, pod)
    await make_parts(runtime, Others(), managers=managers).open_syncer(pod).terminate(pod, DELETED)
    assert managers.uids() == left


class ReadingTheRecord(Others):
    """Notes with each status that is reported whether the record on the disk has the pod."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.has_cpus: list[bool] = []

    def put(self, pod: Pod, status: PodStatus) -> None:
        self.has_cpus.append(f'"{pod.metadata.uid}":' in self._file.read_text())


async def test_exclusive_cpus_are_free_on_the_disk_before_an_end_is_reported(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    pod, managers = a_pod("u", "2"), with_cpus(tmp_path, a_pod("u", "2"))
    await managers.keep()
    others = ReadingTheRecord(tmp_path / "cpu_manager_state")
    syncer = make_parts(FailingOnce(), others, managers=managers).open_syncer(pod)
    others.put(pod, pod.status)
    await syncer.terminate(pod, DELETED)
    assert others.has_cpus == [True, False]
