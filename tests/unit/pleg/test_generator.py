"""The event generator on the hollow runtime: what it finds, how soon, and whom it trusts."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from attrs import evolve, frozen
from betterproto import Message
from trio.testing import MockClock

from state_machines.pleg import PlegState
from tests.trio_clock import TrioClock
from trio_kubelet.hollow import (
    Behaviour,
    CallFault,
    HollowOptions,
    HollowRuntime,
    Latencies,
    open_hollow_runtime,
)
from trio_kubelet.pleg import Pleg, PodChange
from trio_kubelet.pleg.event_stream_audit import EventStreamAudit
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.telemetry import Journal


@frozen(kw_only=True)
class Node:
    """A generator at work on a hollow runtime."""

    runtime: HollowRuntime
    client: RuntimeClient
    cache: RuntimeCache
    pleg: Pleg
    changes: trio.MemoryReceiveChannel[PodChange]
    journal: Journal

    async def start_pod(self, uid: str, namespace: str = "ns") -> str:
        """Run a pod with one container behind the generator's back; the container's id."""
        sandbox = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=uid, namespace=namespace, uid=uid),
            labels={names.POD_UID_LABEL: uid},
        )
        container = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="c"),
            image=cri.ImageSpec(image="busybox"),
            labels={names.POD_UID_LABEL: uid},
        )
        sandbox_id = await self.client.run_pod_sandbox(sandbox)
        container_id = await self.client.create_container(sandbox_id, container, sandbox)
        await self.client.start_container(container_id)
        return container_id

    @property
    def is_healthy(self) -> bool:
        """Whether the runtime was looked at lately enough for a node to be Ready."""
        return self.pleg.seconds_since_relist() < self.pleg.health_threshold_seconds()

    def state(self, uid: str) -> ObservedState | None:
        """What the cache knows of the pod's container."""
        container = self.cache.get(uid).container("c")
        return container.state if container else None


@asynccontextmanager
async def node(
    *, runs: float | None = None, events: bool = True, room: float = 100, **options: object
) -> AsyncIterator[Node]:
    clock = TrioClock()
    hollow = HollowOptions(
        images=("busybox",),
        behaviours=lambda _: Behaviour(run_seconds=runs),
        **options,  # type: ignore[arg-type]
    )
    async with open_hollow_runtime(clock, hollow) as runtime, trio.open_nursery() as nursery:
        client = RuntimeClient(InProcess(runtime))
        cache, journal = RuntimeCache(), Journal(clock)
        send, receive = trio.open_memory_channel[PodChange](room)
        pleg = Pleg(
            inspector=PodInspector(client=client),
            cache=cache,
            changes=send,
            journal=journal,
            clock=clock,
            events_enabled=events,
        )
        await nursery.start(pleg.run)
        yield Node(
            runtime=runtime,
            client=client,
            cache=cache,
            pleg=pleg,
            changes=receive,
            journal=journal,
        )
        nursery.cancel_scope.cancel()


async def test_without_events_a_change_is_found_within_a_second(autojump_clock: MockClock) -> None:
    async with node(events=False) as at:
        assert at.pleg.state is PlegState.GENERIC
        await at.start_pod("u")
        began = trio.current_time()
        change = await at.changes.receive()
        assert (change.uid, change.kind) == ("u", "relist")
        assert trio.current_time() - began <= 1.0
        assert at.state("u") is ObservedState.RUNNING


