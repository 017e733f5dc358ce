"""Resizes of many pods at once: the node never promises more than it has, and forgets none."""

import random
from pathlib import Path

import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.status import Statuses
from trio_kubelet.sync.admission.resize_fit import ResizeAdmission
from trio_kubelet.sync.resize_decisions import ADDED, REMOVED, ResizeDecisions
from trio_kubelet.sync.store import PodStore
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import EventRecorder, Journal

CPUS = 10
NODE = {"cpu": Quantity(CPUS), "memory": Quantity("1Gi")}
A_POD = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(0, 2))
"""The CPUs that a pod was admitted with and asks for now, and its priority."""


class NoTime(Clock):
    def now_ns(self) -> int:
        return 0


def asking(number: int, cpus: int, priority: int) -> Pod:
    return make_pod(f"p{number}", requests={"cpu": str(cpus)}, priority=priority)


class OneNode:
    """A node of ten CPUs, and pods that were admitted while there was room."""

    def __init__(self, pods: list[tuple[int, int, int]]) -> None:
        journal = Journal(NoTime())
        self.allocations = Allocations(Path("/nowhere"), trio.CapacityLimiter(1))
        self.resizes = ResizeProgress(self.allocations, journal)
        self.store = PodStore()
        self.asked: dict[str, Pod] = {}
        self.resizing = ResizeDecisions(
            resizes=self.resizes,
            allocations=self.allocations,
            statuses=Statuses(),
            store=self.store,
            admission=ResizeAdmission(
                allocatable=lambda: NODE, may_swap=lambda _pod, _container: False
            ),
            recorder=EventRecorder(journal, "node"),
        )
        for number, (before, after, priority) in enumerate(pods):
            if self.held() + before > CPUS:
                continue
            admitted = asking(number, before, priority)
            pod = evolve(admitted, spec=asking(number, after, priority).spec)
            self.allocations.allocate(admitted)
            self.store.add(pod, 0.0)
            self.asked[pod.metadata.uid] = pod
            self.resizing.ask(pod)

    def held_by(self, uid: str) -> int:
        pod = self.allocations.allocated(self.asked[uid])
        return int(pod.spec.total_requests["cpu"].value)

    def held(self) -> int:
        return sum(map(self.held_by, self.asked))

    def wants(self, uid: str) -> int:
        return int(self.asked[uid].spec.total_requests["cpu"].value)

    def remove(self, uid: str) -> None:
        self.store.remove(self.asked.pop(uid))
        self.resizing.forget(uid)


@given(st.lists(A_POD, max_size=8))
def test_no_pod_is_granted_what_the_node_does_not_have(pods: list[tuple[int, int, int]]) -> None:
    node = OneNode(pods)
    node.resizing.decide(ADDED)
    assert node.held() <= CPUS
    for uid in node.asked:
        pending = node.resizes.status(uid).pending
        has_it = node.held_by(uid) == node.wants(uid)
        assert (pending is None) is has_it
        assert (pending is not None and pending.reason == "Infeasible") is (node.wants(uid) > CPUS)


@given(st.lists(A_POD, max_size=8))
def test_of_those_that_wait_none_would_fit(pods: list[tuple[int, int, int]]) -> None:
    node = OneNode(pods)
    node.resizing.decide(ADDED)
    for uid in node.resizes.undecided():
        assert node.held() - node.held_by(uid) + node.wants(uid) > CPUS


@given(st.lists(A_POD, max_size=8), st.randoms(use_true_random=False))
def test_every_resize_that_is_feasible_is_made_when_the_others_have_gone(
    pods: list[tuple[int, int, int]], chance: random.Random
) -> None:
    node = OneNode(pods)
    node.resizing.decide(ADDED)
    while waiting := sorted(node.resizes.undecided()):
        others = sorted(node.asked.keys() - {waiting[0]})
        node.remove(chance.choice(others))
        node.resizing.decide(REMOVED)
        assert node.held() <= CPUS
    for uid in node.asked:
        assert node.held_by(uid) == node.wants(uid) or node.wants(uid) > CPUS
