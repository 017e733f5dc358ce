"""The stream of events."""

import pytest

from tests.cri.node import MISSING_PROGRAM, OBEYS_TERM, Node, State, kind_of
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_a_pods_whole_life_is_told_in_order(node: Node) -> None:
    async with node.events() as events:
        pod = await node.run_pod()
        container = await node.running(pod, "sleep", "0.5")
        seen = await events.of(pod, 5)
        await node.stop_pod(pod.id)
        await node.remove_pod(pod.id)
        seen += await events.of(pod, 3)
    names = {pod.id: "pod", container: "main"}
    assert [f"{names[event.container_id]} {kind_of(event)}" for event in seen] == [
        "pod CREATED",
        "pod STARTED",
        "main CREATED",
        "main STARTED",
        "main STOPPED",
        "pod STOPPED",
        "main DELETED",
        "pod DELETED",
    ]
    times = [event.created_at for event in seen]
    assert times == sorted(times)
    assert times[0] > 0


async def test_an_event_shows_the_whole_pod(node: Node) -> None:
    async with node.events() as events:
        pod = await node.run_pod()
        first = await node.running(pod, *OBEYS_TERM, name="first")
        second = await node.create(pod, name="second")
        seen = await events.of(pod, 5)
    assert [len(event.containers_statuses) for event in seen] == [0, 0, 1, 1, 2]
    last = seen[-1]
    assert last.pod_sandbox_status == await node.pod_status(pod.id)
    shown = {status.id: status for status in last.containers_statuses}
    assert shown == {first: await node.status(first), second: await node.status(second)}


async def test_the_end_shows_how_it_came(node: Node) -> None:
    async with node.events() as events:
        pod = await node.run_pod()
        container = await node.running(pod, "sh", "-c", "sleep 0.5; exit 1")
        *_, last = await events.of(pod, 5)
    (status,) = last.containers_statuses
    assert kind_of(last) == "STOPPED"
    assert last.container_id == container
    assert (status.state, status.exit_code) == (State.CONTAINER_EXITED, 1)


async def test_a_stopped_pod_is_shown_as_not_ready(node: Node) -> None:
    async with node.events() as events:
        pod = await node.run_pod()
        await node.stop_pod(pod.id)
        *_, last = await events.of(pod, 3)
    assert last.pod_sandbox_status.state == cri.PodSandboxState.SANDBOX_NOTREADY


async def test_a_failed_start_is_not_told(node: Node) -> None:
    async with node.events() as events:
        pod = await node.run_pod()
        container = await node.create(pod, MISSING_PROGRAM)
        with pytest.raises(RpcError):
            await node.start(container)
        await node.remove(container)
        seen = await events.of(pod, 4)
    assert [kind_of(event) for event in seen] == ["CREATED", "STARTED", "CREATED", "DELETED"]


async def test_every_listener_hears_everything(node: Node) -> None:
    async with node.events() as one, node.events() as other:
        pod = await node.run_pod()
        await node.stop_pod(pod.id)
        heard = [kind_of(event) for event in await one.of(pod, 3)]
        assert [kind_of(event) for event in await other.of(pod, 3)] == heard
