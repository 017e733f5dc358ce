"""What the conformance tests do with a runtime, in few words; nothing is left behind."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from lab.images import BUSYBOX
from lab.orphans import cgroup_of_ours
from trio_kubelet.rpc import Transport
from trio_kubelet.rpc.stubs.runtime import v1 as cri

ABSENT_IMAGE = "localhost/lab/absent:1"
OBEYS_TERM = ("sh", "-c", "trap 'exit 5' TERM; while true; do sleep 0.1; done")
MISSING_PROGRAM = "/no-such-program"
IGNORES_TERM = ("sleep", "3600")
# Runtimes make it, and leave its removal to the node agent.
CGROUP_PARENT = cgroup_of_ours("conformance")
NOBODY = "nobody"
DEADLINE_SECONDS = 60

Runtime = cri.RuntimeServiceStub
Images = cri.ImageServiceStub
State = cri.ContainerState
Value = TypeVar("Value")
_numbers = itertools.count()


@frozen
class Pod:
    """A sandbox that was run, and the config it was run with."""

    id: str
    config: cri.PodSandboxConfig


@define
class Node:
    """A runtime under test; the folder is for logs, `run` tells the runs' pods apart."""

    transport: Transport
    folder: Path
    run: str
    pods: list[str] = field(factory=list)

    def pod_config(
        self, *, attempt: int = 0, host_network: bool = False, **settings: object
    ) -> cri.PodSandboxConfig:
        """Make the config of a new pod; `settings` replace its fields."""
        name = f"pod-{self.run}-{next(_numbers)}"
        modes = cri.NamespaceMode
        options = cri.NamespaceOption(
            network=modes(modes.NODE if host_network else modes.POD), pid=modes(modes.CONTAINER)
        )
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(
                name=name, uid=f"uid-{name}", namespace="conformance", attempt=attempt
            ),
            hostname="" if host_network else name,
            log_directory=str(self.folder / name),
            labels={"app": name, "tier": "test"},
            annotations={"note": "conformance"},
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=f"/{CGROUP_PARENT}",
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=options),
            ),
        )
        for name_of_field, value in settings.items():
            setattr(config, name_of_field, value)
        return config

    async def run_pod(self, config: cri.PodSandboxConfig | None = None) -> Pod:
        config = config or self.pod_config()
        request = cri.RunPodSandboxRequest(config=config)
        answer = await self.transport.unary(Runtime.run_pod_sandbox, request)
        self.pods.append(answer.pod_sandbox_id)
        return Pod(answer.pod_sandbox_id, config)

    async def stop_pod(self, pod_id: str) -> None:
        request = cri.StopPodSandboxRequest(pod_sandbox_id=pod_id)
        await self.transport.unary(Runtime.stop_pod_sandbox, request)

    async def remove_pod(self, pod_id: str) -> None:
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=pod_id)
        await self.transport.unary(Runtime.remove_pod_sandbox, request)

    async def pod_status(self, pod_id: str) -> cri.PodSandboxStatus:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id)
        return (await self.transport.unary(Runtime.pod_sandbox_status, request)).status

    async def list_pods(self, **wanted: Any) -> list[str]:
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(**wanted))
        answer = await self.transport.unary(Runtime.list_pod_sandbox, request)
        return sorted(item.id for item in answer.items)

    async def create(
        self,
        pod: Pod,
        *command: str,
        name: str = "main",
        attempt: int = 0,
        image: str = BUSYBOX,
        context: cri.LinuxContainerSecurityContext | None = None,
    ) -> str:
        """Create a container with a memory limit of 64 MiB and return its id."""
        context = context or cri.LinuxContainerSecurityContext()
        modes = cri.NamespaceMode
        context.namespace_options = cri.NamespaceOption(pid=modes(modes.CONTAINER))
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            image=cri.ImageSpec(image=image),
            command=list(command),
            labels={"container": name},
            annotations={"restarts": str(attempt)},
            log_path=f"{name}/{attempt}.log",
            linux=cri.LinuxContainerConfig(
                resources=cri.LinuxContainerResources(
                    cpu_period=100_000, cpu_shares=102, memory_limit_in_bytes=64 << 20
                ),
                security_context=context,
            ),
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config
        )
        return (await self.transport.unary(Runtime.create_container, request)).container_id

    async def start(self, container_id: str) -> None:
        request = cri.StartContainerRequest(container_id=container_id)
        await self.transport.unary(Runtime.start_container, request)

    async def running(self, pod: Pod, *command: str, name: str = "main") -> str:
        """Create a container, start it and return its id."""
        container_id = await self.create(pod, *command, name=name)
        await self.start(container_id)
        return container_id

    async def ignoring_term(self, pod: Pod) -> str:
        """Start a container that ignores SIGTERM, and wait until it does.

        StartContainer may return a moment before the program takes the place of runc, which
        SIGTERM ends.
        """
        container_id = await self.running(pod, *IGNORES_TERM)
        await until(
            lambda: self.execute(container_id, "pidof", "sleep"), lambda a: a.exit_code == 0
        )
        return container_id

    async def stop(self, container_id: str, grace_seconds: int = 0) -> None:
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace_seconds)
        await self.transport.unary(Runtime.stop_container, request)

    async def remove(self, container_id: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container_id)
        await self.transport.unary(Runtime.remove_container, request)

    async def status(self, container_id: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container_id)
        return (await self.transport.unary(Runtime.container_status, request)).status

    async def list_containers(self, **wanted: Any) -> list[str]:
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**wanted))
        answer = await self.transport.unary(Runtime.list_containers, request)
        return sorted(item.id for item in answer.containers)

    async def execute(
        self, container_id: str, *command: str, timeout_seconds: int = 0
    ) -> cri.ExecSyncResponse:
        request = cri.ExecSyncRequest(
            container_id=container_id, cmd=list(command), timeout=timeout_seconds
        )
        return await self.transport.unary(Runtime.exec_sync, request)

    async def ended(self, container_id: str) -> cri.ContainerStatus:
        """Wait until the container has exited and return its status."""

        def has_exited(status: cri.ContainerStatus) -> bool:
            return status.state == State.CONTAINER_EXITED

        return await until(lambda: self.status(container_id), has_exited)

    @asynccontextmanager
    async def events(self) -> AsyncIterator["Events"]:
        """Listen for events as long as the block lasts."""
        request = cri.GetEventsRequest()
        async with self.transport.stream(Runtime.get_container_events, request) as stream:
            yield Events(stream)

    async def clean_up(self) -> None:
        for pod_id in self.pods:
            await self.remove_pod(pod_id)


