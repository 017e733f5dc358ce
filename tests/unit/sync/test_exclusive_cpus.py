"""Admission with exclusive CPUs: who is given them, who waits for them, and who is rejected."""

import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pod import PodState
from tests.unit.resource_managers.machines import SMALL, machine, managers_of
from tests.unit.resource_managers.pods import a_pod
from tests.unit.sync.admission.pods_and_nodes import make_admission
from tests.unit.sync.sync_loops import Loop, running
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import OwnerReference, Pod, PodPhase, Quantity, Time
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.sources import PodOperation, Source
from trio_kubelet.sync.housekeeping import ORPHAN_ENDING, FoundPod, orphaned_pod

ADMISSION = evolve(
    make_admission(), allocatable=lambda: {"cpu": Quantity("6"), "memory": Quantity("64Gi")}
)
CRITICAL = 2_000_000_000


def full_cores() -> ResourceManagers:
    """Four cores of two CPUs, one of them reserved, the others given away whole."""
    policy = static_cpu_policy(
        machine(SMALL),
        CpuPolicyOptions(full_pcpus_only=True),
        reserved_cpus="0,4",
        reserved_milli=0,
    )
    return managers_of(policy)


def cpus(managers: ResourceManagers, name: str) -> str:
    return managers.placement(name, "c0").cpuset_cpus


def told(at: Loop, name: str) -> list[tuple[str, str]]:
    return [
        (entry.event, entry.cause)
        for entry in at.journal.entries(f"ns/{name}")
        if entry.kind == "event"
    ]


def owned(pod: Pod) -> Pod:
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="r")
    owners = (evolve(owner, controller=True),)
    return evolve(pod, metadata=evolve(pod.metadata, owner_references=owners))


async def test_cpus_are_given_at_admission_and_taken_back_when_the_pod_has_stopped(
    autojump_clock: MockClock,
) -> None:
    managers = full_cores()
    async with running(admission=ADMISSION, managers=managers, stop_seconds={"a": 30}) as at:
        await at.say(PodOperation.ADD, a_pod("a", "4"), a_pod("b", "2"))
        assert (cpus(managers, "a"), cpus(managers, "b")) == ("1-2,5-6", "3,7")
        await at.say(PodOperation.REMOVE, a_pod("a", "4"))
        await trio.sleep(29)
        assert cpus(managers, "a") == "1-2,5-6"
        await trio.sleep(2)
        assert managers.uids() == {"b"}


async def test_a_pod_that_cannot_have_its_cpus_fails_with_the_reason_and_holds_nothing(
    autojump_clock: MockClock,
) -> None:
    managers = full_cores()
    async with running(admission=ADMISSION, managers=managers) as at:
        await at.say(PodOperation.ADD, a_pod("odd", "3"))
        assert told(at, "odd") == [
            (
                "SMTAlignmentError",
                "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
            )
        ]
        stored = at.store.get("odd")
        assert stored is not None
        assert not stored.admitted
        assert managers.uids() == set()
        await at.say(PodOperation.ADD, a_pod("next", "6"))
        assert told(at, "next") == []


async def test_of_many_pods_of_a_controller_the_rejections_are_paced(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, managers=full_cores()) as at:
        names = ["p0", "p1", "p2"]
        await at.say(PodOperation.ADD, *(owned(a_pod(name, "3")) for name in names))
        assert [bool(told(at, name)) for name in names] == [True, False, False]
        await trio.sleep(1.5)
        assert [bool(told(at, name)) for name in names] == [True, True, False]
        await trio.sleep(2)
        assert [bool(told(at, name)) for name in names] == [True, True, True]


async def test_a_critical_pod_is_given_the_cpus_of_its_victim_when_that_has_stopped(
    autojump_clock: MockClock,
) -> None:
    managers, victim = full_cores(), a_pod("victim", "6")
    critical = a_pod("critical", "4")
    critical = evolve(critical, spec=evolve(critical.spec, priority=CRITICAL))
    async with running(admission=ADMISSION, managers=managers, stop_seconds={"victim": 5}) as at:
        await at.say(PodOperation.ADD, victim)
        await at.say(PodOperation.ADD, critical)
        assert managers.uids() == {"victim"}
        await trio.sleep(6)
        assert managers.uids() == {"critical"}
        assert "sync critical i" in at.log


