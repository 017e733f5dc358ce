"""The handlers of the sync loop: what a source says, and what becomes of it."""

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs
from trio.testing import MockClock

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from state_machines.probe import ProbeKind, Verdict
from tests.unit.sync.admission.pods_and_nodes import make_admission
from tests.unit.sync.admission.pods_and_nodes import make_pod as pod_asking
from tests.unit.sync.sync_loops import UP, make_pod, running
from trio_kubelet.k8s import (
    ContainerStatus,
    Pod,
    PodCondition,
    PodReadinessGate,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Time,
)
from trio_kubelet.pleg import PodChange
from trio_kubelet.probes import ProbeChange
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.sources import PodOperation, PodUpdate, Source
from trio_kubelet.sync.store import PodStore, StoredPod

A, B = make_pod("a"), make_pod("b")


async def test_pods_that_come_together_are_admitted_by_priority_and_static_ones_before_others(
    autojump_clock: MockClock,
) -> None:
    pods = (
        pod_asking("other"),
        pod_asking("static", static=True),
        pod_asking("cluster", priority=2_000_000_000),
        pod_asking("node", static=True, priorityClassName="system-node-critical"),
        pod_asking("humble", priority=-1),
    )
    async with running() as at:
        await at.say(PodOperation.ADD, *pods)
        admitted = [line.split()[1] for line in at.heard() if line.startswith("admit")]
    assert admitted == ["node", "cluster", "static", "other", "humble"]


