"""NVIDIA's device plugin on a real API server, where there is a GPU: `nox -s nvidia`.

Nobody here wrote it. The node's runtime is not NVIDIA's, so that the plugin is to name the device
files itself, and programs get the driver's libraries from folders of the host.
"""

import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from lab import nvidia_device_plugin
from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import (
    DEADLINE_SECONDS,
    Namespace,
    container,
    container_ids,
    is_over,
    is_ready,
    until_term,
)
from tests.e2e.device_plugins import DevicePluginOfOthers
from tests.e2e.local import LocalCluster
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs import v1 as wire

RESOURCE = "nvidia.com/gpu"
GPUS = nvidia_device_plugin.gpus()
FIRST_GPU = Path("/dev/nvidia0")
# What programs of the host that use the driver are and load.
HOST_FOLDERS = ("/usr", "/lib", "/lib64")
ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds_count"
REGISTRATIONS = "kubelet_device_plugin_registration_total"

Answer = TypeVar("Answer")

pytestmark = [
    pytest.mark.skipif(not GPUS, reason="there is no GPU of NVIDIA's"),
    pytest.mark.skipif(not nvidia_device_plugin.is_built(), reason="`nox -s nvidia` builds it"),
]


@pytest.fixture
def plugin(local_cluster: LocalCluster) -> Iterator[DevicePluginOfOthers]:
    """The plugin, whose GPUs the node has."""
    program = str(nvidia_device_plugin.program())
    folder = local_cluster.agent.root / "device-plugins"
    plugin = DevicePluginOfOthers([program, "--pass-device-specs"], folder)
    before = count(local_cluster, REGISTRATIONS)
    plugin.start()
    try:
        wait_registered(local_cluster, before + 1)
        local_cluster.api.wait_for(f"/api/v1/nodes/{local_cluster.node}", offers_all)
        yield plugin
    finally:
        plugin.kill()


def offers_all(node: Json) -> bool:
    """True of a Node that has this machine's GPUs, all for pods."""
    status = node["status"]
    return all(status[kind].get(RESOURCE) == str(len(GPUS)) for kind in ("capacity", "allocatable"))


def offers_none(node: Json) -> bool:
    """True of a Node on which pods may have no GPU."""
    return bool(node["status"]["allocatable"].get(RESOURCE) == "0")


def gpu_container(script: str, **fields: object) -> Json:
    """A container that has all GPUs, runs a script and stays."""
    amounts = {RESOURCE: str(len(GPUS))}
    return until_term("c", script, resources={"limits": amounts}, **fields)


def ask(cluster: LocalCluster, call: Callable[[Channel, float], Awaitable[Answer]]) -> Answer:
    """Ask the socket for agents that watch the devices of pods."""

    async def asked() -> Answer:
        async with open_rpc_loop():
            socket = cluster.agent.root / "pod-resources" / "kubelet.sock"
            with closing(Channel(str(socket))) as channel:
                return await call(channel, DEADLINE_SECONDS)

    return trio.run(asked)


def allocatable(cluster: LocalCluster) -> set[str]:
    """The GPUs that pods may have, whoever has them."""

    async def call(channel: Channel, seconds: float) -> wire.AllocatableResourcesResponse:
        method = wire.PodResourcesListerStub.get_allocatable_resources
        return await channel.unary(
            method, wire.AllocatableResourcesRequest(), deadline_seconds=seconds
        )

    return gpus_in(ask(cluster, call).devices)


def users(cluster: LocalCluster) -> dict[str, set[str]]:
    """The GPUs of each pod that has some."""

    async def call(channel: Channel, seconds: float) -> wire.ListPodResourcesResponse:
        method = wire.PodResourcesListerStub.list
        return await channel.unary(method, wire.ListPodResourcesRequest(), deadline_seconds=seconds)

    given = {
        pod.name: gpus_in([device for told in pod.containers for device in told.devices])
        for pod in ask(cluster, call).pod_resources
    }
    return {name: gpus for name, gpus in given.items() if gpus}


def gpus_in(devices: Sequence[wire.ContainerDevices]) -> set[str]:
    """The ids of the GPUs among devices."""
    ours = (each for each in devices if each.resource_name == RESOURCE)
    return {name for each in ours for name in each.device_ids}