async def test_a_pod_that_waited_in_vain_is_rejected_when_its_turn_comes(
    autojump_clock: MockClock,
) -> None:
    managers, victim = full_cores(), a_pod("victim", "6")
    critical = a_pod("critical", "3")
    critical = evolve(critical, spec=evolve(critical.spec, priority=CRITICAL))
    async with running(admission=ADMISSION, managers=managers, stop_seconds={"victim": 5}) as at:
        await at.say(PodOperation.ADD, victim)
        await at.say(PodOperation.ADD, critical)
        await trio.sleep(6)
        assert told(at, "critical")[-1][0] == "SMTAlignmentError"
        assert "sync critical i" not in at.log
        stored = at.store.get("critical")
        assert stored is not None
        assert not stored.admitted


async def test_a_pod_that_was_admitted_before_is_never_rejected_for_cpus(
    autojump_clock: MockClock,
) -> None:
    managers, old = full_cores(), a_pod("old", "3")
    old = evolve(old, status=evolve(old.status, start_time=Time.parse("2026-03-01T12:00:00Z")))
    async with running(admission=ADMISSION, managers=managers) as at:
        await at.say(PodOperation.ADD, old)
        assert told(at, "old") == []
        assert "sync old i" in at.log
        assert cpus(managers, "old") == cpus(managers, "others")


async def test_what_a_pod_has_that_is_over_is_given_to_the_next_of_the_same_update(
    autojump_clock: MockClock,
) -> None:
    managers, over = full_cores(), a_pod("over", "6")
    managers.reserve(over, lambda _uid: False)
    over = evolve(over, status=evolve(over.status, phase=PodPhase.SUCCEEDED))
    async with running(admission=ADMISSION, managers=managers) as at:
        await at.say(PodOperation.ADD, a_pod("next", "6"), over)
        assert managers.uids() == {"next"}
        assert told(at, "next") == []


async def test_what_a_pod_has_that_went_while_no_agent_ran_is_given_to_the_next(
    autojump_clock: MockClock,
) -> None:
    managers = full_cores()
    managers.reserve(a_pod("gone", "6"), lambda _uid: False)
    async with running(admission=ADMISSION, managers=managers) as at:
        await at.say(PodOperation.ADD, a_pod("next", "6"))
        assert managers.uids() == {"next"}
        assert told(at, "next") == []


async def test_what_a_pod_that_went_has_is_given_to_the_next_when_all_sources_have_told(
    autojump_clock: MockClock,
) -> None:
    managers, sources = full_cores(), (Source.FILE, Source.API)
    managers.reserve(a_pod("gone", "6"), lambda _uid: False)
    async with running(admission=ADMISSION, managers=managers, sources=sources) as at:
        await at.say(PodOperation.ADD, a_pod("next", "6"))
        assert managers.uids() == {"gone"}
        await at.say(PodOperation.ADD, source=Source.API)
        assert managers.uids() == {"next"}
        assert told(at, "next") == []
        assert "sync next i" in at.log


async def test_what_a_pod_has_of_the_source_that_tells_last_stays_its_own(
    autojump_clock: MockClock,
) -> None:
    managers, sources = full_cores(), (Source.FILE, Source.API)
    crashing = a_pod("crashing", "6")
    managers.reserve(crashing, lambda _uid: False)
    began = Time.parse("2026-03-01T12:00:00Z")
    crashing = evolve(crashing, status=evolve(crashing.status, start_time=began))
    async with running(admission=ADMISSION, managers=managers, sources=sources) as at:
        await at.say(PodOperation.ADD, a_pod("next", "6"))
        await at.say(PodOperation.ADD, crashing, source=Source.API)
        assert managers.uids() == {"crashing"}
        assert [reason for reason, _ in told(at, "next")] == ["OutOfcpu"]


