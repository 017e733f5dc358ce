"""New pods that wait until the Node object was asked for anew: the sync loop goes on meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.unit.sync.sync_loops import Loop, make_pod, running
from trio_kubelet.k8s import Pod, PodStatus, Time
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.undecided import UndecidedPods

OTHER = make_pod("other")


@define
class ApiServer:
    """Answers when it is told to, or fails."""

    questions: int = 0
    fails: bool = False
    answers: trio.Event = field(factory=trio.Event)

    async def refresh(self) -> None:
        self.questions += 1
        await self.answers.wait()
        if self.fails:
            raise ValueError("no node at all")

    async def answer(self) -> None:
        answers, self.answers = self.answers, trio.Event()
        answers.set()
        await trio.testing.wait_all_tasks_blocked()


def wants_newer_node(pod: Pod) -> bool:
    return pod.metadata.name.startswith("waits")


@asynccontextmanager
async def waiting(*pods: Pod) -> AsyncIterator[tuple[Loop, ApiServer]]:
    """A loop that has been told of these pods."""
    api = ApiServer()
    async with running(undecided=UndecidedPods(wants_newer_node, api.refresh)) as at:
        await at.say(PodOperation.ADD, *pods)
        yield at, api


async def test_others_are_decided_on_while_a_pod_waits_for_the_node(
    autojump_clock: MockClock,
) -> None:
    async with waiting(make_pod("waits")) as (at, api):
        await at.say(PodOperation.ADD, OTHER)
        assert at.heard() == ["admit other beside 0", "sync other i"]
        await api.answer()
        assert at.heard() == ["admit waits beside 1", "sync waits i"]


async def test_thousands_of_pods_share_a_question(autojump_clock: MockClock) -> None:
    async with waiting(make_pod("waits")) as (at, api):
        for number in range(1000):
            await at.say(PodOperation.ADD, make_pod(f"waits-{number}"))
        assert api.questions == 1
        await api.answer()
        assert at.heard() == ["admit waits beside 0", "sync waits i"]
        await trio.sleep(1)
        assert api.questions == 2  # those that came later may know more than the first answer
        await api.answer()
        assert sum(said.startswith("admit") for said in at.heard()) == 1000


async def test_a_pod_is_decided_on_as_it_is_by_then(autojump_clock: MockClock) -> None:
    async with waiting(make_pod("waits")) as (at, api):
        await at.say(PodOperation.UPDATE, make_pod("waits", image="new"))
        await api.answer()
        assert at.heard() == ["admit waits beside 0", "sync waits new"]


async def test_a_pod_that_goes_meanwhile_is_not_decided_on(autojump_clock: MockClock) -> None:
    async with waiting(make_pod("waits")) as (at, api):
        await at.say(PodOperation.REMOVE, make_pod("waits"))
        await api.answer()
        assert at.heard() == []


async def test_a_pod_that_is_deleted_meanwhile_ends(autojump_clock: MockClock) -> None:
    pod = make_pod("waits")
    deleted = evolve(pod, metadata=evolve(pod.metadata, deletion_timestamp=Time.from_ns(1)))
    async with waiting(pod) as (at, api):
        await at.say(PodOperation.DELETE, deleted)
        await api.answer()
        assert at.heard()[0] == "stop waits Deleted"


async def test_what_was_admitted_or_is_to_go_does_not_wait(autojump_clock: MockClock) -> None:
    admitted = evolve(make_pod("waits"), status=PodStatus(phase="Running"))
    leaving = make_pod("waits-not")
    metadata = evolve(leaving.metadata, deletion_timestamp=Time.from_ns(1))
    async with waiting(admitted, evolve(leaving, metadata=metadata)) as (at, api):
        assert api.questions == 0
        assert at.heard()[:2] == ["sync waits i", "stop waits-not Deleted"]


async def test_without_an_answer_pods_are_decided_on_all_the_same(
    autojump_clock: MockClock,
) -> None:
    async with waiting(make_pod("waits")) as (at, api):
        api.fails = True
        await api.answer()
        assert at.heard() == ["admit waits beside 0", "sync waits i"]


async def test_a_pod_that_cannot_be_compared_is_decided_on(autojump_clock: MockClock) -> None:
    def fail(_pod: Pod) -> bool:
        raise ValueError("a label that is no number")

    async with running(undecided=UndecidedPods(fail, trio.sleep_forever)) as at:
        await at.say(PodOperation.ADD, OTHER)
        assert at.heard() == ["admit other beside 0", "sync other i"]
