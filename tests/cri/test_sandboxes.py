"""The life of sandboxes."""

import re

import pytest

from tests.cri.node import NOBODY, OBEYS_TERM, Node, Runtime
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_a_new_sandbox_is_ready_and_shows_what_it_was_given(node: Node) -> None:
    pod = await node.run_pod()
    status = await node.pod_status(pod.id)
    assert re.fullmatch(r"[0-9a-f]{64}", pod.id)
    assert status.id == pod.id
    assert status.state == cri.PodSandboxState.SANDBOX_READY
    assert status.metadata == pod.config.metadata
    assert status.labels == pod.config.labels
    assert status.annotations == pod.config.annotations
    assert status.linux.namespaces.options.pid == cri.NamespaceMode.CONTAINER
    assert status.created_at > 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", status.network.ip)


async def test_a_listed_sandbox_shows_the_same(node: Node) -> None:
    pod = await node.run_pod()
    request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(id=pod.id))
    (item,) = (await node.transport.unary(Runtime.list_pod_sandbox, request)).items
    assert item.id == pod.id
    assert item.metadata == pod.config.metadata
    assert item.state == cri.PodSandboxState.SANDBOX_READY
    assert item.labels == pod.config.labels
    assert item.annotations == pod.config.annotations
    assert item.created_at == (await node.pod_status(pod.id)).created_at


async def test_two_pods_have_two_addresses(node: Node) -> None:
    pods = [await node.run_pod(), await node.run_pod()]
    first, second = [(await node.pod_status(pod.id)).network.ip for pod in pods]
    assert first != second


async def test_a_pod_on_the_hosts_network_has_no_address(node: Node) -> None:
    pod = await node.run_pod(node.pod_config(host_network=True))
    status = await node.pod_status(pod.id)
    assert status.network.ip == ""
    assert status.linux.namespaces.options.network == cri.NamespaceMode.NODE


async def test_a_pod_on_the_hosts_network_cannot_have_a_hostname(node: Node) -> None:
    config = node.pod_config(host_network=True, hostname="other")
    with pytest.raises(RpcError, match="unable to set hostname without a private UTS") as raised:
        await node.run_pod(config)
    assert raised.value.code is Code.UNKNOWN


async def test_a_name_is_taken_while_its_sandbox_exists_ready_or_not(node: Node) -> None:
    pod = await node.run_pod()
    name = f"{pod.config.metadata.name}_conformance_{pod.config.metadata.uid}_0"
    text = f'failed to reserve sandbox name "{name}": name "{name}" is reserved for "{pod.id}"'
    for _ in range(2):
        with pytest.raises(RpcError) as raised:
            await node.run_pod(pod.config)
        assert raised.value.code is Code.FAILED_PRECONDITION
        assert raised.value.message == text
        await node.stop_pod(pod.id)


async def test_another_attempt_and_a_removed_one_have_free_names(node: Node) -> None:
    config = node.pod_config()
    first = await node.run_pod(config)
    config.metadata.attempt = 1
    second = await node.run_pod(config)
    assert (await node.pod_status(second.id)).metadata.attempt == 1
    config.metadata.attempt = 0
    await node.remove_pod(first.id)
    assert (await node.run_pod(config)).id != first.id


async def test_an_unknown_runtime_handler_is_refused(node: Node) -> None:
    config = node.pod_config()
    request = cri.RunPodSandboxRequest(config=config, runtime_handler="other")
    with pytest.raises(RpcError, match='no runtime for "other" is configured') as raised:
        await node.transport.unary(Runtime.run_pod_sandbox, request)
    assert raised.value.code is Code.UNKNOWN
    await node.run_pod(config)


async def test_an_unknown_sandbox_has_no_status(node: Node) -> None:
    with pytest.raises(RpcError) as raised:
        await node.pod_status(NOBODY)
    assert raised.value.code is Code.NOT_FOUND
    assert raised.value.message == "an error occurred when try to find sandbox: not found"


async def test_an_unknown_sandbox_can_be_stopped_and_removed(node: Node) -> None:
    await node.stop_pod(NOBODY)
    await node.remove_pod(NOBODY)


async def test_stopping_kills_the_containers_and_takes_the_address(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    await node.stop_pod(pod.id)
    status = await node.pod_status(pod.id)
    assert status.state == cri.PodSandboxState.SANDBOX_NOTREADY
    assert status.network.ip == ""
    assert (await node.status(container)).exit_code == 137
    await node.stop_pod(pod.id)


async def test_removing_takes_the_containers_along(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.ignoring_term(pod)
    await node.remove_pod(pod.id)
    assert await node.list_containers(id=container) == []
    assert await node.list_pods(id=pod.id) == []


async def test_lists_are_filtered_by_state_and_labels(node: Node) -> None:
    ready, stopped = await node.run_pod(), await node.run_pod()
    await node.stop_pod(stopped.id)
    states = cri.PodSandboxState
    state_of = {
        state: cri.PodSandboxStateValue(state=states(state))
        for state in (states.SANDBOX_READY, states.SANDBOX_NOTREADY)
    }
    ours = {ready.id, stopped.id}
    assert ours & {*await node.list_pods(state=state_of[states.SANDBOX_READY])} == {ready.id}
    assert ours & {*await node.list_pods(state=state_of[states.SANDBOX_NOTREADY])} == {stopped.id}
    labels = ready.config.labels
    assert await node.list_pods(label_selector=labels) == [ready.id]
    assert await node.list_pods(label_selector={**labels, "tier": "other"}) == []
    assert ours <= {*await node.list_pods()}


async def test_a_list_that_is_too_long_for_a_message_fails(node: Node) -> None:
    """So what an author of pods can put into it must be bounded."""
    for _ in range(3):
        await node.run_pod(node.pod_config(annotations={"long": "x" * (6 << 20)}))
    with pytest.raises(RpcError) as failure:
        await node.list_pods()
    assert failure.value.code is Code.RESOURCE_EXHAUSTED
