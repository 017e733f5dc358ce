from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import structlog
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s import ConfigMap, ObjectMeta
from trio_kubelet.k8s.client import (
    Api,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    Selection,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.client.api import EVERYTHING
from trio_kubelet.k8s.client.client import RequestLimits
from trio_kubelet.k8s.client.objects import read_frame
from trio_kubelet.k8s.client.reflector import PAGE_LIMIT
from trio_kubelet.k8s.kinds import CONFIG_MAPS

Told = tuple[str, str]


class Consumer:
    """Writes down what it is told: (what, name), and when it was told last."""

    def __init__(self) -> None:
        self.told_at = 0.0
        self.told: list[Told] = []
        self.objects: dict[str, ConfigMap] = {}
        self._news = trio.Event()

    async def take(self, event: WatchEvent[ConfigMap]) -> None:
        self.told_at = trio.current_time()
        match event:
            case ListSynced():
                self.told.append(("synced", ""))
            case ObjectChanged(object=changed):
                self.told.append(("changed", changed.metadata.name))
                self.objects[changed.metadata.name] = changed
            case ObjectRemoved(object=removed):
                self.told.append(("removed", removed.metadata.name))
                del self.objects[removed.metadata.name]
        self._news.set()
        self._news = trio.Event()

    async def until(self, *expected: Told) -> None:
        """Wait for exactly this, and forget it."""
        with trio.fail_after(2000):
            while len(self.told) < len(expected):
                await self._news.wait()
        assert self.told == list(expected)
        self.told.clear()

    async def until_known(self, name: str) -> None:
        """Wait until it was told of an object, whatever else it was told."""
        with trio.fail_after(60):
            while name not in self.objects:
                await self._news.wait()


CHANGED_ONE, REMOVED_ONE, SYNCED = ("changed", "one"), ("removed", "one"), ("synced", "")


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


@asynccontextmanager
async def reflection(
    server: ApiServer,
    take: Callable[[WatchEvent[ConfigMap]], Awaitable[None]],
    selection: Selection = EVERYTHING,
    client: Api | None = None,
) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                reflect,
                client or server.client(),
                CONFIG_MAPS,
                take,
                selection,
            )
        )
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[True, False], ids=["streaming lists", "lists in pages"])
def server(request: pytest.FixtureRequest) -> ApiServer:
    made = ApiServer()
    made.faults.streaming_lists = request.param
    return made


async def test_what_there_is_comes_first_and_then_what_happens(server: ApiServer) -> None:
    consumer = Consumer()
    one = server.create(CONFIG_MAPS, config_map("one"))
    async with reflection(server, consumer.take):
        await consumer.until(CHANGED_ONE, SYNCED)
        server.update(CONFIG_MAPS, evolve(one, data={"key": "1"}))
        await consumer.until(CHANGED_ONE)
        assert consumer.objects["one"].data == {"key": "1"}
        server.delete(CONFIG_MAPS, "one")
        await consumer.until(REMOVED_ONE)


async def test_nothing_at_all_is_synced_too(server: ApiServer) -> None:
    consumer = Consumer()
    async with reflection(server, consumer.take, Selection(namespace="default")):
        await consumer.until(SYNCED)


async def test_only_what_is_selected_is_told(server: ApiServer) -> None:
    consumer = Consumer()
    server.create(CONFIG_MAPS, config_map("two"))
    async with reflection(
        server, consumer.take, Selection(namespace="default", fields="metadata.name=one")
    ):
        await consumer.until(SYNCED)
        server.create(CONFIG_MAPS, config_map("three"))
        server.create(CONFIG_MAPS, config_map("one"))
        await consumer.until(CHANGED_ONE)


