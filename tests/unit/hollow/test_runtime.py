"""Processes, latencies, outages and cancellation in the hollow runtime, on a mock clock."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.unit.hollow.conftest import Simulated, simulate
from trio_kubelet.hollow import Behaviour, Latencies
from trio_kubelet.hollow.stats import container_stats
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

SECOND = 1_000_000_000
FOREVER = Behaviour()
STUBBORN = Behaviour(obeys_term=None)


async def lifetime(node: Simulated, container: str) -> tuple[float, int, str]:
    """Seconds from start to end, exit code and reason of a container that has ended."""
    status = await node.status(container)
    seconds = (status.finished_at - status.started_at) / SECOND
    return seconds, status.exit_code, status.reason


@pytest.mark.parametrize(
    ("behaviour", "end"),
    [
        (Behaviour(run_seconds=3), (3, 0, "Completed")),
        (Behaviour(run_seconds=3, exit_code=7), (3, 7, "Error")),
        (Behaviour(run_seconds=3, oom_killed=True), (3, 137, "OOMKilled")),
        (Behaviour(run_seconds=0), (0, 0, "Completed")),
    ],
)
async def test_a_process_ends_by_itself(
    autojump_clock: MockClock, behaviour: Behaviour, end: tuple[float, int, str]
) -> None:
    async with simulate(behaviour) as node:
        container = await node.running()
        await trio.sleep(100)
        assert await lifetime(node, container) == end


@pytest.mark.parametrize(
    ("behaviour", "grace_seconds", "end"),
    [
        (FOREVER, 30, (0, 143, "Error")),
        (Behaviour(obeys_term=5, term_exit_code=0), 30, (5, 0, "Completed")),
        (Behaviour(obeys_term=31), 30, (30, 137, "Error")),
        (STUBBORN, 30, (30, 137, "Error")),
        (STUBBORN, 0, (0, 137, "Error")),
        (Behaviour(run_seconds=10, obeys_term=None), 30, (10, 0, "Completed")),
    ],
)
async def test_a_process_is_stopped(
    autojump_clock: MockClock, behaviour: Behaviour, grace_seconds: int, end: tuple[float, int, str]
) -> None:
    async with simulate(behaviour) as node:
        container = await node.running()
        await node.stop(container, grace_seconds)
        assert await lifetime(node, container) == end


async def test_a_second_stop_does_not_signal_again_but_may_kill_sooner(
    autojump_clock: MockClock,
) -> None:
    async with simulate(Behaviour(obeys_term=20)) as node:
        container = await node.running()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.stop, container, 30)
            await trio.sleep(5)
            nursery.start_soon(node.stop, container, 10)
        assert await lifetime(node, container) == (15, 137, "Error")


async def test_somebody_may_kill_a_process_from_outside(autojump_clock: MockClock) -> None:
    async with simulate(FOREVER) as node:
        container = await node.running()
        await trio.sleep(2)
        node.runtime.containers.kill(container, "OOMKilled")
        await trio.sleep(1)
        assert await lifetime(node, container) == (2, 137, "OOMKilled")


async def test_a_sandbox_may_die_by_itself(autojump_clock: MockClock) -> None:
    async with simulate(FOREVER) as node:
        pod = await node.run_pod()
        node.runtime.sandboxes.fail(pod)
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod)
        status = (await node.runtime.pod_sandbox_status(request)).status
        assert status.state == cri.PodSandboxState.SANDBOX_NOTREADY


async def test_latencies_add_up(autojump_clock: MockClock) -> None:
    latencies = Latencies(run_pod_sandbox=1, create_container=2, start_container=4)
    behaviour = Behaviour(create_latency=10, start_latency=20)
    async with simulate(behaviour, latencies=latencies) as node:
        start = trio.current_time()
        await node.running()
        assert trio.current_time() - start == pytest.approx(37)


async def test_a_cancelled_sandbox_was_never_there_and_its_name_is_free(
    autojump_clock: MockClock,
) -> None:
    async with simulate(latencies=Latencies(run_pod_sandbox=10)) as node:
        with trio.move_on_after(5):
            await node.run_pod()
        await trio.sleep(20)
        assert await node.pods() == []
        await node.run_pod()


async def test_a_sandbox_shows_only_when_it_is_ready(autojump_clock: MockClock) -> None:
    async with simulate(latencies=Latencies(run_pod_sandbox=10)) as node, trio.open_nursery() as n:
        n.start_soon(node.run_pod)
        await trio.sleep(5)
        assert await node.pods() == []
        with pytest.raises(RpcError, match="is reserved for"):
            await node.run_pod()
        await trio.sleep(6)
        assert len(await node.pods()) == 1


async def test_a_cancelled_create_leaves_no_container_and_no_name(
    autojump_clock: MockClock,
) -> None:
    async with simulate(Behaviour(create_latency=10)) as node:
        pod = await node.run_pod()
        with trio.move_on_after(5):
            await node.create(pod)
        assert await node.containers() == []
        await node.create(pod)


async def test_a_cancelled_start_has_failed(autojump_clock: MockClock) -> None:
    async with simulate(Behaviour(start_latency=10)) as node:
        container = await node.create(await node.run_pod())
        with trio.move_on_after(5):
            await node.start(container)
        status = await node.status(container)
        assert status.state == cri.ContainerState.CONTAINER_EXITED
        assert (status.exit_code, status.reason) == (128, "StartError")
        assert status.message == "failed to create containerd task: context canceled"


async def test_a_container_cannot_be_removed_while_it_starts(autojump_clock: MockClock) -> None:
    async with simulate(Behaviour(start_latency=10)) as node, trio.open_nursery() as nursery:
        container = await node.create(await node.run_pod())
        nursery.start_soon(node.start, container)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RpcError, match="container is in starting state, can't be removed"):
            await node.runtime.remove_container(cri.RemoveContainerRequest(container_id=container))


async def test_without_a_network_only_pods_on_the_hosts_start(autojump_clock: MockClock) -> None:
    async with simulate() as node:
        node.runtime.sandboxes.network_ready = False
        with pytest.raises(RpcError, match="failed to setup network for sandbox"):
            await node.run_pod("own")
        modes = cri.NamespaceMode
        options = cri.NamespaceOption(network=modes(modes.NODE))
        context = cri.LinuxSandboxSecurityContext(namespace_options=options)
        await node.run_pod("hosts", linux=cri.LinuxPodSandboxConfig(security_context=context))
        status = (await node.runtime.status(cri.StatusRequest())).status
        (network,) = [c for c in status.conditions if c.type == "NetworkReady"]
        assert (network.status, network.reason) == (False, "NetworkPluginNotReady")


async def test_addresses_are_used_again_only_when_they_are_free(autojump_clock: MockClock) -> None:
    async with simulate(subnet="10.0.0.0/29") as node:
        pods = [await node.run_pod(str(number)) for number in range(5)]
        with pytest.raises(RpcError) as raised:
            await node.run_pod("too many")
        assert raised.value.code is Code.RESOURCE_EXHAUSTED
        await node.remove_pod(pods[2])
        again = await node.run_pod("again")
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=again)
        assert (await node.runtime.pod_sandbox_status(request)).status.network.ip == "10.0.0.4"


async def test_while_it_is_down_calls_fail_and_containers_run_on(autojump_clock: MockClock) -> None:
    async with simulate(Behaviour(run_seconds=10)) as node:
        container = await node.running()
        node.runtime.go_down()
        with pytest.raises(RpcError) as raised:
            await node.status(container)
        assert raised.value.code is Code.UNAVAILABLE
        await trio.sleep(20)
        node.runtime.come_back()
        assert await lifetime(node, container) == (10, 0, "Completed")


async def test_a_restart_breaks_the_calls_under_way(autojump_clock: MockClock) -> None:
    async with simulate(STUBBORN) as node, trio.open_nursery() as nursery:
        container = await node.running()

        async def stop() -> None:
            with pytest.raises(RpcError) as raised:
                await node.stop(container, 30)
            assert raised.value.code is Code.UNAVAILABLE

        nursery.start_soon(stop)
        await trio.sleep(1)
        await node.runtime.restart(down_seconds=5)
        assert (await node.status(container)).state == cri.ContainerState.CONTAINER_RUNNING


async def test_the_same_seed_gives_the_same_ids(autojump_clock: MockClock) -> None:
    async def ids(seed: int) -> tuple[str, str]:
        async with simulate(seed=seed) as node:
            pod = await node.run_pod()
            return pod, await node.create(pod)

    assert await ids(1) == await ids(1)
    assert await ids(1) != await ids(2)


async def test_lists_and_their_maps_come_in_changing_order(autojump_clock: MockClock) -> None:
    async with simulate() as node:
        pod = await node.run_pod()
        for number in range(8):
            await node.create(pod, attempt=number)
        listings = [await node.containers() for _ in range(10)]
    assert len({tuple(item.id for item in listing) for listing in listings}) > 1
    assert len({tuple(item.labels) for listing in listings for item in listing}) > 1
    assert len({frozenset(item.id for item in listing) for listing in listings}) == 1


async def test_without_shuffling_they_come_as_they_were_made(autojump_clock: MockClock) -> None:
    async with simulate(shuffle=False) as node:
        pod = await node.run_pod()
        made = [await node.create(pod, attempt=number) for number in range(8)]
        assert [item.id for item in await node.containers()] == made


async def test_a_clock_that_was_set_back_makes_no_used_time_negative(
    autojump_clock: MockClock,
) -> None:
    async with simulate(FOREVER) as node:
        container = node.runtime.containers.get(await node.running())
        assert container is not None
        stats = container_stats(container, container.started_at - 3600 * SECOND)
        assert stats.cpu.usage_core_nano_seconds.value == 0
        assert bytes(stats)
