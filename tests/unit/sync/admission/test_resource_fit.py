"""Whether there is room for one more pod."""

import time
from typing import Any

import pytest

from tests.turns import is_too_long
from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import Container, ContainerPort, Pod, PodSpec, Quantity
from trio_kubelet.sync.admission.admission_result import Shortage
from trio_kubelet.sync.admission.resource_fit import ports_taken, shortages

LIMITS = {
    name: Quantity(amount)
    for name, amount in {
        "pods": "3",
        "cpu": "2",
        "memory": "1Gi",
        "ephemeral-storage": "10Gi",
        "hugepages-2Mi": "4Mi",
        "example.com/gpu": "1",
    }.items()
}


def short(
    requests: dict[str, str], used: dict[str, str] | None = None, **spec: Any
) -> dict[str, tuple[int, int, int]]:
    found = shortages(
        make_pod(requests=requests, **spec),
        [make_pod(requests=used)] if used else [],
        LIMITS,
        limits_are_complete=True,
    )
    return {s.resource: (s.requested, s.used, s.capacity) for s in found}


@pytest.mark.parametrize(
    ("requests", "used", "expected"),
    [
        ({"cpu": "2"}, None, {}),
        ({"cpu": "1500m"}, {"cpu": "600m"}, {"cpu": (1500, 600, 2000)}),
        ({"memory": "1Gi"}, {"memory": "1"}, {"memory": (1 << 30, 1, 1 << 30)}),
        ({"cpu": "0"}, {"cpu": "5"}, {}),
        ({}, {"cpu": "5"}, {}),
        (
            {"ephemeral-storage": "11Gi"},
            None,
            {"ephemeral-storage": (11 << 30, 0, 10 << 30)},
        ),
        ({"hugepages-2Mi": "6Mi"}, None, {"hugepages-2Mi": (6 << 20, 0, 4 << 20)}),
        ({"hugepages-1Gi": "1Gi"}, None, {"hugepages-1Gi": (1 << 30, 0, 0)}),
        ({"example.com/gpu": "1"}, None, {}),
        ({"example.com/gpu": "1"}, {"example.com/gpu": "1"}, {"example.com/gpu": (1, 1, 1)}),
        ({"example.com/somebody-elses": "7"}, None, {}),
        (
            {"hugepages-2Mi": "6Mi", "memory": "2Gi", "cpu": "3"},
            None,
            {
                "cpu": (3000, 0, 2000),
                "memory": (2 << 30, 0, 1 << 30),
                "hugepages-2Mi": (6 << 20, 0, 4 << 20),
            },
        ),
    ],
)
def test_what_is_short(
    requests: dict[str, str],
    used: dict[str, str] | None,
    expected: dict[str, tuple[int, int, int]],
) -> None:
    found = short(requests, used)
    assert found == expected
    assert list(found) == list(expected), "the first is what the pod is told"


def test_overhead_counts() -> None:
    assert short({"cpu": "1900m"}, overhead={"cpu": "200m"}) == {"cpu": (2100, 0, 2000)}


def test_a_sidecar_counts_beside_the_containers() -> None:
    sidecar = {
        "name": "s",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "1"}},
    }
    assert short({"cpu": "1500m"}, initContainers=[sidecar]) == {"cpu": (2500, 0, 2000)}


def test_pods_are_counted_before_all_else() -> None:
    found = shortages(
        make_pod(requests={"cpu": "3"}), [make_pod()] * 3, LIMITS, limits_are_complete=True
    )
    assert [s.resource for s in found] == ["pods", "cpu"]
    assert found[0] == Shortage(resource="pods", requested=1, used=3, capacity=3)


def test_what_nobody_measured_is_not_checked() -> None:
    pod = make_pod(requests={"ephemeral-storage": "1Gi"})
    limits = {"pods": Quantity(3)}
    assert shortages(pod, [], limits, limits_are_complete=False) == ()
    assert len(shortages(pod, [], limits, limits_are_complete=True)) == 1


def test_huge_pages_that_the_machine_does_not_have_are_short_before_all_is_measured() -> None:
    pod = make_pod(requests={"hugepages-1Gi": "1Gi"})
    (found,) = shortages(pod, [], {"pods": Quantity(3)}, limits_are_complete=False)
    assert found == Shortage(resource="hugepages-1Gi", requested=1 << 30, used=0, capacity=0)


def with_port(
    number: int, *, protocol: str = "TCP", ip: str = "", init: str = "", held: bool = True
) -> dict[str, Any]:
    port = {"containerPort": 80, "hostPort": number, "protocol": protocol, "hostIP": ip}
    container = {"name": "c", "ports": [port if held else {"containerPort": number}]}
    if not init:
        return {"containers": [container]}
    return {
        "initContainers": [{**container, "restartPolicy": init}],
        "containers": [{"name": "main"}],
    }


@pytest.mark.parametrize(
    ("wanted", "held", "collide"),
    [
        (with_port(80), with_port(80), True),
        (with_port(80), with_port(81), False),
        (with_port(80), with_port(80, held=False), False),
        (with_port(80), with_port(80, protocol="UDP"), False),
        (with_port(80, ip="10.0.0.1"), with_port(80, ip="10.0.0.2"), False),
        (with_port(80, ip="10.0.0.1"), with_port(80, ip="0.0.0.0"), True),
        (with_port(80, ip="10.0.0.1"), with_port(80), True),
        (with_port(80, init="Always"), with_port(80), True),
        (with_port(80), with_port(80, init="Always"), True),
        (with_port(80, init="Never"), with_port(80), False),
    ],
)
def test_host_ports_are_given_once(
    wanted: dict[str, Any], held: dict[str, Any], collide: bool
) -> None:
    rejection = ports_taken(make_pod(**wanted), [make_pod(**held)])
    assert (rejection is not None and rejection.reason == "NodePorts") == collide


def test_thousands_of_host_ports_are_compared_at_once() -> None:
    def with_ports(first: int) -> Pod:
        ports = tuple(
            ContainerPort(container_port=1, host_port=number)
            for number in range(first, first + 6000)
        )
        return Pod(spec=PodSpec(containers=(Container(name="c", ports=ports),)))

    one, beside, overlapping = with_ports(1), with_ports(6001), with_ports(6000)
    began = time.thread_time()
    assert ports_taken(one, [beside]) is None
    assert ports_taken(one, [overlapping]) is not None
    assert not is_too_long((time.thread_time() - began) / 4)
