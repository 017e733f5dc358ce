"""Which pods may run beside which, a row a case."""

import pytest
from attrs import evolve

from trio_kubelet.k8s import (
    Container,
    ContainerPort,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Quantity,
    ResourceRequirements,
    Sysctl,
)
from trio_kubelet.sync.admission import Admission, Rejection

ALLOCATABLE = {"cpu": Quantity("2"), "memory": Quantity("1Gi")}
ADMISSION = Admission(
    max_pods=3,
    allowed_sysctls=("kernel.msg*", "net.core.somaxconn"),
    allocatable=lambda: ALLOCATABLE,
)


def make_pod(
    *ports: ContainerPort,
    cpu: str = "",
    memory: str = "",
    host_network: bool = False,
    sysctl: str = "",
) -> Pod:
    requests = {k: Quantity(v) for k, v in (("cpu", cpu), ("memory", memory)) if v}
    return Pod(
        metadata=ObjectMeta(name="p", namespace="ns", uid="u"),
        spec=PodSpec(
            containers=(
                Container(name="c", ports=ports, resources=ResourceRequirements(requests=requests)),
            ),
            host_network=host_network or None,
            security_context=PodSecurityContext(
                sysctls=(Sysctl(name=sysctl, value="1"),) if sysctl else ()
            ),
        ),
    )


def port(number: int, *, protocol: str = "TCP", ip: str = "") -> ContainerPort:
    return ContainerPort(container_port=80, host_port=number, protocol=protocol, host_ip=ip)


def test_a_pod_that_disturbs_nobody_is_admitted() -> None:
    assert ADMISSION(make_pod(port(80), cpu="1"), [make_pod(port(81), cpu="1")]) is None


def test_what_is_too_much_is_said_in_millicores_and_bytes() -> None:
    assert ADMISSION(make_pod(cpu="1500m"), [make_pod(cpu="600m")]) == Rejection(
        reason="OutOfcpu",
        message="Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
    )
    assert ADMISSION(make_pod(memory="1Gi"), [make_pod(memory="1")]) == Rejection(
        reason="OutOfmemory",
        message="Node didn't have enough resource: memory, requested: 1073741824, used: 1, "
        "capacity: 1073741824",
    )


def test_a_pod_that_asks_for_nothing_fits_on_a_full_node() -> None:
    assert ADMISSION(make_pod(), [make_pod(cpu="5")]) is None


def test_no_more_than_max_pods() -> None:
    assert ADMISSION(make_pod(), [make_pod()] * 3) == Rejection(
        reason="OutOfpods",
        message="Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
    )


@pytest.mark.parametrize(
    ("wanted", "held", "collide"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80, ip="10.0.0.1"), port(80, ip="10.0.0.2"), False),
        (port(80, ip="10.0.0.1"), port(80, ip="0.0.0.0"), True),
        (port(80, ip="10.0.0.1"), port(80), True),
    ],
)
def test_host_ports_are_given_once(
    wanted: ContainerPort, held: ContainerPort, collide: bool
) -> None:
    rejection = ADMISSION(make_pod(wanted), [make_pod(held)])
    assert (rejection is not None and rejection.reason == "NodePorts") == collide


@pytest.mark.parametrize(
    ("sysctl", "host_network", "message"),
    [
        ("net.ipv4.tcp_syncookies", False, ""),
        ("net/ipv4/tcp_syncookies", False, ""),
        ("kernel.msgmax", False, ""),
        ("net.core.somaxconn", False, ""),
        ("kernel.sem", False, 'forbidden sysctl: "kernel.sem" not allowlisted'),
        (
            "net.ipv4.tcp_syncookies",
            True,
            'sysctl "net.ipv4.tcp_syncookies" not allowed with host net enabled',
        ),
    ],
)
def test_sysctls(sysctl: str, host_network: bool, message: str) -> None:
    rejection = ADMISSION(make_pod(sysctl=sysctl, host_network=host_network), [])
    assert (rejection.message if rejection else "") == message


def test_a_runtime_class_is_never_replaced_by_another_runtime() -> None:
    pod = evolve(make_pod(), spec=evolve(make_pod().spec, runtime_class_name="gvisor"))
    assert ADMISSION(pod, []) == Rejection(
        reason="RuntimeClass", message='RuntimeClass "gvisor" not found'
    )
