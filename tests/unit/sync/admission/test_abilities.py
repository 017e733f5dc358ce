"""What the machine cannot do, its pods are told."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import NodeFeatures, Pod
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.admission.node_features import (
    MAX_AMOUNTS,
    MAX_CLAIM_USES,
    MAX_CLAIMS,
    MAX_CONTAINERS,
    MAX_DISKS,
    MAX_ITEMS,
    MAX_RESOURCES,
    missing_user_namespace,
    needed_features,
    too_many_items,
    undeclared_features,
    unenforceable_apparmor,
    unsupported_groups_policy,
    with_ephemeral_containers_that_fit,
    wrong_os,
)

OS_LABEL = "kubernetes.io/os"


def reason(rejection: Rejection | None) -> str:
    return rejection.reason if rejection else ""


@pytest.mark.parametrize(
    ("labels", "spec", "expected"),
    [
        ({}, {}, ""),
        ({OS_LABEL: "linux"}, {"os": {"name": "linux"}}, ""),
        ({OS_LABEL: "windows"}, {}, "PodOSSelectorNodeLabelDoesNotMatch"),
        ({}, {"os": {"name": "windows"}}, "PodOSNotSupported"),
    ],
)
def test_pods_of_another_operating_system(
    labels: dict[str, str], spec: dict[str, Any], expected: str
) -> None:
    assert reason(wrong_os(make_pod(labels=labels, **spec))) == expected


def named(count: int) -> list[dict[str, str]]:
    return [{"name": f"c{number}"} for number in range(count)]


def in_two(field: str, *items: dict[str, Any]) -> Pod:
    """A pod with these items in that field of its containers, of which it has two."""
    half = len(items) // 2
    return make_pod(
        initContainers=[{"name": "i", field: list(items[:half])}],
        containers=[{"name": "c", field: list(items[half:])}],
    )


def with_claim_uses(count: int) -> Pod:
    """A pod whose containers, of which it has two, name so many requests of its claim."""
    uses = [{"name": "c", "request": f"r{number}"} for number in range(count)]
    return make_pod(
        initContainers=[{"name": "i", "resources": {"claims": uses[: count // 2]}}],
        containers=[{"name": "c", "resources": {"claims": uses[count // 2 :]}}],
        resourceClaims=named(1),
    )


def with_amounts(count: int) -> Pod:
    """A pod with so many requests and limits, of few resources."""
    ten = {f"a.b/c{number}": "1" for number in range(10)}
    whole = {"requests": ten, "limits": ten}
    containers = [{"name": "c", "resources": whole}] * (count // 20 - 1)
    rest = {f"a.b/c{number}": "1" for number in range(count % 20)}
    return make_pod(
        initContainers=[{"name": "i", "resources": {"requests": rest}}],
        containers=containers,
        resources={"requests": ten},
        overhead=ten,
    )


def with_resources(count: int) -> Pod:
    """A pod that names so many resources, all with different names."""
    names = [f"a.b/c{number}" for number in range(count)]
    parts = [dict.fromkeys(names[start::6], "0") for start in range(6)]
    return make_pod(
        initContainers=[{"name": "i", "resources": {"requests": parts[0], "limits": parts[1]}}],
        containers=[{"name": "c", "resources": {"requests": parts[2], "limits": parts[3]}}],
        resources={"requests": parts[4], "limits": parts[5]},
        overhead=parts[0],
    )


def with_disks(count: int) -> Pod:
    """A pod with so many disks that it names itself, of both sources."""
    iscsi = {"name": "i", "iscsi": {"targetPortal": "a", "iqn": "iqn.a", "lun": 1}}
    fibre_channel = {"name": "f", "fc": {"wwids": ["a"]}}
    return make_pod(volumes=[iscsi] * (count // 2) + [fibre_channel] * (count - count // 2))


def test_five_hundred_containers_may_have_all_resources_of_a_node() -> None:
    names = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi", "a.b/device")
    amounts = dict.fromkeys(names, "1Gi")
    resources = {"requests": amounts, "limits": amounts}
    containers = [{"name": f"c{n}", "resources": resources} for n in range(MAX_CONTAINERS)]
    pod = make_pod(containers=containers, resources=resources, overhead=amounts)
    assert too_many_items(pod) is None


@pytest.mark.parametrize(
    ("reason", "with_count", "limit"),
    [
        ("TooManyContainers", lambda n: make_pod(initContainers=named(n - 1)), MAX_CONTAINERS),
        ("TooManyVolumes", lambda n: make_pod(volumes=named(n)), MAX_ITEMS),
        ("TooManyVolumes", with_disks, MAX_DISKS),
        ("TooManyVolumeMounts", lambda n: in_two("volumeMounts", *named(n)), MAX_ITEMS),
        ("TooManyPorts", lambda n: in_two("ports", *[{"containerPort": 1}] * n), MAX_ITEMS),
        ("TooManyResourceClaims", lambda n: make_pod(resourceClaims=named(n)), MAX_CLAIMS),
        ("TooManyResourceClaims", with_claim_uses, MAX_CLAIM_USES),
        ("TooManyResources", with_amounts, MAX_AMOUNTS),
        ("TooManyResources", with_resources, MAX_RESOURCES),
    ],
)
def test_more_than_a_pod_may_have(
    reason: str, with_count: Callable[[int], Pod], limit: int
) -> None:
    assert too_many_items(with_count(limit)) is None
    rejection = too_many_items(with_count(limit + 1))
    assert rejection is not None
    assert rejection.reason == reason
    assert f"Too many: {limit + 1}: must have at most {limit}" in rejection.message


def test_ephemeral_containers_beyond_the_limit_are_left_out_and_told() -> None:
    pod = make_pod(ephemeralContainers=named(MAX_CONTAINERS - 1))
    assert with_ephemeral_containers_that_fit(pod) == (pod, "")
    bounded, problem = with_ephemeral_containers_that_fit(
        make_pod(ephemeralContainers=named(MAX_CONTAINERS + 1))
    )
    assert bounded.spec == pod.spec
    assert "spec.ephemeralContainers: Too many: 501: must have at most 499" in problem
    assert "ignoring the last 2" in problem


@pytest.mark.parametrize(
    ("policy", "features", "rejected"),
    [
        (None, None, False),
        ("Merge", None, False),
        ("Strict", None, True),
        ("Strict", NodeFeatures(supplemental_groups_policy=False), True),
        ("Strict", NodeFeatures(supplemental_groups_policy=True), False),
    ],
)
def test_strict_groups_need_a_runtime_that_has_them(
    policy: str | None, features: NodeFeatures | None, rejected: bool
) -> None:
    pod = make_pod(securityContext={"supplementalGroupsPolicy": policy})
    rejection = unsupported_groups_policy(pod, features)
    assert (rejection is not None) == rejected
    if rejection is not None:
        assert rejection == Rejection(
            reason="SupplementalGroupsPolicyNotSupported",
            message="SupplementalGroupsPolicy=Strict is not supported in this node",
        )


def of_pod(profile: dict[str, str]) -> dict[str, Any]:
    return {"securityContext": {"appArmorProfile": profile}}


def of_container(profile: dict[str, str]) -> dict[str, Any]:
    return {"containers": [{"name": "c", "securityContext": {"appArmorProfile": profile}}]}


NOT_ENABLED = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
NO_NAME = 'Cannot enforce AppArmor: invalid empty AppArmor profile name: " "'


@pytest.mark.parametrize(
    ("spec", "enabled", "message"),
    [
        ({}, False, ""),
        (of_pod({"type": "RuntimeDefault"}), True, ""),
        (of_pod({"type": "RuntimeDefault"}), False, NOT_ENABLED),
        (of_pod({"type": "Unconfined"}), False, ""),
        (of_container({"type": "Localhost", "localhostProfile": "p"}), False, NOT_ENABLED),
        (of_container({"type": "Localhost", "localhostProfile": "p"}), True, ""),
        (of_container({"type": "Localhost", "localhostProfile": " "}), True, NO_NAME),
    ],
)
def test_apparmor_is_enforced_or_refused(spec: dict[str, Any], enabled: bool, message: str) -> None:
    rejection = unenforceable_apparmor(make_pod(**spec), enabled=enabled)
    assert (rejection.message if rejection else "") == message
    assert reason(rejection) == ("AppArmor" if message else "")


RESTART_ALL: dict[str, Any] = {
    "containers": [
        {
            "name": "c",
            "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
            ],
        }
    ]
}


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ({}, set()),
        (RESTART_ALL, {"RestartAllContainersOnContainerExits"}),
        ({"hostNetwork": True, "hostUsers": False}, {"UserNamespacesHostNetworkSupport"}),
        ({"hostNetwork": True, "hostUsers": True}, set()),
        ({"hostUsers": False}, set()),
    ],
)
def test_the_features_that_a_pod_needs(spec: dict[str, Any], needed: set[str]) -> None:
    assert needed_features(make_pod(**spec)) == needed


def test_a_pod_that_needs_what_the_node_does_not_declare_is_rejected() -> None:
    pod = make_pod(**RESTART_ALL)
    assert undeclared_features(pod, ["RestartAllContainersOnContainerExits", "Other"]) is None
    assert undeclared_features(pod, ["Other"]) == Rejection(
        reason="PodFeatureUnsupported",
        message="Pod requires node features that are not available: "
        "RestartAllContainersOnContainerExits",
    )


@pytest.mark.parametrize("spec", [{}, {"hostUsers": True}, {"hostUsers": None}])
def test_pods_of_the_host_user_namespace_are_admitted(spec: dict[str, Any]) -> None:
    assert missing_user_namespace(make_pod(**spec), "there are none") is None


def test_a_pod_that_asks_for_a_user_namespace_where_there_is_none_is_rejected() -> None:
    asking = make_pod(hostUsers=False)
    assert missing_user_namespace(asking, "") is None
    assert missing_user_namespace(asking, "there are none") == Rejection(
        reason="UserNamespacesNotSupported", message="there are none"
    )
