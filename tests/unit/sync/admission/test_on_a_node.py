"""Admission on a whole node of a cluster: what the API shows of pods that may run, or may not."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import evolve, frozen
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.agent.start import Agent
from trio_kubelet.agent.traces import Traces
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.hollow import HollowOptions, HollowRuntime, open_hollow_runtime
from trio_kubelet.hollow.faults import Faults, no_faults
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.k8s import (
    EVENTS,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    Node,
    ObjectMeta,
    Pod,
    PodStatus,
    RuntimeClass,
    Taint,
)
from trio_kubelet.k8s.client import ApiClients
from trio_kubelet.k8s.codec import decode
from trio_kubelet.kernel.logind import Logind
from trio_kubelet.node.machine import read_machine
from trio_kubelet.rpc import InProcess

NODE = "here"

OpenLogind = Callable[[], AbstractAsyncContextManager[Logind]]


class MovingClock(TrioClock):
    """Never says the same time twice, as no real one does: events are named after it."""

    def __init__(self) -> None:
        super().__init__()
        self._reads = 0

    def now_ns(self) -> int:
        self._reads += 1
        return super().now_ns() + self._reads


def make_pod(name: str, **spec: Any) -> Pod:
    """A pod that asks for nothing and is bound to the node."""
    return decode(
        Pod,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "c", "image": "busybox"}],
                "dnsPolicy": "Default",
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                **spec,
            },
        },
    )


@frozen
class OneNode:
    """A cluster of one node, as its user sees it."""

    server: ApiServer
    runtime: HollowRuntime
    root: Path

    @asynccontextmanager
    async def agent(
        self, *, machine: str = "", open_logind: OpenLogind | None = None, **fields: Any
    ) -> AsyncIterator[None]:
        """Run an agent until the end of the block; it begins with a node that is known.

        `fields` are of the configuration; `machine` is where the root folder of the machine is
        whose figures count, empty for this one.
        """

        @asynccontextmanager
        async def clients(_traces: Traces | None) -> AsyncIterator[ApiClients]:
            main, heartbeat, events = (self.server.client() for _ in range(3))
            yield ApiClients("http://apiserver.test", main, heartbeat, events, main)

        settings = Settings(
            configuration=KubeletConfiguration(
                pod_logs_dir=str(self.root / "logs"),
                resolv_conf="",
                healthz_port=0,
                enable_server=False,
                **{"max_pods": 2, **fields},
            ),
            options=NodeOptions(
                root_dir=str(self.root / "kubelet"), hostname_override=NODE, hollow=True
            ),
        )
        host = hollow_host(InProcess(self.runtime), read_machine(self.root), root=machine)
        host = evolve(host, open_logind=open_logind)
        agent = Agent(settings, MovingClock(), host, open_clients=clients)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run)
            await self.server.until(lambda: self.server.find(NODES, NODE))
            yield
            nursery.cancel_scope.cancel()

    def change(self, *, taints: tuple[Taint, ...] = (), **labels: str) -> None:
        """Change the node's taints and add labels; one that is empty goes."""
        node: Node = self.server.get(NODES, NODE)
        kept = {key: value for key, value in {**node.metadata.labels, **labels}.items() if value}
        metadata, spec = evolve(node.metadata, labels=kept), evolve(node.spec, taints=taints)
        self.server.update(NODES, evolve(node, metadata=metadata, spec=spec))

    def hide_changes(self) -> None:
        """From now on nobody is told of changes of the node."""
        for verb in ("list", "watch"):
            self.server.faults.add(RequestFault(verb=verb, resource="nodes", code=500))
        for stream in tuple(self.server.watches):
            if stream.resource[1] == "nodes":
                stream.break_off()

    async def run(self, pod: Pod) -> None:
        """Create a pod and wait until it runs."""
        self.server.create(PODS, pod)
        await self.becomes(pod.metadata.name, "Running")

    async def becomes(self, name: str, phase: str) -> PodStatus:
        """Wait until a pod has a phase."""
        await self.server.until(lambda: self.status(name).phase == phase)
        return self.status(name)

    def status(self, name: str) -> PodStatus:
        """What the API shows of a pod."""
        return self.server.get(PODS, name, "default").status

    async def hears(self, name: str, reason: str) -> str:
        """Wait for an event about a pod; its message."""

        def found() -> list[str]:
            return [
                event.message
                for event in self.server.all(EVENTS)
                if (event.involved_object.name, event.reason) == (name, reason)
            ]

        await self.server.until(found)
        return found()[0]


