"""The hollow runtime as a process that outlives the agent."""

import signal
import subprocess
import sys
from pathlib import Path

import trio

from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri

COMMAND = (sys.executable, "-m", "trio_kubelet.hollow", "--name", "containerd")
RUNTIME = cri.RuntimeServiceStub


async def test_pods_are_found_again_by_the_next_client_until_the_process_ends(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "hollow.sock"
    with trio.fail_after(60):
        command = [*COMMAND, "--socket", str(socket), "--image", "busybox"]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = await process.stdout.receive_some()
        assert bytes(said).decode() == f"hollow runtime on unix://{socket}\n"
        metadata = cri.PodSandboxMetadata(name="pod", uid="uid", namespace="default")
        async with open_rpc_loop():
            channel = Channel(f"unix://{socket}")
            request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata))
            pod = (await channel.unary(RUNTIME.run_pod_sandbox, request)).pod_sandbox_id
        async with open_rpc_loop():
            channel = Channel(f"unix://{socket}")
            answer = await channel.unary(RUNTIME.list_pod_sandbox, cri.ListPodSandboxRequest())
            assert [item.id for item in answer.items] == [pod]
            version = await channel.unary(RUNTIME.version, cri.VersionRequest())
            assert version.runtime_name == "containerd"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert not await trio.Path(socket).exists()


async def test_a_socket_that_is_taken_is_one_line(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    await trio.Path(occupied).write_text("not a socket")
    ended = await trio.run_process(
        [*COMMAND, "--socket", str(occupied)], capture_stderr=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.decode().startswith("Error: ")
    assert len(ended.stderr.splitlines()) == 1
