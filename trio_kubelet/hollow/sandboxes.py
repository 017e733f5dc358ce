"""The sandboxes of the hollow runtime: from RunPodSandbox to RemovePodSandbox.

A sandbox becomes visible when it is ready, not before, as in containerd; until then only its name
is taken. A cancelled or failed RunPodSandbox leaves nothing behind.
"""

import ipaddress
from collections.abc import Iterator

import trio

from trio_kubelet.hollow.containers import HollowContainers
from trio_kubelet.hollow.events import HollowContext
from trio_kubelet.hollow.records import HollowSandbox, sandbox_status, uses_host_network
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

NETWORK_NOT_READY = "cni plugin not initialized"
# What containerd's last event of a sandbox says of its creation: Go's zero time in nanoseconds,
# overflown.
GONE_NS = -6795364578871345152
_EVENT = cri.ContainerEventType


class Addresses:
    """Hands out the pod IPs of a subnet in turn, skipping those in use."""

    def __init__(self, subnet: str) -> None:
        self._subnet = ipaddress.ip_network(subnet)
        self._next = 2  # 0 is the subnet itself, 1 its gateway
        self._used: set[str] = set()

    def take(self) -> str:
        """A free address. Raises RESOURCE_EXHAUSTED when there is none."""
        last = self._subnet.num_addresses - 1
        for _ in range(last):
            address = str(self._subnet[self._next])
            self._next = 2 if self._next + 1 >= last else self._next + 1
            if address not in self._used:
                self._used.add(address)
                return address
        raise RpcError(Code.RESOURCE_EXHAUSTED, "failed to allocate for range 0: no IP addresses")

    def give_back(self, address: str) -> None:
        """Free the address of a stopped sandbox; empty: it had none."""
        self._used.discard(address)


