"""What a real runtime stored for pods that cover the spec, compared key by key.

The pods and what is expected of them are in `configs/`. The agent runs them, each from its
manifest as it stands there; the runtime is asked for what it was given.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import frozen

from lab.agent import LabAgent
from lab.containerd import Containerd
from lab.locks import locked
from lab.processes import run
from tests.containerds import VERSIONS
from tests.integration.config_cases import (
    FOLDER,
    Case,
    Surroundings,
    differences,
    expected_container,
    expected_sandbox,
    load_cases,
)
from tests.integration.made_configs import DNS, RESOLV_CONF
from tests.integration.pods import NODE_NAME, Node, is_over
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node import node_resources
from trio_kubelet.node.host import gather_facts
from trio_kubelet.node.machine import read_machine
from trio_kubelet.resources import CgroupDriver, CgroupTree
from trio_kubelet.rpc import Channel, RpcError, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import POD_UID_LABEL, pod_directory
from trio_kubelet.runtime.node_facts import NodeFacts

# Older runtimes do not know all fields.
pytestmark = pytest.mark.parametrize(
    "containerd", [v for v in VERSIONS if v == "2.1"], indirect=True, ids="containerd-{}".format
)

CASES = load_cases()
SHARED = Path("/run/trio-kubelet-shared")
HOST_IP = "192.0.2.10"
ALLOW_EVERYTHING = '{"defaultAction": "SCMP_ACT_ALLOW"}'
# With enable_unprivileged_ports and enable_unprivileged_icmp, which are on in containerd 2.
SYSCTLS_OF_CONTAINERD = ("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range")
A_CALL_MAY_TAKE_SECONDS = 120
A_POD_MAY_TAKE_SECONDS = 60
LOOK_AGAIN_SECONDS = 0.05
# Of the pod `volume-mounts`: the position of a mount, and the part of the volume that it shows.
SUB_PATHS = {4: "logs", 5: "parts/one"}

HOST_HAS: Mapping[str, Callable[[], bool]] = {
    "AppArmor": Path("/sys/kernel/security/apparmor").exists,
}
# What the agent does not give, on whatever host; with the reason for which it rejects the pod.
AGENT_LACKS = {"user namespaces": "UserNamespacesNotSupported"}


@frozen(kw_only=True)
class Stored:
    """A pod as it was run, and the configs that the runtime shows of it."""

    pod: Pod
    surroundings: Surroundings
    sandbox: Any
    containers: Mapping[str, Any]


@pytest.fixture(scope="module")
def node(
    containerd: Containerd, shared_folder: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """An agent with the settings that the expected configs are made for."""
    folder = tmp_path_factory.mktemp("node")
    resolv_conf = folder / "resolv.conf"
    resolv_conf.write_text(RESOLV_CONF)
    agent = LabAgent(
        folder,
        endpoint=containerd.endpoint,
        settings={
            "resolvConf": str(resolv_conf),
            "clusterDNS": list(DNS.cluster_dns),
            "clusterDomain": DNS.cluster_domain,
        },
        flags=("--node-ip", HOST_IP),
    )
    profile = agent.root / "seccomp/profiles/allow.json"
    profile.parent.mkdir(parents=True)
    profile.write_text(ALLOW_EVERYTHING)
    with agent:
        yield Node(agent=agent, containerd=containerd)


@pytest.fixture(scope="module")
def shared_folder(real_containers: None) -> Iterator[None]:
    """The folder of the host from and to which mounts propagate."""
    with locked(SHARED.with_suffix(".lock")):  # Its path is in the manifests, for every run.
        SHARED.mkdir(exist_ok=True)
        run(["mount", "--bind", SHARED, SHARED])
        try:
            run(["mount", "--make-shared", SHARED])
            yield
        finally:
            run(["umount", SHARED])
            SHARED.rmdir()


@pytest.fixture(
    params=[case for case in CASES if case.needs not in AGENT_LACKS], ids=lambda case: case.name
)
def case(request: pytest.FixtureRequest) -> Case:
    """A case that can be run here."""
    case: Case = request.param
    if case.needs and not HOST_HAS[case.needs]():
        pytest.skip(f"this host has no {case.needs}")
    return case


async def test_the_runtime_stored_what_is_expected(
    case: Case, containerd: Containerd, node: Node
) -> None:
    async with stored_configs(case, containerd, node) as stored:
        pod, around = stored.pod, stored.surroundings
        expected = {"sandbox": expected_sandbox(case, pod, around)}
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            expected[container.name] = expected_container(case, pod, container, around)
        assert list(differences(expected, {"sandbox": stored.sandbox, **stored.containers})) == []


@pytest.mark.parametrize(
    "lacking",
    [case for case in CASES if case.needs in AGENT_LACKS],
    ids=lambda case: case.name,
)
def test_a_pod_that_needs_what_the_agent_does_not_give_is_rejected(
    lacking: Case, node: Node
) -> None:
    """Of what is expected once the agent gives it, the unit tests see to the config."""
    manifest, name = f"{lacking.name}.yaml", lacking.pod.metadata.name
    node.agent.write(manifest, (FOLDER / manifest).read_text())
    try:
        status = node.wait(name, is_over)["status"]
        assert (status["phase"], status["reason"]) == ("Failed", AGENT_LACKS[lacking.needs])
        assert node.sandboxes(lacking.pod.metadata.uid) == []
    finally:
        node.agent.remove(manifest)
        node.wait_gone(name)


@asynccontextmanager
async def stored_configs(case: Case, containerd: Containerd, node: Node) -> AsyncIterator[Stored]:
    """Lets the agent run the pod, and reads back what the runtime stored of it."""
    manifest = f"{case.name}.yaml"
    names = [c.name for c in (*case.pod.spec.init_containers, *case.pod.spec.containers)]
    uid = case.pod.metadata.uid
    async with open_rpc_loop():
        runtime = Runtime(Channel(containerd.endpoint))
        node.agent.write(manifest, (FOLDER / manifest).read_text())
        try:
            with trio.fail_after(A_POD_MAY_TAKE_SECONDS):
                containers = await runtime.stored_containers(uid, names)
                sandbox, pod_ip = await runtime.stored_sandbox(uid)
            as_run = await trio.to_thread.run_sync(partial(node.pod, case.pod.metadata.name))
            pod = decode(Pod, as_run)
            yield Stored(
                pod=pod,
                surroundings=_surroundings(pod, _facts(node.agent), pod_ip),
                sandbox=sandbox,
                containers=containers,
            )
        finally:
            node.agent.remove(manifest)
            with trio.CancelScope(shield=True):
                await runtime.end_at_once(uid)


class Runtime:
    """The few calls that the test needs, with the runtime's own view of what it stored."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def stored_containers(self, uid: str, names: Iterable[str]) -> dict[str, Any]:
        """The config of the first incarnation of each container, as soon as all were made."""
        stored: dict[str, Any] = {}
        while not stored.keys() >= set(names):
            for container in await self._containers(uid):
                name = container.metadata.name
                if container.metadata.attempt == 0 and name not in stored:
                    stored[name] = await self._stored_container(container.id)
            await trio.sleep(LOOK_AGAIN_SECONDS)
        return stored

    async def stored_sandbox(self, uid: str) -> tuple[Any, str]:
        """The config and the address of the pod's first sandbox."""
        selector = cri.PodSandboxFilter(label_selector={POD_UID_LABEL: uid})
        listed = await self._call(
            cri.RuntimeServiceStub.list_pod_sandbox, cri.ListPodSandboxRequest(filter=selector)
        )
        (first,) = (item for item in listed.items if item.metadata.attempt == 0)
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=first.id, verbose=True)
        answer = await self._call(cri.RuntimeServiceStub.pod_sandbox_status, request)
        config = json.loads(answer.info["info"])["config"]
        for name in SYSCTLS_OF_CONTAINERD:
            config["linux"].get("sysctls", {}).pop(name, None)
        return config, answer.status.network.ip

    async def end_at_once(self, uid: str) -> None:
        """Kill the containers, which would ignore a request, and have half a minute to do so.

        The agent ends the pod at the same time: a container may be gone already, or just going.
        """
        for container in await self._containers(uid):
            request = cri.StopContainerRequest(container_id=container.id, timeout=0)
            with suppress(RpcError):
                await self._call(cri.RuntimeServiceStub.stop_container, request)

    async def _containers(self, uid: str) -> list[cri.Container]:
        selector = cri.ContainerFilter(label_selector={POD_UID_LABEL: uid})
        request = cri.ListContainersRequest(filter=selector)
        listed = await self._call(cri.RuntimeServiceStub.list_containers, request)
        containers: list[cri.Container] = listed.containers
        return containers

    async def _stored_container(self, container_id: str) -> Any:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        answer = await self._call(cri.RuntimeServiceStub.container_status, request)
        return json.loads(answer.info["info"])["config"]

    async def _call(self, method: Any, request: Any) -> Any:
        return await self._channel.unary(method, request, deadline_seconds=A_CALL_MAY_TAKE_SECONDS)


def _facts(agent: LabAgent) -> NodeFacts:
    """What the agent knows of this machine."""
    settings = Settings(
        configuration=KubeletConfiguration(
            pod_logs_dir=str(agent.pod_logs),
            cluster_domain=DNS.cluster_domain,
            cgroup_root=agent.cgroup_root,
        ),
        options=NodeOptions(root_dir=str(agent.root), node_ip=HOST_IP),
    )
    machine = read_machine(agent.root)
    return gather_facts(
        settings,
        machine,
        node_resources(settings, machine).allocatable,
        cgroups=CgroupTree.find(mount_points()),
        driver=CgroupDriver.CGROUPFS,
    )


def _surroundings(pod: Pod, node: NodeFacts, pod_ip: str) -> Surroundings:
    folder = pod_directory(node.settings.options.root_dir, pod.metadata.uid)
    return Surroundings(
        node=node,
        node_name=NODE_NAME,
        pod_ip=pod_ip,
        volumes={"scratch": f"{folder}/volumes/kubernetes.io~empty-dir/scratch"},
        sub_paths={
            ("scratch", part): f"{folder}/volume-subpaths/scratch/c/{position}"
            for position, part in SUB_PATHS.items()
        },
    )
