"""The stream of events where it is peculiar: backlog, bounds, defects on demand, outages."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.unit.hollow.conftest import Simulated, simulate
from trio_kubelet.hollow import records
from trio_kubelet.hollow.images import ImageStore
from trio_kubelet.hollow.records import container_status
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

STREAM = cri.RuntimeServiceStub.get_container_events
REQUEST = cri.GetEventsRequest()
CREATED, STARTED = "CONTAINER_CREATED_EVENT", "CONTAINER_STARTED_EVENT"


async def waiting(stream: AsyncIterator[cri.ContainerEventResponse]) -> list[str]:
    """The kinds of all events that have arrived."""
    kinds: list[str] = []
    with trio.move_on_after(1):
        async for event in stream:
            kinds += [cri.ContainerEventType(event.container_event_type).name or ""]
    return kinds


def transport(node: Simulated) -> InProcess:
    return InProcess(node.runtime)


async def test_events_wait_five_minutes_for_somebody_who_listens(autojump_clock: MockClock) -> None:
    async with simulate() as node:
        await node.run_pod("old")
        await trio.sleep(301)
        await node.run_pod("new")
        async with transport(node).stream(STREAM, REQUEST) as stream:
            assert await waiting(stream) == [CREATED, STARTED]
        async with transport(node).stream(STREAM, REQUEST) as stream:
            assert await waiting(stream) == []


async def test_a_full_buffer_loses_the_newest_for_that_listener_only(
    autojump_clock: MockClock,
) -> None:
    async with simulate(event_buffer=3) as node:
        slow = node.runtime.events.listen(REQUEST)
        async with transport(node).stream(STREAM, REQUEST) as quick, trio.open_nursery() as nursery:
            nursery.start_soon(anext, slow)
            await trio.testing.wait_all_tasks_blocked()
            heard = []
            for name in "abc":
                await node.run_pod(name)
                heard += await waiting(quick)
        await slow.aclose()
        assert heard == [CREATED, STARTED] * 3
        assert node.runtime.events.lost == 2


async def test_an_event_makes_anew_the_status_of_the_container_that_has_changed_only(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(container: records.HollowContainer, images: ImageStore) -> cri.ContainerStatus:
        made.append(container.config.metadata.name)
        return container_status(container, images)

    monkeypatch.setattr(records, "container_status", counted)
    async with simulate() as node:
        pod = await node.run_pod()
        for number in range(5):
            await node.start(await node.create(pod, "sleep", "60", name=f"c{number}"))
        assert made == [f"c{number}" for number in range(5) for _ in range(2)]
        async with transport(node).stream(STREAM, REQUEST) as stream:
            async for event in stream:
                if len(event.containers_statuses) == 5:
                    break
            created = [each.started_at == 0 for each in event.containers_statuses]
            assert created == [False] * 4 + [True]


async def test_listeners_may_be_made_to_share_one_channel(autojump_clock: MockClock) -> None:
    async with simulate(share_event_channel=True) as node:
        one, other = transport(node), transport(node)
        async with one.stream(STREAM, REQUEST) as first, other.stream(STREAM, REQUEST) as second:
            await trio.testing.wait_all_tasks_blocked()
            await node.run_pod()
            assert sorted([await waiting(first), await waiting(second)]) == [[CREATED], [STARTED]]


async def test_events_may_be_made_to_get_lost(autojump_clock: MockClock) -> None:
    async with simulate(event_loss=1.0) as node:
        await node.run_pod()
        async with transport(node).stream(STREAM, REQUEST) as stream:
            assert await waiting(stream) == []
        assert node.runtime.events.lost == 2


async def test_a_runtime_may_lack_events(autojump_clock: MockClock) -> None:
    async with simulate(has_events=False) as node:
        with pytest.raises(RpcError) as raised:
            async with transport(node).stream(STREAM, REQUEST) as stream:
                await waiting(stream)
        assert raised.value.code is Code.UNIMPLEMENTED


async def test_an_outage_ends_the_stream_and_a_new_one_can_be_opened(
    autojump_clock: MockClock,
) -> None:
    async with simulate() as node:
        async with transport(node).stream(STREAM, REQUEST) as stream:
            await trio.testing.wait_all_tasks_blocked()
            node.runtime.go_down()
            with pytest.raises(RpcError) as raised:
                await waiting(stream)
        assert raised.value.code is Code.UNAVAILABLE
        with pytest.raises(RpcError) as raised:
            async with transport(node).stream(STREAM, REQUEST) as stream:
                await waiting(stream)
        assert raised.value.code is Code.UNAVAILABLE
        node.runtime.come_back()
        async with transport(node).stream(STREAM, REQUEST) as stream:
            await trio.testing.wait_all_tasks_blocked()
            await node.run_pod()
            assert await waiting(stream) == [CREATED, STARTED]
