"""While pods make way for a critical one: who waits for whom, and what is told of it."""

from collections.abc import Iterable

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from tests.unit.sync.admission.pods_and_nodes import make_admission, make_pod
from tests.unit.sync.sync_loops import Loop, running
from trio_kubelet.k8s import Pod, PodStatus
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.admission import Admission, Preemption, Rejection
from trio_kubelet.sync.admission.resource_fit import request
from trio_kubelet.sync.preemptions import Preemptions, longest_wait_seconds

ADMISSION = make_admission()
"""Two CPUs for three pods."""

CRITICAL = 2_000_000_000
PREEMPTED = Ending(causes=(PodEvent.PREEMPTED,))


def asking(name: str, cpu: str, *, priority: int | None = None, grace: int = 30) -> Pod:
    return make_pod(
        name,
        priority=priority,
        terminationGracePeriodSeconds=grace,
        containers=[
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}},
        ],
    )


def synced(at: Loop) -> set[str]:
    """The pods that were synced since somebody asked last."""
    return {line.split()[1] for line in at.heard() if line.startswith("sync ")}


def told(at: Loop, name: str) -> list[tuple[str, str]]:
    """Reason and message of the events about a pod."""
    return [
        (entry.event, entry.cause)
        for entry in at.journal.entries(f"ns/{name}")
        if entry.event in ("Preempting", "WaitingForPreemptedPods", "ExceededGracePeriod")
    ]


HUMBLE = asking("humble", "1500m", grace=3600)
CRITICAL_POD = asking("critical", "1", priority=CRITICAL)


async def test_only_the_critical_pod_waits_for_a_victim_that_takes_an_hour(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 3600}) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        assert synced(at) == {"humble"}
        await at.say(PodOperation.ADD, asking("new", "500m"))
        assert synced(at) == {"new"}
        await trio.sleep(3590)
        assert synced(at) == set()
        await trio.sleep(20)
        assert synced(at) == {"critical"}


async def test_victim_and_waiting_pod_are_told_of_by_events(autojump_clock: MockClock) -> None:
    async with running(admission=ADMISSION) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        assert told(at, "humble") == [("Preempting", "Preempted in order to admit critical pod")]
        assert told(at, "critical") == [
            ("WaitingForPreemptedPods", "Waiting for preempted pods to stop: ns/humble")
        ]
        task = at.tasks.get("uid-humble")
        assert task is not None
        assert task.ending == Ending(
            causes=(PodEvent.PREEMPTED,),
            reason="Preempting",
            message="Preempted in order to admit critical pod",
            disruption="Pod was preempted by Kubelet to accommodate a critical pod.",
            grace_seconds=3600,
        )


async def test_what_a_victim_frees_is_the_critical_pods(autojump_clock: MockClock) -> None:
    async with running(admission=ADMISSION) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await at.say(PodOperation.ADD, asking("greedy", "1500m"))
        await trio.sleep(5)
        assert "sync greedy i" not in at.log
        assert at.store.get("uid-greedy") is not None
        rejected = [entry.event for entry in at.journal.entries("ns/greedy")]
        assert "OutOfcpu" in rejected


async def test_a_pod_that_needs_resources_of_a_victim_waits_for_it_and_is_not_rejected(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 40}) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await at.say(PodOperation.ADD, asking("next", "1"))
        assert synced(at) == {"humble"}
        assert told(at, "next") == [
            ("WaitingForPreemptedPods", "Waiting for preempted pods to stop: ns/humble")
        ]
        await trio.sleep(41)
        assert synced(at) == {"critical", "next"}


async def test_a_port_of_the_host_is_free_when_the_victim_has_stopped(
    autojump_clock: MockClock,
) -> None:
    def with_port(name: str) -> Pod:
        container = {"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}
        return make_pod(name, containers=[container | {"resources": {"requests": {"cpu": "10m"}}}])

    others = asking("one", "20m"), asking("two", "20m")
    async with running(admission=ADMISSION, stop_seconds={"owner": 30}) as at:
        await at.say(PodOperation.ADD, *others, with_port("owner"))
        await at.say(PodOperation.ADD, asking("critical", "10m", priority=CRITICAL))
        assert told(at, "owner")
        await at.say(PodOperation.REMOVE, *others)
        await trio.sleep(5)
        assert synced(at) == {"one", "two", "owner", "critical"}
        await at.say(PodOperation.ADD, with_port("next"))
        assert synced(at) == set()
        await trio.sleep(30)
        assert synced(at) == {"next"}


async def test_resources_that_somebody_else_frees_are_as_good_as_the_victims(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 3600}) as at:
        other = asking("other", "500m")
        await at.say(PodOperation.ADD, HUMBLE, other)
        await at.say(PodOperation.ADD, asking("critical", "500m", priority=CRITICAL))
        assert synced(at) == {"humble", "other"}
        await at.say(PodOperation.REMOVE, other)
        await trio.sleep(5)
        assert synced(at) == {"critical"}


