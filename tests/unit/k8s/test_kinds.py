"""Where objects live on the API server."""

import pytest

from trio_kubelet.k8s import (
    CLUSTER_TRUST_BUNDLES,
    KINDS,
    LEASES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    ApiType,
    Kind,
)

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a"


@pytest.mark.parametrize(
    ("kind", "where", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("shop",), "/api/v1/namespaces/shop/pods"),
        (PODS, ("shop", "web"), "/api/v1/namespaces/shop/pods/web"),
        (PODS, ("shop", "web", "status"), "/api/v1/namespaces/shop/pods/web/status"),
        (NODES, ("", "a.example.org"), "/api/v1/nodes/a.example.org"),
        (NODES, ("", "a", "status"), "/api/v1/nodes/a/status"),
        (LEASES, ("kube-node-lease", "a"), LEASE_PATH),
        (
            SERVICE_ACCOUNTS,
            ("shop", "default", "token"),
            "/api/v1/namespaces/shop/serviceaccounts/default/token",
        ),
        (
            CLUSTER_TRUST_BUNDLES,
            ("", "example.org:signer:one"),
            "/apis/certificates.k8s.io/v1beta1/clustertrustbundles/example.org:signer:one",
        ),
        (PODS, ("shop", "../nodes"), "/api/v1/namespaces/shop/pods/..%2Fnodes"),
    ],
)
def test_an_object_has_its_path(kind: Kind[ApiType], where: tuple[str, ...], path: str) -> None:
    assert kind.path(*where) == path


@pytest.mark.parametrize(
    ("kind", "where"), [(NODES, ("shop",)), (PODS, ("", "web")), (PODS, ("shop", "", "status"))]
)
def test_what_names_nothing_has_no_path(kind: Kind[ApiType], where: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=kind.resource):
        kind.path(*where)


def test_a_kind_names_its_api_version() -> None:
    assert PODS.api_version == "v1"
    assert LEASES.api_version == "coordination.k8s.io/v1"


def test_a_kind_is_called_as_its_class_and_no_two_share_a_path() -> None:
    classes = {kind.kind: kind.type.__name__ for kind in KINDS}
    # The class ResourceClaim is what a container names of the claims of its pod.
    assert classes.pop("ResourceClaim") == "AllocatedClaim"
    assert list(classes) == list(classes.values())
    assert len({kind.path() for kind in KINDS}) == len(KINDS)
