"""The host of the hollow world: a machine of which nothing is touched but files of the agent."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trio_kubelet.config.settings import Settings
from trio_kubelet.hollow.options import HollowOptions
from trio_kubelet.hollow.runtime import open_hollow_runtime
from trio_kubelet.node.host import Host, read_hosts, read_this_machine
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.probes import AskOverNetwork, answer_for_all
from trio_kubelet.rpc import InProcess, Transport
from trio_kubelet.runtime.images.collection import DiskSpace
from trio_kubelet.tasks.clock import Clock


def hollow_host(
    transport: Transport,
    machine: MachineInfo,
    read_hosts: Callable[[], str] = read_hosts,
    ask_over_network: AskOverNetwork = answer_for_all,
    measure_image_disk: Callable[[str], DiskSpace] | None = None,
    root: str = "",
) -> Host:
    """Return a host without cgroups, mounts and limits; images are in the runtime's memory.

    Their disk may be pretended. `root` is where a machine's root folder is whose figures count as
    this one's.
    """
    return Host(
        transports=(transport, transport, None),
        machine=machine,
        cgroups=None,
        apparmor=True,
        privileged=False,
        images_on_disk=False,
        measure_image_disk=measure_image_disk,
        set_up=lambda _settings: None,
        warnings=tuple,
        read_hosts=read_hosts,
        ask_over_network=ask_over_network,
        root=root,
    )


@asynccontextmanager
async def open_hollow_host(settings: Settings, clock: Clock) -> AsyncIterator[Host]:
    """Yield a host with a runtime of its own, which ends with the block. Raises StartError."""
    async with open_hollow_runtime(clock, HollowOptions()) as runtime:
        yield hollow_host(InProcess(runtime), await read_this_machine(settings))
