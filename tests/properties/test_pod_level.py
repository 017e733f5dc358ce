"""Pods with resources of their own, over any sequence of admissions, ends and restarts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from attrs import evolve
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.resource_managers.machines import (
    FOUR_NODES,
    HYBRID,
    PARTLY_OFFLINE,
    TWO_SOCKETS,
    Shape,
    machine,
    managers_of,
)
from tests.unit.resource_managers.pods import guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import (
    Container,
    ContainerRestartPolicy,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy, whole_cpu_count
from trio_kubelet.resource_managers.cpu_sets import parsed_cpus
from trio_kubelet.resource_managers.memory_draft import static_memory_policy, wanted_memory
from trio_kubelet.resource_managers.pod_level import EMPTY_POOL, PodLevel

MIB = 1 << 20
SHAPES = (TWO_SOCKETS, FOUR_NODES, HYBRID, PARTLY_OFFLINE)
POLICIES = ("best-effort", "restricted", "single-numa-node")
cpus_of_slices = st.sampled_from(["1", "2", "3", "500m"])


@st.composite
def containers(draw: st.DrawFn, name: str, *, init: bool = False) -> Container:
    is_restarted = init and draw(st.booleans())
    if draw(st.booleans()):
        memory = f"{draw(st.integers(1, 4)) * 64}Mi"
        return guaranteed(name, draw(cpus_of_slices), sidecar=is_restarted, memory=memory)
    restarts = ContainerRestartPolicy.ALWAYS if is_restarted else ""
    return Container(name=name, image="i", restart_policy=restarts)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """A pod that asks for as much as its containers need, or for more."""
    spec = PodSpec(
        init_containers=tuple(
            draw(containers(f"i{number}", init=True)) for number in range(draw(st.integers(0, 3)))
        ),
        containers=tuple(draw(containers(f"c{n}")) for n in range(draw(st.integers(1, 3)))),
    )
    needed = spec.total_requests
    millicores = needed.get("cpu", Quantity(0)).milli_value + draw(
        st.sampled_from([0, 500, 1000, 2000])
    )
    millicores = max(500, millicores)
    size = max(1, needed.get("memory", Quantity(0)).value // MIB + draw(st.integers(0, 2)) * 100)
    amounts = {"cpu": Quantity(f"{millicores}m"), "memory": Quantity(f"{size}Mi")}
    whole = ResourceRequirements(requests=amounts, limits=amounts)
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="ns", uid=uid),
        spec=evolve(spec, resources=whole),
    )


class Node(RuleBasedStateMachine):
    """An agent that admits pods, forgets them, and is started anew, maybe in another scope."""

    @initialize(
        shape=st.sampled_from(SHAPES),
        name=st.sampled_from(POLICIES),
        whole_cores=st.booleans(),
    )
    def start(self, shape: Shape, name: str, whole_cores: bool) -> None:
        self.folder = TemporaryDirectory()
        self.topology, self.name, self.whole_cores = machine(shape), name, whole_cores
        self.pods: dict[str, Pod] = {}
        self.scopes: dict[str, PodLevel] = {}
        self.in_one_scope: set[str] = set()
        self.number = 0
        self.restart(PodLevel.BY_POD)

    @rule(pod_level=st.sampled_from([PodLevel.BY_POD, PodLevel.BY_POD, PodLevel.BY_CONTAINER]))
    def restart(self, pod_level: PodLevel) -> None:
        before = {uid: self.parts(pod) for uid, pod in self.pods.items()}
        options = CpuPolicyOptions(full_pcpus_only=self.whole_cores)
        self.pod_level = pod_level
        self.managers = managers_of(
            static_cpu_policy(
                self.topology, options, reserved_cpus="0", reserved_milli=0, pod_level=pod_level
            ),
            Path(self.folder.name),
            memory=static_memory_policy(self.topology, (), {}, pod_level),
            name=self.name,
            by_pod=pod_level is PodLevel.BY_POD,
            pod_level=pod_level,
        )
        trio.run(self.managers.load)
        for uid, pod in self.pods.items():
            self.managers.recall(pod, lambda _uid: False)
            assert before[uid].items() <= self.parts(pod).items()
        self.in_one_scope = {uid for uid in self.in_one_scope if self.scopes[uid] is pod_level}
        trio.run(self.managers.keep)

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.number += 1
        pod = data.draw(pods(f"u{self.number}"))
        before = {uid: self.parts(each) for uid, each in self.pods.items()}
        refusal = self.managers.reserve(pod, lambda _uid: False)
        assert before == {uid: self.parts(each) for uid, each in self.pods.items()}
        if refusal is None:
            self.pods[pod.metadata.uid] = pod
            self.scopes[pod.metadata.uid] = self.pod_level
            self.in_one_scope.add(pod.metadata.uid)
            trio.run(self.managers.keep)
        elif refusal.reason == EMPTY_POOL:
            assert self.pod_level is PodLevel.BY_POD
            assert any(not each.resources for each in pod.spec.admitted_containers) or (
                wanted_memory(pod, self.pod_level).keys() != self.exclusive_counts(pod).keys()
            )
            assert pod.metadata.uid not in self.managers.uids()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        assume(self.pods)
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[uid]
        self.managers.release(uid)
        trio.run(self.managers.keep)

    def exclusive_counts(self, pod: Pod) -> dict[str, int]:
        requests = {
            each.name: each.resources.requests["cpu"].milli_value
            for each in pod.spec.admitted_containers
            if each.resources
        }
        return {name: cpus // 1000 for name, cpus in requests.items() if cpus % 1000 == 0}

    def parts(self, pod: Pod) -> dict[str, frozenset[int]]:
        """The CPUs of containers that are not everybody's."""
        found = {
            each.name: self.managers.cpus.cpus_of(pod.metadata.uid, each.name)
            for each in pod.spec.admitted_containers
        }
        return {name: cpus for name, cpus in found.items() if cpus is not None}

    @invariant()
    def pods_have_nothing_in_common_and_nothing_is_lost(self) -> None:
        if not hasattr(self, "managers"):
            return
        taken: set[int] = set()
        for uid in self.pods:
            held = self.managers.cpus.assigned_to(uid)
            assert held.isdisjoint(taken)
            taken |= held
        assert 0 not in taken
        shared = parsed_cpus(self.managers.placement("nobody", "c").cpuset_cpus)
        assert shared.isdisjoint(taken)
        assert shared | taken == self.topology.all

    @invariant()
    def a_pods_part_is_as_large_as_it_asks_for_and_divided(self) -> None:
        for uid, pod in getattr(self, "pods", {}).items():
            if self.pod_level is not PodLevel.BY_POD or uid not in self.in_one_scope:
                continue
            count, parts = whole_cpu_count(pod, self.pod_level), self.parts(pod)
            assert len(self.managers.cpus.assigned_to(uid)) == count
            if not count:
                assert not parts
                continue
            assert parts.keys() == {each.name for each in pod.spec.admitted_containers}
            assert all(parts.values())
            lasting = [
                each.name
                for each in pod.spec.admitted_containers
                if each in pod.spec.containers or is_sidecar(each)
            ]
            slices = self.managers.cpus.cpus_of_pod(uid)
            assert {name: len(cpus) for name, cpus in slices.items()} == self.exclusive_counts(pod)
            alone: set[int] = set()
            for name in lasting:
                if name in slices:
                    assert slices[name].isdisjoint(alone)
                    alone |= slices[name]
            pools = {parts[name] for name in lasting if name not in slices}
            assert pools <= {self.managers.cpus.assigned_to(uid) - alone}

    @invariant()
    def memory_of_a_pod_is_what_it_asks_for(self) -> None:
        for uid, pod in getattr(self, "pods", {}).items():
            if self.pod_level is PodLevel.BY_POD and uid in self.in_one_scope:
                blocks = self.managers.memory.blocks[uid]
                assert blocks.keys() == {each.name for each in pod.spec.admitted_containers}
                assert len({block.nodes for each in blocks.values() for block in each}) == 1
                assert pod.spec.resources is not None
                most = pod.spec.resources.requests["memory"].value
                assert all(sum(b.size_bytes for b in each) <= most for each in blocks.values())

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Node.TestCase.settings = settings(max_examples=30, stateful_step_count=12, deadline=None)
TestNode = Node.TestCase
