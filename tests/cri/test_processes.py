"""What can be seen of running containers: commands in them, logs, figures."""

import re

import pytest
import trio

from tests.cri.node import NOBODY, OBEYS_TERM, Node, Runtime, until
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_a_command_answers_with_its_output_and_exit_code(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    answer = await node.execute(container, "sh", "-c", "echo out; echo err >&2; exit 4")
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"out\n", b"err\n", 4)


async def test_a_command_that_takes_too_long_is_ended(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    with pytest.raises(RpcError) as raised:
        await node.execute(container, "sleep", "60", timeout_seconds=1)
    assert raised.value.code is Code.DEADLINE_EXCEEDED
    assert raised.value.message == (
        "failed to exec in container: timeout 1s exceeded: context deadline exceeded"
    )


@pytest.mark.parametrize("state", ["CONTAINER_CREATED", "CONTAINER_EXITED"])
async def test_only_a_running_container_takes_commands(node: Node, state: str) -> None:
    pod = await node.run_pod()
    container = await node.create(pod, "true")
    if state == "CONTAINER_EXITED":
        await node.start(container)
        await node.ended(container)
    with pytest.raises(RpcError) as raised:
        await node.execute(container, "true")
    assert raised.value.code is Code.UNKNOWN
    assert raised.value.message == f"failed to exec in container: container is in {state} state"


async def test_an_unknown_container_takes_no_commands(node: Node) -> None:
    with pytest.raises(RpcError) as raised:
        await node.execute(NOBODY, "true")
    assert raised.value.code is Code.NOT_FOUND
    assert raised.value.message == (
        f'failed to exec in container: failed to find container "{NOBODY}" in store: not found'
    )


async def test_what_a_process_prints_is_in_its_log(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, "sh", "-c", "echo out; sleep 0.1; echo err >&2")
    log = trio.Path((await node.ended(container)).log_path)
    lines = await until(lambda: read_lines(log), lambda lines: len(lines) == 2)
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)"
    assert re.fullmatch(f"{time} stdout F out", lines[0])
    assert re.fullmatch(f"{time} stderr F err", lines[1])


async def test_a_log_that_was_moved_away_is_made_anew(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    log = trio.Path((await node.status(container)).log_path)
    await until(log.exists, bool)
    await log.rename(log.with_suffix(".old"))
    request = cri.ReopenContainerLogRequest(container_id=container)
    await node.transport.unary(Runtime.reopen_container_log, request)
    assert await log.exists()


async def test_only_a_running_containers_log_can_be_reopened(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.create(pod)
    for container_id, code in ((container, Code.UNKNOWN), (NOBODY, Code.NOT_FOUND)):
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        with pytest.raises(RpcError) as raised:
            await node.transport.unary(Runtime.reopen_container_log, request)
        assert raised.value.code is code


async def test_a_running_container_uses_cpu_and_memory(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    request = cri.ContainerStatsRequest(container_id=container)
    stats = (await node.transport.unary(Runtime.container_stats, request)).stats
    assert stats.attributes.id == container
    assert stats.attributes.metadata.name == "main"
    assert stats.attributes.labels == {"container": "main"}
    assert stats.cpu.timestamp > 0
    assert stats.cpu.usage_core_nano_seconds.value > 0
    assert 0 < stats.memory.working_set_bytes.value < 64 << 20


async def test_a_container_that_does_not_run_has_none(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.create(pod)
    for container_id, code in ((container, Code.UNKNOWN), (NOBODY, Code.NOT_FOUND)):
        request = cri.ContainerStatsRequest(container_id=container_id)
        with pytest.raises(RpcError) as raised:
            await node.transport.unary(Runtime.container_stats, request)
        assert raised.value.code is code


async def test_a_pods_stats_show_its_containers(node: Node) -> None:
    pod = await node.run_pod()
    container = await node.running(pod, *OBEYS_TERM)
    request = cri.PodSandboxStatsRequest(pod_sandbox_id=pod.id)
    stats = (await node.transport.unary(Runtime.pod_sandbox_stats, request)).stats
    assert stats.attributes.id == pod.id
    assert stats.linux.network.default_interface.name == "eth0"
    assert [c.attributes.id for c in stats.linux.containers] == [container]


async def read_lines(log: trio.Path) -> list[str]:
    return (await log.read_text()).splitlines() if await log.exists() else []