async def test_pods_that_are_inspected_for_long_hold_up_none_of_another_namespace(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = PodInspector.inspect_listed

    async def inspect_some(
        self: PodInspector, known: ObservedPod, *args: Any, **options: Any
    ) -> ObservedPod:
        if known.uid.startswith("hostile"):
            await trio.sleep_forever()
        return await inspect(self, known, *args, **options)

    async with node(events=False) as at:
        monkeypatch.setattr(PodInspector, "inspect_listed", inspect_some)
        for number in range(20):
            await at.start_pod(f"hostile-{number}", "hostile")
        await at.start_pod("u", "good")
        with trio.fail_after(2):
            assert (await at.changes.receive()).uid == "u"


async def test_an_event_is_followed_at_once(autojump_clock: MockClock) -> None:
    async with node(runs=7.3) as at:
        await at.start_pod("u")
        await trio.sleep(7.31)
        assert at.state("u") is ObservedState.EXITED


async def test_it_is_told_how_long_each_event_of_the_runtime_took(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        ages: list[float] = []
        at.pleg.on_event.add(ages.append)
        await at.start_pod("u")
        await trio.sleep(1)
        assert ages
        assert not any(ages)
        ages.clear()
        at.runtime.events.cut()
        await at.start_pod("v")
        await trio.sleep(10)
        assert all(0.1 < age < 10 for age in ages)
        assert ages


async def test_the_end_of_a_sandbox_is_told_though_the_addresses_are_kept(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        await at.start_pod("u")
        await trio.sleep(5.3)
        ips = at.cache.get("u").ips
        assert ips
        while at.changes.statistics().current_buffer_used:
            at.changes.receive_nowait()
        await at.client.stop_pod_sandbox(at.cache.get("u").sandboxes[0].id)
        with trio.fail_after(5):
            change = await at.changes.receive()
        assert (change.uid, change.kind) == ("u", "event")
        assert at.cache.get("u").ips == ips


async def test_events_that_announce_everything_are_trusted(autojump_clock: MockClock) -> None:
    async with node(runs=2.0) as at:
        for number in range(6):
            await at.start_pod(f"u{number}")
            await trio.sleep(5)
        assert at.pleg.state is PlegState.EVENTED


async def test_when_trusted_the_relist_is_rare(autojump_clock: MockClock) -> None:
    async with node(runs=2.0) as at:
        for number in range(6):
            await at.start_pod(f"u{number}")
            await trio.sleep(5)
        await trio.sleep(200)
        assert at.pleg.seconds_since_relist() > 100
        assert at.is_healthy


async def test_when_an_event_was_missed_the_relist_is_frequent_again_at_once(
    autojump_clock: MockClock,
) -> None:
    async with node(runs=2.0, latencies=Latencies(list=1.0)) as at:
        for number in range(6):
            await at.start_pod(f"u{number}")
            await trio.sleep(5)
        await trio.sleep(200)
        assert at.pleg.health_threshold_seconds() == 600
        seen = at.cache.get("u5")
        known = seen.containers[0]
        unannounced = evolve(known, finished_at=TrioClock().now_ns(), id="another")
        now = trio.current_time()
        at.cache.put(evolve(seen, containers=(known, unannounced), observed_at=now))
        await trio.sleep(5)
        await at.start_pod("u6")
        await trio.sleep(0.1)
        assert at.pleg.state is PlegState.PROVING
        assert at.pleg.seconds_since_relist() > 180
        assert at.is_healthy
        await trio.sleep(1)
        assert at.pleg.seconds_since_relist() < 1


async def test_lost_events_end_the_trust_and_the_relist_finds_the_change(
    autojump_clock: MockClock,
) -> None:
    async with node(runs=2.0, event_loss=0.5) as at:
        for number in range(10):
            await at.start_pod(f"u{number}")
            await trio.sleep(5)
            assert at.state(f"u{number}") is ObservedState.EXITED
        assert at.pleg.state is PlegState.PROVING
        assert any(entry.event == "ChangeMissed" for entry in at.journal.entries())


async def test_a_shared_channel_is_never_trusted_but_used(autojump_clock: MockClock) -> None:
    async with node(runs=2.0, name="containerd", version="1.7.24") as at:
        for number in range(10):
            await at.start_pod(f"u{number}")
            await trio.sleep(5)
        assert at.pleg.state is PlegState.HINTED


async def test_an_old_containerd_is_not_asked_for_events(autojump_clock: MockClock) -> None:
    async with node(name="containerd", version="1.6.20") as at:
        await trio.sleep(100)
        assert at.pleg.state is PlegState.GENERIC


async def test_a_runtime_without_a_stream_is_looked_at(autojump_clock: MockClock) -> None:
    async with node(has_events=False) as at:
        await at.start_pod("u")
        await trio.sleep(2)
        assert at.pleg.state is PlegState.GENERIC
        assert at.state("u") is ObservedState.RUNNING


async def test_after_an_outage_the_stream_is_opened_again_and_nothing_is_missed(
    autojump_clock: MockClock,
) -> None:
    async with node(runs=30.0) as at:
        await at.start_pod("u")
        await trio.sleep(5)
        at.runtime.go_down()
        await trio.sleep(60)
        assert at.pleg.state is PlegState.CONNECTING
        at.runtime.come_back()
        at.pleg.runtime_returned()
        await trio.sleep(2)
        assert at.state("u") is ObservedState.EXITED
        assert at.pleg.state in (PlegState.PROVING, PlegState.EVENTED)


async def test_an_unhealthy_runtime_is_reported_after_three_minutes(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.runtime.go_down()
        await trio.sleep(179)
        assert at.is_healthy
        await trio.sleep(10)
        assert not at.is_healthy


async def test_a_pod_that_is_gone_is_forgotten(autojump_clock: MockClock) -> None:
    async with node(events=False) as at:
        container = await at.start_pod("u")
        await trio.sleep(2)
        await at.client.remove_container(container)
        sandbox = at.cache.get("u").sandboxes[0].id
        await at.client.stop_pod_sandbox(sandbox)
        await at.client.remove_pod_sandbox(sandbox)
        await trio.sleep(2)
        assert at.cache.pods() == ()


async def test_a_pod_that_its_own_task_acts_on_is_left_to_it(autojump_clock: MockClock) -> None:
    async with node(events=False) as at:
        with at.cache.suspend_inspection("u"):
            await at.start_pod("u")
            await trio.sleep(5)
            assert at.state("u") is None
        await trio.sleep(1.1)
        assert at.state("u") is ObservedState.RUNNING


async def test_a_change_that_finds_the_channel_full_is_told_later(
    autojump_clock: MockClock,
) -> None:
    async with node(events=False) as at:
        for number in range(120):
            await at.start_pod(f"u{number:03}")
        await trio.sleep(5)
        assert at.pleg.dropped > 0
        told = set()
        with trio.move_on_after(5):
            async for change in at.changes:
                told.add(change.uid)
        assert len(told) == 120


async def test_a_pod_that_the_sync_loop_had_no_room_for_stays_known_and_is_told_of_again(
    autojump_clock: MockClock,
) -> None:
    async with node(events=False, room=1) as at:
        await at.start_pod("u")
        await at.start_pod("v")
        await trio.sleep(10)
        assert at.pleg.dropped
        assert at.state("u") is at.state("v") is ObservedState.RUNNING
        with trio.fail_after(3):
            told = {(await at.changes.receive()).uid for _ in range(2)}
        assert told == {"u", "v"}


async def test_a_pod_that_cannot_be_inspected_keeps_no_other_from_being_known(
    autojump_clock: MockClock,
) -> None:
    sick: set[str] = set()

    def faults(rpc: str, request: Message) -> CallFault:
        if rpc == "ContainerStatus" and getattr(request, "container_id", "") in sick:
            return CallFault(error=RpcError(Code.UNKNOWN, "its record cannot be read"))
        return CallFault()

    async with node(events=False, faults=faults) as at:
        sick.add(await at.start_pod("u"))
        await trio.sleep(0.1)
        began = trio.current_time()
        with trio.fail_after(5):
            other = await at.cache.get_newer_than("other", began)
        assert not other.is_running
        with trio.move_on_after(5):
            await at.cache.get_newer_than("u", 0.0)
            raise AssertionError("nobody knows what there is of this pod")
        sick.clear()
        with trio.fail_after(5):
            assert (await at.cache.get_newer_than("u", 0.0)).is_running


async def test_a_stream_that_is_refused_only_after_it_was_opened_leaves_the_relist(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(streams: Iterable[object] = ()) -> AsyncIterator[object]:
        for nothing in streams:
            yield nothing
        raise RpcError(Code.UNIMPLEMENTED, "no such stream")

    @asynccontextmanager
    async def opened(_: RuntimeClient) -> AsyncIterator[object]:
        yield refused()

    monkeypatch.setattr(RuntimeClient, "container_events", opened)
    async with node() as at:
        await at.start_pod("u")
        await trio.sleep(5)
        assert at.pleg.state is PlegState.GENERIC
        assert at.state("u") is ObservedState.RUNNING


async def test_a_pod_that_an_inspection_stumbles_over_hides_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = PodInspector.inspect_listed

    async def stumble(inspector: PodInspector, known: ObservedPod, *args: Any) -> ObservedPod:
        if known.uid == "bad":
            raise RuntimeError("a bug")
        return await inspect(inspector, known, *args)

    monkeypatch.setattr(PodInspector, "inspect_listed", stumble)
    with structlog.testing.capture_logs() as logs:
        async with node(events=False) as at:
            await at.start_pod("bad")
            await at.start_pod("good")
            with trio.fail_after(10):
                while (await at.changes.receive()).uid != "good":
                    pass
            await trio.sleep(10)
            assert at.cache.unseen == {"bad"}
            assert at.cache.get("good").is_running
    named = [e["uid"] for e in logs if e["event"].startswith("pod inspection failed")]
    assert named == ["bad"]


async def test_an_event_that_an_inspection_stumbles_over_ends_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(*args: Any, **facts: Any) -> ObservedPod:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PodInspector, "inspect", stumble)
    async with node() as at:
        await at.start_pod("a")
        with trio.fail_after(10):
            assert (await at.changes.receive()).kind == "relist"


@pytest.mark.parametrize("has_events", [True, False])
async def test_a_pod_that_the_cache_stumbles_over_hides_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, has_events: bool
) -> None:
    put = RuntimeCache.put

    def stumble(cache: RuntimeCache, observed: ObservedPod) -> ObservedPod:
        if observed.uid == "bad":
            raise RuntimeError("a bug")
        return put(cache, observed)

    monkeypatch.setattr(RuntimeCache, "put", stumble)
    async with node(events=has_events) as at:
        await at.start_pod("bad")
        await at.start_pod("good")
        await trio.sleep(10)
        assert at.cache.unseen == {"bad"}
        assert at.cache.get("good").is_running
        assert at.is_healthy


@pytest.mark.parametrize(
    ("where", "what"),
    [(RuntimeClient, "version"), (Pleg, "_on_event"), (EventStreamAudit, "missed")],
)
async def test_a_bug_in_listening_to_events_leaves_the_relist_and_is_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, where: type, what: str
) -> None:
    stumbled_at: list[float] = []

    def stumble(*_: object, **__: object) -> None:
        stumbled_at.append(trio.current_time())
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(where, what, stumble)
        async with node() as at:
            await at.start_pod("a")
            await trio.sleep(60)
            assert at.state("a") is ObservedState.RUNNING
            assert at.is_healthy
            assert 1 <= len(stumbled_at) <= 100, "no hot loop"
            broken.undo()
            await trio.sleep(60)
            await at.start_pod("b")
            with trio.fail_after(1):
                while (await at.changes.receive()).uid != "b":
                    pass
            assert at.pleg.state is not PlegState.GENERIC


@pytest.mark.parametrize("uid", ["../../up", "/", "..", "a\0b"])
async def test_what_is_no_name_of_a_folder_is_no_pod(autojump_clock: MockClock, uid: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with node() as at:
            await at.start_pod(uid)
            await at.start_pod("good")
            with trio.fail_after(10):
                while (await at.changes.receive()).uid != "good":
                    pass
            await trio.sleep(400)
            assert [pod.uid for pod in at.cache.pods()] == ["good"]
    assert [e["uid"] for e in logs if "invalid UID" in e["event"]] == [uid]
