"""A CRI runtime without a kernel: the service object that answers every call.

Each rpc goes through one gate, `_answer`: is the runtime up, what does `Faults` say, then the
effect in `sandboxes.py`, `containers.py` or `images.py`. Processes are tasks in a nursery that
the caller gives, so the runtime ends with it; `open_hollow_runtime` brings its own.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import trio
from betterproto import Message

from trio_kubelet.hollow.containers import HollowContainers, exec_sync
from trio_kubelet.hollow.events import Events, HollowContext
from trio_kubelet.hollow.faults import CallFault
from trio_kubelet.hollow.images import ImageStore
from trio_kubelet.hollow.lists import (
    container_list,
    container_pieces,
    matching_containers,
    matching_sandboxes,
    pieces,
    sandbox_list,
    sandbox_pieces,
)
from trio_kubelet.hollow.options import HollowOptions
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.hollow.sandboxes import NETWORK_NOT_READY, Sandboxes
from trio_kubelet.hollow.stats import container_stats, sandbox_stats
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.tasks.clock import Clock

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response")


class HollowRuntime:
    """RuntimeService and ImageService of CRI v1 in one object.

    Every rpc is a coroutine from request to response that raises `RpcError`; the streaming ones
    are async generators. What needs a kernel (exec, attach and port-forward streams) and what
    containerd 2.1 lacks (metrics, checkpoints of pods) is missing, which transports answer with
    UNIMPLEMENTED; lists in pieces are there, unless the options say otherwise.
    """

    def __init__(
        self, clock: Clock, nursery: trio.Nursery, options: HollowOptions | None = None
    ) -> None:
        options = options or HollowOptions()
        ids = random.Random(options.seed)  # noqa: S311
        sandboxes: dict[str, HollowSandbox] = {}
        self._clock = clock
        self._nursery = nursery
        self._options = options
        self._order = random.Random(options.seed) if options.shuffle else None  # noqa: S311
        self._up = True
        self._calls: set[trio.CancelScope] = set()
        self.images = ImageStore(clock, options.registry, options.images)
        self.events = Events(clock, self.images, options)
        common = HollowContext(clock=clock, options=options, events=self.events, ids=ids)
        self.containers = HollowContainers(common, nursery, self.images, sandboxes)
        self.sandboxes = Sandboxes(common, self.containers, sandboxes)
        self.runtime_ready = True
        self.faults = options.faults
        self.pod_cidr = ""

    def go_down(self) -> None:
        """Crash: calls under way and later ones fail with UNAVAILABLE, streams end.

        The containers run on, as they do beside a real runtime's service.
        """
        self._up = False
        self.events.cut()
        for call in self._calls:
            call.cancel()

    def come_back(self) -> None:
        """Serve again, with everything known that was known before."""
        self._up = True

    async def restart(self, down_seconds: float = 0.0) -> None:
        """Be away for that long; cancelled, it comes back at once."""
        self.go_down()
        try:
            await trio.sleep(down_seconds)
        finally:
            self.come_back()

    async def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        """RunPodSandbox."""
        return await self._answer("RunPodSandbox", request, self.sandboxes.run)

    async def stop_pod_sandbox(
        self, request: cri.StopPodSandboxRequest
    ) -> cri.StopPodSandboxResponse:
        """StopPodSandbox."""
        return await self._answer("StopPodSandbox", request, self.sandboxes.stop)

    async def remove_pod_sandbox(
        self, request: cri.RemovePodSandboxRequest
    ) -> cri.RemovePodSandboxResponse:
        """RemovePodSandbox."""
        return await self._answer("RemovePodSandbox", request, self.sandboxes.remove)

    async def pod_sandbox_status(
        self, request: cri.PodSandboxStatusRequest
    ) -> cri.PodSandboxStatusResponse:
        """PodSandboxStatus."""
        return await self._answer("PodSandboxStatus", request, self.sandboxes.status)

    async def update_pod_sandbox_resources(
        self, request: cri.UpdatePodSandboxResourcesRequest
    ) -> cri.UpdatePodSandboxResourcesResponse:
        """UpdatePodSandboxResources."""
        return await self._answer(
            "UpdatePodSandboxResources", request, self.sandboxes.update_resources
        )

    async def list_pod_sandbox(
        self, request: cri.ListPodSandboxRequest
    ) -> cri.ListPodSandboxResponse:
        """ListPodSandbox."""
        return await self._answer("ListPodSandbox", request, self._list_pod_sandbox)

    async def create_container(
        self, request: cri.CreateContainerRequest
    ) -> cri.CreateContainerResponse:
        """CreateContainer."""
        return await self._answer("CreateContainer", request, self.containers.create)

    async def start_container(
        self, request: cri.StartContainerRequest
    ) -> cri.StartContainerResponse:
        """StartContainer."""
        return await self._answer("StartContainer", request, self.containers.start)

    async def stop_container(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        """StopContainer."""
        return await self._answer("StopContainer", request, self.containers.stop)

    async def remove_container(
        self, request: cri.RemoveContainerRequest
    ) -> cri.RemoveContainerResponse:
        """RemoveContainer."""
        return await self._answer("RemoveContainer", request, self.containers.remove)

    async def container_status(
        self, request: cri.ContainerStatusRequest
    ) -> cri.ContainerStatusResponse:
        """ContainerStatus."""
        return await self._answer("ContainerStatus", request, self.containers.status)

    async def list_containers(
        self, request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        """ListContainers."""
        return await self._answer("ListContainers", request, self._list_containers)

    async def update_container_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        """UpdateContainerResources."""
        return await self._answer(
            "UpdateContainerResources", request, self.containers.update_resources
        )

    async def reopen_container_log(
        self, request: cri.ReopenContainerLogRequest
    ) -> cri.ReopenContainerLogResponse:
        """ReopenContainerLog."""
        return await self._answer("ReopenContainerLog", request, self.containers.reopen_log)

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        """ExecSync."""
        return await self._answer("ExecSync", request, self._exec_sync)

    async def container_stats(
        self, request: cri.ContainerStatsRequest
    ) -> cri.ContainerStatsResponse:
        """ContainerStats."""
        return await self._answer("ContainerStats", request, self._container_stats)

    async def list_container_stats(
        self, request: cri.ListContainerStatsRequest
    ) -> cri.ListContainerStatsResponse:
        """ListContainerStats."""
        return await self._answer("ListContainerStats", request, self._list_container_stats)

    async def pod_sandbox_stats(
        self, request: cri.PodSandboxStatsRequest
    ) -> cri.PodSandboxStatsResponse:
        """PodSandboxStats."""
        return await self._answer("PodSandboxStats", request, self._pod_sandbox_stats)

    async def list_pod_sandbox_stats(
        self, request: cri.ListPodSandboxStatsRequest
    ) -> cri.ListPodSandboxStatsResponse:
        """ListPodSandboxStats."""
        return await self._answer("ListPodSandboxStats", request, self._list_pod_sandbox_stats)

    async def version(self, request: cri.VersionRequest) -> cri.VersionResponse:
        """Version."""
        return await self._answer("Version", request, self._version)

    async def status(self, request: cri.StatusRequest) -> cri.StatusResponse:
        """Status."""
        return await self._answer("Status", request, self._status)

    async def runtime_config(self, request: cri.RuntimeConfigRequest) -> cri.RuntimeConfigResponse:
        """RuntimeConfig."""
        return await self._answer("RuntimeConfig", request, self._runtime_config)

    async def update_runtime_config(
        self, request: cri.UpdateRuntimeConfigRequest
    ) -> cri.UpdateRuntimeConfigResponse:
        """UpdateRuntimeConfig."""
        return await self._answer("UpdateRuntimeConfig", request, self._update_runtime_config)

    async def list_images(self, request: cri.ListImagesRequest) -> cri.ListImagesResponse:
        """ListImages."""
        return await self._answer("ListImages", request, self.images.list)

    async def image_status(self, request: cri.ImageStatusRequest) -> cri.ImageStatusResponse:
        """ImageStatus."""
        return await self._answer("ImageStatus", request, self.images.status)

    async def pull_image(self, request: cri.PullImageRequest) -> cri.PullImageResponse:
        """PullImage."""
        return await self._answer("PullImage", request, self.images.pull)

    async def remove_image(self, request: cri.RemoveImageRequest) -> cri.RemoveImageResponse:
        """RemoveImage."""
        return await self._answer("RemoveImage", request, self.images.remove)

    async def image_fs_info(self, request: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        """ImageFsInfo."""
        return await self._answer("ImageFsInfo", request, self.images.fs_info)

    async def get_container_events(
        self, request: cri.GetEventsRequest
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        """GetContainerEvents: see `Events.listen`."""
        self._check_up()
        async with aclosing(self.events.listen(request)) as events:
            async for event in events:
                yield event

    async def stream_pod_sandboxes(
        self, request: cri.StreamPodSandboxesRequest
    ) -> AsyncIterator[cri.StreamPodSandboxesResponse]:
        """StreamPodSandboxes."""
        async for piece in self._pieces("StreamPodSandboxes", request, self._sandbox_pieces):
            yield piece

    async def stream_containers(
        self, request: cri.StreamContainersRequest
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        """StreamContainers."""
        async for piece in self._pieces("StreamContainers", request, self._container_pieces):
            yield piece

    async def stream_container_stats(
        self, request: cri.StreamContainerStatsRequest
    ) -> AsyncIterator[cri.StreamContainerStatsResponse]:
        """StreamContainerStats."""
        ask = self._container_stats_pieces
        async for piece in self._pieces("StreamContainerStats", request, ask):
            yield piece

    async def stream_pod_sandbox_stats(
        self, request: cri.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[cri.StreamPodSandboxStatsResponse]:
        """StreamPodSandboxStats."""
        ask = self._sandbox_stats_pieces
        async for piece in self._pieces("StreamPodSandboxStats", request, ask):
            yield piece

    async def stream_images(
        self, request: cri.StreamImagesRequest
    ) -> AsyncIterator[cri.StreamImagesResponse]:
        """StreamImages."""
        async for piece in self._pieces("StreamImages", request, self._image_pieces):
            yield piece

    async def _pieces(
        self,
        rpc: str,
        request: _Request,
        effect: Callable[[_Request], Awaitable[Sequence[_Response]]],
    ) -> AsyncIterator[_Response]:
        """Answer one call with many messages; a runtime that goes down ends it between two."""
        if not self._options.has_list_streams:
            raise RpcError(Code.UNIMPLEMENTED, f"unknown method {rpc}")
        for piece in await self._answer(rpc, request, effect):
            self._check_up()
            yield piece

    async def _answer(
        self,
        rpc: str,
        request: _Request,
        effect: Callable[[_Request], Awaitable[_Response]],
    ) -> _Response:
        """Answer one call, with whatever fault it meets.

        Cancelled, the effect takes place wholly or not at all, unless the fault says that it
        outlives its caller.
        """
        self._check_up()
        fault = self.faults(rpc, request)
        with trio.CancelScope() as call:
            self._calls.add(call)
            try:
                if fault.outlives_cancel:
                    return await self._detached(fault, request, effect)
                return await _with_fault(fault, request, effect)
            finally:
                self._calls.discard(call)
        raise RpcError(Code.UNAVAILABLE, "error reading from server: EOF")

    async def _detached(
        self,
        fault: CallFault,
        request: _Request,
        effect: Callable[[_Request], Awaitable[_Response]],
    ) -> _Response:
        """Run the call as a task of the runtime, so that its caller's end does not end it."""
        send, receive = trio.open_memory_channel[_Response | RpcError](1)

        async def run() -> None:
            try:
                send.send_nowait(await _with_fault(fault, request, effect))
            except RpcError as error:
                send.send_nowait(error)

        self._nursery.start_soon(run)
        outcome = await receive.receive()
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    def _check_up(self) -> None:
        if not self._up:
            text = "connection error: desc = transport: error while dialing: connection refused"
            raise RpcError(Code.UNAVAILABLE, text)

    async def _version(self, request: cri.VersionRequest) -> cri.VersionResponse:
        del request
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name=self._options.name,
            runtime_version=self._options.version,
            runtime_api_version="v1",
        )

    async def _status(self, request: cri.StatusRequest) -> cri.StatusResponse:
        del request
        network = cri.RuntimeCondition(type="NetworkReady", status=self.sandboxes.network_ready)
        if not network.status:
            network.reason = "NetworkPluginNotReady"
            network.message = f"Network plugin returns error: {NETWORK_NOT_READY}"
        runtime = cri.RuntimeCondition(type="RuntimeReady", status=self.runtime_ready)
        features = cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True, user_namespaces=True)
        return cri.StatusResponse(
            status=cri.RuntimeStatus(conditions=[runtime, network]),
            runtime_handlers=[
                cri.RuntimeHandler(name=name, features=features) for name in self._options.handlers
            ],
            features=cri.RuntimeFeatures(supplemental_groups_policy=True),
        )

    async def _runtime_config(self, request: cri.RuntimeConfigRequest) -> cri.RuntimeConfigResponse:
        del request
        drivers = cri.CgroupDriver
        driver = drivers(drivers.SYSTEMD if self._options.systemd_cgroups else drivers.CGROUPFS)
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=driver))

    async def _update_runtime_config(
        self, request: cri.UpdateRuntimeConfigRequest
    ) -> cri.UpdateRuntimeConfigResponse:
        self.pod_cidr = request.runtime_config.network_config.pod_cidr
        return cri.UpdateRuntimeConfigResponse()

    async def _list_pod_sandbox(
        self, request: cri.ListPodSandboxRequest
    ) -> cri.ListPodSandboxResponse:
        await trio.sleep(self._options.latencies.list)
        found = matching_sandboxes(self.sandboxes, request.filter)
        return sandbox_list(found, self._order)

    async def _list_containers(
        self, request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        await trio.sleep(self._options.latencies.list)
        found = matching_containers(self.containers, request.filter)
        return container_list(found, self._order)

    async def _sandbox_pieces(
        self, request: cri.StreamPodSandboxesRequest
    ) -> Sequence[cri.StreamPodSandboxesResponse]:
        await trio.sleep(self._options.latencies.list)
        return sandbox_pieces(matching_sandboxes(self.sandboxes, request.filter), self._order)

    async def _container_pieces(
        self, request: cri.StreamContainersRequest
    ) -> Sequence[cri.StreamContainersResponse]:
        await trio.sleep(self._options.latencies.list)
        return container_pieces(matching_containers(self.containers, request.filter), self._order)

    async def _container_stats_pieces(
        self, request: cri.StreamContainerStatsRequest
    ) -> Sequence[cri.StreamContainerStatsResponse]:
        whole = await self._list_container_stats(
            cri.ListContainerStatsRequest(filter=request.filter)
        )
        entries = [bytes(cri.ListContainerStatsResponse(stats=[each])) for each in whole.stats]
        return pieces(entries, cri.StreamContainerStatsResponse)

    async def _sandbox_stats_pieces(
        self, request: cri.StreamPodSandboxStatsRequest
    ) -> Sequence[cri.StreamPodSandboxStatsResponse]:
        whole = await self._list_pod_sandbox_stats(
            cri.ListPodSandboxStatsRequest(filter=request.filter)
        )
        entries = [bytes(cri.ListPodSandboxStatsResponse(stats=[each])) for each in whole.stats]
        return pieces(entries, cri.StreamPodSandboxStatsResponse)

    async def _image_pieces(
        self, request: cri.StreamImagesRequest
    ) -> Sequence[cri.StreamImagesResponse]:
        whole = await self.images.list(cri.ListImagesRequest(filter=request.filter))
        entries = [bytes(cri.ListImagesResponse(images=[each])) for each in whole.images]
        return pieces(entries, cri.StreamImagesResponse)

    async def _exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        return await exec_sync(self.containers.get(request.container_id), request)

    async def _container_stats(
        self, request: cri.ContainerStatsRequest
    ) -> cri.ContainerStatsResponse:
        container = self.containers.get(request.container_id)
        if container is None:
            raise RpcError(Code.NOT_FOUND, "failed to find container: not found")
        if container.state is not cri.ContainerState.CONTAINER_RUNNING:
            raise RpcError(Code.UNKNOWN, "unexpected metrics response: []")
        return cri.ContainerStatsResponse(stats=container_stats(container, self._clock.now_ns()))

    async def _list_container_stats(
        self, request: cri.ListContainerStatsRequest
    ) -> cri.ListContainerStatsResponse:
        wanted = cri.ContainerFilter(
            id=request.filter.id,
            pod_sandbox_id=request.filter.pod_sandbox_id,
            label_selector=request.filter.label_selector,
        )
        now = self._clock.now_ns()
        found = matching_containers(self.containers, wanted)
        return cri.ListContainerStatsResponse(stats=[container_stats(c, now) for c in found])

    async def _pod_sandbox_stats(
        self, request: cri.PodSandboxStatsRequest
    ) -> cri.PodSandboxStatsResponse:
        sandbox = self.sandboxes.find(request.pod_sandbox_id)
        return cri.PodSandboxStatsResponse(stats=sandbox_stats(sandbox, self._clock.now_ns()))

    async def _list_pod_sandbox_stats(
        self, request: cri.ListPodSandboxStatsRequest
    ) -> cri.ListPodSandboxStatsResponse:
        wanted = cri.PodSandboxFilter(
            id=request.filter.id, label_selector=request.filter.label_selector
        )
        now = self._clock.now_ns()
        found = matching_sandboxes(self.sandboxes, wanted)
        return cri.ListPodSandboxStatsResponse(stats=[sandbox_stats(s, now) for s in found])


async def _with_fault(
    fault: CallFault, request: _Request, effect: Callable[[_Request], Awaitable[_Response]]
) -> _Response:
    await trio.sleep(fault.delay_seconds)
    if fault.error:
        raise fault.error
    response = await effect(request)
    if fault.lost_reply:
        raise fault.lost_reply
    return response


@asynccontextmanager
async def open_hollow_runtime(
    clock: Clock, options: HollowOptions | None = None
) -> AsyncIterator[HollowRuntime]:
    """A hollow runtime whose processes end with the block."""
    async with trio.open_nursery() as nursery:
        yield HollowRuntime(clock, nursery, options)
        nursery.cancel_scope.cancel()
