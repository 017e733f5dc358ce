"""The container runtime's calls as trio coroutines: CRI v1, with the deadlines that belong to it.

One method a call, plain arguments in, CRI messages or ids out. Deadlines: runtimeRequestTimeout
for most; sandboxes get twice that; stopping gets the grace period on top, and so does a command
with a timeout; pulls, event streams and commands without a timeout have none and end when their
caller is cancelled. Lists without a filter decode only what changed (`rpc/wire.py`), and those that
are longer than runtimes send are put together of parts (`long_lists.py`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog

from trio_kubelet.rpc import (
    Code,
    Head,
    ListReuse,
    RpcError,
    Transport,
    decode_entries,
    encode_ahead,
    is_present,
    present,
)
from trio_kubelet.rpc.field_cut import FieldCut
from trio_kubelet.rpc.messages import decode_of_any_size
from trio_kubelet.rpc.methods import RequestT, ResponseT, StreamStub, UnaryStub
from trio_kubelet.rpc.stubs.containerd.services.tasks.v1 import DeleteTaskRequest, TasksStub
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.long_lists import MOST_STREAMED_BYTES, ListStream, LongList
from trio_kubelet.tasks.concurrency import run_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter

log = structlog.get_logger("runtime")

CRI_VERSION = "v1"
REQUEST_TIMEOUT_SECONDS = 120.0
LONGEST_GRACE_SECONDS = 2**31 - 1
"""Runtimes count nanoseconds in 64 bits: what is more than these hold would be no grace at all."""
MANY_VARIABLES = 5000
"""As many take ten milliseconds to be encoded."""
ENCODERS = 2
SANDBOXES_AT_ONCE = 8
"""Of which parts of a list are asked for."""

_Runtime = cri.RuntimeServiceStub
_Images = cri.ImageServiceStub

_STREAM_SANDBOXES = cri.StreamPodSandboxesRequest()
_STREAM_CONTAINERS = cri.StreamContainersRequest()
_STREAM_CONTAINER_STATS = cri.StreamContainerStatsRequest()
_STREAM_SANDBOX_STATS = cri.StreamPodSandboxStatsRequest()

_HEAD_OF_EVENT = Head(5, {4: Head(3)})
"""Without the statuses of the containers, and of the sandbox's only id and metadata."""


CONTAINERD_HEADERS: Mapping[str, str] = {"containerd-namespace": "k8s.io"}
"""The metadata of calls to containerd's own services: the namespace that has CRI's containers."""

DELETE_SECONDS = 30.0


