"""The containers of the hollow runtime: from CreateContainer to RemoveContainer.

Waiting (latencies, grace) comes before an effect, and an effect has no await in it: whoever
cancels a call either prevented the effect or got all of it. Error codes and the beginnings of the
messages are those of containerd 2.1; the tests in `tests/cri` hold them to it.
"""

import copy
from collections.abc import Iterator, Mapping

import trio

from trio_kubelet.hollow.annotation import BehaviourError
from trio_kubelet.hollow.behaviour import KILLED, Behaviour, ExecResult, Invocation, LogLine
from trio_kubelet.hollow.events import HollowContext
from trio_kubelet.hollow.images import ImageStore
from trio_kubelet.hollow.logs import LogWriter
from trio_kubelet.hollow.process import Process, ProcessExit
from trio_kubelet.hollow.records import HollowContainer, HollowSandbox, container_status, log_path
from trio_kubelet.hollow.shell import result_of_exec
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

START_ERROR_EXIT_CODE = 128
KEPT_VARIABLES = 100
"""So many variables of a container are kept: 5,000 of services take 1.5 MiB, which count as the
agent's when the runtime is in its process."""
_EVENT = cri.ContainerEventType


class HollowContainers:
    """Owns every container record and the processes' tasks."""

    def __init__(
        self,
        common: HollowContext,
        nursery: trio.Nursery,
        images: ImageStore,
        sandboxes: Mapping[str, HollowSandbox],
    ) -> None:
        self._clock = common.clock
        self._nursery = nursery
        self._options = common.options
        self._images = images
        self._events = common.events
        self._sandboxes = sandboxes
        self._ids = common.ids
        self._log = LogWriter(common.clock) if common.options.write_files else None
        self._names: dict[str, str] = {}
        self._containers: dict[str, HollowContainer] = {}

    def __iter__(self) -> Iterator[HollowContainer]:
        return iter(self._containers.values())

    def get(self, container_id: str) -> HollowContainer | None:
        """Return the container of that id, if there is one."""
        return self._containers.get(container_id)

    def find(self, container_id: str) -> HollowContainer:
        """The container of that id; raises NOT_FOUND."""
        if container := self._containers.get(container_id):
            return container
        text = f'an error occurred when try to find container "{container_id}": not found'
        raise RpcError(Code.NOT_FOUND, text)

    def kill(self, container_id: str, reason: str = "") -> None:
        """Let the process die by KILL, as if the kernel (reason OOMKilled) or a person did it."""
        if process := self.find(container_id).process:
            process.kill(reason)

    def lose(self, container_id: str, *, lost: bool = True) -> None:
        """Let the runtime not know how a container is; it goes on all the same."""
        self.find(container_id).lost = lost

    async def create(self, request: cri.CreateContainerRequest) -> cri.CreateContainerResponse:
        """CreateContainer: needs a sandbox, ready or not, and an image that is on the node."""
        sandbox = self._sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            text = f'failed to find sandbox id "{request.pod_sandbox_id}": not found'
            raise RpcError(Code.NOT_FOUND, text)
        name = _container_name(request)
        container_id = f"{self._ids.getrandbits(256):064x}"
        self._reserve(name, container_id)
        try:
            behaviour = self._behaviour(sandbox, request.config)
            await trio.sleep(self._options.latencies.create_container + behaviour.create_latency)
            container = self._new(container_id, name, sandbox, request, behaviour)
        except BaseException:
            del self._names[name]
            raise
        self._containers[container_id] = sandbox.containers[container_id] = container
        self._events.send(_EVENT.CONTAINER_CREATED_EVENT, container_id, sandbox)
        return cri.CreateContainerResponse(container_id=container_id)

    async def start(self, request: cri.StartContainerRequest) -> cri.StartContainerResponse:
        """StartContainer: a failed start leaves the container EXITED with 128, StartError.

        So does a cancelled one, as in containerd: it cannot be started again.
        """
        container = self.find(request.container_id)
        if problem := _start_problem(container):
            text = f'failed to set starting state for container "{container.id}": {problem}'
            raise RpcError(Code.UNKNOWN, text)
        container.starting = True
        try:
            await self._start(container)
        except RpcError as error:
            self._start_failed(container, error.message)
            raise
        except BaseException:
            self._start_failed(container, "failed to create containerd task: context canceled")
            raise
        finally:
            container.starting = False
        return cri.StartContainerResponse()

    async def stop(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        """StopContainer: the stop signal, `timeout` seconds of grace, then KILL.

        Without a timeout KILL comes at once. Unknown and not running containers are no error.
        Cancelled in the grace, it leaves a container that got the signal and may still run.
        """
        container = self._containers.get(request.container_id)
        if container is not None:
            await self.stop_process(container, request.timeout)
        return cri.StopContainerResponse()

    async def stop_process(self, container: HollowContainer, grace_seconds: float) -> None:
        """Stop the process if there is one and wait for its end."""
        if container.finished_at or not container.process:
            await trio.lowlevel.checkpoint()
            return
        if grace_seconds > 0:
            if not container.stop_signal_sent:
                container.stop_signal_sent = True
                container.process.terminate()
            with trio.move_on_after(grace_seconds):
                await container.stopped.wait()
        if not container.stopped.is_set():
            container.process.kill()
            await container.stopped.wait()

    async def remove(self, request: cri.RemoveContainerRequest) -> cri.RemoveContainerResponse:
        """RemoveContainer: stops it by force if it runs. An unknown id is no error."""
        container = self._containers.get(request.container_id)
        if container is None:
            await trio.lowlevel.checkpoint()
            return cri.RemoveContainerResponse()
        await self.stop_process(container, 0)
        if container.starting:
            text = f'failed to set removing state for container "{container.id}": '
            text += "container is in starting state, can't be removed"
            raise RpcError(Code.UNKNOWN, text)
        if self._containers.pop(container.id, None):
            del container.sandbox.containers[container.id]
            del self._names[container.name]
            self._events.send(_EVENT.CONTAINER_DELETED_EVENT, container.id, container.sandbox)
        return cri.RemoveContainerResponse()

    async def status(self, request: cri.ContainerStatusRequest) -> cri.ContainerStatusResponse:
        """ContainerStatus; raises NOT_FOUND."""
        container = self.find(request.container_id)
        return cri.ContainerStatusResponse(status=container_status(container, self._images))

    async def update_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        """UpdateContainerResources: given values replace, zeros keep what was."""
        container = self._containers.get(request.container_id)
        if container is None:
            raise RpcError(Code.NOT_FOUND, "failed to find container: not found")
        container.resources = _updated(container.resources, request.linux)
        return cri.UpdateContainerResourcesResponse()

    async def reopen_log(
        self, request: cri.ReopenContainerLogRequest
    ) -> cri.ReopenContainerLogResponse:
        """ReopenContainerLog: makes the log anew if it was moved away."""
        container = self.find(request.container_id)
        if container.state is not cri.ContainerState.CONTAINER_RUNNING:
            raise RpcError(Code.UNKNOWN, "container is not running")
        if self._log:
            await self._log.create(container)
        return cri.ReopenContainerLogResponse()

    def _reserve(self, name: str, container_id: str) -> None:
        if holder := self._names.get(name):
            text = (
                f'failed to reserve container name "{name}"; check if another CreateContainer '
                f'request is in progress: name "{name}" is reserved for "{holder}"'
            )
            raise RpcError(Code.FAILED_PRECONDITION, text)
        self._names[name] = container_id

    def _behaviour(self, sandbox: HollowSandbox, config: cri.ContainerConfig) -> Behaviour:
        pid = config.linux.security_context.namespace_options.pid
        invocation = Invocation(
            name=config.metadata.name,
            image=config.image.user_specified_image or config.image.image,
            command=tuple(config.command),
            args=tuple(config.args),
            attempt=config.metadata.attempt,
            owns_pid_namespace=pid == cri.NamespaceMode.CONTAINER,
            pod_name=sandbox.config.metadata.name,
            pod_namespace=sandbox.config.metadata.namespace,
            pod_labels=sandbox.config.labels,
            pod_annotations=sandbox.config.annotations,
        )
        try:
            return self._options.behaviours(invocation)
        except BehaviourError as error:
            raise RpcError(Code.INVALID_ARGUMENT, f"failed to read behaviour: {error}") from error

    def _new(
        self,
        container_id: str,
        name: str,
        sandbox: HollowSandbox,
        request: cri.CreateContainerRequest,
        behaviour: Behaviour,
    ) -> HollowContainer:
        config = request.config
        image = self._images.resolve(config.image.image)
        if image is None:
            text = "failed to check if this is a checkpoint image: "
            text += f'failed to resolve image "{config.image.image}": not found'
            raise RpcError(Code.NOT_FOUND, text)
        if sandbox.id not in self._sandboxes:
            raise RpcError(Code.NOT_FOUND, f'failed to find sandbox id "{sandbox.id}": not found')
        return HollowContainer(
            id=container_id,
            name=name,
            sandbox=sandbox,
            config=_kept(config),
            image=image,
            log_path=log_path(request.sandbox_config, config),
            created_at=self._clock.now_ns(),
            behaviour=behaviour,
            resources=_updated(cri.LinuxContainerResources(), config.linux.resources),
        )

    async def _start(self, container: HollowContainer) -> None:
        behaviour = container.behaviour
        if not container.sandbox.ready:
            text = f'sandbox container "{container.sandbox.id}" is not running'
            raise RpcError(Code.UNKNOWN, text)
        await trio.sleep(self._options.latencies.start_container + behaviour.start_latency)
        if behaviour.start_error:
            text = f"failed to create containerd task: {behaviour.start_error}"
            raise RpcError(Code.UNKNOWN, text)
        if self._log:
            await self._log.create(container)
        if container.id not in self._containers or not container.sandbox.ready:
            text = f'sandbox container "{container.sandbox.id}" is not running'
            raise RpcError(Code.UNKNOWN, text)
        container.process = Process(behaviour)
        container.started_at = self._clock.now_ns()
        self._events.send(_EVENT.CONTAINER_STARTED_EVENT, container.id, container.sandbox)
        self._nursery.start_soon(self._live, container, container.process, name=container.name)

    def _start_failed(self, container: HollowContainer, message: str) -> None:
        container.finished_at = self._clock.now_ns()
        container.exit_code = START_ERROR_EXIT_CODE
        container.reason, container.message = "StartError", message
        container.stopped.set()

    async def _live(self, container: HollowContainer, process: Process) -> None:
        end = await process.run(lambda line: self._print(container, line))
        if self._log and end.by_itself:
            await self._log.write_termination_message(container)
        self._ended(container, end)

    async def _print(self, container: HollowContainer, line: LogLine) -> None:
        if self._log:
            await self._log.write(container, line)

    def _ended(self, container: HollowContainer, end: ProcessExit) -> None:
        container.finished_at = self._clock.now_ns()
        container.exit_code = end.exit_code
        container.reason = end.reason
        container.stopped.set()
        self._events.send(_EVENT.CONTAINER_STOPPED_EVENT, container.id, container.sandbox)


def _kept(config: cri.ContainerConfig) -> cri.ContainerConfig:
    """The config as it is kept: with its first variables only."""
    if len(config.envs) <= KEPT_VARIABLES:
        return config
    kept = copy.copy(config)
    kept.envs = config.envs[:KEPT_VARIABLES]
    return kept


def _container_name(request: cri.CreateContainerRequest) -> str:
    """The name that must be free: one container of an attempt in a pod."""
    container, pod = request.config.metadata, request.sandbox_config.metadata
    parts = (container.name, pod.name, pod.namespace, pod.uid, str(container.attempt))
    return "_".join(parts)


def _start_problem(container: HollowContainer) -> str:
    if container.state is not cri.ContainerState.CONTAINER_CREATED:
        return f"container is in {container.state.name} state"
    return "container is already in starting state" if container.starting else ""


def _updated(
    before: cri.LinuxContainerResources, given: cri.LinuxContainerResources
) -> cri.LinuxContainerResources:
    """Return the resources as a status shows them: a swap limit that was not given is memory's."""
    merged = {**before.to_dict(), **given.to_dict()}
    if given.memory_limit_in_bytes and not given.memory_swap_limit_in_bytes:
        merged["memorySwapLimitInBytes"] = given.memory_limit_in_bytes
    updated: cri.LinuxContainerResources = cri.LinuxContainerResources.from_dict(merged)
    return updated


async def exec_sync(
    container: HollowContainer | None, request: cri.ExecSyncRequest
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