@frozen
class Events:
    """A stream of events, read for one pod; other pods' events are dropped."""

    stream: AsyncIterator[cri.ContainerEventResponse]

    async def of(self, pod: Pod, count: int) -> list[cri.ContainerEventResponse]:
        """Wait for that many events of the pod."""
        events: list[cri.ContainerEventResponse] = []
        with trio.fail_after(DEADLINE_SECONDS):
            while len(events) < count:
                event = await anext(self.stream)
                if event.pod_sandbox_status.id == pod.id:
                    events.append(event)
        return events


async def image_status(node: Node, name: str) -> cri.Image:
    """Ask for one image; its id is empty if it is not there."""
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
    return (await node.transport.unary(Images.image_status, request)).image


def kind_of(event: cri.ContainerEventResponse) -> str:
    """CREATED, STARTED, STOPPED or DELETED."""
    name = cri.ContainerEventType(event.container_event_type).name or ""
    return name.removeprefix("CONTAINER_").removesuffix("_EVENT")


async def until(read: Callable[[], Awaitable[Value]], fits: Callable[[Value], bool]) -> Value:
    """Read again and again until the value fits, with a deadline; return it."""
    with trio.fail_after(DEADLINE_SECONDS):
        while not fits(value := await read()):  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.02)
    return value
