"""Creating, starting and listing containers."""

import re

import pytest

from lab.images import BUSYBOX, BUSYBOX_AS_USER
from tests.cri.node import (
    ABSENT_IMAGE,
    MISSING_PROGRAM,
    NOBODY,
    OBEYS_TERM,
    Node,
    Pod,
    Runtime,
    State,
    image_status,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_a_created_container_shows_what_it_was_given(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.create(pod, *OBEYS_TERM, attempt=2)
    status = await node.status(container)
    assert re.fullmatch(r"[0-9a-f]{64}", container)
    assert status.id == container
    assert status.metadata == cri.ContainerMetadata(name="main", attempt=2)
    assert status.state == State.CONTAINER_CREATED
    assert status.created_at > 0
    assert (status.started_at, status.finished_at, status.exit_code) == (0, 0, 0)
    assert (status.reason, status.message) == ("", "")
    assert status.image.image == BUSYBOX
    assert re.match(r"(.*@)?sha256:[0-9a-f]{64}$", status.image_ref)
    assert status.labels == {"container": "main"}
    assert status.annotations == {"restarts": "2"}
    assert status.log_path == f"{pod.config.log_directory}/main/2.log"


async def test_a_listed_container_shows_the_same(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    request = cri.ListContainersRequest(filter=cri.ContainerFilter(id=container))
    (item,) = (await node.transport.unary(Runtime.list_containers, request)).containers
    assert item.id == container
    assert item.pod_sandbox_id == pod.id
    assert item.metadata == cri.ContainerMetadata(name="main")
    assert item.state == State.CONTAINER_RUNNING
    assert item.image.image == BUSYBOX
    assert item.image_ref.startswith("sha256:")
    assert item.labels == {"container": "main"}
    assert item.annotations == {"restarts": "0"}
    assert item.created_at == (await node.status(container)).created_at


async def test_its_resources_are_shown_and_can_be_changed(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    before = (await node.status(container)).resources.linux
    assert (before.cpu_period, before.cpu_shares) == (100_000, 102)
    assert before.memory_limit_in_bytes == 64 << 20
    request = cri.UpdateContainerResourcesRequest(
        container_id=container, linux=cri.LinuxContainerResources(cpu_shares=204)
    )
    await node.transport.unary(Runtime.update_container_resources, request)
    after = (await node.status(container)).resources.linux
    assert (after.cpu_period, after.cpu_shares) == (100_000, 204)
    assert after.memory_limit_in_bytes == 64 << 20


async def test_resources_of_an_unknown_container_cannot_be_changed(node: Node) -> None:
    request = cri.UpdateContainerResourcesRequest(
        container_id=NOBODY, linux=cri.LinuxContainerResources(cpu_shares=204)
    )
    with pytest.raises(RpcError) as raised:
        await node.transport.unary(Runtime.update_container_resources, request)
    assert raised.value.code is Code.NOT_FOUND


async def test_a_container_runs_as_root_unless_told_otherwise(node: Node) -> None:
    pod = await node.run_pod()
    user = (await node.status(await node.create(pod))).user.linux
    assert (user.uid, user.gid, user.supplemental_groups) == (0, 0, [0])


async def test_a_container_runs_as_the_user_of_its_image(node: Node) -> None:
    pod = await node.run_pod()
    user = (await node.status(await node.create(pod, image=BUSYBOX_AS_USER))).user.linux
    assert (user.uid, user.gid, user.supplemental_groups) == (1000, 1000, [1000, 2000])


async def test_a_container_runs_as_the_user_it_asks_for(node: Node) -> None:
    pod = await node.run_pod()
    context = cri.LinuxContainerSecurityContext(
        run_as_user=cri.Int64Value(value=4000),
        run_as_group=cri.Int64Value(value=4001),
        supplemental_groups=[4002, 4003],
    )
    user = (await node.status(await node.create(pod, context=context))).user.linux
    assert (user.uid, user.gid) == (4000, 4001)
    assert sorted(user.supplemental_groups) == [4001, 4002, 4003]


async def test_a_process_that_ends_well_has_completed(node: Node) -> None:
    pod = await node.run_pod()
    status = await node.ended(await node.running(pod, "true"))
    assert (status.exit_code, status.reason) == (0, "Completed")
    # containerd takes the start's time after the start: a quick process may end before that.
    assert 0 < status.created_at <= min(status.started_at, status.finished_at)


async def test_a_process_that_fails_is_an_error(node: Node) -> None:
    pod = await node.run_pod()
    status = await node.ended(await node.running(pod, "sh", "-c", "sleep 0.1; exit 3"))
    assert (status.exit_code, status.reason) == (3, "Error")


async def test_a_running_container_has_started_and_not_finished(node: Node) -> None:
    pod = await node.run_pod()
    status = await node.status(await node.running(pod, *OBEYS_TERM))
    assert status.state == State.CONTAINER_RUNNING
    assert status.started_at > 0
    assert status.finished_at == 0


async def test_a_program_that_is_missing_leaves_an_exited_container(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.create(pod, MISSING_PROGRAM)
    with pytest.raises(RpcError, match="no such file or directory") as raised:
        await node.start(container)
    assert raised.value.code is Code.UNKNOWN
    assert raised.value.message.startswith("failed to create containerd task: ")
    status = await node.status(container)
    assert status.state == State.CONTAINER_EXITED
    assert (status.exit_code, status.reason) == (128, "StartError")
    assert status.message == raised.value.message
    assert status.started_at == 0
    assert status.finished_at > 0


@pytest.mark.parametrize("state", ["CONTAINER_RUNNING", "CONTAINER_EXITED"])
async def test_a_container_is_started_once(node: Node, state: str) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    if state == "CONTAINER_EXITED":
        await node.stop(container)
    with pytest.raises(RpcError) as raised:
        await node.start(container)
    assert raised.value.code is Code.UNKNOWN
    assert raised.value.message == (
        f'failed to set starting state for container "{container}": container is in {state} state'
    )


async def test_an_unknown_container_is_not_found(node: Node) -> None:
    text = f'an error occurred when try to find container "{NOBODY}": not found'
    for call in (node.start, node.status):
        with pytest.raises(RpcError) as raised:
            await call(NOBODY)
        assert raised.value.code is Code.NOT_FOUND
        assert raised.value.message == text


async def test_an_unknown_container_can_be_stopped_and_removed(node: Node) -> None:
    await node.stop(NOBODY, 5)
    await node.remove(NOBODY)


async def test_a_container_needs_a_sandbox(node: Node) -> None:
    nowhere = Pod(NOBODY, node.pod_config())
    with pytest.raises(RpcError) as raised:
        await node.create(nowhere)
    assert raised.value.code is Code.NOT_FOUND
    assert raised.value.message == f'failed to find sandbox id "{NOBODY}": not found'


async def test_a_container_needs_an_image_on_the_node(node: Node) -> None:
    pod = await node.run_pod()
    with pytest.raises(RpcError) as raised:
        await node.create(pod, image=ABSENT_IMAGE)
    assert raised.value.code is Code.NOT_FOUND
    assert raised.value.message.endswith(f'failed to resolve image "{ABSENT_IMAGE}": not found')


async def test_a_container_can_be_created_from_the_id_of_an_image(node: Node) -> None:
    image = await image_status(node, BUSYBOX)
    pod = await node.run_pod()
    status = await node.status(await node.create(pod, image=image.id))
    assert status.image.image == BUSYBOX


async def test_one_attempt_of_a_container_is_created_once(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.create(pod)
    metadata = pod.config.metadata
    name = f"main_{metadata.name}_conformance_{metadata.uid}_0"
    with pytest.raises(RpcError) as raised:
        await node.create(pod)
    assert raised.value.code is Code.FAILED_PRECONDITION
    assert raised.value.message == (
        f'failed to reserve container name "{name}"; check if another CreateContainer '
        f'request is in progress: name "{name}" is reserved for "{container}"'
    )
    await node.create(pod, attempt=1)
    await node.remove(container)
    await node.create(pod)


async def test_in_a_stopped_sandbox_containers_are_created_but_not_started(node: Node) -> None:
    pod = await node.run_pod()
    await node.stop_pod(pod.id)
    container = await node.create(pod)
    with pytest.raises(RpcError) as raised:
        await node.start(container)
    assert raised.value.code is Code.UNKNOWN
    assert raised.value.message == f'sandbox container "{pod.id}" is not running'
    status = await node.status(container)
    assert status.state == State.CONTAINER_EXITED
    assert (status.exit_code, status.reason) == (128, "StartError")


async def test_lists_are_filtered(node: Node) -> None:
    pod, other = await node.run_pod(), await node.run_pod()
    created = await node.create(pod, name="created")
    running = await node.running(pod, *OBEYS_TERM, name="running")
    exited = await node.running(pod, "true", name="exited")
    await node.ended(exited)
    elsewhere = await node.create(other, name="created")
    listed = node.list_containers
    assert await listed(pod_sandbox_id=pod.id) == sorted([created, running, exited])
    for state, wanted in enumerate([created, running, exited]):
        value = cri.ContainerStateValue(state=State(state))
        assert await listed(pod_sandbox_id=pod.id, state=value) == [wanted]
    found = {*await listed(label_selector={"container": "created"})}
    assert found >= {created, elsewhere}
    assert running not in found
    assert await listed(id=NOBODY) == []
