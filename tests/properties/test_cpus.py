"""Exclusive CPUs over any sequence of admissions, ends and restarts, on machines of many shapes."""

from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.resource_managers.machines import (
    FOUR_NODES,
    HYBRID,
    NEIGHBOURS,
    PARTLY_OFFLINE,
    SMALL,
    SPLIT_CACHES,
    TWO_SOCKETS,
    Shape,
    machine,
    managers_of,
)
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.resource_managers.cpu_assignment import CpuChooser
from trio_kubelet.resource_managers.cpu_draft import (
    exclusive_cpu_counts,
    static_cpu_policy,
)
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus
from trio_kubelet.resources import pod_requests

SHAPES = (SMALL, TWO_SOCKETS, FOUR_NODES, HYBRID, NEIGHBOURS, PARTLY_OFFLINE, SPLIT_CACHES)
OPTIONS = (
    (),
    ("full_pcpus_only",),
    ("strict_cpu_reservation",),
    ("distribute_cpus_across_numa",),
    ("distribute_cpus_across_numa", "full_pcpus_only"),
    ("distribute_cpus_across_cores",),
    ("prefer_align_cpus_by_uncorecache",),
)
options = st.sampled_from(OPTIONS).map(lambda on: CpuPolicyOptions(**dict.fromkeys(on, True)))
amounts = st.sampled_from(["1", "2", "2", "3", "4", "6", "500m"])


@st.composite
def pods(draw: st.DrawFn, uid: str = "u") -> Pod:
    init = [
        guaranteed(f"i{number}", draw(amounts), sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    return a_pod(uid, *draw(st.lists(amounts, min_size=1, max_size=3)), init=tuple(init))


@given(st.sampled_from(SHAPES), options, st.data())
def test_as_many_cpus_are_taken_as_were_asked_for_of_those_that_are_free(
    shape: Shape, chosen: CpuPolicyOptions, data: st.DataObject
) -> None:
    topology = machine(shape)
    free = data.draw(st.frozensets(st.sampled_from(sorted(topology.all))))
    count = data.draw(st.integers(0, len(free)))
    taken = CpuChooser(topology, chosen).take(free, count)
    assert taken <= free
    assert len(taken) == count


class Node(RuleBasedStateMachine):
    """An agent that admits pods, forgets them, and is started anew."""

    @initialize(shape=st.sampled_from(SHAPES), chosen=options)
    def start(self, shape: Shape, chosen: CpuPolicyOptions) -> None:
        self.folder = TemporaryDirectory()
        self.policy = static_cpu_policy(
            machine(shape),
            chosen,
            reserved_cpus="",
            reserved_milli=1500,
        )
        self.pods: dict[str, Pod] = {}
        self.number = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        self.managers = managers_of(self.policy, Path(self.folder.name))
        trio.run(self.managers.load)
        for pod in self.pods.values():
            before = self.cpus(pod)
            self.managers.recall(pod, lambda uid: uid not in self.pods)
            assert self.cpus(pod) == before

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.number += 1
        pod = data.draw(pods(f"u{self.number}"))
        before = {uid: self.cpus(each) for uid, each in self.pods.items()}
        refusal = self.managers.reserve(pod, lambda uid: uid not in self.pods)
        assert before == {uid: self.cpus(each) for uid, each in self.pods.items()}
        if refusal is None:
            self.pods[pod.metadata.uid] = pod
            trio.run(self.managers.keep)
        elif not self.policy.options.full_pcpus_only:
            held = sum(pod_requests(each)["cpu"].milli_value for each in self.pods.values())
            wanted = pod_requests(pod)["cpu"].milli_value
            there = 1000 * len(self.policy.topology.all - self.policy.reserved)
            assert held + wanted > there, "the scheduler saw room for it"

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        assume(self.pods)
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[uid]
        self.managers.release(uid)
        trio.run(self.managers.keep)

    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        """A pod goes while nobody looks: the next admission finds what it had."""
        assume(self.pods)
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

    def cpus(self, pod: Pod) -> dict[str, frozenset[int]]:
        given = {
            each.name: self.managers.placement(pod.metadata.uid, each.name)
            for each in pod.spec.admitted_containers
        }
        return {
            name: parsed_cpus(each.cpuset_cpus)
            for name, each in given.items()
            if each.has_exclusive_cpus
        }

    @invariant()
    def no_cpu_is_given_twice_or_lost(self) -> None:
        if not hasattr(self, "managers"):
            return
        every = self.policy.topology.all
        shared = parsed_cpus(self.managers.placement("nobody", "c").cpuset_cpus)
        assert shared
        exclusive: set[int] = set()
        for pod in self.pods.values():
            held = self.cpus(pod)
            together = self.held_together(pod, held)
            assert together.isdisjoint(exclusive), cpu_list(together)
            exclusive |= together
            assert len(together) * 1000 <= pod_requests(pod)["cpu"].milli_value
            if self.policy.options.full_pcpus_only and together:
                assert self.policy.topology.of_whole_cores(frozenset(together)) == together
        assert exclusive.isdisjoint(self.policy.reserved)
        assert shared.isdisjoint(exclusive)
        assert len(self.managers.cpus.assigned | shared | self.policy.reserved) == len(every)

    def held_together(self, pod: Pod, held: dict[str, frozenset[int]]) -> set[int]:
        """All that a pod has. What runs at the same time has nothing in common."""
        lasting = [
            each
            for each in (*pod.spec.init_containers, *pod.spec.containers)
            if each in pod.spec.containers or is_sidecar(each)
        ]
        for container in pod.spec.admitted_containers:
            assert len(held.get(container.name, ())) == exclusive_cpu_counts(pod).get(
                container.name, 0
            )
        sizes = [len(held.get(each.name, ())) for each in lasting]
        assert len(frozenset().union(*(held.get(each.name, ()) for each in lasting))) == sum(sizes)
        return set().union(*held.values())

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Node.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestNode = Node.TestCase