async def test_pods_that_come_together_are_admitted_in_order_of_creation(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        old, new = make_pod("z", created=1), make_pod("a", created=2)
        await at.say(PodOperation.ADD, new, old)
        admitted = [line for line in at.heard() if line.startswith("admit")]
        assert admitted == ["admit z beside 0", "admit a beside 1"]


async def test_of_pods_that_come_together_the_first_begin_while_others_are_admitted(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, *(make_pod(f"{each:02}") for each in range(20)))
        heard = at.heard()
        assert heard.index("sync 00 i") < heard.index("admit 19 beside 19")


async def test_a_changed_pod_is_synced_with_its_new_spec(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.UPDATE, make_pod("a", image="new"))
        assert at.heard() == ["admit a beside 0", "sync a i", "sync a new"]


async def test_a_status_that_differs_is_no_reason_to_sync(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        at.heard()
        await at.say(PodOperation.RECONCILE, A)
        await at.say(PodOperation.RECONCILE, evolve(A, status=PodStatus(phase="Running")))
        assert at.heard() == []


async def test_a_pod_that_others_end_looks_at_once(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        at.heard()
        await at.say(PodOperation.RECONCILE, evolve(A, status=PodStatus(phase="Failed")))
        assert at.heard() == ["sync a i"]


async def test_a_readiness_gate_that_opens_makes_the_pod_look(autojump_clock: MockClock) -> None:
    def gated(status: str) -> Pod:
        opened = PodCondition(type="x/gate", status=status)
        gate = PodReadinessGate(condition_type="x/gate")
        spec = evolve(A.spec, readiness_gates=(gate,))
        return evolve(A, spec=spec, status=PodStatus(conditions=(opened,)))

    async with running() as at:
        await at.say(PodOperation.ADD, gated("False"))
        await at.say(PodOperation.RECONCILE, gated("True"))
        await at.say(PodOperation.RECONCILE, gated("True"))
        assert at.heard() == ["admit a beside 0", "sync a i", "sync a i"]


async def test_what_was_kept_of_a_pod_goes_when_its_source_lets_it_go(
    autojump_clock: MockClock,
) -> None:
    async with running(reject="a") as at:
        await at.say(PodOperation.ADD, A)
        await trio.sleep(5)
        at.heard()
        await at.say(PodOperation.REMOVE, A)
        assert at.heard() == ["let go a", "clean a"]
        assert "uid-a" not in at.tasks


async def test_a_removed_pod_is_stopped_and_discarded(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.REMOVE, A)
        await trio.sleep(2)
        assert at.heard()[2:] == ["stop a Removed", "release a", "let go a", "clean a"]
        assert "uid-a" not in at.store
        assert "uid-a" not in at.tasks


async def test_a_uid_that_comes_back_waits_for_the_end_of_the_former(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.REMOVE, A)
        await at.say(PodOperation.ADD, make_pod("a", image="again"))
        at.heard()
        await trio.sleep(2)
        assert at.heard() == [
            "release a",
            "let go a",
            "leave remains of a",
            "admit a beside 0",
            "sync a again",
        ]


async def test_a_uid_that_comes_back_waits_for_no_lull_and_goes_on_from_its_remains(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        with at.activity.busy():
            await at.say(PodOperation.REMOVE, A)
            await trio.sleep(5)
            assert at.heard()[2:] == ["stop a Removed", "release a", "let go a"]
            await at.say(PodOperation.ADD, make_pod("a", image="again"))
            assert at.heard() == ["leave remains of a", "admit a beside 0", "sync a again"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
async def test_what_may_not_run_again_after_its_end_begins_without_remains(
    autojump_clock: MockClock, policy: str
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.REMOVE, A)
        await at.say(PodOperation.ADD, evolve(A, spec=evolve(A.spec, restart_policy=policy)))
        await trio.sleep(2)
        assert "clean a" in at.heard()


async def test_a_uid_that_comes_back_and_goes_again_never_starts(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.REMOVE, A)
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.REMOVE, A)
        at.heard()
        await trio.sleep(5)
        assert at.heard() == ["release a", "let go a", "clean a"]


async def test_a_uid_that_a_second_source_adds_replaces_the_first(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.ADD, make_pod("a", image="other"), source=Source.HTTP)
        await trio.sleep(2)
        assert at.heard()[-1] == "sync a other"


async def test_the_first_source_has_no_say_any_more_in_a_uid_that_another_took(
    autojump_clock: MockClock,
) -> None:
    def of(source: Source, image: str) -> Pod:
        pod = make_pod("a", image=image)
        marks = {"kubernetes.io/config.source": str(source)}
        return evolve(pod, metadata=evolve(pod.metadata, annotations=marks))

    async with running() as at:
        await at.say(PodOperation.ADD, of(Source.FILE, "i"))
        await at.say(PodOperation.ADD, of(Source.HTTP, "other"), source=Source.HTTP)
        await trio.sleep(2)
        at.heard()
        await at.say(PodOperation.UPDATE, of(Source.FILE, "changed"))
        await at.say(PodOperation.REMOVE, of(Source.FILE, "changed"))
        await trio.sleep(2)
        assert at.heard() == []
        await at.say(PodOperation.REMOVE, of(Source.HTTP, "other"), source=Source.HTTP)
        await trio.sleep(2)
        assert at.heard() == ["stop a Removed", "release a", "let go a", "clean a"]


async def test_a_rejected_pod_ends_and_holds_nothing(autojump_clock: MockClock) -> None:
    async with running(reject="a") as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.ADD, B)
        await trio.sleep(2)
        heard = at.heard()
        assert "stop a Rejected" in heard
        assert "sync a i" not in heard
        assert "admit b beside 0" in heard


async def test_what_was_admitted_once_is_not_asked_again_and_comes_first(
    autojump_clock: MockClock,
) -> None:
    known = evolve(B, status=PodStatus(phase="Running"))
    async with running(runs="uid-c") as at:
        await at.say(PodOperation.ADD, A, known, make_pod("c"))
        assert sorted(at.heard()) == ["admit a beside 2", "sync a i", "sync b i", "sync c i"]


async def test_a_pod_that_is_over_is_not_decided_again(autojump_clock: MockClock) -> None:
    async with running(reject="a") as at:
        await at.say(PodOperation.ADD, evolve(A, status=PodStatus(phase="Failed")))
        assert at.heard() == ["sync a i"]


async def test_each_pod_that_comes_takes_one_round_of_the_event_loop(
    mock_clock: MockClock,
) -> None:
    """Where rounds are long, as hundreds of pods are busy, others wait behind them for so many."""
    many = [make_pod(f"p{number}") for number in range(10)]

    rounds = 0
    async with running() as at:
        for pod in many:
            update = PodUpdate(op=PodOperation.ADD, pods=(pod,), source=Source.API)
            at.config.send_nowait(update)
        while len(at.store) < len(many):
            rounds += 1
            await trio.lowlevel.checkpoint()
    assert rounds <= len(many) + 2


async def test_a_deletion_carries_its_grace_period(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        deleted = evolve(
            A,
            metadata=evolve(
                A.metadata,
                deletion_timestamp=Time.from_ns(10**9),
                deletion_grace_period_seconds=5,
            ),
        )
        await at.say(PodOperation.DELETE, deleted)
        task = at.tasks.get("uid-a")
        assert task is not None
        assert task.ending is not None
        assert (task.ending.cause, task.ending.grace_seconds) == (PodEvent.DELETED, 5)


async def test_a_pod_that_is_over_is_not_started_by_a_late_update(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        at.loop.end("uid-a", Ending(causes=(PodEvent.PREEMPTED,), reason="Preempting"))
        await trio.sleep(2)
        at.heard()
        await at.say(PodOperation.UPDATE, make_pod("a", image="late"))
        await trio.sleep(2)
        assert at.heard() == []


async def test_who_waits_for_a_preemption_is_answered(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        gone, unknown = trio.Event(), trio.Event()
        at.loop.end("uid-a", Ending(causes=(PodEvent.PREEMPTED,)), gone)
        at.loop.end("nobody", Ending(causes=(PodEvent.PREEMPTED,)), unknown)
        assert unknown.is_set()
        await gone.wait()


async def test_a_change_in_the_runtime_makes_the_pod_look(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A)
        at.heard()
        await at.pleg.send(PodChange(uid="uid-a", kind="event"))
        await at.pleg.send(PodChange(uid="unknown", kind="event"))
        await trio.testing.wait_all_tasks_blocked()
        assert at.heard() == ["sync a i"]


async def test_what_a_probe_says_is_reported_at_once_and_makes_the_pod_look(
    autojump_clock: MockClock,
) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, make_pod("a"))
        at.heard()
        change = ProbeChange(uid="uid-a", kind=ProbeKind.READINESS, verdict=Verdict.SUCCESS)
        await at.probes.send(change)
        await trio.testing.wait_all_tasks_blocked()
        assert at.heard() == ["report a", "sync a i"]
        await at.probes.send(evolve(change, uid="gone"))
        await trio.testing.wait_all_tasks_blocked()
        assert at.heard() == []


async def test_while_the_runtime_is_down_nothing_is_started_and_nothing_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with running(up=False) as at:
        await at.say(PodOperation.ADD, A)
        await trio.sleep(100)
        assert at.heard() == []
        at.runtime_health.update(UP)
        await trio.testing.wait_all_tasks_blocked()
        assert at.heard() == ["admit a beside 0", "sync a i"]


async def test_when_the_runtime_is_back_every_pod_looks(autojump_clock: MockClock) -> None:
    async with running() as at:
        await at.say(PodOperation.ADD, A, B)
        at.heard()
        at.runtime_health.mark_down("gone")
        at.runtime_health.update(UP)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(at.heard()) == ["sync a i", "sync b i"]


async def test_housekeeping_begins_when_every_source_has_spoken(autojump_clock: MockClock) -> None:
    rounds: list[float] = []

    async def clean_up() -> None:
        rounds.append(trio.current_time())

    async with running(sources=(Source.FILE, Source.API), clean_up=clean_up) as at:
        await at.say(PodOperation.ADD, source=Source.FILE)
        await trio.sleep(60)
        assert rounds == []
        await at.say(PodOperation.ADD, source=Source.API)
        await trio.sleep(5)
        assert rounds


async def test_a_pod_holds_what_it_was_allocated_whatever_its_spec_says_since(
    autojump_clock: MockClock,
) -> None:
    def asking(name: str, cpu: str) -> Pod:
        return pod_asking(name, requests={"cpu": cpu})

    async with running(admission=make_admission()) as at:  # two CPUs
        await at.say(PodOperation.ADD, asking("a", "1"))
        await at.say(PodOperation.UPDATE, asking("a", "2900m"))
        await at.say(PodOperation.ADD, asking("fits", "500m"))
        await at.say(PodOperation.ADD, asking("large", "600m"))
        await trio.sleep(2)
        heard = at.heard()
        assert "stop fits Rejected" not in heard
        assert "stop large Rejected" in heard


async def test_a_pod_that_ran_before_and_has_no_record_holds_what_its_status_says(
    autojump_clock: MockClock,
) -> None:
    resized = pod_asking("a", requests={"cpu": "2900m"})
    given = ResourceRequirements(requests={"cpu": Quantity("1")})
    told = ContainerStatus(
        name=resized.spec.containers[0].name, resources=given, allocated_resources=given.requests
    )
    resized = evolve(resized, status=PodStatus(container_statuses=(told,)))
    async with running(admission=make_admission(), runs=resized.metadata.uid) as at:  # two CPUs
        await at.say(PodOperation.ADD, resized)
        await at.say(PodOperation.ADD, pod_asking("fits", requests={"cpu": "500m"}))
        await trio.sleep(2)
        assert "stop fits Rejected" not in at.heard()


async def test_a_pod_that_a_handler_stumbles_over_is_named_and_the_others_go_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = PodStore.add

    def stumble(self: PodStore, pod: Pod, now: float) -> StoredPod:
        if pod.metadata.name == "bad":
            raise RuntimeError("a bug")
        return add(self, pod, now)

    monkeypatch.setattr(PodStore, "add", stumble)
    with capture_logs() as logs:
        async with running() as at:
            await at.say(PodOperation.ADD, make_pod("bad"), make_pod("good"))
            assert "sync good i" in at.heard()
    assert [e["pod"] for e in logs if e["event"] == "sync loop handler failed"] == ["ns/bad"]


async def test_a_pod_that_its_second_start_stumbles_over_is_named_and_the_others_go_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(self: Allocations, pod: Pod, *, was_admitted: bool = False) -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        async with running() as at:
            await at.say(PodOperation.ADD, A)
            await at.say(PodOperation.REMOVE, A)
            await at.say(PodOperation.ADD, A)
            with monkeypatch.context() as patch:
                patch.setattr(Allocations, "allocate", stumble)
                await trio.sleep(5)
            await at.say(PodOperation.ADD, B)
            assert "sync b i" in at.heard()
    assert [e["pod"] for e in logs if e["event"] == "sync loop handler failed"] == ["ns/a"]


async def test_a_pod_whose_end_somebody_stumbles_over_is_named_and_the_others_go_on(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []

    def stumble(uid: str, incarnation: int) -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        async with running() as at:
            at.tasks.on_finished.add(stumble)
            at.tasks.on_finished.add(lambda uid, _: told.append(uid))
            await at.say(PodOperation.ADD, A, B)
            await at.say(PodOperation.REMOVE, A)
            await trio.sleep(5)
            await at.say(PodOperation.UPDATE, make_pod("b", image="new"))
            assert "sync b new" in at.heard()
    assert told == ["uid-a"]
    named = [e["pod"] for e in logs if e["event"] == "pod cleanup after its end failed"]
    assert named == ["ns/a"]
