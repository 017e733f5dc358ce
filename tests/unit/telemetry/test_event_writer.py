"""Events on their way to the API server: in order, through outages, counted when they repeat."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import evolve, frozen
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.k8s import Container, Event, ObjectMeta, PersistentVolume, Pod, PodSpec
from trio_kubelet.k8s.kinds import EVENTS
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.telemetry.correlation import Correlator, EventDecision
from trio_kubelet.telemetry.event_writer import (
    MOST_RETRY_AFTER_SECONDS,
    MOST_TRIES,
    PATIENCE_SECONDS,
    WRITERS,
    EventWriter,
    at_once,
)

QUEUE_SIZE = 20
POD = Pod(
    metadata=ObjectMeta(name="web", namespace="shop", uid="u", resource_version="7"),
    spec=PodSpec(containers=(Container(name="c"),), init_containers=(Container(name="init"),)),
)


@frozen(kw_only=True)
class Node:
    server: ApiServer
    recorder: EventRecorder

    def fail(self, message: str = "no", container: str = "c") -> None:
        self.recorder.pod(POD, EventType.WARNING, "Failed", message, container=container)

    def start(self, message: str = "c started") -> None:
        self.recorder.pod(POD, EventType.NORMAL, "Started", message, container="c")

    def events(self) -> list[Event]:
        return sorted(
            self.server.all(EVENTS), key=lambda event: event.metadata.name.rpartition(".")[2]
        )

    def messages(self) -> list[tuple[str, int | None]]:
        return [(event.message, event.count) for event in self.events()]


@asynccontextmanager
async def node(wait_idle: Callable[[], Awaitable[None]] = at_once) -> AsyncIterator[Node]:
    clock, server = TrioClock(), ApiServer()
    recorder, writer = (
        EventRecorder(Journal(clock), "n1"),
        EventWriter("n1", clock, queue_size=QUEUE_SIZE, wait_idle=wait_idle),
    )
    recorder.on_event.add(writer.take)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, server.client())
        yield Node(server=server, recorder=recorder)
        nursery.cancel_scope.cancel()


async def test_an_event_names_the_container_the_component_and_the_time(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.fail(container="init")
        await at.server.until(at.events)
        (event,) = at.events()
        about, source = event.involved_object, event.source
        assert (about.kind, about.namespace, about.name, about.uid) == ("Pod", "shop", "web", "u")
        assert about.field_path == "spec.initContainers{init}"
        assert source is not None
        assert (source.component, source.host) == ("kubelet", "n1")
        assert (event.reporting_component, event.reporting_instance) == ("kubelet", "n1")
        assert event.metadata.namespace == "shop"
        assert event.first_timestamp == event.last_timestamp is not None


async def test_an_event_of_the_node_is_where_describe_looks_for_it(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
        await at.server.until(at.events)
        (event,) = at.events()
        about = event.involved_object
        assert (about.kind, about.name, about.uid, about.namespace) == ("Node", "n1", "n1", "")
        assert event.metadata.namespace == "default"


async def test_an_event_of_a_persistent_volume_is_about_that(autojump_clock: MockClock) -> None:
    volume = PersistentVolume(metadata=ObjectMeta(name="pv", uid="u"))
    async with node() as at:
        at.recorder.volume(volume, EventType.WARNING, "FailedMountOnFilesystemMismatch", "no")
        await at.server.until(at.events)
        (event,) = at.events()
        about = event.involved_object
        assert (about.kind, about.name, about.uid) == ("PersistentVolume", "pv", "u")
        assert (about.namespace, event.metadata.namespace) == ("", "default")


async def test_what_repeats_is_one_event_with_a_count(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.fail()
        await trio.sleep(5)
        at.fail()
        await trio.sleep(5)
        at.fail()
        await at.server.until(lambda: at.messages() == [("no", 3)])
        (event,) = at.events()
        assert event.first_timestamp is not None
        assert event.last_timestamp is not None
        assert event.last_timestamp.ns - event.first_timestamp.ns == 10_000_000_000


async def test_two_events_of_one_moment_have_names_of_their_own(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.fail("one")
        at.fail("two")
        await at.server.until(lambda: len(at.events()) == 2)


async def test_an_event_that_somebody_deleted_is_written_anew(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.fail()
        await at.server.until(at.events)
        (event,) = at.events()
        at.server.delete(EVENTS, event.metadata.name, event.metadata.namespace)
        at.fail()
        await at.server.until(at.events)
        assert at.messages() == [("no", 2)]


async def test_in_an_outage_events_wait_and_come_in_order(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.server.go_away()
        for number in range(5):
            at.fail(f"try {number}")
            await trio.sleep(60)
        at.server.come_back()
        await at.server.until(lambda: len(at.events()) == 5)
        assert [message for message, _ in at.messages()] == [f"try {n}" for n in range(5)]


async def test_what_the_server_refuses_holds_up_nothing(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.server.faults.add(RequestFault(code=403, times=1))
        at.fail("refused")
        at.fail("taken")
        await at.server.until(at.events)
        assert at.messages() == [("taken", 1)]


async def test_of_more_events_than_can_wait_the_latest_are_dropped(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.go_away()
        pods = [
            evolve(POD, metadata=evolve(POD.metadata, name=f"web-{n}", uid=f"u{n}"))
            for n in range(QUEUE_SIZE + 5)
        ]
        for pod in pods:
            at.recorder.pod(pod, EventType.NORMAL, "Started", "Container started")
        at.server.come_back()
        await at.server.until(lambda: len(at.events()) >= QUEUE_SIZE)
        await trio.sleep(60)
        told = {event.involved_object.name for event in at.events()}
        assert told == {f"web-{n}" for n in range(QUEUE_SIZE)}


async def test_what_goes_as_it_should_is_told_in_a_lull(autojump_clock: MockClock) -> None:
    wait_idle = trio.Event()
    async with node(wait_idle.wait) as at:
        at.start()
        await trio.sleep(PATIENCE_SECONDS / 2)
        assert not at.events()
        wait_idle.set()
        await at.server.until(at.events)


async def test_a_warning_waits_for_nothing(autojump_clock: MockClock) -> None:
    async with node(trio.sleep_forever) as at:
        began = trio.current_time()
        at.start()
        at.fail()
        await at.server.until(at.events)
        assert at.messages() == [("no", 1)]
        assert trio.current_time() == began


async def test_no_event_waits_for_ever(autojump_clock: MockClock) -> None:
    async with node(trio.sleep_forever) as at:
        began = trio.current_time()
        at.start("one")
        await trio.sleep(1)
        at.start("two")
        await at.server.until(lambda: len(at.events()) == 2)
        assert trio.current_time() - began == PATIENCE_SECONDS + 1


async def test_a_queue_that_fills_up_is_not_held_back(autojump_clock: MockClock) -> None:
    async with node(trio.sleep_forever) as at:
        began = trio.current_time()
        for number in range(QUEUE_SIZE):
            at.start(str(number))
        await at.server.until(at.events)
        assert trio.current_time() == began


async def test_text_that_is_no_unicode_is_spelled_out(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.fail("mount of \udcff")
        await at.server.until(at.events)
        assert at.messages() == [(r"mount of \udcff", 1)]


async def test_an_event_that_cannot_be_written_holds_up_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    correlate = Correlator.correlate

    def stumble(
        self: Correlator, event: Event, now_ns: int, *, caused_by_pod: bool
    ) -> EventDecision | None:
        if "bad" in event.message:
            raise RuntimeError("a bug")
        return correlate(self, event, now_ns, caused_by_pod=caused_by_pod)

    monkeypatch.setattr(Correlator, "correlate", stumble)
    with capture_logs() as logs:
        async with node() as at:
            for message in ("bad", "good"):
                at.fail(message)
                at.start(message)
            await at.server.until(lambda: len(at.events()) == 2)
            assert {event.message for event in at.events()} == {"good"}
    named = [entry for entry in logs if entry["event"] == "event write failed"]
    assert [entry["object"] for entry in named] == ["shop/web", "shop/web"]


@pytest.mark.parametrize("kind", list(EventType))
async def test_events_that_are_answered_with_errors_hold_up_no_other_pod(
    kind: EventType, autojump_clock: MockClock
) -> None:
    pods = 2 * WRITERS
    with capture_logs() as logs:
        async with node() as at:
            at.server.faults.add(RequestFault(code=503, namespace="bad", retry_after=10**9))
            for number in range(pods):
                pod = named(number)
                pod = evolve(pod, metadata=evolve(pod.metadata, namespace="bad"))
                at.recorder.pod(pod, kind, "Failed", "bad")
                at.recorder.pod(pod, kind, "Failed", "behind it")
            at.recorder.pod(POD, kind, "Failed", "good")
            began = trio.current_time()
            await at.server.until(at.events)
            assert trio.current_time() == began
            await trio.sleep(3 * MOST_TRIES * MOST_RETRY_AFTER_SECONDS)
            assert at.messages() == [("good", 1)]
    given_up = [entry for entry in logs if entry["event"] == "event rejected by the API server"]
    assert {entry["tries"] for entry in given_up} == {MOST_TRIES}
    assert len(given_up) == 2 * pods


async def test_an_event_that_could_not_be_written_comes_before_the_next_of_its_pod(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.faults.add(RequestFault(code=500, times=3))
        for message in ("one", "two", "one"):
            at.fail(message)
        await at.server.until(lambda: at.messages() == [("one", 2), ("two", 1)])


def named(number: int) -> Pod:
    return evolve(POD, metadata=evolve(POD.metadata, name=f"web-{number}", uid=f"u{number}"))


async def test_a_pod_that_has_much_to_say_stands_before_nobody_else(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.go_away()
        for number in range(QUEUE_SIZE - 2):
            at.recorder.pod(named(0), EventType.WARNING, "Failed", f"noise {number}")
        at.recorder.pod(named(1), EventType.WARNING, "Failed", "word")
        at.server.come_back()
        await at.server.until(
            lambda: any(event.message == "word" for event in at.server.all(EVENTS))
        )
        assert len(at.server.all(EVENTS)) <= 3


async def test_a_namespace_with_many_pods_stands_before_no_other(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.go_away()
        for number in range(QUEUE_SIZE - 2):
            at.recorder.pod(named(number), EventType.WARNING, "Failed", f"noise {number}")
        elsewhere = evolve(named(0).metadata, namespace="elsewhere", uid="elsewhere")
        at.recorder.pod(evolve(POD, metadata=elsewhere), EventType.WARNING, "Failed", "word")
        at.server.come_back()
        await at.server.until(
            lambda: any(event.message == "word" for event in at.server.all(EVENTS))
        )
        assert len(at.server.all(EVENTS)) <= 10


async def test_what_pods_cause_on_the_node_keeps_it_from_telling_nothing_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.go_away()
        warn = partial(at.recorder.node, EventType.WARNING)
        for _ in range(2 * QUEUE_SIZE):
            warn("MissingClusterDNS", "no DNS", caused_by_pod=True)
        warn("EvictionThresholdMet", "no memory")
        at.server.come_back()
        await at.server.until(lambda: ("no memory", 1) in at.messages())
        assert len(at.events()) <= 2
        counts = [event.count or 0 for event in at.events() if event.message == "no DNS"]
        assert sum(counts) <= 2, "it came after what pods had caused"


async def test_the_one_with_the_most_events_loses_some_when_there_is_no_room(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.server.go_away()
        for number in range(QUEUE_SIZE):
            at.recorder.pod(named(0), EventType.WARNING, f"Failed{number}", "noise")
        for number in range(1, 6):
            at.recorder.pod(named(number), EventType.WARNING, "Failed", "word")
        at.server.come_back()
        await trio.sleep(120)
        assert {event.involved_object.name for event in at.events()} == {
            f"web-{number}" for number in range(6)
        }


async def test_events_of_a_busy_node_are_told_within_two_seconds(autojump_clock: MockClock) -> None:
    async with node(trio.sleep_forever) as at:
        for number in range(QUEUE_SIZE // 2):
            at.recorder.pod(named(number), EventType.NORMAL, "Started", "Container started")
        began = trio.current_time()
        await at.server.until(lambda: len(at.events()) == QUEUE_SIZE // 2)
        assert trio.current_time() - began <= 2
