"""Who makes way for a critical pod."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import Pod
from trio_kubelet.sync.admission import Preemption, Rejection
from trio_kubelet.sync.admission.admission_result import Shortage
from trio_kubelet.sync.admission.preemption import preempt
from trio_kubelet.sync.admission.resource_fit import request

CRITICAL = make_pod("critical", priority=2_000_000_000)


def missing(**amounts: int) -> list[Shortage]:
    return [
        Shortage(resource=name, requested=amount, used=0, capacity=0)
        for name, amount in amounts.items()
    ]


def guaranteed(name: str, cpu: str, memory: str = "100") -> Pod:
    return make_pod(name, requests={"cpu": cpu, "memory": memory}, limited=True)


def burstable(name: str, cpu: str, memory: str = "100") -> Pod:
    return make_pod(name, requests={"cpu": cpu, "memory": memory})


def best_effort(name: str) -> Pod:
    return make_pod(name)


def victims(others: Sequence[Pod], shortages: list[Shortage], pod: Pod = CRITICAL) -> list[str]:
    verdict = preempt(pod, others, shortages)
    assert isinstance(verdict, Preemption), verdict
    return [victim.metadata.name for victim in verdict.victims]


@pytest.mark.parametrize(
    ("others", "shortages", "expected"),
    [
        # The humblest class that is enough.
        ([guaranteed("g", "1"), burstable("b", "1")], missing(cpu=500), ["b"]),
        ([burstable("b", "1"), best_effort("e")], missing(pods=1), ["e"]),
        ([guaranteed("g", "1"), best_effort("e")], missing(cpu=500), ["g"]),
        # All of a class, and then what is still missing of the next.
        (
            [guaranteed("g", "1"), burstable("b", "1"), best_effort("e")],
            missing(cpu=1500),
            ["b", "g"],
        ),
        # The closest one, not the largest: of two that are both enough, the smaller.
        ([burstable("big", "2"), burstable("small", "1")], missing(cpu=800), ["small"]),
        ([burstable("a", "1", "200"), burstable("b", "1", "100")], missing(cpu=800), ["b"]),
        # As few as possible: one that is enough before several that come close.
        (
            [burstable("a", "400m"), burstable("b", "400m"), burstable("c", "900m")],
            missing(cpu=800),
            ["c"],
        ),
        # None alone is enough: the closest first, then what is closest to the rest.
        (
            [burstable("a", "300m"), burstable("b", "600m"), burstable("c", "200m")],
            missing(cpu=800),
            ["b", "c"],
        ),
        # Several resources count by their shares.
        (
            [burstable("cpu", "1", "1"), burstable("both", "800m", "800")],
            missing(cpu=800, memory=800),
            ["both"],
        ),
        # Nothing that is not needed in the end: the Guaranteed pod alone frees the pod's place.
        (
            [guaranteed("g", "2"), best_effort("e")],
            missing(pods=1, cpu=1500),
            ["g"],
        ),
    ],
)
def test_the_least_harm_is_done(
    others: list[Pod], shortages: list[Shortage], expected: list[str]
) -> None:
    assert victims(others, shortages) == expected


def test_critical_pods_are_spared_but_by_those_of_a_higher_priority() -> None:
    node_critical = make_pod("node", priority=2_000_001_000)
    others = [
        make_pod("static", requests={"cpu": "1"}, static=True),
        make_pod("cluster", requests={"cpu": "1"}, priority=2_000_000_000),
    ]
    assert isinstance(preempt(CRITICAL, others, missing(cpu=500)), Rejection)
    assert victims(others, missing(cpu=500), node_critical) == ["cluster"]


def test_where_all_is_not_enough_the_pod_is_told_what_is_missing() -> None:
    verdict = preempt(CRITICAL, [burstable("b", "1")], missing(cpu=1500, memory=50))
    assert verdict == Rejection(
        reason="UnexpectedAdmissionError",
        message="Unexpected error while attempting to recover from admission failure: "
        "preemption: error finding a set of pods to preempt: "
        "no set of running pods found to reclaim resources: [(res: cpu, q: 500), ]",
    )


def test_the_first_shortage_is_counted() -> None:
    verdict = preempt(CRITICAL, [burstable("b", "1")], missing(cpu=500, memory=50))
    assert isinstance(verdict, Preemption)
    assert verdict.resource == "cpu"


pods = st.lists(
    st.builds(
        lambda cpu, memory, limited: make_pod(
            requests={"cpu": f"{cpu}m", "memory": str(memory)}, limited=limited
        ),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.booleans(),
    ),
    max_size=6,
)


@given(others=pods, cpu=st.integers(1, 2000), memory=st.integers(1, 2000))
def test_victims_hold_what_is_missing_if_anybody_does(
    others: list[Pod], cpu: int, memory: int
) -> None:
    def held(of: Sequence[Pod], resource: str) -> int:
        return sum(request(pod, resource) for pod in of)

    verdict = preempt(CRITICAL, others, missing(cpu=cpu, memory=memory))
    if held(others, "cpu") < cpu or held(others, "memory") < memory:
        assert isinstance(verdict, Rejection)
        return
    assert isinstance(verdict, Preemption)
    assert held(verdict.victims, "cpu") >= cpu
    assert held(verdict.victims, "memory") >= memory
