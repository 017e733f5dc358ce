"""Which pods may run beside which: the checks together, and what each of them is told."""

from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_admission, make_node, make_pod
from trio_kubelet.k8s import Node, NodeFeatures, Pod
from trio_kubelet.sync.admission import Preemption, Rejection, was_admitted

CPU = {"cpu": "1"}
NO_EXECUTE = [{"key": "down", "effect": "NoExecute"}]
PORT: dict[str, Any] = {
    "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
}


def test_a_pod_that_disturbs_nobody_is_admitted() -> None:
    assert make_admission()(make_pod(requests=CPU), [make_pod("q", requests=CPU)]) is None


REJECTED: list[tuple[Node | None, Pod, str, str]] = [
    (
        None,
        make_pod(requests={"cpu": "1500m"}),
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000",
    ),
    (
        None,
        make_pod(requests={"memory": "2Gi"}),
        "OutOfmemory",
        "Node didn't have enough resource: memory, requested: 2147483648, used: 0, "
        "capacity: 1073741824",
    ),
    (
        make_node(allocatable={"example.com/gpu": "1"}),
        make_pod(requests={"example.com/gpu": "2"}),
        "OutOfexample.com/gpu",
        "Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1",
    ),
    (
        make_node(),
        make_pod(nodeSelector={"disk": "ssd"}),
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    ),
    (
        make_node(),
        make_pod(nodeName="there"),
        "NodeName",
        "Predicate NodeName failed: node(s) didn't match the requested node name",
    ),
    (
        None,
        make_pod(**PORT),
        "NodePorts",
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
    ),
    (
        make_node(taints=NO_EXECUTE),
        make_pod(),
        "TaintToleration",
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    ),
    (
        None,
        make_pod(labels={"kubernetes.io/os": "windows"}),
        "PodOSSelectorNodeLabelDoesNotMatch",
        "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    ),
    (
        None,
        make_pod(os={"name": "windows"}),
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    ),
    (
        None,
        make_pod(securityContext={"sysctls": [{"name": "kernel.sem", "value": "1"}]}),
        "SysctlForbidden",
        'forbidden sysctl: "kernel.sem" not allowlisted',
    ),
    (
        None,
        make_pod(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}),
        "AppArmor",
        "Cannot enforce AppArmor: AppArmor is not enabled on the host",
    ),
    (
        None,
        make_pod(hostNetwork=True, hostUsers=False),
        "PodFeatureUnsupported",
        "Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
    ),
    (
        None,
        make_pod(hostUsers=False),
        "UserNamespacesNotSupported",
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
    ),
    (
        None,
        make_pod(hostUsers=False, static=True, priority=2_000_001_000),
        "UserNamespacesNotSupported",
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
    ),
    (
        None,
        make_pod(securityContext={"supplementalGroupsPolicy": "Strict"}),
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    ),
    (None, make_pod(runtimeClassName="gvisor"), "RuntimeClass", 'RuntimeClass "gvisor" not found'),
]


@pytest.mark.parametrize(
    ("node", "pod", "reason", "message"), REJECTED, ids=[reason for _, _, reason, _ in REJECTED]
)
def test_a_rejected_pod_is_told_why(node: Node | None, pod: Pod, reason: str, message: str) -> None:
    admission = make_admission(node, apparmor=False)
    beside = [make_pod("q", requests=CPU), make_pod("r", **PORT)]
    assert admission(pod, beside) == Rejection(reason=reason, message=message)


def test_no_more_than_max_pods() -> None:
    assert make_admission()(make_pod(), [make_pod("q")] * 3) == Rejection(
        reason="OutOfpods",
        message="Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
    )


def test_without_a_node_object_only_what_needs_none_is_checked() -> None:
    elsewhere: dict[str, Any] = {"nodeSelector": {"disk": "ssd"}, "nodeName": "there"}
    pod = make_pod(requests={"ephemeral-storage": "2Mi"}, **elsewhere)
    assert make_admission()(pod, []) is None


def test_the_agents_own_numbers_go_before_those_of_the_node_object() -> None:
    stale = make_node(allocatable={"cpu": "100", "pods": "100"})
    rejection = make_admission(stale)(make_pod(requests={"cpu": "3"}), [])
    assert isinstance(rejection, Rejection)
    assert rejection.reason == "OutOfcpu"


@pytest.mark.parametrize(
    ("taints", "pod", "admitted"),
    [
        (NO_EXECUTE, make_pod(), False),
        (NO_EXECUTE, make_pod(tolerations=[{"key": "down", "operator": "Exists"}]), True),
        (NO_EXECUTE, make_pod(static=True), True),
        (NO_EXECUTE, make_pod(priority=2_000_000_000), False),
        ([{"key": "k", "effect": "NoSchedule"}], make_pod(), True),
    ],
)
def test_taints_keep_away_pods_that_are_not_static(
    taints: list[dict[str, str]], pod: Pod, admitted: bool
) -> None:
    assert (make_admission(make_node(taints=taints))(pod, []) is None) == admitted