class Sandboxes:
    """Owns every sandbox record. `network_ready` may be switched at any time."""

    def __init__(
        self,
        common: HollowContext,
        containers: HollowContainers,
        sandboxes: dict[str, HollowSandbox],
    ) -> None:
        self._clock = common.clock
        self._options = common.options
        self._events = common.events
        self._containers = containers
        self._sandboxes = sandboxes
        self._ids = common.ids
        self._names: dict[str, str] = {}
        self._addresses = Addresses(common.options.subnet)
        self.network_ready = True

    def __iter__(self) -> Iterator[HollowSandbox]:
        return iter(self._sandboxes.values())

    async def run(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        """RunPodSandbox: fails while a sandbox of the same metadata exists, ready or not."""
        name = _sandbox_name(request.config.metadata)
        sandbox_id = f"{self._ids.getrandbits(256):064x}"
        if holder := self._names.get(name):
            text = f'failed to reserve sandbox name "{name}": '
            raise RpcError(
                Code.FAILED_PRECONDITION, f'{text}name "{name}" is reserved for "{holder}"'
            )
        self._names[name] = sandbox_id
        try:
            self._check_handler(sandbox_id, request.runtime_handler)
            await trio.sleep(self._options.latencies.run_pod_sandbox)
            ip = self._set_up_network(sandbox_id, request.config)
        except BaseException:
            del self._names[name]
            raise
        sandbox = self._sandboxes[sandbox_id] = HollowSandbox(
            id=sandbox_id,
            name=name,
            config=request.config,
            handler=request.runtime_handler,
            created_at=self._clock.now_ns(),
            ip=ip,
        )
        self._events.send(_EVENT.CONTAINER_CREATED_EVENT, sandbox_id, sandbox)
        self._events.send(_EVENT.CONTAINER_STARTED_EVENT, sandbox_id, sandbox)
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)

    async def stop(self, request: cri.StopPodSandboxRequest) -> cri.StopPodSandboxResponse:
        """StopPodSandbox: kills its containers; unknown and stopped sandboxes are no error."""
        if sandbox := self._sandboxes.get(request.pod_sandbox_id):
            await self._stop(sandbox)
        return cri.StopPodSandboxResponse()

    async def update_resources(
        self, request: cri.UpdatePodSandboxResourcesRequest
    ) -> cri.UpdatePodSandboxResourcesResponse:
        """UpdatePodSandboxResources: what the status shows later."""
        await trio.lowlevel.checkpoint()
        linux = self.find(request.pod_sandbox_id).config.linux
        linux.resources, linux.overhead = request.resources, request.overhead
        return cri.UpdatePodSandboxResourcesResponse()

    async def remove(self, request: cri.RemovePodSandboxRequest) -> cri.RemovePodSandboxResponse:
        """RemovePodSandbox: stops it, removes its containers; an unknown id is no error."""
        sandbox = self._sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            await trio.lowlevel.checkpoint()
            return cri.RemovePodSandboxResponse()
        await self._stop(sandbox)
        for container_id in tuple(sandbox.containers):
            await self._containers.remove(cri.RemoveContainerRequest(container_id=container_id))
        if sandbox.id in self._sandboxes:
            sandbox.created_at = GONE_NS
            self._events.send(_EVENT.CONTAINER_DELETED_EVENT, sandbox.id, sandbox)
            del self._sandboxes[sandbox.id]
            del self._names[sandbox.name]
        return cri.RemovePodSandboxResponse()

    async def status(self, request: cri.PodSandboxStatusRequest) -> cri.PodSandboxStatusResponse:
        """PodSandboxStatus; raises NOT_FOUND."""
        return cri.PodSandboxStatusResponse(
            status=sandbox_status(self.find(request.pod_sandbox_id)),
        )

    def find(self, sandbox_id: str) -> HollowSandbox:
        """The sandbox of that id; raises NOT_FOUND."""
        if sandbox := self._sandboxes.get(sandbox_id):
            return sandbox
        raise RpcError(Code.NOT_FOUND, "an error occurred when try to find sandbox: not found")

    def fail(self, sandbox_id: str) -> None:
        """Let the sandbox's own process die: it is not ready any more, its containers go on."""
        self._became_not_ready(self.find(sandbox_id))

    async def _stop(self, sandbox: HollowSandbox) -> None:
        for container in tuple(sandbox.containers.values()):
            await self._containers.stop_process(container, 0)
        await trio.sleep(self._options.latencies.stop_pod_sandbox)
        self._became_not_ready(sandbox)
        self._addresses.give_back(sandbox.ip)
        sandbox.ip = ""

    def _became_not_ready(self, sandbox: HollowSandbox) -> None:
        if sandbox.ready:
            sandbox.ready = False
            self._events.send(_EVENT.CONTAINER_STOPPED_EVENT, sandbox.id, sandbox)

    def _check_handler(self, sandbox_id: str, handler: str) -> None:
        if handler not in self._options.handlers:
            text = f'unable to get OCI runtime for sandbox "{sandbox_id}": no runtime for '
            raise RpcError(Code.UNKNOWN, f'{text}"{handler}" is configured')

    def _check_hostname(self, sandbox_id: str, config: cri.PodSandboxConfig) -> None:
        """Refuse a hostname of its own to a pod that shares the node's."""
        if config.hostname:
            text = f'failed to start sandbox "{sandbox_id}": failed to create containerd task: '
            text += "unable to set hostname without a private UTS namespace"
            raise RpcError(Code.UNKNOWN, text)

    def _set_up_network(self, sandbox_id: str, config: cri.PodSandboxConfig) -> str:
        if uses_host_network(config):
            self._check_hostname(sandbox_id, config)
            return ""
        if not self.network_ready:
            text = f'failed to setup network for sandbox "{sandbox_id}": {NETWORK_NOT_READY}'
            raise RpcError(Code.UNKNOWN, text)
        return self._addresses.take()


def _sandbox_name(metadata: cri.PodSandboxMetadata) -> str:
    parts = (metadata.name, metadata.namespace, metadata.uid, str(metadata.attempt))
    return "_".join(parts)