def count(cluster: LocalCluster, metric: str) -> float:
    """What the agent has counted of the plugin since its start."""
    wanted = f'{metric}{{resource_name="{RESOURCE}"}} '
    for line in cluster.agent.read("/metrics").decode().splitlines():
        if line.startswith(wanted):
            return float(line.removeprefix(wanted))
    return 0


def wait_registered(cluster: LocalCluster, times: float) -> None:
    """Wait until the plugin has registered so often with the agent that runs."""

    def has_registered() -> bool:
        try:
            return count(cluster, REGISTRATIONS) >= times and allocatable(cluster) == set(GPUS)
        except OSError:
            return False

    wait_until(
        has_registered,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"the plugin has not registered: {cluster.last_words()}",
    )


def test_gpus_are_given_to_one_pod_at_a_time(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    assert allocatable(local_cluster) == set(GPUS)
    show = "echo $NVIDIA_VISIBLE_DEVICES; ls /dev"
    namespace.run("first", gpu_container(show))
    visible, *files = namespace.kubectl("logs", "first").split()
    assert set(visible.split(",")) == set(GPUS)
    assert {FIRST_GPU.name, "nvidiactl"} <= set(files)
    assert users(local_cluster) == {"first": set(GPUS)}
    namespace.add("bound", gpu_container(show), nodeName=local_cluster.node)
    status = namespace.wait("bound", is_over)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{RESOURCE}. Requested: {len(GPUS)}, Available: 0, which is unexpected"
    )
    namespace.add("second", gpu_container(show))
    namespace.wait_event("second", "FailedScheduling", f"Insufficient {RESOURCE}")
    namespace.api.delete(namespace.path("Pod", "first"))
    namespace.wait("second", is_ready)
    assert users(local_cluster) == {"second": set(GPUS)}


def test_programs_use_the_gpus_of_their_pod_and_no_others_can_open_them(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    number = FIRST_GPU.stat().st_rdev
    opens = (
        f"mknod /gpu c {os.major(number)} {os.minor(number)} && "
        "if (: </gpu); then echo may open it; else echo may not; fi"
    )
    smi = shutil.which(nvidia_device_plugin.SHOWN_BY)
    names = {f"host{at}": folder for at, folder in enumerate(HOST_FOLDERS)}
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    with_gpu = gpu_container(
        f"export LD_LIBRARY_PATH={libraries}; {smi} -L; {opens}",
        volumeMounts=[
            {"name": name, "mountPath": folder, "readOnly": True} for name, folder in names.items()
        ],
    )
    volumes = [{"name": name, "hostPath": {"path": folder}} for name, folder in names.items()]
    namespace.run("with", with_gpu, volumes=volumes)
    namespace.run("without", until_term("c", f"{opens}; ls /dev"))
    said = namespace.kubectl("logs", "with")
    assert all(f"(UUID: {gpu})" in said for gpu in GPUS)
    assert "may open it" in said
    said = namespace.kubectl("logs", "without")
    assert "may not" in said
    assert "nvidia" not in said


def test_gpus_stay_with_their_pod_over_kills_of_plugin_and_agent(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    node = f"/api/v1/nodes/{local_cluster.node}"
    registered = count(local_cluster, REGISTRATIONS)
    pod = namespace.run("first", gpu_container(":"))
    allocated = count(local_cluster, ALLOCATIONS)
    assert allocated
    plugin.kill()
    local_cluster.api.wait_for(node, offers_none)
    plugin.start()
    wait_registered(local_cluster, registered + 1)
    local_cluster.api.wait_for(node, offers_all)
    assert count(local_cluster, ALLOCATIONS) == allocated
    local_cluster.kill_agent()
    local_cluster.start_agent()
    wait_registered(local_cluster, 1)
    local_cluster.api.wait_for(node, offers_all)
    assert users(local_cluster) == {"first": set(GPUS)}
    assert count(local_cluster, ALLOCATIONS) == 0
    now = namespace.pod("first")
    assert container_ids([now]) == container_ids([pod])
    assert container(now)["restartCount"] == 0
    namespace.api.delete(namespace.path("Pod", "first"))
    namespace.run("second", gpu_container(":"))
    assert users(local_cluster) == {"second": set(GPUS)}
