"""gRPC and the CRI client against a real containerd: what only the peer in Go can tell."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import frozen

from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.orphans import cgroup_of_ours
from lab.processes import wait_until
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree
from trio_kubelet.rpc import Channel, Code, RpcError, open_rpc_loop, present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import CONTAINERD_HEADERS, RuntimeClient
from trio_kubelet.runtime.inspection import observed_container
from trio_kubelet.runtime.observed import ObservedState

MIB = 2**20
LABELS = {f"label-{number}": str(number) for number in range(30)}
HOST = cri.NamespaceMode(2)
CGROUP_PARENT = f"/{cgroup_of_ours('rpc')}"
exec_sync = cri.RuntimeServiceStub.exec_sync


@frozen
class Running:
    """A client, and a pod of one busybox that sleeps."""

    client: RuntimeClient
    channel: Channel
    sandbox_id: str
    container_id: str

    async def processes(self) -> str:
        found = await self.client.exec_sync(self.container_id, ("ps", "-o", "args"), 10)
        return found.stdout.decode()

    async def wait_until_process(self, args: str, *, runs: bool) -> None:
        with trio.fail_after(60):
            while (args in await self.processes()) is not runs:
                await trio.lowlevel.checkpoint()


def sandbox_config(folder: Path) -> cri.PodSandboxConfig:
    name = folder.name[-50:]
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="rpc"),
        log_directory=str(folder),
        labels=LABELS,
        annotations=LABELS,
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=CGROUP_PARENT,
            overhead=present(cri.LinuxContainerResources()),
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=cri.NamespaceOption(network=HOST)
            ),
        ),
    )


CONTAINER_CONFIG = cri.ContainerConfig(
    metadata=cri.ContainerMetadata(name="main"),
    image=cri.ImageSpec(image=BUSYBOX),
    command=["sleep", "3600"],
    labels=LABELS,
    annotations=LABELS,
    log_path="main.log",
    linux=cri.LinuxContainerConfig(
        security_context=cri.LinuxContainerSecurityContext(
            run_as_user=cri.Int64Value(value=0),
            namespace_options=cri.NamespaceOption(network=HOST, pid=cri.NamespaceMode(1)),
        )
    ),
)


@asynccontextmanager
async def running_pod(endpoint: str, folder: Path) -> AsyncIterator[Running]:
    async with open_rpc_loop():
        channel = Channel(endpoint)
        client = RuntimeClient(channel)
        config = sandbox_config(folder)
        sandbox_id = await client.run_pod_sandbox(config)
        try:
            container_id = await client.create_container(sandbox_id, CONTAINER_CONFIG, config)
            await client.start_container(container_id)
            yield Running(client, channel, sandbox_id, container_id)
        finally:
            with trio.CancelScope(shield=True):
                await client.stop_pod_sandbox(sandbox_id)
                await client.remove_pod_sandbox(sandbox_id)
                await trio.to_thread.run_sync(remove_own_cgroups)


def remove_own_cgroups() -> None:
    """Remove them as the agent does, with what is left in them.

    Of a start that was cut off, containerd 2.1 may leave a runc that waits for ever.
    """
    cgroups = CgroupTree.find(mount_points())
    wait_until(
        lambda: bool([*cgroups.removal(CGROUP_PARENT)][-1]),
        deadline_seconds=60,
        else_say=lambda: f"{CGROUP_PARENT} is in use",
    )


@pytest.fixture
async def pod(containerd: Containerd, tmp_path: Path) -> AsyncIterator[Running]:
    async with running_pod(containerd.endpoint, tmp_path) as running:
        yield running


async def test_empty_messages_arrive(pod: Running) -> None:
    sandbox = await pod.client.pod_sandbox_status(pod.sandbox_id, verbose=True)
    container = await pod.client.container_status(pod.container_id, verbose=True)
    assert json.loads(sandbox.info["info"])["config"]["linux"]["overhead"] == {}
    context = json.loads(container.info["info"])["config"]["linux"]["security_context"]
    assert context["run_as_user"] == {}


async def test_a_containerd_without_streams_of_lists_lists_all_the_same(pod: Running) -> None:
    client = RuntimeClient(pod.channel, streams_lists=True)
    for _ in range(2):
        assert pod.sandbox_id in {each.id for each in await client.list_pod_sandboxes()}
        assert pod.container_id in {each.id for each in await client.list_containers()}
        assert pod.container_id in {
            each.attributes.id for each in await client.list_container_stats()
        }
        assert await client.list_images()


async def test_what_did_not_change_is_not_decoded_again(pod: Running) -> None:
    containers = await pod.client.list_containers()
    sandboxes = await pod.client.list_pod_sandboxes()
    raw = set()
    for _ in range(5):
        raw.add(
            await pod.channel.unary_raw(
                cri.RuntimeServiceStub.list_containers, cri.ListContainersRequest()
            )
        )
        for before, after in zip(containers, await pod.client.list_containers(), strict=True):
            assert after is before
        for old, new in zip(sandboxes, await pod.client.list_pod_sandboxes(), strict=True):
            assert new is old
    assert len(raw) > 1, "containerd writes maps in random order"
    await pod.client.stop_container(pod.container_id, 0)
    (stopped,) = await pod.client.list_containers()
    assert stopped.state == cri.ContainerState.CONTAINER_EXITED
    assert stopped.labels == LABELS


async def test_cancelling_a_call_cancels_it_in_the_runtime(pod: Running) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pod.client.exec_sync, pod.container_id, ("sleep", "7777"), 0)
        await pod.wait_until_process("sleep 7777", runs=True)
        nursery.cancel_scope.cancel()
    await pod.wait_until_process("sleep 7777", runs=False)


async def test_a_deadline_ends_the_call_in_the_runtime(pod: Running) -> None:
    request = cri.ExecSyncRequest(container_id=pod.container_id, cmd=["sleep", "8888"])
    with pytest.raises(RpcError) as caught:
        await pod.channel.unary(exec_sync, request, deadline_seconds=1)
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    await pod.wait_until_process("sleep 8888", runs=False)


async def test_many_cancelled_calls_leave_the_connection_in_order(pod: Running) -> None:
    async def give_up(number: int) -> None:
        with trio.move_on_after(number / 1000):
            await pod.client.list_containers()

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(give_up, number)
    (found,) = await pod.client.list_containers(cri.ContainerFilter(id=pod.container_id))
    assert found.id == pod.container_id
    protocol = pod.channel._grpc._protocol
    assert protocol is not None
    assert protocol.processor.streams == {}
    assert protocol.connection._connection.open_outbound_streams == 0


async def test_answers_larger_than_the_usual_4_mib_arrive(pod: Running) -> None:
    answer = await pod.client.exec_sync(
        pod.container_id, ("head", "-c", str(8 * MIB), "/dev/zero"), 60
    )
    assert len(answer.stdout) == 8 * MIB


async def test_what_is_not_there_is_not_found(pod: Running) -> None:
    with pytest.raises(RpcError) as caught:
        await pod.client.container_status("0" * 64)
    assert caught.value.code is Code.NOT_FOUND
    assert await pod.client.image_status(cri.ImageSpec(image="localhost/lab/absent:1")) is None


async def test_events_arrive_where_the_runtime_has_them(pod: Running) -> None:
    async with pod.client.container_events() as events:
        if (await pod.client.version()).runtime_version.startswith(("1.6", "v1.6")):
            with trio.fail_after(60), pytest.raises(RpcError) as caught:
                await anext(events)
            assert caught.value.code is Code.UNIMPLEMENTED
            return
        await pod.client.stop_container(pod.container_id, 0)
        stopped = cri.ContainerEventType.CONTAINER_STOPPED_EVENT
        with trio.fail_after(60):
            # Events from before somebody listened come first.
            async for event in events:
                if event.container_id == pod.container_id and event.container_event_type == stopped:
                    break
            else:
                pytest.fail("the stream ended before the event came")


async def test_a_task_that_the_runtime_lost_sight_of_keeps_no_container(
    pod: Running, containerd: Containerd, tmp_path: Path
) -> None:
    config = replace(CONTAINER_CONFIG, metadata=cri.ContainerMetadata(name="lost"))
    lost = await pod.client.create_container(pod.sandbox_id, config, sandbox_config(tmp_path))
    client = RuntimeClient(pod.channel, None, Channel(containerd.endpoint, CONTAINERD_HEADERS))

    async def ctr(*words: str) -> str:
        return await trio.to_thread.run_sync(partial(containerd.ctr, *words))

    async def state() -> str:
        lines = (await ctr("tasks", "list")).splitlines()
        return "".join(words[2] for words in map(str.split, lines) if words[0] == lost)

    await ctr("tasks", "start", "--detach", "--null-io", lost)
    with pytest.raises(RpcError, match="cannot delete running task"):
        await client.remove_container(lost)
    assert await state() == "RUNNING"  # What may be at work is not ended like this.
    await ctr("tasks", "kill", "--signal", "KILL", lost)
    with trio.fail_after(60):
        while await state() != "STOPPED":
            await trio.lowlevel.checkpoint()
    with pytest.raises(RpcError, match="cannot delete running task"):
        await pod.client.remove_container(lost)  # CRI alone has no way.
    await client.remove_container(lost)
    assert await state() == ""
    assert lost not in {each.id for each in await pod.client.list_containers()}


async def test_a_container_whose_start_was_cut_off_has_only_been_created(
    pod: Running, containerd: Containerd, tmp_path: Path
) -> None:
    """About one in ten that are cut off in their first quarter of a second ends as a failure."""
    client = RuntimeClient(pod.channel, None, Channel(containerd.endpoint, CONTAINERD_HEADERS))

    async def settled(container_id: str) -> cri.ContainerStatus:
        while True:
            status = (await client.container_status(container_id)).status
            try:
                await client.remove_container(container_id)
            except RpcError as error:
                assert "starting state" in error.message  # noqa: PT017 - else it is no answer
            else:
                return status

    for number in range(200):
        config = replace(CONTAINER_CONFIG, metadata=cri.ContainerMetadata(name=f"cut-{number}"))
        made = await client.create_container(pod.sandbox_id, config, sandbox_config(tmp_path))
        with trio.move_on_after(number % 25 / 100):
            await client.start_container(made)
        with trio.fail_after(60):
            status = await settled(made)
        if status.state == cri.ContainerState.CONTAINER_EXITED:
            assert status.exit_code == 128
            assert observed_container(status, pod.sandbox_id).state is ObservedState.CREATED
            return
    pytest.fail("no start could be cut off")


async def test_a_restart_fails_what_was_under_way_and_the_next_call_connects(
    pod: Running, containerd: Containerd
) -> None:
    failed = trio.Event()

    async def wait_long() -> None:
        with pytest.raises(RpcError) as caught:
            await pod.client.exec_sync(pod.container_id, ("sleep", "9999"), 0)
        assert caught.value.code is Code.UNAVAILABLE
        failed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_long)
        await pod.wait_until_process("sleep 9999", runs=True)
        await trio.to_thread.run_sync(containerd.kill)
        with trio.fail_after(60):
            await failed.wait()
        with pytest.raises(RpcError) as caught:
            await pod.client.version()
        assert caught.value.code is Code.UNAVAILABLE
        await trio.to_thread.run_sync(containerd.restart)
    (container,) = await pod.client.list_containers()
    assert container.id == pod.container_id
    assert container.state == cri.ContainerState.CONTAINER_RUNNING
