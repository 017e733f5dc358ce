import time

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import is_too_long
from tests.unit.resources.pods import amounts, container, pod, requirements
from trio_kubelet.k8s import Container, Pod, PodQOSClass, PodStatus, Quantity, totals
from trio_kubelet.resources import pod_limits, pod_requests, qos_class


def sidecar(requests: str = "", limits: str = "") -> Container:
    return container(requests, limits, restart_policy="Always")


@pytest.mark.parametrize(
    ("given_pod", "expected"),
    [
        pytest.param(pod(container()), "", id="nothing asked"),
        pytest.param(pod(container("cpu=1"), container("cpu=500m")), "cpu=1500m", id="sum"),
        pytest.param(
            pod(container("cpu=1"), init=(container("cpu=2"), container("cpu=3"))),
            "cpu=3",
            id="the largest init container",
        ),
        pytest.param(
            pod(container("cpu=1"), init=(sidecar("cpu=2"),)), "cpu=3", id="a sidecar adds"
        ),
        pytest.param(
            pod(container("cpu=1"), init=(sidecar("cpu=2"), container("cpu=5"))),
            "cpu=7",
            id="an init container beside the sidecars before it",
        ),
        pytest.param(
            pod(container("cpu=1"), init=(container("cpu=5"), sidecar("cpu=2"))),
            "cpu=5",
            id="an init container without the sidecars after it",
        ),
        pytest.param(
            pod(container("cpu=1"), init=(container("memory=1Gi"),)),
            "cpu=1 memory=1Gi",
            id="a resource that only an init container names",
        ),
        pytest.param(
            pod(container("cpu=1"), overhead="cpu=100m memory=10Mi"),
            "cpu=1100m memory=10Mi",
            id="overhead on top",
        ),
        pytest.param(
            pod(container("cpu=1 memory=1Gi"), level=requirements("cpu=2")),
            "cpu=2 memory=1Gi",
            id="the pod's own level for what it names",
        ),
        pytest.param(
            pod(container("example.com/gpu=1"), level=requirements("example.com/gpu=4")),
            "example.com/gpu=1",
            id="extended resources are not understood at the pod's level",
        ),
        pytest.param(
            pod(container("cpu=1"), level=requirements("cpu=2"), overhead="cpu=1"),
            "cpu=3",
            id="overhead on top of the pod's level",
        ),
    ],
)
def test_requests(given_pod: Pod, expected: str) -> None:
    assert pod_requests(given_pod) == amounts(expected)


def test_overhead_raises_only_limits_that_are_set() -> None:
    limited = pod(container(limits="cpu=1"), overhead="cpu=100m memory=10Mi")
    assert pod_limits(limited) == amounts("cpu=1100m")


def test_limits_follow_the_rules_of_requests() -> None:
    limited = pod(container(limits="cpu=1"), init=(sidecar(limits="cpu=2"),))
    assert pod_limits(limited) == amounts("cpu=3")


FULL = "cpu=1 memory=1Gi"


@pytest.mark.parametrize(
    ("given_pod", "expected"),
    [
        (pod(container()), PodQOSClass.BEST_EFFORT),
        (pod(container("cpu=0", "memory=0")), PodQOSClass.BEST_EFFORT),
        (pod(container("example.com/gpu=1", "example.com/gpu=1")), PodQOSClass.BEST_EFFORT),
        (pod(container(FULL, FULL)), PodQOSClass.GUARANTEED),
        (pod(container(FULL, FULL), container()), PodQOSClass.BURSTABLE),
        (pod(container(FULL, FULL), init=(container(),)), PodQOSClass.BURSTABLE),
        (pod(container(FULL, FULL), init=(container(FULL, FULL),)), PodQOSClass.GUARANTEED),
        (pod(container("cpu=500m memory=1Gi", FULL)), PodQOSClass.BURSTABLE),
        (pod(container("", FULL)), PodQOSClass.BURSTABLE),
        (pod(container("cpu=1", "cpu=1")), PodQOSClass.BURSTABLE),
        (pod(container("cpu=1")), PodQOSClass.BURSTABLE),
        (pod(container(), level=requirements(FULL, FULL)), PodQOSClass.GUARANTEED),
        (pod(container("cpu=1"), level=requirements("cpu=1", FULL)), PodQOSClass.BURSTABLE),
        (pod(container("cpu=1"), level=requirements("example.com/gpu=1")), PodQOSClass.BURSTABLE),
    ],
)
def test_qos_class(given_pod: Pod, expected: PodQOSClass) -> None:
    assert qos_class(given_pod) is expected


def test_the_qos_class_never_changes_once_it_is_set() -> None:
    running = pod(container(FULL, FULL))
    running = Pod(spec=running.spec, status=PodStatus(qos_class="Burstable"))
    assert qos_class(running) is PodQOSClass.BURSTABLE


milli = st.integers(0, 10_000).map(Quantity.from_milli)
one = st.builds(
    lambda quantity, policy: container(f"cpu={quantity}", restart_policy=policy),
    milli,
    st.sampled_from(["", "Always"]),
)


def at_work_together(given_pod: Pod) -> list[Quantity]:
    """The CPU in use at each moment of the pod's life: once for each init container, then all."""
    moments: list[Quantity] = []
    sidecars = Quantity(0)
    for each in given_pod.spec.init_containers:
        assert each.resources is not None
        own = each.resources.requests["cpu"]
        moments.append(sidecars + own)
        if each.restart_policy == "Always":
            sidecars += own
    regular = [c.resources.requests["cpu"] for c in given_pod.spec.containers if c.resources]
    return [*moments, Quantity.sum([sidecars, *regular])]


@given(st.lists(milli, min_size=1, max_size=4), st.lists(one, max_size=5))
def test_the_request_is_the_peak_of_the_pods_life(
    regular: list[Quantity], init: list[Container]
) -> None:
    given_pod = pod(*(container(f"cpu={q}") for q in regular), init=tuple(init))
    assert pod_requests(given_pod)["cpu"] == max(at_work_together(given_pod))


def test_many_sidecars_with_a_resource_each_cost_no_more_than_what_they_ask_for() -> None:
    many = pod(container(), init=tuple(sidecar(f"example.org/r{n}=1") for n in range(1500)))
    began = time.thread_time()
    assert len(pod_requests(many)) == 1500
    assert not is_too_long(time.thread_time() - began)


def test_a_pod_is_summed_up_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Container] = []

    def counted(container: Container) -> totals.Amounts:
        asked.append(container)
        return given_amounts(container)

    given_amounts = totals.container_requests
    monkeypatch.setattr(totals, "container_requests", counted)
    one = pod(container("cpu=1"), container("cpu=2"), overhead="cpu=1")
    for _ in range(3):
        assert pod_requests(one) == amounts("cpu=4")
    assert len(asked) == 2
    more = evolve(one.spec, containers=(*one.spec.containers, container("cpu=3")))
    assert pod_requests(evolve(one, spec=more)) == amounts("cpu=7")