async def test_a_critical_pod_that_goes_while_it_waits_never_starts(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 60}) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await at.say(PodOperation.REMOVE, CRITICAL_POD)
        await trio.sleep(100)
        assert synced(at) == {"humble"}
        assert "uid-critical" not in at.tasks


async def test_a_pod_that_waits_can_be_preempted_and_frees_nothing(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 60}) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        higher = asking("higher", "1500m", priority=CRITICAL + 1000)
        await at.say(PodOperation.ADD, higher)
        await trio.sleep(50)
        assert synced(at) == {"humble"}
        await trio.sleep(20)
        assert synced(at) == {"higher"}


async def test_a_victim_that_cannot_be_killed_is_told_of_and_waited_for_no_longer(
    autojump_clock: MockClock,
) -> None:
    """As by the Go kubelet: after one and a half grace periods, ten seconds at least."""
    victim = asking("humble", "1500m", grace=30)
    async with running(admission=ADMISSION, stop_seconds={"humble": 10_000}) as at:
        await at.say(PodOperation.ADD, victim)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await trio.sleep(44)
        assert synced(at) == {"humble"}
        await trio.sleep(2)
        assert synced(at) == {"critical"}
        message = "Container runtime did not kill the pod within specified grace period."
        assert told(at, "humble")[1:] == [("ExceededGracePeriod", message)]


async def test_a_pod_that_its_wait_for_resources_stumbles_over_is_named_and_the_others_start(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = type(ADMISSION).fits

    def stumble(self: Admission, pod: Pod, others: Iterable[Pod]) -> bool:
        if is_broken and pod.metadata.name == "critical":
            raise RuntimeError("a bug")
        return fits(self, pod, others)

    is_broken = False
    monkeypatch.setattr(type(ADMISSION), "fits", stumble)
    with capture_logs() as logs:
        async with running(admission=ADMISSION, stop_seconds={"humble": 40}) as at:
            await at.say(PodOperation.ADD, HUMBLE)
            await at.say(PodOperation.ADD, CRITICAL_POD)
            await at.say(PodOperation.ADD, asking("next", "1"))
            is_broken = True
            await trio.sleep(50)
            assert synced(at) == {"humble", "next"}
    named = {e["pod"] for e in logs if e["event"] == "start of waiting pod failed"}
    assert named == {"ns/critical"}


async def test_a_bug_while_waiting_pods_are_started_ends_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Preemptions, "start_fitting", stumble)
    async with running(admission=ADMISSION) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await trio.sleep(50)
        await at.say(PodOperation.ADD, asking("new", "500m"))
        assert "new" in synced(at)


async def test_what_ran_before_the_agent_was_started_waits_for_nobody(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION, stop_seconds={"humble": 60}) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        at.heard()
        known = evolve(asking("known", "2"), status=PodStatus(phase="Running"))
        await at.say(PodOperation.ADD, known)
        assert synced(at) == {"known"}


async def test_a_victim_that_comes_back_holds_its_resources_again(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=ADMISSION) as at:
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, CRITICAL_POD)
        await at.say(PodOperation.REMOVE, HUMBLE, CRITICAL_POD)
        await trio.sleep(5)
        await at.say(PodOperation.ADD, HUMBLE)
        await at.say(PodOperation.ADD, asking("next", "1500m"))
        assert "OutOfcpu" in [entry.event for entry in at.journal.entries("ns/next")]


def test_a_victim_that_waits_itself_is_waited_for_by_nobody() -> None:
    preemptions = Preemptions(ADMISSION.fits, lambda _pod: True)
    preemptions.leave(HUMBLE)
    assert preemptions.wait(CRITICAL_POD, [HUMBLE]) is not None
    preemptions.leave(CRITICAL_POD)
    assert preemptions.waited_for() == "ns/humble"


@pytest.mark.parametrize(("grace", "wait"), [(0, 10.0), (1, 10.0), (30, 45.0), (3600, 5400.0)])
def test_the_wait_for_a_preempted_pod_grows_with_its_grace_period(grace: int, wait: float) -> None:
    assert longest_wait_seconds(asking("p", "1", grace=grace), PREEMPTED) == wait