class RuntimeClient:
    """Asks a container runtime; `images` is where its image service listens, if elsewhere.

    `tasks` leads to containerd's own services, should the runtime be containerd (see
    `delete_lost_task`). With `streams_lists`, whole lists are asked for as streams, each for as
    long as the runtime does not answer that it has no such stream.

    Every method raises RpcError and nothing else. After DEADLINE_EXCEEDED, UNAVAILABLE, or when
    the caller was cancelled, it is unknown whether the runtime did what it was asked to do.
    Messages that come back may be handed out again by a later list: do not change them.
    """

    def __init__(
        self,
        runtime: Transport,
        images: Transport | None = None,
        tasks: Transport | None = None,
        *,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        streams_lists: bool = False,
    ) -> None:
        self._runtime = runtime
        self._images = images or runtime
        self._tasks = tasks
        self._seconds = request_timeout_seconds
        self._encoders = FairLimiter(ENCODERS, 1)
        self._sandboxes = ListReuse(cri.PodSandbox)
        self._containers = ListReuse(cri.Container)
        self._sandbox_list = LongList("list of sandboxes is too long, asking state by state")
        self._container_list = LongList("list of containers is too long, asking sandbox by sandbox")
        self._container_stats = LongList(
            "statistics of containers are too long, asking sandbox by sandbox"
        )
        self._sandbox_stats = LongList("statistics of sandboxes are too long, asking one by one")
        self._sandbox_stream = ListStream(is_wanted=streams_lists)
        self._container_stream = ListStream(is_wanted=streams_lists)
        self._container_stats_stream = ListStream(is_wanted=streams_lists)
        self._sandbox_stats_stream = ListStream(is_wanted=streams_lists)
        self._image_stream = ListStream(is_wanted=streams_lists)

    async def version(self) -> cri.VersionResponse:
        """Ask for the runtime's name and versions."""
        request = cri.VersionRequest(version=CRI_VERSION)
        return await self._ask(_Runtime.version, request)

    async def status(self, *, verbose: bool = False) -> cri.StatusResponse:
        """Ask for the conditions RuntimeReady and NetworkReady, handlers and features."""
        request = cri.StatusRequest(verbose=verbose)
        return await self._ask(_Runtime.status, request)

    async def runtime_config(self) -> cri.RuntimeConfigResponse:
        """Ask for the cgroup driver; UNIMPLEMENTED on runtimes that do not tell."""
        return await self._ask(_Runtime.runtime_config, cri.RuntimeConfigRequest())

    async def set_pod_cidr(self, cidr: str) -> None:
        """Tell from which range pods get their addresses; two are separated by a comma."""
        network = cri.NetworkConfig(pod_cidr=cidr)
        request = cri.UpdateRuntimeConfigRequest(
            runtime_config=cri.RuntimeConfig(network_config=network)
        )
        await self._ask(_Runtime.update_runtime_config, request)

    async def run_pod_sandbox(self, config: cri.PodSandboxConfig, runtime_handler: str = "") -> str:
        """Create and start a sandbox; returns its id."""
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        response = await self._runtime.unary(
            _Runtime.run_pod_sandbox, request, deadline_seconds=2 * self._seconds
        )
        return _given(response.pod_sandbox_id, "sandbox id")

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Kill a sandbox's containers and take down its network; may be repeated."""
        request = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._ask(_Runtime.stop_pod_sandbox, request)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with all its containers; may be repeated."""
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._ask(_Runtime.remove_pod_sandbox, request)

    async def pod_sandbox_status(
        self, sandbox_id: str, *, verbose: bool = False
    ) -> cri.PodSandboxStatusResponse:
        """Ask for one sandbox; NOT_FOUND when it is gone."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        return await self._ask(_Runtime.pod_sandbox_status, request)

    async def list_pod_sandboxes(
        self,
        filter: cri.PodSandboxFilter | None = None,  # noqa: A002
    ) -> tuple[cri.PodSandbox, ...]:
        """List sandboxes, all of them without a filter."""
        if filter is None:
            answer = await self._sandbox_stream.ask(
                partial(self._streamed, _Runtime.stream_pod_sandboxes, _STREAM_SANDBOXES),
                partial(self._sandbox_list.ask, self._encoded_sandboxes, self._by_state),
            )
            found = await self._sandboxes.decode(answer)
            if len({each.id for each in found}) == len(found):
                return found
            return tuple({each.id: each for each in found}.values())
        request = cri.ListPodSandboxRequest(filter=filter)
        filtered = await self._ask(_Runtime.list_pod_sandbox, request)
        return tuple(filtered.items)

    async def _by_state(self) -> bytes:
        """Return the list of all sandboxes. One that stops meanwhile is in both parts."""
        answers = []
        for state in (cri.PodSandboxState.SANDBOX_READY, cri.PodSandboxState.SANDBOX_NOTREADY):
            wanted = present(cri.PodSandboxStateValue(state=cri.PodSandboxState(state)))
            answers.append(await self._encoded_sandboxes(cri.PodSandboxFilter(state=wanted)))
        return b"".join(answers)

    async def _encoded_sandboxes(
        self,
        filter: cri.PodSandboxFilter | None = None,  # noqa: A002
    ) -> bytes:
        request = cri.ListPodSandboxRequest()
        if filter is not None:
            request.filter = filter
        return await self._ask_raw(_Runtime.list_pod_sandbox, request)

    async def list_containers(
        self,
        filter: cri.ContainerFilter | None = None,  # noqa: A002
    ) -> tuple[cri.Container, ...]:
        """List containers, all of them without a filter."""
        if filter is None:
            parts = partial(self._by_sandbox, self._encoded_containers)
            answer = await self._container_stream.ask(
                partial(self._streamed, _Runtime.stream_containers, _STREAM_CONTAINERS),
                partial(self._container_list.ask, self._encoded_containers, parts),
            )
            return await self._containers.decode(answer)
        request = cri.ListContainersRequest(filter=filter)
        filtered = await self._ask(_Runtime.list_containers, request)
        return tuple(filtered.containers)

    async def _encoded_containers(self, sandbox_id: str = "") -> bytes:
        request = cri.ListContainersRequest()
        if sandbox_id:
            request.filter = cri.ContainerFilter(pod_sandbox_id=sandbox_id)
        return await self._ask_raw(_Runtime.list_containers, request)

    async def _by_sandbox(self, ask: Callable[[str], Awaitable[bytes]]) -> bytes:
        """Return a list that has the entries of all sandboxes."""
        answers: list[bytes] = []

        async def add(sandbox: cri.PodSandbox) -> None:
            answers.append(await ask(sandbox.id))

        await run_for_each(await self.list_pod_sandboxes(), add, SANDBOXES_AT_ONCE)
        return b"".join(answers)

    async def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig
    ) -> str:
        """Create a container in a sandbox; returns its id.

        A config with many variables is encoded in a thread, one of a namespace at a time.
        """
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        if len(config.envs) > MANY_VARIABLES:
            await self._encoders.share(sandbox_config.metadata.namespace).run_sync(
                partial(encode_ahead, request)
            )
        response = await self._ask(_Runtime.create_container, request)
        return _given(response.container_id, "container id")

    async def start_container(self, container_id: str) -> None:
        request = cri.StartContainerRequest(container_id=container_id)
        await self._ask(_Runtime.start_container, request)

    async def stop_container(self, container_id: str, grace_seconds: int) -> None:
        """Signal a container, kill it when the grace period is over; may be repeated."""
        grace_seconds = min(grace_seconds, LONGEST_GRACE_SECONDS)
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace_seconds)
        await self._runtime.unary(
            _Runtime.stop_container, request, deadline_seconds=self._seconds + grace_seconds
        )

    async def remove_container(self, container_id: str) -> None:
        """Remove a container, running or not; may be repeated."""
        request = cri.RemoveContainerRequest(container_id=container_id)
        try:
            await self._ask(_Runtime.remove_container, request)
        except RpcError as error:
            if error.code is not Code.FAILED_PRECONDITION or self._tasks is None:
                raise
            if not await delete_lost_task(self._tasks, container_id):
                raise
            await self._ask(_Runtime.remove_container, request)

    async def container_status(
        self, container_id: str, *, verbose: bool = False
    ) -> cri.ContainerStatusResponse:
        """Ask for one container; NOT_FOUND when it is gone."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return await self._ask(_Runtime.container_status, request)

    async def update_container_resources(
        self, container_id: str, resources: cri.LinuxContainerResources
    ) -> None:
        """Change the limits of a container; zeros keep what it has. May be repeated."""
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self._ask(_Runtime.update_container_resources, request)

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: str,
        resources: cri.LinuxContainerResources,
        overhead: cri.LinuxContainerResources,
    ) -> None:
        """Tell of other resources of a pod; UNIMPLEMENTED on some runtimes. May be repeated."""
        request = cri.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, resources=resources, overhead=overhead
        )
        await self._ask(_Runtime.update_pod_sandbox_resources, request)

    async def container_stats(self, container_id: str) -> cri.ContainerStats:
        """Ask what one running container uses now."""
        request = cri.ContainerStatsRequest(container_id=container_id)
        return (await self._ask(_Runtime.container_stats, request)).stats

    async def exec_sync(
        self,
        container_id: str,
        command: Sequence[str],
        timeout_seconds: int,
        cut: FieldCut | None = None,
    ) -> cri.ExecSyncResponse:
        """Run a command in a container to its end; 0 seconds mean that it may take forever.

        A command that runs out of its time is DEADLINE_EXCEEDED, by the runtime's own clock. What
        it prints is up to 16 MiB, unless it is cut.
        """
        request = cri.ExecSyncRequest(
            container_id=container_id, cmd=list(command), timeout=timeout_seconds
        )
        return await self.exec_request(request, cut)

    async def exec_request(
        self, request: cri.ExecSyncRequest, cut: FieldCut | None = None
    ) -> cri.ExecSyncResponse:
        """As `exec_sync`, of a request that may have been encoded ahead."""
        deadline = self._seconds + request.timeout if request.timeout > 0 else None
        return await self._runtime.unary(
            _Runtime.exec_sync, request, deadline_seconds=deadline, cut=cut
        )

    async def exec(self, request: cri.ExecRequest) -> str:
        """Have a command's streams prepared; returns the URL at which the runtime serves them."""
        return _given((await self._ask(_Runtime.exec, request)).url, "URL")

    async def attach(self, request: cri.AttachRequest) -> str:
        """As `exec`, for the container's own process."""
        return _given((await self._ask(_Runtime.attach, request)).url, "URL")

    async def port_forward(self, request: cri.PortForwardRequest) -> str:
        """As `exec`, for ports of a sandbox."""
        return _given((await self._ask(_Runtime.port_forward, request)).url, "URL")

    async def checkpoint_container(
        self, container_id: str, location: str, timeout_seconds: int
    ) -> None:
        """Have the runtime write a container into an archive; 0 seconds: as long as it thinks."""
        request = cri.CheckpointContainerRequest(
            container_id=container_id, location=location, timeout=timeout_seconds
        )
        await self._runtime.unary(
            _Runtime.checkpoint_container,
            request,
            deadline_seconds=self._seconds + timeout_seconds,
        )

    async def reopen_container_log(self, container_id: str) -> None:
        """Have the runtime write a container's log to its path anew, after a rotation."""
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        await self._ask(_Runtime.reopen_container_log, request)

    async def list_container_stats(self) -> tuple[cri.ContainerStats, ...]:
        """Ask what all containers use, and what they have written to their own layers."""
        parts = partial(self._by_sandbox, self._encoded_container_stats)
        answer = await self._container_stats_stream.ask(
            partial(self._streamed, _Runtime.stream_container_stats, _STREAM_CONTAINER_STATS),
            partial(self._container_stats.ask, self._encoded_container_stats, parts),
        )
        return await decode_entries(cri.ContainerStats, answer)

    async def _encoded_container_stats(self, sandbox_id: str = "") -> bytes:
        request = cri.ListContainerStatsRequest()
        if sandbox_id:
            request.filter = cri.ContainerStatsFilter(pod_sandbox_id=sandbox_id)
        return await self._ask_raw(_Runtime.list_container_stats, request)

    async def list_pod_sandbox_stats(self) -> tuple[cri.PodSandboxStats, ...]:
        """Ask what all sandboxes use, network included; UNIMPLEMENTED on some runtimes."""
        parts = partial(self._by_sandbox, self._encoded_sandbox_stats)
        answer = await self._sandbox_stats_stream.ask(
            partial(self._streamed, _Runtime.stream_pod_sandbox_stats, _STREAM_SANDBOX_STATS),
            partial(self._sandbox_stats.ask, self._encoded_sandbox_stats, parts),
        )
        return await decode_entries(cri.PodSandboxStats, answer)

    async def _encoded_sandbox_stats(self, sandbox_id: str = "") -> bytes:
        request = cri.ListPodSandboxStatsRequest()
        if sandbox_id:
            request.filter = cri.PodSandboxStatsFilter(id=sandbox_id)
        return await self._ask_raw(_Runtime.list_pod_sandbox_stats, request)

    def container_events(
        self,
    ) -> AbstractAsyncContextManager[AsyncIterator[cri.ContainerEventResponse]]:
        """Listen to what happens to containers and sandboxes, until the context is left.

        Of the sandbox an event tells only the metadata, of the other containers nothing.

        The iterator raises RpcError: UNIMPLEMENTED where the runtime has no such stream,
        UNAVAILABLE when it goes away.
        """
        request = cri.GetEventsRequest()
        return self._runtime.stream(_Runtime.get_container_events, request, head=_HEAD_OF_EVENT)

    async def list_images(self) -> tuple[cri.Image, ...]:
        answer = await self._image_stream.ask(self._streamed_images, self._encoded_images)
        return tuple((await decode_of_any_size(cri.ListImagesResponse, answer)).images)

    async def _streamed_images(self) -> bytes:
        return await self._images.gather_raw(
            _Images.stream_images,
            cri.StreamImagesRequest(),
            max_bytes=MOST_STREAMED_BYTES,
            deadline_seconds=self._seconds,
        )

    async def _encoded_images(self) -> bytes:
        return await self._images.unary_raw(
            _Images.list_images, cri.ListImagesRequest(), deadline_seconds=self._seconds
        )

    async def image_status(self, image: cri.ImageSpec) -> cri.Image | None:
        """Ask for one image; None when it is not there."""
        request = cri.ImageStatusRequest(image=image)
        response = await self._ask_images(_Images.image_status, request)
        return response.image if is_present(response.image) else None

    async def pull_image(
        self,
        image: cri.ImageSpec,
        auth: cri.AuthConfig | None = None,
        sandbox_config: cri.PodSandboxConfig | None = None,
    ) -> str:
        """Pull an image, however long it takes; returns the reference that it is known by."""
        request = cri.PullImageRequest(image=image)
        if auth is not None:
            request.auth = auth
        if sandbox_config is not None:
            request.sandbox_config = sandbox_config
        response = await self._images.unary(_Images.pull_image, request)
        return _given(response.image_ref, "image reference")

    async def remove_image(self, image: cri.ImageSpec) -> None:
        """Remove an image; may be repeated."""
        request = cri.RemoveImageRequest(image=image)
        await self._ask_images(_Images.remove_image, request)

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        """Ask how full the file systems of images and containers are."""
        return await self._ask_images(_Images.image_fs_info, cri.ImageFsInfoRequest())

    async def _ask(self, method: UnaryStub[RequestT, ResponseT], request: RequestT) -> ResponseT:
        return await self._runtime.unary(method, request, deadline_seconds=self._seconds)

    async def _ask_raw(self, method: UnaryStub[RequestT, ResponseT], request: RequestT) -> bytes:
        return await self._runtime.unary_raw(method, request, deadline_seconds=self._seconds)

    async def _streamed(self, method: StreamStub[RequestT, ResponseT], request: RequestT) -> bytes:
        return await self._runtime.gather_raw(
            method, request, max_bytes=MOST_STREAMED_BYTES, deadline_seconds=self._seconds
        )

    async def _ask_images(
        self, method: UnaryStub[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        return await self._images.unary(method, request, deadline_seconds=self._seconds)


def _given(answer: str, what: str) -> str:
    if not answer:
        raise RpcError(Code.INTERNAL, f"the runtime answered without a {what}")
    return answer


async def delete_lost_task(tasks: Transport, container_id: str) -> bool:
    """Delete a task that containerd's CRI plugin has lost sight of; True if it is gone.

    A task is what containerd calls a container's process. When the agent is killed while a
    container starts, the call is cut off with it, and containerd may have made the task but not
    written down that it did (seen on 1.6 and 2.1: "failed to get task pid: context canceled"). CRI
    then shows a container that has exited and never ran, while the process waits to be let go. CRI
    refuses to remove it, until containerd is started again, and has no call that ends it: pod,
    folders and cgroup would stay. Deleting the task is safe: containerd refuses while a
    container's own program runs in it. False then, and on other runtimes.
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
