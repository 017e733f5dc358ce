"""Pods come and go in any order: what is admitted always fits, and nobody ends in vain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sync.admission.pods_and_nodes import make_admission, make_node, make_pod
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import is_critical
from trio_kubelet.sync.admission import Preemption, Rejection
from trio_kubelet.sync.admission.resource_fit import request

LIMITS = {"pods": 3, "cpu": 2000, "memory": 1 << 30, "example.com/gpu": 2}
NODE = make_node(labels={"disk": "ssd"}, allocatable={"example.com/gpu": "2"})
ADMISSION = make_admission(NODE, apparmor=False)

requests = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["0", "100m", "900m", "2", "3"]),
        "memory": st.sampled_from(["1Mi", "600Mi", "1Gi"]),
        "example.com/gpu": st.sampled_from(["1", "2"]),
        "example.com/elsewhere": st.just("9"),
    },
)
ports = st.sampled_from([0, 0, 80, 81])
priorities = st.sampled_from([None, 0, 1000, 2_000_000_000, 2_000_001_000])
selectors = st.sampled_from([{}, {}, {"disk": "ssd"}, {"disk": "hdd"}])
apparmor = st.sampled_from([None, None, {"appArmorProfile": {"type": "RuntimeDefault"}}])


@st.composite
def pod_specs(draw: st.DrawFn) -> dict[str, Any]:
    port = draw(ports)
    container = {
        "name": "c",
        "resources": {"requests": draw(requests)},
        "ports": [{"containerPort": 1, "hostPort": port}] if port else [],
    }
    return {
        "containers": [container],
        "priority": draw(priorities),
        "nodeSelector": draw(selectors),
        "securityContext": draw(apparmor),
    }


def host_ports(pod: Pod) -> list[int]:
    return [port.host_port or 0 for c in pod.spec.containers for port in c.ports]


def check_that_all_fit(pods: list[Pod]) -> None:
    for resource, limit in LIMITS.items():
        assert sum(request(pod, resource) for pod in pods) <= limit, resource
    taken = [port for pod in pods for port in host_ports(pod)]
    assert len(taken) == len(set(taken))
    assert all(pod.spec.node_selector.get("disk") != "hdd" for pod in pods)


def may_make_way(victim: Pod, pod: Pod) -> bool:
    return not is_critical(victim) or (victim.spec.priority or 0) < (pod.spec.priority or 0)


@given(st.lists(st.tuples(pod_specs(), st.booleans()), min_size=1, max_size=8))
def test_what_runs_fits_whoever_comes(specs: list[tuple[dict[str, Any], bool]]) -> None:
    running: list[Pod] = []
    for number, (spec, leaves) in enumerate(specs):
        pod = make_pod(f"p{number}", **spec)
        verdict = ADMISSION(pod, running)
        if isinstance(verdict, Preemption):
            assert is_critical(pod)
            assert verdict.victims
            assert all(may_make_way(victim, pod) for victim in verdict.victims)
            running = [one for one in running if one not in verdict.victims]
            assert ADMISSION(pod, running) is None, "the victims were not enough"
        if not isinstance(verdict, Rejection):
            running.append(pod)
        check_that_all_fit(running)
        if leaves and running:
            running.pop(0)


@given(st.lists(pod_specs(), max_size=4), pod_specs())
def test_a_pod_that_is_admitted_beside_others_is_admitted_beside_fewer(
    others: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    beside = [make_pod(f"q{number}", **other) for number, other in enumerate(others)]
    pod = make_pod(**spec)
    if ADMISSION(pod, beside) is None:
        assert all(ADMISSION(pod, beside[:n] + beside[n + 1 :]) is None for n in range(len(beside)))
