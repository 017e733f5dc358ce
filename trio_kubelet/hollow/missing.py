"""The rpcs that the hollow runtime does not have, answered as a gRPC server does.

Exec, attach and port-forward need a kernel; checkpoints, metrics and the lists in pieces are
what containerd 2.1 lacks too.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from betterproto import Message

from trio_kubelet.rpc import Code, RpcError


def _call(
    rpc: str, service: str = "RuntimeService"
) -> Callable[[object, Message], Awaitable[Message]]:
    async def refuse(self: object, request: Message) -> Message:
        del self, request
        text = f"unknown method {rpc} for service runtime.v1.{service}"
        raise RpcError(Code.UNIMPLEMENTED, text)

    return refuse


def _stream(
    rpc: str, service: str = "RuntimeService"
) -> Callable[[object, Message], AsyncIterator[Message]]:
    call = _call(rpc, service)

    async def refuse(self: object, request: Message) -> AsyncIterator[Message]:
        yield await call(self, request)

    return refuse


class MissingRpcs:
    """Raises UNIMPLEMENTED for each of them."""

    exec = _call("Exec")
    attach = _call("Attach")
    port_forward = _call("PortForward")
    checkpoint_container = _call("CheckpointContainer")
    checkpoint_pod = _call("CheckpointPod")
    restore_pod = _call("RestorePod")
    list_metric_descriptors = _call("ListMetricDescriptors")
    list_pod_sandbox_metrics = _call("ListPodSandboxMetrics")
    stream_pod_sandboxes = _stream("StreamPodSandboxes")
    stream_containers = _stream("StreamContainers")
    stream_container_stats = _stream("StreamContainerStats")
    stream_pod_sandbox_stats = _stream("StreamPodSandboxStats")
    stream_pod_sandbox_metrics = _stream("StreamPodSandboxMetrics")
    stream_images = _stream("StreamImages", "ImageService")