@asynccontextmanager
async def one_node(root: Path, faults: Faults = no_faults) -> AsyncIterator[OneNode]:
    """A node whose runtime and API server outlive its agent."""
    options = HollowOptions(images=("busybox",), faults=faults)
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        yield OneNode(ApiServer(), runtime, root)


async def test_a_rejected_pod_shows_its_reason_and_no_containers(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with one_node(tmp_path) as node, node.agent():
        node.server.create(PODS, make_pod("p", nodeSelector={"disk": "ssd"}))
        status = await node.becomes("p", "Failed")
        words = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        assert (status.reason, status.message) == ("NodeAffinity", f"Pod was rejected: {words}")
        assert (status.container_statuses, status.conditions) == ((), ())
        assert await node.hears("p", "NodeAffinity") == words
        assert list(node.runtime.sandboxes) == []


def waiting_reason(node: OneNode, name: str) -> str:
    """Why the first container of a pod waits; empty if it does not, or nobody has told."""
    for container in node.status(name).container_statuses:
        if container.state is not None and container.state.waiting is not None:
            return container.state.waiting.reason
    return ""


async def test_a_pod_waits_for_its_claims_and_says_so(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    uses = {"name": "c", "image": "image", "resources": {"claims": [{"name": "gpu"}]}}
    async with one_node(tmp_path) as node, node.agent():
        node.server.create(PODS, make_pod("p", resourceClaims=claims, containers=[uses]))
        words = await node.hears("p", "FailedPrepareDynamicResources")
        assert words.startswith(
            "Failed to prepare dynamic resources: failed to fetch ResourceClaim default/gpu: "
        )
        await node.server.until(lambda: waiting_reason(node, "p") == "WaitingForResourceClaims")
        assert list(node.runtime.sandboxes) == []


async def test_a_pod_may_come_before_the_label_that_it_was_bound_for(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with one_node(tmp_path) as node, node.agent():
        await node.run(make_pod("earlier"))
        node.hide_changes()
        node.change(disk="ssd")
        await node.run(make_pod("p", nodeSelector={"disk": "ssd"}))


async def test_a_critical_pod_takes_the_place_of_another(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with one_node(tmp_path) as node, node.agent():
        resources = {"requests": {"memory": "1Mi"}}
        await node.run(make_pod("humble"))
        larger = {"containers": [{"name": "c", "image": "busybox", "resources": resources}]}
        await node.run(make_pod("larger", **larger))
        await node.run(make_pod("critical", priority=2_000_001_000))
        status = await node.becomes("humble", "Failed")
        words = "Preempted in order to admit critical pod"
        assert (status.reason, status.message) == ("Preempting", words)
        disruption = next(c for c in status.conditions if c.type == "DisruptionTarget")
        assert (disruption.status, disruption.reason) == ("True", "TerminationByKubelet")
        assert await node.hears("humble", "Preempting") == words
        waits = await node.hears("critical", "WaitingForPreemptedPods")
        assert waits == "Waiting for preempted pods to stop: default/humble"
        assert node.status("larger").phase == "Running"


async def test_what_was_admitted_stays_over_a_restart_whatever_became_of_the_node(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with one_node(tmp_path) as node:
        async with node.agent():
            node.change(disk="ssd")
            await node.run(make_pod("p", nodeSelector={"disk": "ssd"}))
        containers = [container.id for container in node.runtime.containers]
        node.change(disk="", taints=(Taint(key="down", effect="NoExecute"),))
        async with node.agent():
            node.server.create(PODS, make_pod("q"))
            assert (await node.becomes("q", "Failed")).reason == "TaintToleration"
            assert node.status("p").phase == "Running"
            assert [container.id for container in node.runtime.containers] == containers


async def test_a_pod_waits_for_its_runtime_class(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with one_node(tmp_path) as node, node.agent():
        node.server.create(PODS, make_pod("p", runtimeClassName="sandboxed"))
        words = 'Failed to create pod sandbox: runtimeclass.node.k8s.io "sandboxed" not found'
        assert await node.hears("p", "FailedCreatePodSandBox") == words
        sandboxed = RuntimeClass(metadata=ObjectMeta(name="sandboxed"), handler="runc")
        node.server.create(RUNTIME_CLASSES, sandboxed)
        await node.becomes("p", "Running")
        assert [sandbox.handler for sandbox in node.runtime.sandboxes] == ["runc"]
