"""A machine becomes a node: certificate, object, status and lease, as a real API server has them.

There is no runtime of containers here: what the node sees of itself is written down, or hollow.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve

from lab.agent import LabAgent
from lab.control_plane import ControlPlane
from tests.e2e.cluster import is_ready as is_node_ready
from tests.unit.node.nodes import GIB, a_machine, a_profile, seen
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.k8s import LEASES, NODES, ContainerImage, Node, Quantity
from trio_kubelet.k8s.client import ApiClients, ApiError, open_api_clients
from trio_kubelet.node.bootstrap import bootstrap
from trio_kubelet.node.conditions import is_ready
from trio_kubelet.node.lease import LEASE_NAMESPACE, NodeLease
from trio_kubelet.node.machine import MachineSize
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.reporter import NodeReporter, NodeView
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import EventRecorder, Journal

NAME = "joining"
DEADLINE_SECONDS = 60.0


class Joined:
    """A node at work. `observed` is what the next look shows."""

    def __init__(self, clients: ApiClients, profile: NodeProfile) -> None:
        clock = SystemClock()
        self.observed = seen()
        self.view = NodeView(profile.name)
        self.api = clients.main
        self.reporter = NodeReporter(
            profile=profile,
            resources=lambda: profile.resources,
            view=self.view,
            api=clients.main,
            heartbeat=clients.heartbeat,
            observe=self._observe,
            recorder=EventRecorder(Journal(clock), profile.name),
            clock=clock,
            chance=random.Random(),
        )
        self.lease = NodeLease(
            api=clients.heartbeat, view=self.view, clock=clock, seconds=40, chance=random.Random()
        )

    def see(self, **changes: object) -> None:
        self.observed = seen(**changes)
        self.reporter.wake()

    async def until(self, holds: Callable[[Node], object]) -> Node:
        with trio.fail_after(DEADLINE_SECONDS):
            while True:
                node = await self._node()
                if node is not None and holds(node):
                    return node
                await trio.sleep(0.1)

    async def _node(self) -> Node | None:
        try:
            return await self.api.get(NODES, self.view.name)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def _observe(self) -> Observation:
        await trio.lowlevel.checkpoint()
        return self.observed


async def get_certificate(control_plane: ControlPlane, folder: Path) -> Path:
    """Join as `kubeadm join` lets a kubelet do; returns the kubeconfig."""
    kubeconfig = folder / "kubelet.conf"
    with trio.fail_after(DEADLINE_SECONDS):
        await bootstrap(
            kubeconfig=kubeconfig,
            bootstrap_kubeconfig=control_plane.bootstrap_kubeconfig(),
            cert_dir=folder / "pki",
            node_name=NAME,
            clock=SystemClock(),
        )
    return kubeconfig


@asynccontextmanager
async def joined(kubeconfig: Path, profile: NodeProfile) -> AsyncIterator[Joined]:
    async with open_api_clients(kubeconfig) as clients, trio.open_nursery() as nursery:
        agent = Joined(clients, profile)
        nursery.start_soon(agent.view.watch, clients.main)
        nursery.start_soon(agent.reporter.run)
        nursery.start_soon(agent.lease.run)
        yield agent
        nursery.cancel_scope.cancel()


async def test_a_machine_with_a_bootstrap_token_becomes_a_node_and_stays_one(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = await get_certificate(control_plane, tmp_path)
    profile = evolve(a_profile(options=NodeOptions(node_labels={"tier": "db"})), name=NAME)
    async with joined(kubeconfig, profile) as agent:
        made = await agent.until(lambda node: is_ready(node.status.conditions))
        assert made.metadata.labels["tier"] == "db"
        assert made.status.allocatable["memory"].canonical == "8092Mi"
        agent.see(addresses=("10.0.0.7", "fd00::7"))
        await agent.until(lambda node: len(node.status.addresses) == 3)
        agent.see(addresses=("10.0.0.9",))
        moved = await agent.until(lambda node: len(node.status.addresses) == 2)
        assert [address.address for address in moved.status.addresses] == ["10.0.0.9", NAME]
        agent.see(images=(ContainerImage(names=("a:1",), size_bytes=7),), errors=("no network",))
        told = await agent.until(lambda node: not is_ready(node.status.conditions))
        assert [image.names for image in told.status.images] == [("a:1",)]
        lease = await agent.api.get(LEASES, NAME, LEASE_NAMESPACE)
        assert lease.metadata.owner_references[0].uid == made.metadata.uid
        assert lease.spec.renew_time is not None

    pages = MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={GIB: GIB})
    rebooted = evolve(a_profile(a_machine(size=pages, boot_id="boot-2")), name=NAME)
    control_plane.api.patch(
        f"/api/v1/nodes/{NAME}",
        {"metadata": {"labels": {"team": "red", "kubernetes.io/arch": "arm64"}}},
    )
    assert await get_certificate(control_plane, tmp_path) == kubeconfig
    async with joined(kubeconfig, rebooted) as agent:
        adopted = await agent.until(lambda node: is_ready(node.status.conditions))
        assert adopted.metadata.uid == made.metadata.uid
        assert adopted.metadata.labels["team"] == "red"
        assert adopted.metadata.labels["kubernetes.io/arch"] == "amd64"
        assert adopted.status.capacity["hugepages-1Gi"] == Quantity("1Gi")
        assert "hugepages-2Mi" not in adopted.status.capacity
        assert adopted.status.node_info is not None
        assert adopted.status.node_info.boot_id == "boot-2"
    control_plane.api.delete(f"/api/v1/nodes/{NAME}")


def test_an_agent_joins_with_the_flags_that_kubeadm_gives_it(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubelet.conf"
    flags = (
        *("--bootstrap-kubeconfig", str(control_plane.bootstrap_kubeconfig())),
        *("--kubeconfig", str(kubeconfig)),
        *("--cert-dir", str(tmp_path / "pki")),
        *("--hostname-override", "kubeadm-joins"),
    )
    path = "/api/v1/nodes/kubeadm-joins"
    agent = LabAgent(tmp_path / "agent", flags=flags)
    try:
        agent.launch()
        control_plane.api.wait_for(path, is_node_ready)
        written = kubeconfig.read_bytes()
        agent.stop()
        control_plane.api.delete(path)
        agent.launch()
        control_plane.api.wait_for(path, is_node_ready)
    finally:
        agent.kill()
    assert kubeconfig.read_bytes() == written
    assert len(list((tmp_path / "pki").glob("kubelet-client-2*.pem"))) == 1
    control_plane.api.delete(path)
