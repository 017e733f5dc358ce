"""Memory of NUMA nodes over any sequence of admissions, ends and restarts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.resource_managers.machines import Shape, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers.hints import nodes_in
from trio_kubelet.resource_managers.memory_draft import (
    ContainerBlocks,
    static_memory_policy,
    wanted_at_once,
    wanted_memory,
)

GIB = 1 << 30
SHAPES = (Shape(), Shape(sockets=2), Shape(sockets=2, nodes_per_socket=2), Shape(sockets=3))
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
gib = st.sampled_from([1, 2, 5, 9, 10, 14])


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    init = [
        guaranteed(f"i{number}", "500m", memory=f"{draw(gib)}Gi", sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    regular = [
        guaranteed(f"c{number}", "500m", memory=f"{draw(gib)}Gi")
        for number in range(draw(st.integers(1, 2)))
    ]
    return a_pod(uid, *regular, init=tuple(init))


class Node(RuleBasedStateMachine):
    """An agent that admits pods, forgets them, and is started anew."""

    @initialize(shape=st.sampled_from(SHAPES), name=st.sampled_from(POLICIES), by_pod=st.booleans())
    def start(self, shape: Shape, name: str, by_pod: bool) -> None:
        self.folder = TemporaryDirectory()
        self.topology = machine(shape)
        self.policy = static_memory_policy(self.topology, (), {})
        self.name, self.by_pod = name, by_pod
        self.pods: dict[str, Pod] = {}
        self.number = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        before = self.kept() if hasattr(self, "managers") else {}
        self.managers = managers_of(
            None,
            Path(self.folder.name),
            memory=self.policy,
            on=self.topology,
            name=self.name,
            by_pod=self.by_pod,
        )
        trio.run(self.managers.load)
        for pod in self.pods.values():
            self.managers.recall(pod, lambda _uid: False)
        assert self.kept() == before

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.number += 1
        pod, before = data.draw(pods(f"u{self.number}")), self.kept()
        refusal = self.managers.reserve(pod, lambda _uid: False)
        if refusal is None:
            self.pods[pod.metadata.uid] = pod
            trio.run(self.managers.keep)
        after = self.kept()
        after.pop(pod.metadata.uid, None)
        assert after == before

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        assume(self.pods)
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[uid]
        self.managers.release(uid)
        trio.run(self.managers.keep)

    def kept(self) -> dict[str, ContainerBlocks]:
        return dict(self.managers.memory.blocks)

    @invariant()
    def no_memory_is_given_twice_or_lost(self) -> None:
        if not hasattr(self, "managers"):
            return
        kept = self.kept()
        assert kept.keys() == self.pods.keys()
        sums: dict[int, int] = {}
        for block in (block for pod in kept.values() for each in pod.values() for block in each):
            sums[block.nodes] = sums.get(block.nodes, 0) + block.size_bytes
        in_use = [nodes for nodes, size in sums.items() if size]
        assert sum(nodes.bit_count() for nodes in in_use) == len(
            {node for nodes in in_use for node in nodes_in(nodes)}
        ), "a node is in one group"
        for nodes, size in sums.items():
            there = self.policy.allocatable("memory")
            assert size <= sum(there[node] for node in nodes_in(nodes))

    @invariant()
    def containers_have_what_they_ask_for(self) -> None:
        for uid, pod in getattr(self, "pods", {}).items():
            given = self.kept()[uid]
            for container in pod.spec.containers:
                (block,) = given[container.name]
                assert block.size_bytes == wanted_memory(pod)[container.name]["memory"]
            masks = {block.nodes for blocks in given.values() for block in blocks}
            held = sum(block.size_bytes for blocks in given.values() for block in blocks)
            if len(masks) == 1:
                assert held == wanted_at_once(pod)["memory"], "as much as the scheduler counts"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Node.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestNode = Node.TestCase
