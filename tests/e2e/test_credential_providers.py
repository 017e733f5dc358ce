"""A registry that is opened by an image credential provider, with tokens of service accounts.

What is expected here was seen with the Go kubelet, and holds for either (docs/e2e.md).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

from lab.cluster_api import Json
from lab.images import SLEEPER
from lab.registry import NAME, PASSWORD, USER, Registry
from tests.e2e.cluster import Namespace, waiting
from tests.e2e.local import LocalCluster

AUDIENCE = "lab-registry"
ROLE = "registry.test/role"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PROVIDER_VERSION = "credentialprovider.kubelet.k8s.io/v1"
CONFIG: Json = {
    "apiVersion": "kubelet.config.k8s.io/v1",
    "kind": "CredentialProviderConfig",
    "providers": [
        {
            "name": "provider",
            "apiVersion": PROVIDER_VERSION,
            "matchImages": [f"{NAME}/lab"],
            "defaultCacheDuration": "1h",
            "tokenAttributes": {
                "serviceAccountTokenAudience": AUDIENCE,
                "cacheType": "ServiceAccount",
                "requireServiceAccount": True,
                "requiredServiceAccountAnnotationKeys": [ROLE],
            },
        }
    ],
}
ANSWER: Json = {
    "apiVersion": PROVIDER_VERSION,
    "kind": "CredentialProviderResponse",
    "cacheKeyType": "Registry",
    "auth": {NAME: {"username": USER, "password": PASSWORD}},
}


@frozen
class Provider:
    """A program that notes what it is asked, beside itself, and always knows the login."""

    folder: Path

    def write(self) -> tuple[str, ...]:
        """Write it and its configuration; returns the flags that name them."""
        programs, config = self.folder / "programs", self.folder / "config.json"
        programs.mkdir()
        program = programs / "provider"
        program.write_text(
            f"#!/bin/sh\ncat >>{self.folder}/asked\ncat <<'END'\n{json.dumps(ANSWER)}\nEND\n"
        )
        program.chmod(0o755)
        config.write_text(json.dumps(CONFIG))
        return (
            f"--image-credential-provider-config={config}",
            f"--image-credential-provider-bin-dir={programs}",
        )

    def asked(self) -> list[Json]:
        """All requests so far."""
        path = self.folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def provider(local_cluster: LocalCluster, tmp_path: Path) -> Iterator[Provider]:
    """A provider of the node's own."""
    provider = Provider(tmp_path)
    local_cluster.restart_agent(*provider.write())
    yield provider
    local_cluster.restart_agent()


@contextmanager
def nodes_may_ask_for(cluster: LocalCluster, audience: str) -> Iterator[None]:
    """Let nodes ask for tokens of an audience that no volume of a pod names (KEP-4412)."""
    name = {"metadata": {"name": "lab-request-audience"}}
    rule = {
        "apiGroups": [""],
        "resources": [audience],
        "verbs": ["request-serviceaccounts-token-audience"],
    }
    group = "rbac.authorization.k8s.io"
    binding = {
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name["metadata"]["name"]},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:nodes"}],
    }
    cluster.api.create(f"{RBAC}/clusterroles", {**name, "rules": [rule]})
    cluster.api.create(f"{RBAC}/clusterrolebindings", {**name, **binding})
    try:
        yield
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            cluster.api.delete(f"{RBAC}/{kind}/{name['metadata']['name']}")


def test_a_registry_is_opened_by_the_token_of_a_service_account(
    local_cluster: LocalCluster,
    closed_registry: Registry,
    provider: Provider,
    namespace: Namespace,
) -> None:
    image = local_cluster.containerd.images[SLEEPER].marked("for a service account")
    name = closed_registry.push(image, "lab/account:1")
    container = {"name": "c", "image": name}
    account = namespace.create(
        "ServiceAccount", "puller", {"metadata": {"annotations": {ROLE: "reader", "other": "x"}}}
    )
    puller = {"serviceAccountName": "puller"}

    namespace.add("too-early", container, **puller)
    namespace.wait("too-early", lambda pod: "ErrImagePull" in str(waiting(pod)))
    assert provider.asked() == [], "the API server gives no token to a node without the right"
    namespace.kubectl("delete", "pod", "too-early")

    with nodes_may_ask_for(local_cluster, AUDIENCE):
        owner = namespace.run("owner", container, **puller)
        (request,) = provider.asked()
        token = request.pop("serviceAccountToken")
        assert request == {
            "kind": "CredentialProviderRequest",
            "apiVersion": PROVIDER_VERSION,
            "image": f"{NAME}/lab/account",
            "serviceAccountAnnotations": {ROLE: "reader"},
        }
        user = reviewed(local_cluster, token)
        assert user["username"] == f"system:serviceaccount:{namespace.name}:puller"
        pod_uid = user["extra"]["authentication.kubernetes.io/pod-uid"]
        assert pod_uid == [owner["metadata"]["uid"]]
        assert recorded(local_cluster, image.config_digest, f"{NAME}/lab/account") == {
            "kubernetesServiceAccounts": [
                {"uid": account["metadata"]["uid"], "namespace": namespace.name, "name": "puller"}
            ]
        }

        namespace.run("friend", {**container, "imagePullPolicy": "Never"}, **puller)
        namespace.run("asks-again", {**container, "imagePullPolicy": "Always"}, **puller)
        assert len(provider.asked()) == 1, "the answer is kept for pods of the account"
        namespace.add("stranger", container)
        namespace.wait("stranger", lambda pod: "ErrImagePull" in str(waiting(pod)))
        assert len(provider.asked()) == 1, "its account has not the annotation"

    log = local_cluster.agent.log.read_text()
    assert token not in log
    assert PASSWORD not in log


def reviewed(cluster: LocalCluster, token: str) -> Json:
    """The user that a registry learns of when it has the API server review a token."""
    review = cluster.api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"spec": {"token": token, "audiences": [AUDIENCE]}},
    )
    assert review["status"].get("authenticated"), review
    user: Json = review["status"]["user"]
    return user


def recorded(cluster: LocalCluster, image_id: str, image: str) -> Json:
    """Who has proven access to an image, as the node's record says."""
    for path in (cluster.agent.root / "image_manager" / "pulled").iterdir():
        record = json.loads(path.read_text())
        if record["imageRef"] == image_id:
            found: Json = record["credentialMapping"][image]
            return found
    raise AssertionError(f"no record of {image}")
