"""A hollow runtime on a mock clock, and short ways to make pods in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import frozen

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import Behaviour, HollowOptions, HollowRuntime, open_hollow_runtime
from trio_kubelet.rpc.stubs.runtime import v1 as cri

IMAGE = "busybox"


@frozen
class Simulated:
    """A hollow runtime, and the calls that tests make most."""

    runtime: HollowRuntime

    async def run_pod(self, name: str = "pod", **settings: object) -> str:
        config = pod_config(name)
        for field, value in settings.items():
            setattr(config, field, value)
        request = cri.RunPodSandboxRequest(config=config)
        return (await self.runtime.run_pod_sandbox(request)).pod_sandbox_id

    async def create(
        self, pod: str, *command: str, name: str = "main", of: str = "pod", attempt: int = 0
    ) -> str:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            image=cri.ImageSpec(image=IMAGE),
            command=list(command),
            labels={"container": name, "a": "1", "b": "2", "c": "3"},
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod, config=config, sandbox_config=pod_config(of)
        )
        return (await self.runtime.create_container(request)).container_id

    async def running(self, *command: str, pod: str = "") -> str:
        """Start a container with that command, in a pod of its own unless told otherwise."""
        container = await self.create(pod or await self.run_pod(), *command)
        await self.start(container)
        return container

    async def start(self, container: str) -> None:
        await self.runtime.start_container(cri.StartContainerRequest(container_id=container))

    async def stop(self, container: str, grace_seconds: int = 0) -> None:
        await self.runtime.stop_container(
            cri.StopContainerRequest(container_id=container, timeout=grace_seconds)
        )

    async def remove_pod(self, pod: str) -> None:
        await self.runtime.remove_pod_sandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))

    async def status(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        return (await self.runtime.container_status(request)).status

    async def pods(self) -> list[str]:
        answer = await self.runtime.list_pod_sandbox(cri.ListPodSandboxRequest())
        return [item.id for item in answer.items]

    async def containers(self) -> list[cri.Container]:
        request = cri.ListContainersRequest()
        return (await self.runtime.list_containers(request)).containers


def pod_config(name: str) -> cri.PodSandboxConfig:
    modes = cri.NamespaceMode
    options = cri.NamespaceOption(pid=modes(modes.CONTAINER))
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default"),
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
        ),
    )


@asynccontextmanager
async def simulate(
    behaviour: Behaviour | None = None, **settings: object
) -> AsyncIterator[Simulated]:
    """Run a runtime whose containers all behave the same, if told how, with other options."""
    options = HollowOptions(images=(IMAGE,), **settings)  # type: ignore[arg-type]
    if behaviour is not None:
        options = HollowOptions(images=(IMAGE,), behaviours=lambda _: behaviour, **settings)  # type: ignore[arg-type]
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        yield Simulated(runtime)
