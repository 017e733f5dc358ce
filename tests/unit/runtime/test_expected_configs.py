"""The configs that are made of the pods in tests/integration/configs, without a runtime.

The same files are compared with what a real containerd stored, where one can run.
"""

import pytest
from attrs import evolve

from tests.integration.config_cases import (
    Case,
    Surroundings,
    as_json,
    differences,
    expected_container,
    expected_sandbox,
    load_cases,
    static,
)
from tests.integration.made_configs import made_container, made_sandbox
from tests.node_facts import configured, node_facts
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import termination_message_file
from trio_kubelet.runtime.config.security import ImageUser
from trio_kubelet.runtime.node_facts import NodeFacts

CASES = load_cases()
CGROUP_V1 = configured(
    node_facts(
        "/srv/kubelet",
        host_ips=("192.0.2.10",),
        memory_capacity_bytes=8 << 30,
        cgroup_v2=False,
    ),
    pod_logs_dir="/srv/logs",
    cluster_domain="cluster.local",
)
CGROUP_V2 = evolve(
    configured(CGROUP_V1, cgroup_root="/lab"),
    cgroup_v2=True,
    hugepage_sizes=(2 << 20, 1 << 30),
    thermal_throttle_paths=("/sys/devices/system/cpu/cpu0/thermal_throttle",),
)
IMAGE_USERS = {"localhost/lab/busybox-as-user:1": ImageUser(1000)}


def surroundings(node: NodeFacts) -> Surroundings:
    return Surroundings(
        node=node,
        node_name="node-1",
        pod_ip="10.88.0.5",
        volumes={"scratch": "/srv/scratch"},
        sub_paths={("scratch", "logs"): "/srv/sub/4", ("scratch", "parts/one"): "/srv/sub/5"},
    )


def container_of(pod: Pod, container: Container, around: Surroundings) -> cri.ContainerConfig:
    return made_container(
        pod,
        container,
        around,
        image_id=f"sha256:{'0' * 64}",
        image_user=IMAGE_USERS.get(container.image, ImageUser(0)),
        termination_message_file=termination_message_file(
            around.node.settings.options.root_dir, pod.metadata.uid, container.name, 0x0BADCAFE
        ),
    )


def on_the_wire(message: cri.PodSandboxConfig | cri.ContainerConfig) -> dict[str, object]:
    return as_json(type(message)().parse(bytes(message)))


@pytest.mark.parametrize("node", [CGROUP_V1, CGROUP_V2], ids=["cgroup-v1", "cgroup-v2"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_configs_are_those_that_the_reference_kubelet_sends(case: Case, node: NodeFacts) -> None:
    pod, around = static(case.pod, "node-1"), surroundings(node)
    made = {"sandbox": on_the_wire(made_sandbox(pod, around))}
    expected = {"sandbox": expected_sandbox(case, pod, around)}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        made[container.name] = on_the_wire(container_of(pod, container, around))
        expected[container.name] = expected_container(case, pod, container, around)
    assert list(differences(expected, made)) == []


def test_every_case_expects_all_containers_of_its_pod() -> None:
    for case in CASES:
        spec = case.pod.spec
        names = {container.name for container in (*spec.init_containers, *spec.containers)}
        assert case.containers.keys() == names, case.name


def test_there_are_at_least_twenty_five_different_pods() -> None:
    assert len({case.pod.metadata.uid for case in CASES}) == len(CASES) >= 25


def test_a_difference_is_told_with_its_path() -> None:
    expected = {"a": {"b": [1, 2]}, "only": 1, "like": "x-<8 hex digits>"}
    actual = {"a": {"b": [1, 3]}, "extra": 2, "like": "x-0badcaf"}
    assert list(differences(expected, actual)) == [
        "a.b[1]: 3, expected 2",
        "extra: unexpected 2",
        "like: 'x-0badcaf', expected 'x-<8 hex digits>'",
        "only: missing, expected 1",
    ]
