import pytest
from attrs import evolve

from tests.node_facts import configured, gated, node_facts
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    Container,
    ContainerPort,
    Lifecycle,
    ObjectMeta,
    Pod,
    PodSpec,
)
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.container_config import (
    ContainerFacts,
    container_config,
    image_user,
)
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.config.security import IdMapping, ImageUser, SecurityFacts
from trio_kubelet.runtime.node_facts import NodeFacts

NODE = configured(node_facts(), cluster_domain="cluster.local")
CONTAINER = Container(name="c", image="busybox:latest")
POD = Pod(
    metadata=ObjectMeta(name="web", namespace="shop", uid="a-b-c"),
    spec=PodSpec(containers=(CONTAINER,)),
)


def sandbox(pod: Pod = POD, node: NodeFacts = NODE, attempt: int = 0) -> cri.PodSandboxConfig:
    return sandbox_config(pod, node, attempt=attempt, dns=cri.DnsConfig(servers=["1"]))


def container(
    container: Container = CONTAINER,
    node: NodeFacts = NODE,
    restart_count: int = 0,
    **facts: object,
) -> cri.ContainerConfig:
    known = ContainerFacts(image_id="sha256:1", **facts)  # type: ignore[arg-type]
    return container_config(POD, container, node, known, restart_count=restart_count)


def ports_of(*containers: tuple[ContainerPort, ...]) -> list[tuple[int, int]]:
    spec = PodSpec(containers=tuple(Container(name="c", ports=ports) for ports in containers))
    mappings = sandbox(evolve(POD, spec=spec)).port_mappings
    return [(mapping.container_port, mapping.host_port) for mapping in mappings]


def test_a_new_sandbox_of_a_pod_is_another_attempt() -> None:
    assert sandbox(attempt=2).metadata == cri.PodSandboxMetadata("web", "a-b-c", "shop", 2)


@pytest.mark.parametrize(
    ("driver", "root", "parent"),
    [
        (CgroupDriver.CGROUPFS, "/", "/kubepods/besteffort/poda-b-c"),
        (CgroupDriver.CGROUPFS, "/lab", "/lab/kubepods/besteffort/poda-b-c"),
        (CgroupDriver.SYSTEMD, "/", "kubepods-besteffort-poda_b_c.slice"),
    ],
)
def test_the_cgroup_parent_is_written_for_the_driver(
    driver: CgroupDriver, root: str, parent: str
) -> None:
    made = sandbox(node=configured(evolve(NODE, cgroup_driver=driver), cgroup_root=root))
    assert made.linux.cgroup_parent == parent


def test_a_host_name_that_cannot_be_keeps_the_sandbox_from_being_made() -> None:
    with pytest.raises(ConfigError):
        sandbox(evolve(POD, spec=PodSpec(hostname="No_Good")))


def test_ports_are_mapped_in_order() -> None:
    first = ContainerPort(container_port=80, host_port=8080)
    assert ports_of((first, ContainerPort(container_port=81)), (first,)) == [
        (80, 8080),
        (81, 0),
        (80, 8080),
    ]


def test_a_port_repeated_within_a_container_is_mapped_once() -> None:
    plain = ContainerPort(container_port=80, protocol="TCP")
    assert ports_of((plain, plain, evolve(plain, protocol="UDP"))) == [(80, 0), (80, 0)]
    named = ContainerPort(name="web", container_port=80)
    assert ports_of((named, ContainerPort(name="web", container_port=81))) == [(80, 0)]


def test_an_unknown_protocol_counts_as_tcp() -> None:
    ports = (ContainerPort(container_port=80, protocol="DCCP"),)
    spec = PodSpec(containers=(evolve(CONTAINER, ports=ports),))
    (mapping,) = sandbox(evolve(POD, spec=spec)).port_mappings
    assert mapping.protocol == cri.Protocol.TCP


def test_a_restarted_container_has_another_attempt_log_and_annotation() -> None:
    made = container(restart_count=3)
    assert made.metadata == cri.ContainerMetadata("c", 3)
    assert made.log_path == "c/3.log"
    assert made.annotations["io.kubernetes.container.restartCount"] == "3"


def test_the_image_is_named_by_its_id_and_as_the_pod_wrote_it() -> None:
    image = container().image
    assert (image.image, image.user_specified_image) == ("sha256:1", "busybox:latest")


def test_values_of_the_environment_are_bytes_and_need_not_be_text() -> None:
    made = container(environment={"A": "é", "RAW": "\udcff"})
    assert [(env.key, env.value) for env in made.envs] == [("A", "é".encode()), ("RAW", b"\xff")]


def test_every_mount_is_mapped_into_the_pods_user_namespace() -> None:
    given = cri.Mount(container_path="/a", host_path="/b")
    facts = SecurityFacts(user_namespace=IdMapping(host_id=65536, length=65536))
    (made,) = container(mounts=(given,), security=facts).mounts
    assert made.uid_mappings == made.gid_mappings == [cri.IdMapping(65536, 0, 65536)]
    assert (made.container_path, made.host_path) == ("/a", "/b")
    assert given.uid_mappings == []


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("", cri.Signal.RUNTIME_DEFAULT),
        ("SIGUSR1", cri.Signal.SIGUSR1),
        ("SIGRTMIN+3", cri.Signal.SIGRTMINPLUS3),
        ("SIGRTMAX-14", cri.Signal.SIGRTMAXMINUS14),
    ],
)
def test_the_stop_signal_is_sent_where_its_gate_is_open(name: str, signal: int) -> None:
    stopping = evolve(CONTAINER, lifecycle=Lifecycle(stop_signal=name))
    assert container(stopping, gated(NODE, ContainerStopSignals=True)).stop_signal == signal
    assert container(stopping).stop_signal == cri.Signal.RUNTIME_DEFAULT


@pytest.mark.parametrize(
    ("image", "user"),
    [
        (cri.Image(), ImageUser(0)),
        (cri.Image(uid=cri.Int64Value(0), username="www"), ImageUser(0)),
        (cri.Image(uid=cri.Int64Value(33)), ImageUser(33)),
        (cri.Image(username="www"), ImageUser(None, "www")),
    ],
)
def test_the_user_of_an_image_is_a_number_else_a_name_else_root(
    image: cri.Image, user: ImageUser
) -> None:
    assert image_user(cri.Image().parse(bytes(image))) == user


def test_what_is_empty_but_meant_reaches_the_runtime() -> None:
    made = cri.PodSandboxConfig().parse(bytes(sandbox()))
    assert is_present(made.linux.overhead)
    assert is_present(made.linux.security_context.seccomp)
    rooted = cri.ContainerConfig().parse(bytes(container()))
    assert is_present(rooted.linux.security_context.run_as_user)