async def test_a_pod_that_goes_while_it_waits_for_the_sources_is_given_nothing(
    autojump_clock: MockClock,
) -> None:
    managers, sources = full_cores(), (Source.FILE, Source.API)
    managers.reserve(a_pod("gone", "6"), lambda _uid: False)
    async with running(admission=ADMISSION, managers=managers, sources=sources) as at:
        await at.say(PodOperation.ADD, a_pod("next", "6"))
        await at.say(PodOperation.REMOVE, a_pod("next", "6"))
        await at.say(PodOperation.ADD, source=Source.API)
        assert managers.uids() == {"gone"}
        assert "sync next i" not in at.log


async def test_a_pod_whose_removed_predecessor_is_stopping_is_given_its_cpus_after_that(
    autojump_clock: MockClock,
) -> None:
    managers = full_cores()
    async with running(admission=ADMISSION, managers=managers, stop_seconds={"old": 30}) as at:
        await at.say(PodOperation.ADD, a_pod("old", "6"))
        await at.say(PodOperation.REMOVE, a_pod("old", "6"))
        await at.say(PodOperation.ADD, a_pod("new", "6"))
        await trio.sleep(29)
        assert managers.uids() == {"old"}
        assert told(at, "new") == [
            ("WaitingForEndingPods", "Waiting for ending pods to stop: ns/old")
        ]
        assert "sync new i" not in at.log
        await trio.sleep(2)
        assert managers.uids() == {"new"}
        assert "sync new i" in at.log


async def test_cpus_are_given_to_the_next_pod_before_what_is_left_of_the_last_is_removed(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, managers=full_cores()) as at:
        await at.say(PodOperation.ADD, a_pod("old", "6"))
        with at.activity.busy():
            await at.say(PodOperation.REMOVE, a_pod("old", "6"))
            await at.say(PodOperation.ADD, a_pod("new", "6"))
            await trio.sleep(2)
            assert "clean old" not in at.log
            assert "sync new i" in at.log


async def test_a_pod_is_given_cpus_of_one_that_was_removed_while_no_agent_ran_when_that_has_stopped(
    autojump_clock: MockClock,
) -> None:
    managers = full_cores()
    managers.reserve(a_pod("old", "6"), lambda _uid: False)
    async with running(admission=ADMISSION, managers=managers, runs="old") as at:
        await at.say(PodOperation.ADD, a_pod("new", "6"))
        assert told(at, "new") == [
            ("WaitingForEndingPods", "Waiting for ending pods to stop: pod with UID old")
        ]
        orphan = orphaned_pod(FoundPod(uid="old"))
        at.tasks.start(orphan, 0, state=PodState.TERMINATING, ending=ORPHAN_ENDING)
        await trio.sleep(2)
        assert managers.uids() == {"new"}
        assert "sync new i" in at.log


async def test_a_pod_waits_for_all_that_leave_and_is_rejected_if_their_cpus_do_not_suit_it(
    autojump_clock: MockClock,
) -> None:
    managers, stops = full_cores(), {"a": 5, "b": 10}
    async with running(admission=ADMISSION, managers=managers, stop_seconds=stops) as at:
        await at.say(PodOperation.ADD, a_pod("a", "2"), a_pod("b", "4"))
        await at.say(PodOperation.REMOVE, a_pod("a", "2"), a_pod("b", "4"))
        await at.say(PodOperation.ADD, a_pod("odd", "3"))
        await trio.sleep(6)
        assert [reason for reason, _ in told(at, "odd")] == ["WaitingForEndingPods"]
        await trio.sleep(5)
        assert told(at, "odd")[-1][0] == "SMTAlignmentError"
        assert managers.uids() == set()


async def test_a_pod_that_goes_while_it_waits_for_cpus_is_given_none(
    autojump_clock: MockClock,
) -> None:
    managers, stops = full_cores(), {"old": 5, "new": 10}
    async with running(admission=ADMISSION, managers=managers, stop_seconds=stops) as at:
        await at.say(PodOperation.ADD, a_pod("old", "6"))
        await at.say(PodOperation.REMOVE, a_pod("old", "6"))
        await at.say(PodOperation.ADD, a_pod("new", "6"))
        await at.say(PodOperation.REMOVE, a_pod("new", "6"))
        await trio.sleep(6)
        assert managers.uids() == set()
        assert "sync new i" not in at.log