def test_of_many_preempted_pods_an_event_names_some() -> None:
    preemptions = Preemptions(lambda _pod, _others: False, lambda _pod: True)
    for number in range(7):
        preemptions.leave(make_pod(f"p{number}"))
    assert preemptions.waited_for() == "ns/p0, ns/p1, ns/p2, ns/p3, ns/p4 and 2 more"


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from(["0", "300m", "700m", "1", "1500m"]),
            st.sampled_from([None, None, CRITICAL, CRITICAL + 1000]),
        ),
        st.tuples(st.sampled_from(["stop", "remove"]), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


@given(steps)
def test_what_runs_always_fits_and_nobody_waits_for_ever(
    steps: list[tuple[str, str | int, int | None]],
) -> None:
    node = _Node()
    for number, (step, what, priority) in enumerate(steps):
        if step == "add":
            node.add(asking(f"p{number}", str(what), priority=priority))
        elif step == "stop" and node.ending:
            node.stop(sorted(node.ending)[int(what) % len(node.ending)])
        elif step == "remove" and node.admitted:
            node.remove(sorted(node.admitted)[int(what) % len(node.admitted)])
        node.check()
    for uid in sorted(node.ending):
        node.stop(uid)
    assert not node.waiting
    node.check()


class _Node:
    """What the sync loop does with `Preemptions`, without tasks."""

    def __init__(self) -> None:
        self.preemptions = Preemptions(ADMISSION.fits, lambda _pod: True)
        self.admitted: dict[str, Pod] = {}
        self.ending: dict[str, Pod] = {}
        self.waiting: dict[str, trio.Event] = {}

    def add(self, pod: Pod) -> None:
        verdict = ADMISSION(pod, self.preemptions.staying(self.admitted.values()))
        if isinstance(verdict, Rejection):
            return
        if isinstance(verdict, Preemption):
            for victim in verdict.victims:
                uid = victim.metadata.uid
                self.preemptions.leave(victim)
                if uid in self.waiting:
                    del self.waiting[uid], self.admitted[uid]
                    self.preemptions.finished(uid)
                else:
                    self.ending[uid] = victim
        event = self.preemptions.wait(pod, self.admitted.values())
        fits = ADMISSION.fits(pod, self.running())
        assert (event is None) == fits
        self.admitted[pod.metadata.uid] = pod
        if event is not None:
            self.waiting[pod.metadata.uid] = event

    def stop(self, uid: str) -> None:
        del self.ending[uid]
        self.preemptions.stopped(uid)
        self.start_fitting()
        self.remove(uid)

    def remove(self, uid: str) -> None:
        if uid in self.ending:
            return
        del self.admitted[uid]
        self.waiting.pop(uid, None)
        self.preemptions.finished(uid)
        self.start_fitting()

    def start_fitting(self) -> None:
        self.preemptions.start_fitting(self.admitted.values())
        self.waiting = {uid: event for uid, event in self.waiting.items() if not event.is_set()}

    def running(self) -> list[Pod]:
        return [pod for uid, pod in self.admitted.items() if uid not in self.waiting]

    def check(self) -> None:
        for resource, limit in {"cpu": 2000, "pods": 3}.items():
            assert sum(request(pod, resource) for pod in self.running()) <= limit


async def test_a_pod_waits_for_what_one_that_ends_still_holds_and_is_not_rejected(
    autojump_clock: MockClock,
) -> None:
    old, new = asking("old", "1500m"), asking("new", "1500m")
    large = asking("large", "1900m")
    async with running(admission=ADMISSION, stop_seconds={"old": 20}) as at:
        await at.say(PodOperation.ADD, old)
        await at.say(PodOperation.DELETE, old)
        await at.say(PodOperation.ADD, new, asking("small", "400m"))
        await at.say(PodOperation.ADD, large)
        await trio.sleep(10)
        heard = at.heard()
        assert "sync small i" in heard
        assert "sync new i" not in heard
        assert "stop new Rejected" not in heard
        assert "stop large Rejected" in heard
        assert [e.cause for e in at.journal.entries("ns/new") if e.event.startswith("Waiting")] == [
            "Waiting for ending pods to stop: ns/old"
        ]
        await trio.sleep(15)
        assert "sync new i" in at.heard()


async def test_no_pod_waits_for_one_that_hangs_longer_than_its_grace_lets_expect(
    autojump_clock: MockClock,
) -> None:
    old, new = asking("old", "1500m", grace=100), asking("new", "1500m")
    async with running(admission=ADMISSION, stop_seconds={"old": 3600}) as at:
        await at.say(PodOperation.ADD, old)
        await at.say(PodOperation.DELETE, old)
        await at.say(PodOperation.ADD, new)
        await trio.sleep(140)
        assert "sync new i" not in at.heard()
        await trio.sleep(20)
        assert "sync new i" in at.heard()
        assert told(at, "old") == []


async def test_a_pod_that_comes_back_under_its_uid_gives_nothing_up(
    autojump_clock: MockClock,
) -> None:
    old = asking("old", "1500m")
    async with running(admission=ADMISSION, stop_seconds={"old": 20}) as at:
        await at.say(PodOperation.ADD, old)
        await at.say(PodOperation.REMOVE, old)
        await at.say(PodOperation.ADD, old)
        await at.say(PodOperation.ADD, asking("new", "1500m"))
        await trio.sleep(5)
        assert "stop new Rejected" in at.heard()