def test_numbers_of_taints_are_compared_behind_their_gate() -> None:
    node = make_node(taints=[{"key": "sla", "value": "950", "effect": "NoExecute"}])
    pod = make_pod(tolerations=[{"key": "sla", "operator": "Gt", "value": "900"}])
    assert make_admission(node)(pod, []) is not None
    assert make_admission(node, compare_taints=True)(pod, []) is None


def test_where_runtime_classes_are_known_they_are_no_matter_of_admission() -> None:
    assert make_admission(runtime_classes=True)(make_pod(runtimeClassName="gvisor"), []) is None


def test_a_pod_that_needs_features_is_admitted_only_where_they_are_declared() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    pod = make_pod(containers=[{"name": "c", "restartPolicyRules": [rule]}])
    rejection = make_admission()(pod, [])
    assert isinstance(rejection, Rejection)
    assert rejection.reason == "PodFeatureUnsupported"
    declared = ("RestartAllContainersOnContainerExits",)
    assert make_admission(declared_features=lambda: declared)(pod, []) is None


def test_strict_groups_are_left_to_a_runtime_that_has_them() -> None:
    pod = make_pod(securityContext={"supplementalGroupsPolicy": "Strict"})
    able = NodeFeatures(supplemental_groups_policy=True)
    assert make_admission(runtime_features=lambda: able)(pod, []) is None


FULL = [make_pod("q", requests={"cpu": "2"})]
CRITICAL: dict[str, Any] = {"requests": CPU, "priority": 2_000_000_000}


def test_a_resource_that_a_pod_has_by_a_claim_is_not_taken_from_the_node() -> None:
    backing = {
        "resourceClaimName": "extended",
        "requestMappings": [
            {"containerName": "c", "requestName": "r", "resourceName": "example.com/gpu"}
        ],
    }
    node = make_node(allocatable={"example.com/gpu": "0", "example.com/nic": "0"})
    gpu, both = {"example.com/gpu": "1"}, {"example.com/gpu": "1", "example.com/nic": "1"}
    status = {"extendedResourceClaimStatus": backing}
    admission = make_admission(node)
    assert admission(make_pod(requests=gpu, limited=True, status=status), []) is None
    for pod, resource in (
        (make_pod(requests=gpu, limited=True), "gpu"),
        (make_pod(requests=both, limited=True, status=status), "nic"),
    ):
        rejection = admission(pod, [])
        assert isinstance(rejection, Rejection)
        assert rejection.reason == f"OutOfexample.com/{resource}"


def test_others_are_preempted_for_a_critical_pod() -> None:
    verdict = make_admission()(make_pod(**CRITICAL), FULL)
    assert verdict == Preemption(victims=tuple(FULL), resource="cpu")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "NodeAffinity"),
        ({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}, "AppArmor"),
    ],
)
def test_nobody_makes_way_for_a_pod_that_is_rejected_all_the_same(
    spec: dict[str, Any], reason: str
) -> None:
    verdict = make_admission(make_node(), apparmor=False)(make_pod(**CRITICAL, **spec), FULL)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == reason


def test_want_of_room_is_told_before_what_else_does_not_fit() -> None:
    pod = make_pod(requests=CPU, nodeSelector={"disk": "ssd"})
    verdict = make_admission(make_node())(pod, FULL)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "OutOfcpu"


def test_pressure_is_told_before_what_the_node_cannot_do() -> None:
    evicting = Rejection(reason="Evicted", message="")
    admission = make_admission(under_pressure=lambda _pod: evicting)
    assert admission(make_pod(runtimeClassName="gvisor"), []) == evicting


@pytest.mark.parametrize(
    ("status", "runs", "admitted"),
    [
        ({}, False, False),
        ({"phase": "Pending"}, False, False),
        ({"phase": "Pending"}, True, True),
        ({"phase": "Pending", "startTime": "2026-01-31T12:00:00Z"}, False, True),
        ({"phase": "Running"}, False, True),
        ({"phase": "Failed"}, False, True),
    ],
)
def test_what_was_admitted_once_is_known_by_what_runs_and_by_its_status(
    status: dict[str, str], runs: bool, admitted: bool
) -> None:
    assert was_admitted(make_pod(status=status), runs=runs) == admitted


@pytest.mark.parametrize(
    ("node", "wants"),
    [(make_node(), True), (make_node(labels={"disk": "ssd"}), False), (None, False)],
    ids=["no such label", "the label", "no API server"],
)
def test_a_pod_that_the_node_does_not_suit_wants_a_newer_one(
    node: Node | None, wants: bool
) -> None:
    admission = make_admission(lambda: node)
    assert not admission.wants_newer_node(make_pod())
    assert admission.wants_newer_node(make_pod(nodeSelector={"disk": "ssd"})) == wants


def test_a_machine_that_goes_down_takes_no_pod() -> None:
    admission = make_admission(goes_down=lambda: True)
    assert admission(make_pod("any", priority=2_000_000_000), ()) == Rejection(
        reason="NodeShutdown", message="Pod was rejected as the node is shutting down."
    )
