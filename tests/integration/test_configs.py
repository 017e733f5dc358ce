"""What a real runtime stored for pods that cover the spec, compared key by key.

The pods and what is expected of them are in `configs/`; `stored_configs` is the one place that
knows how a pod becomes containers.
"""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import frozen

from lab import host
from lab.containerd import Containerd
from lab.processes import run
from tests.integration.config_cases import (
    Case,
    Surroundings,
    differences,
    expected_container,
    expected_sandbox,
    load_cases,
    static,
)
from tests.integration.made_configs import made_container, made_sandbox
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.container_config import image_user
from trio_kubelet.runtime.hostname import pod_hostname
from trio_kubelet.runtime.hosts import etc_hosts
from trio_kubelet.runtime.names import (
    container_log_directory,
    etc_hosts_path,
    pod_directory,
    termination_message_file,
)
from trio_kubelet.runtime.node_facts import NodeFacts

CASES = load_cases()
SHARED = Path("/run/trio-kubelet-shared")
CGROUPS = Path("/sys/fs/cgroup")
ALLOW_EVERYTHING = '{"defaultAction": "SCMP_ACT_ALLOW"}'
# With enable_unprivileged_ports and enable_unprivileged_icmp, which are on in containerd 2.
SYSCTLS_OF_CONTAINERD = ("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range")
A_CALL_MAY_TAKE_SECONDS = 120

HOST_HAS: Mapping[str, Callable[[], bool]] = {
    "AppArmor": Path("/sys/kernel/security/apparmor").exists,
    # The range of ids would have to be free, and the file systems able to map them.
    "user namespaces": lambda: False,
}


@frozen(kw_only=True)
class Stored:
    """A pod as it was run, and the configs that the runtime shows of it."""

    pod: Pod
    surroundings: Surroundings
    sandbox: Any
    containers: Mapping[str, Any]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFacts]:
    """This host, with folders and cgroups of the test's own."""
    facts = NodeFacts(
        root_directory=str(tmp_path / "kubelet"),
        pod_logs_directory=str(tmp_path / "logs"),
        cluster_domain="cluster.local",
        host_ips=("192.0.2.10",),
        memory_capacity_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        cgroup_root=f"/trio-kubelet-configs-{os.getpid()}",
        cgroup_v2=host.cgroup_version() == 2,
        swap_controller=(CGROUPS / "memory/memory.memsw.limit_in_bytes").exists(),
    )
    yield facts
    for hierarchy in (CGROUPS, *CGROUPS.iterdir()):
        _remove_cgroups(hierarchy / facts.cgroup_root.lstrip("/"))


@pytest.fixture(scope="module", autouse=True)
def shared_folder(real_containers: None) -> Iterator[None]:
    """The folder of the host from and to which mounts propagate."""
    SHARED.mkdir(exist_ok=True)
    run(["mount", "--bind", SHARED, SHARED])
    try:
        run(["mount", "--make-shared", SHARED])
        yield
    finally:
        run(["umount", SHARED])
        SHARED.rmdir()


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, containerd: Containerd) -> Case:
    """A case that can be run here."""
    if containerd.wish != "2.1":
        pytest.skip("older runtimes do not know all fields")
    case: Case = request.param
    if case.needs and not HOST_HAS[case.needs]():
        pytest.skip(f"this host has no {case.needs}")
    return case


async def test_the_runtime_stored_what_is_expected(
    case: Case, containerd: Containerd, node: NodeFacts
) -> None:
    async with stored_configs(case, containerd, node) as stored:
        pod, around = stored.pod, stored.surroundings
        expected = {"sandbox": expected_sandbox(case, pod, around)}
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            expected[container.name] = expected_container(case, pod, container, around)
        assert list(differences(expected, {"sandbox": stored.sandbox, **stored.containers})) == []


@asynccontextmanager
async def stored_configs(
    case: Case, containerd: Containerd, node: NodeFacts
) -> AsyncIterator[Stored]:
    """Runs the pod's sandbox, makes its containers, and reads back what the runtime stored."""
    pod = static(case.pod, "node-1")
    async with open_rpc_loop():
        runtime = Runtime(Channel(containerd.endpoint))
        around = _surroundings(pod, node, pod_ip="")
        _make_folders(pod, around)
        config = made_sandbox(pod, around)
        sandbox_id = await runtime.run_sandbox(config)
        try:
            sandbox, pod_ip = await runtime.stored_sandbox(sandbox_id)
            around = _surroundings(pod, node, pod_ip)
            containers = {
                container.name: await _stored_container(
                    runtime, pod, container, around, sandbox_id, config
                )
                for container in (*pod.spec.init_containers, *pod.spec.containers)
            }
            yield Stored(pod=pod, surroundings=around, sandbox=sandbox, containers=containers)
        finally:
            with trio.CancelScope(shield=True):
                await runtime.remove_sandbox(sandbox_id)


