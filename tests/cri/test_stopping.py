"""Stopping and removing containers."""

import trio

from tests.cri.node import DEADLINE_SECONDS, OBEYS_TERM, Node, State, until


async def test_a_process_that_obeys_ends_in_its_own_way(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    await until(lambda: node.execute(container, "pidof", "sleep"), lambda a: a.exit_code == 0)
    with trio.fail_after(DEADLINE_SECONDS):
        await node.stop(container, 3600)
    status = await node.status(container)
    assert status.state == State.CONTAINER_EXITED
    assert (status.exit_code, status.reason) == (5, "Error")


async def test_a_process_that_does_not_is_killed_after_the_grace(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.ignoring_term(pod)
    await node.stop(container, 1)
    status = await node.status(container)
    assert (status.exit_code, status.reason) == (137, "Error")
    assert status.finished_at - status.started_at >= 1_000_000_000


async def test_without_grace_it_is_killed_at_once(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    await node.stop(container)
    assert (await node.status(container)).exit_code == 137


async def test_a_shorter_grace_overtakes_a_longer_one(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.ignoring_term(pod)
    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.stop, container, 3600)
            await node.stop(container, 1)
    assert (await node.status(container)).exit_code == 137


async def test_giving_up_on_a_stop_leaves_the_container_running(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.ignoring_term(pod)
    with trio.move_on_after(0.2):
        await node.stop(container, 3600)
    assert (await node.status(container)).state == State.CONTAINER_RUNNING


async def test_what_does_not_run_is_left_as_it_is(node: Node) -> None:
    pod = await node.run_pod()
    created = await node.create(pod, name="created")
    exited = await node.running(pod, "true", name="exited")
    before = await node.ended(exited)
    await node.stop(created, 5)
    await node.stop(exited, 5)
    assert (await node.status(created)).state == State.CONTAINER_CREATED
    assert await node.status(exited) == before


async def test_removing_a_running_container_kills_it(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.ignoring_term(pod)
    await node.remove(container)
    assert await node.list_containers(pod_sandbox_id=pod.id) == []
