"""Commands run inside of hollow containers: ExecSync.

The answer comes from the behaviour's `execs`, else from what `shell.py` makes of the command.
"""

import trio

from trio_kubelet.hollow.behaviour import KILLED, ExecResult
from trio_kubelet.hollow.records import Container
from trio_kubelet.hollow.shell import result_of_exec
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def exec_sync(
    container: Container | None, request: cri.ExecSyncRequest
) -> cri.ExecSyncResponse:
    """Run a command for as long as it takes; the end of the container ends it with 137.

    Raises DEADLINE_EXCEEDED after the request's `timeout` in seconds (0: none).
    """
    if container is None:
        text = f'failed to exec in container: failed to find container "{request.container_id}" '
        raise RpcError(Code.NOT_FOUND, f"{text}in store: not found")
    if container.state is not cri.ContainerState.CONTAINER_RUNNING:
        text = f"failed to exec in container: container is in {container.state.name} state"
        raise RpcError(Code.UNKNOWN, text)
    result = container.behaviour.execs.get(" ".join(request.cmd))
    result = result or result_of_exec(tuple(request.cmd))
    deadline = request.timeout if 0 < request.timeout < result.run_seconds else result.run_seconds
    with trio.move_on_after(deadline):
        await container.stopped.wait()
        result = ExecResult(exit_code=KILLED)
    if not container.stopped.is_set() and deadline < result.run_seconds:
        text = f"failed to exec in container: timeout {request.timeout}s exceeded: "
        raise RpcError(Code.DEADLINE_EXCEEDED, f"{text}context deadline exceeded")
    return cri.ExecSyncResponse(
        stdout=result.stdout.encode(), stderr=result.stderr.encode(), exit_code=result.exit_code
    )
