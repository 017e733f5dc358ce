"""Tasks that containerd's CRI plugin has lost sight of, ended through containerd's own service.

A task is what containerd calls a container's process. When the agent is killed while a container
starts, the call is cut off with it, and containerd may have made the task but not written down
that it did (seen on 1.6 and 2.1: "failed to get task pid: context canceled"). CRI then shows a
container that has exited and never ran, while the process waits to be let go. CRI refuses to
remove it, until containerd is started again, and has no call that ends it: pod, folders and
cgroup would stay. Deleting the task is safe: containerd refuses while a container's own program
runs in it.
"""

from collections.abc import Mapping

import structlog

from trio_kubelet.rpc import Code, RpcError, Transport
from trio_kubelet.rpc.stubs.containerd.services.tasks.v1 import DeleteTaskRequest, TasksStub

log = structlog.get_logger("runtime")

CONTAINERD_HEADERS: Mapping[str, str] = {"containerd-namespace": "k8s.io"}
"""The metadata of calls to containerd's own services: the namespace that has CRI's containers."""

DELETE_SECONDS = 30.0


async def delete_lost_task(tasks: Transport, container_id: str) -> bool:
    """Delete the task of a container that does not run; whether it is gone.

    False on other runtimes, and while the container's program runs.
    """
    request = DeleteTaskRequest(container_id=container_id)
    try:
        await tasks.unary(TasksStub.delete, request, deadline_seconds=DELETE_SECONDS)
    except RpcError as error:
        if error.code is not Code.UNIMPLEMENTED:
            log.warning(
                "lost containerd task deletion failed", container=container_id, error=str(error)
            )
        return False
    log.info("lost containerd task deleted", container=container_id)
    return True
