"""What the machine cannot do, its pods are told."""

from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import NodeFeatures
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.admission.node_features import (
    missing_user_namespace,
    needed_features,
    undeclared_features,
    unenforceable_apparmor,
    unprepared_devices,
    unsupported_groups_policy,
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


EXTENDED = {"resourceClaimName": "claim", "requestMappings": []}


@pytest.mark.parametrize(
    ("spec", "status", "rejected"),
    [
        ({}, {}, False),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]}, {}, True),
        ({}, {"extendedResourceClaimStatus": EXTENDED}, True),
    ],
)
def test_a_pod_whose_devices_cannot_be_prepared_is_rejected(
    spec: dict[str, Any], status: dict[str, Any], rejected: bool
) -> None:
    rejection = unprepared_devices(make_pod(status=status, **spec))
    assert (rejection is not None) == rejected
    if rejection is not None:
        assert rejection == Rejection(
            reason="FailedPrepareDynamicResources",
            message="Failed to prepare dynamic resources: "
            "this kubelet does not support resource claims",
        )