async def test_a_watch_that_breaks_goes_on_without_a_list(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    async with reflection(server, consumer.take):
        await consumer.until(SYNCED)
        server.drop_watches()
        server.create(CONFIG_MAPS, config_map("one"))
        await consumer.until(CHANGED_ONE)
        server.end_watches()
        server.delete(CONFIG_MAPS, "one")
        await consumer.until(REMOVED_ONE)


async def test_what_vanished_while_the_server_was_away_is_told_before_synced(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    server.create(CONFIG_MAPS, config_map("one"))
    server.create(CONFIG_MAPS, config_map("two"))
    async with reflection(server, consumer.take):
        await consumer.until(CHANGED_ONE, ("changed", "two"), SYNCED)
        server.go_away()
        server.delete(CONFIG_MAPS, "one")
        server.create(CONFIG_MAPS, config_map("three"))
        server.storage.compact()
        await trio.sleep(100)
        assert not consumer.told
        server.come_back()
        await consumer.until(("changed", "three"), REMOVED_ONE, SYNCED)


async def test_the_same_name_with_another_uid_is_another_object(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    server.create(CONFIG_MAPS, config_map("one"))
    async with reflection(server, consumer.take):
        await consumer.until(CHANGED_ONE, SYNCED)
        server.drop_watches()
        server.delete(CONFIG_MAPS, "one")
        server.create(CONFIG_MAPS, config_map("one"))
        server.storage.compact()
        await consumer.until(REMOVED_ONE, CHANGED_ONE, SYNCED)


async def test_a_bookmark_moves_on_what_a_watch_needs(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    elsewhere = ObjectMeta(name="other", namespace="elsewhere")
    other = server.create(CONFIG_MAPS, ConfigMap(metadata=elsewhere))
    async with reflection(server, consumer.take, Selection(namespace="default")):
        await consumer.until(SYNCED)
        server.update(CONFIG_MAPS, evolve(other, data={"key": "1"}))
        await trio.sleep(61)
        server.storage.compact()
        server.drop_watches()
        server.create(CONFIG_MAPS, config_map("one"))
        await consumer.until(CHANGED_ONE)


async def test_a_restored_backup_is_followed_though_its_objects_are_older(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    one = server.create(CONFIG_MAPS, config_map("one", key="old"))
    backup = server.storage.backup()
    server.update(CONFIG_MAPS, evolve(one, data={"key": "new"}))
    async with reflection(server, consumer.take):
        await consumer.until(CHANGED_ONE, SYNCED)
        server.go_away()
        server.storage.restore(backup)
        server.come_back()
        await consumer.until(CHANGED_ONE, SYNCED)
        assert consumer.objects["one"].data == {"key": "old"}


async def test_one_object_that_cannot_be_read_is_left_as_it_was(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    one = server.create(CONFIG_MAPS, config_map("one", key="good"))
    bad = {"metadata": {"name": "bad", "namespace": "default", "uid": "u"}, "data": 5}
    server.put_raw(CONFIG_MAPS, bad)
    async with reflection(server, consumer.take):
        await consumer.until(CHANGED_ONE, SYNCED)
        spoilt = {"name": "one", "namespace": "default", "uid": one.metadata.uid}
        server.put_raw(CONFIG_MAPS, {"metadata": spoilt, "data": 5})
        server.create(CONFIG_MAPS, config_map("two"))
        await consumer.until(("changed", "two"))
        server.drop_watches()
        server.create(CONFIG_MAPS, config_map("three"))
        server.storage.compact()
        await consumer.until(("changed", "three"), SYNCED)
        assert consumer.objects["one"].data == {"key": "good"}
        server.put_raw(CONFIG_MAPS, {"metadata": spoilt, "data": {"key": "better"}})
        await consumer.until(CHANGED_ONE)


async def test_a_refusal_at_first_is_over_soon(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    fault = server.faults.add(RequestFault(code=403, reason="Forbidden"))
    async with reflection(server, consumer.take):
        await trio.sleep(3)
        server.faults.remove(fault)
        with trio.fail_after(5):
            await consumer.until(SYNCED)


async def test_a_server_in_trouble_is_asked_less_and_less(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    server.faults.add(RequestFault(code=500, reason="InternalError"))
    async with reflection(server, consumer.take):
        await trio.sleep(600)
        assert 20 <= len(server.requests) <= 45
        server.faults.rules.clear()
        await trio.sleep(30)
        await consumer.until(SYNCED)


OUTAGE_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 2.0
"""Longer than the pause after one failure, much shorter than the one after many."""


@asynccontextmanager
async def twenty_reflections_after_an_outage(
    server: ApiServer, client: Api
) -> AsyncIterator[list[Consumer]]:
    """Each waits until another moment, up to half a minute from now, to find the server back."""
    consumers = [Consumer() for _ in range(20)]
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(reflection(server, consumer.take, client=client))
            await consumer.until(SYNCED)
        server.go_away()
        await trio.sleep(OUTAGE_SECONDS)
        server.come_back()
        server.create(CONFIG_MAPS, config_map("one"))
        yield consumers


async def until_asked(server: ApiServer) -> None:
    """Wait for the next request that the server sees."""
    asked = len(server.requests)
    while len(server.requests) == asked:  # noqa: ASYNC110 - the clock jumps
        await trio.sleep(0.1)


async def test_all_who_wait_for_the_server_try_soon_after_its_return_is_told(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = server.client()
    async with twenty_reflections_after_an_outage(server, client) as consumers:
        client.recovery.tell()
        with trio.fail_after(FIRST_PAUSE_SECONDS):
            for consumer in consumers:
                await consumer.until(CHANGED_ONE)


async def test_who_is_woken_by_the_return_does_not_come_with_all_the_others(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = server.client()
    async with twenty_reflections_after_an_outage(server, client) as consumers:
        client.recovery.tell()
        for consumer in consumers:
            await consumer.until(CHANGED_ONE)
        assert len({consumer.told_at for consumer in consumers}) == len(consumers)


async def test_the_first_reflection_that_has_an_answer_tells_the_others(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    async with twenty_reflections_after_an_outage(server, server.client()) as consumers:
        await until_asked(server)
        with trio.fail_after(FIRST_PAUSE_SECONDS):
            for consumer in consumers:
                await consumer.until(CHANGED_ONE)


async def test_a_server_that_refuses_all_when_it_comes_back_is_asked_again_soon(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    """It has to read first who has which rights."""
    async with twenty_reflections_after_an_outage(server, server.client()) as consumers:
        starting = server.faults.add(RequestFault(code=403, reason="Forbidden"))
        await until_asked(server)
        await trio.sleep(3)
        server.faults.remove(starting)
        with trio.fail_after(4):
            for consumer in consumers:
                await consumer.until(CHANGED_ONE, SYNCED)


async def test_a_return_during_a_request_that_hangs_is_heard_of_after_it(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer, client = Consumer(), server.client(limits=RequestLimits(deadline_seconds=20))
    async with reflection(server, consumer.take, client=client):
        await consumer.until(SYNCED)
        server.go_away()
        await trio.sleep(OUTAGE_SECONDS)
        hanging = server.faults.add(RequestFault(seconds=100))
        server.come_back()
        await until_asked(server)
        server.faults.remove(hanging)
        client.recovery.tell()
        server.create(CONFIG_MAPS, config_map("one"))
        with trio.fail_after(20 + FIRST_PAUSE_SECONDS):
            await consumer.until(CHANGED_ONE)


async def test_a_server_that_refuses_is_asked_no_more_often_when_it_is_told_to_be_back(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer, client = Consumer(), server.client()
    server.faults.add(RequestFault(code=500, reason="InternalError"))
    async with reflection(server, consumer.take, client=client):
        for _ in range(600):
            await trio.sleep(1)
            client.recovery.tell()
        assert len(server.requests) <= 45


async def test_watches_that_always_break_are_opened_no_more_often_for_each_other(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    """Each of them finds the server there: that is no news to the others."""
    client = server.client()
    async with AsyncExitStack() as stack:
        for _ in range(20):
            consumer = Consumer()
            await stack.enter_async_context(reflection(server, consumer.take, client=client))
            await consumer.until(SYNCED)
        asked = len(server.requests)
        with trio.move_on_after(120):
            while True:
                server.drop_watches()
                await trio.sleep(0.1)
        assert len(server.requests) - asked <= 20 * 15


async def test_watches_that_end_at_once_are_not_opened_in_a_hurry(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    async with reflection(server, consumer.take):
        await consumer.until(SYNCED)
        asked = len(server.requests)
        with trio.move_on_after(60):
            while True:
                server.end_watches()
                await trio.sleep(0.01)
        assert len(server.requests) - asked < 15


async def test_a_watch_is_renewed_after_five_to_ten_minutes(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    consumer = Consumer()
    async with reflection(server, consumer.take):
        await trio.sleep(3600)
        assert 6 <= sum(asked.verb == "watch" for asked in server.requests) <= 14
        assert consumer.told == [SYNCED]


async def test_pages_that_expire_under_way_are_read_in_one_piece() -> None:
    server = ApiServer()
    server.faults.streaming_lists = False
    for number in range(2 * PAGE_LIMIT + 20):
        server.create(CONFIG_MAPS, config_map(f"map-{number:04}"))
    consumer = Consumer()

    async def take(event: WatchEvent[ConfigMap]) -> None:
        if not consumer.told:
            server.storage.compact()
        await consumer.take(event)

    names = [("changed", f"map-{number:04}") for number in range(2 * PAGE_LIMIT + 20)]
    async with reflection(server, take):
        await consumer.until(*names, SYNCED)
    lists = [asked.query for asked in server.requests if asked.verb == "list"]
    assert [f"limit={PAGE_LIMIT}" in query for query in lists] == [True, True, False]


async def test_pages_are_read_one_after_the_other() -> None:
    server = ApiServer()
    server.faults.streaming_lists = False
    for number in range(2 * PAGE_LIMIT + 1):
        server.create(CONFIG_MAPS, config_map(f"map-{number:04}"))
    consumer = Consumer()
    async with reflection(server, consumer.take):
        await consumer.until(
            *[("changed", f"map-{n:04}") for n in range(2 * PAGE_LIMIT + 1)], SYNCED
        )
    assert sum(asked.verb == "list" for asked in server.requests) == 3


async def test_a_consumer_that_cannot_take_the_end_of_a_list_is_told_of_the_next_one(
    server: ApiServer, autojump_clock: MockClock
) -> None:
    consumer, failures = Consumer(), [KeyError("a bug")]

    async def take(event: WatchEvent[ConfigMap]) -> None:
        if isinstance(event, ListSynced) and failures:
            raise failures.pop()
        await consumer.take(event)

    server.create(CONFIG_MAPS, config_map("one"))
    async with reflection(server, take):
        await consumer.until(CHANGED_ONE, SYNCED)
    assert not failures


async def test_an_object_that_its_consumer_stumbles_over_is_named_and_the_others_go_on(
    server: ApiServer,
) -> None:
    consumer = Consumer()

    async def take(event: WatchEvent[ConfigMap]) -> None:
        if not isinstance(event, ListSynced) and event.object.metadata.name == "bad":
            raise RuntimeError("a bug")
        await consumer.take(event)

    server.create(CONFIG_MAPS, config_map("bad"))
    server.create(CONFIG_MAPS, config_map("one"))
    with structlog.testing.capture_logs() as logs:
        async with reflection(server, take):
            await consumer.until(CHANGED_ONE, SYNCED)
            server.update(CONFIG_MAPS, evolve(server.get(CONFIG_MAPS, "bad"), data={"a": "b"}))
            server.delete(CONFIG_MAPS, "one")
            await consumer.until(REMOVED_ONE)
    named = [entry["object"] for entry in logs if entry["event"] == "watch handler failed"]
    assert named == ["default/bad", "default/bad"]


async def test_a_stream_that_fails_in_a_way_of_its_own_is_opened_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer()
    errors = iter([RuntimeError("a bug")])

    def failing_once(*arguments: Any) -> Any:
        for error in errors:
            raise error
        return read_frame(*arguments)

    monkeypatch.setattr("trio_kubelet.k8s.client.watch_frames.read_frame", failing_once)
    server.create(CONFIG_MAPS, config_map("one"))
    async with reflection(server, consumer.take):
        await consumer.until_known("one")
        server.create(CONFIG_MAPS, config_map("two"))
        await consumer.until_known("two")