async def _stored_container(
    runtime: "Runtime",
    pod: Pod,
    container: Container,
    around: Surroundings,
    sandbox_id: str,
    sandbox_config: cri.PodSandboxConfig,
) -> Any:
    message_file = _make_files(pod, container, around)
    image = await runtime.image(container.image)
    config = made_container(
        pod,
        container,
        around,
        image_id=image.id,
        image_user=image_user(image),
        termination_message_file=message_file,
    )
    return await runtime.stored_container(sandbox_id, config, sandbox_config)


class Runtime:
    """The few calls that the test needs, with the runtime's own view of what it stored."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def run_sandbox(self, config: cri.PodSandboxConfig) -> str:
        request = cri.RunPodSandboxRequest(config=config)
        answer = await self._call(cri.RuntimeServiceStub.run_pod_sandbox, request)
        return str(answer.pod_sandbox_id)

    async def stored_sandbox(self, sandbox_id: str) -> tuple[Any, str]:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        answer = await self._call(cri.RuntimeServiceStub.pod_sandbox_status, request)
        config = json.loads(answer.info["info"])["config"]
        for name in SYSCTLS_OF_CONTAINERD:
            config["linux"].get("sysctls", {}).pop(name, None)
        return config, answer.status.network.ip

    async def stored_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig
    ) -> Any:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        created = await self._call(cri.RuntimeServiceStub.create_container, request)
        status = cri.ContainerStatusRequest(container_id=created.container_id, verbose=True)
        answer = await self._call(cri.RuntimeServiceStub.container_status, status)
        return json.loads(answer.info["info"])["config"]

    async def image(self, name: str) -> cri.Image:
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
        answer = await self._call(cri.ImageServiceStub.image_status, request)
        image: cri.Image = answer.image
        return image

    async def remove_sandbox(self, sandbox_id: str) -> None:
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call(cri.RuntimeServiceStub.stop_pod_sandbox, stop)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call(cri.RuntimeServiceStub.remove_pod_sandbox, remove)

    async def _call(self, method: Any, request: Any) -> Any:
        return await self._channel.unary(method, request, deadline_seconds=A_CALL_MAY_TAKE_SECONDS)


def _surroundings(pod: Pod, node: NodeFacts, pod_ip: str) -> Surroundings:
    volumes = f"{pod_directory(node.root_directory, pod.metadata.uid)}/volumes"
    scratch = f"{volumes}/kubernetes.io~empty-dir/scratch"
    return Surroundings(
        node=node,
        node_name="node-1",
        pod_ip=pod_ip,
        volumes={"scratch": scratch},
        sub_paths={("scratch", part): f"{scratch}/{part}" for part in ("logs", "parts/one")},
    )


def _make_folders(pod: Pod, around: Surroundings) -> None:
    node = around.node
    Path(pod_directory(node.root_directory, pod.metadata.uid)).mkdir(parents=True)
    Path(node.pod_logs_directory).mkdir(parents=True)
    for place in (*around.volumes.values(), *around.sub_paths.values()):
        Path(place).mkdir(parents=True, exist_ok=True)
    profile = Path(node.root_directory, "seccomp/profiles/allow.json")
    profile.parent.mkdir(parents=True)
    profile.write_text(ALLOW_EVERYTHING)


def _make_files(pod: Pod, container: Container, around: Surroundings) -> str:
    """The files that a container mounts; returns that of its termination message."""
    root, logs = around.node.root_directory, around.node.pod_logs_directory
    Path(container_log_directory(pod, container.name, logs)).mkdir(parents=True)
    hosts = etc_hosts(pod, (around.pod_ip,), pod_hostname(pod, around.node.cluster_domain))
    Path(etc_hosts_path(root, pod.metadata.uid)).write_text(hosts)
    message_file = termination_message_file(root, pod.metadata.uid, container.name, 0xC0FFEE)
    Path(message_file).parent.mkdir(parents=True)
    Path(message_file).touch()
    return message_file


def _remove_cgroups(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        for child in folder.iterdir():
            _remove_cgroups(child)
        folder.rmdir()
