"""The host under the agent: what the machine and its kernel give it, as one value.

A machine with a kernel is opened here. The hollow world brings a host of its own
(`hollow/host.py`), so nobody else asks which of them it is.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.config.settings import Settings
from trio_kubelet.errors import StartError
from trio_kubelet.kernel.kernel_log import KERNEL_LOG
from trio_kubelet.kernel.limits import raise_open_files_limit, set_oom_score
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node.facts import read_hosts
from trio_kubelet.node.host_warnings import (
    HostWarning,
    host_problem,
    host_warnings,
    read_swap_areas,
)
from trio_kubelet.node.machine import MachineInfo, apparmor_enabled, read_machine
from trio_kubelet.probes import AskOverNetwork, NodeNetwork
from trio_kubelet.resources import CgroupError, CgroupTree
from trio_kubelet.rpc import Channel, Transport
from trio_kubelet.runtime.lost_tasks import CONTAINERD_HEADERS
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.volumes.mount import keeps_out_of_swap, make_shared

log = structlog.get_logger("node")

Transports = tuple[Transport, Transport, Transport | None]
"""Where CRI's runtime service and image service are, and containerd's own, if it may have them."""


@frozen(kw_only=True)
class Host:
    """One host.

    `cgroups` is None where pods have none. `apparmor`: profiles can be enforced. `privileged`:
    mounts can be made and files given away. `images_on_disk`: the runtime keeps images on a file
    system of this machine. `set_up(settings)` gives the agent its limits and its root folder the
    mounts it needs, `warnings()` returns what there is to warn of, `read_hosts()` the hosts file;
    all three block. `ask_over_network` runs the probes that need the pods' network. `kernel_log`
    is where the kernel tells what it does; None where there is none.
    """

    transports: Transports
    machine: MachineInfo
    cgroups: CgroupTree | None
    apparmor: bool
    privileged: bool
    images_on_disk: bool
    set_up: Callable[[Settings], None]
    warnings: Callable[[], tuple[HostWarning, ...]]
    ask_over_network: AskOverNetwork
    read_hosts: Callable[[], str] = read_hosts
    kernel_log: Path | None = None


def find_cgroups(settings: Settings) -> CgroupTree:
    """Find the cgroups of a host on which the agent can run. Raises StartError for another one."""
    if os.geteuid() != 0:
        raise StartError(
            "must be run as root, because it mounts volumes and makes cgroups; "
            "try sudo, or --hollow for a runtime without a kernel"
        )
    try:
        tree = CgroupTree.find(mount_points())
    except CgroupError as error:
        raise StartError(f"{error}; mount the cgroup hierarchies") from error
    if problem := host_problem(settings.configuration, tree.version, read_swap_areas()):
        raise StartError(problem)
    return tree


@asynccontextmanager
async def open_host(settings: Settings, cgroups: CgroupTree) -> AsyncIterator[Host]:
    """Yield this machine, with the way to its runtime, which need not be there.

    Raises StartError for an endpoint that cannot be one, or a machine that cannot be read.
    """
    yield Host(
        transports=_transports(settings),
        machine=await read_this_machine(settings),
        cgroups=cgroups,
        apparmor=apparmor_enabled(),
        privileged=True,
        images_on_disk=True,
        set_up=_set_up,
        warnings=partial(_warnings, cgroups),
        ask_over_network=NodeNetwork().ask,
        kernel_log=KERNEL_LOG,
    )


async def read_this_machine(settings: Settings, host: Path = Path("/")) -> MachineInfo:
    """Read the machine; `host` is where its root is mounted. Raises StartError."""
    read = partial(read_machine, Path(settings.options.root_dir), host)
    try:
        return await run_in_thread(read)
    except (OSError, ValueError) as error:
        raise StartError(f"the size of the machine cannot be read: {error}") from error


def _transports(settings: Settings) -> Transports:
    configuration = settings.configuration
    endpoint = configuration.container_runtime_endpoint
    try:
        runtime, containerd = Channel(endpoint), Channel(endpoint, CONTAINERD_HEADERS)
    except ValueError as error:
        raise StartError(f"containerRuntimeEndpoint: {error}") from error
    try:
        images = Channel(configuration.image_service_endpoint or endpoint)
    except ValueError as error:
        raise StartError(f"imageServiceEndpoint: {error}") from error
    return runtime, images, containerd


def _set_up(settings: Settings) -> None:
    raise_open_files_limit(settings.configuration.max_open_files)
    set_oom_score(settings.configuration.oom_score_adj)
    root = Path(settings.options.root_dir)
    try:
        if make_shared(root):
            log.info("root folder made a shared mount", path=str(root))
    except OSError as error:
        log.warning(
            "root folder cannot be made a shared mount, pods with mountPropagation will not see "
            "what is mounted later",
            path=str(root),
            error=str(error),
        )


def _warnings(cgroups: CgroupTree) -> tuple[HostWarning, ...]:
    return host_warnings(cgroups.version, read_swap_areas(), noswap=keeps_out_of_swap())
