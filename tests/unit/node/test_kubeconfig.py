"""The kubeconfig of a node: what is written, and what counts as good."""

import base64
from pathlib import Path

import pytest
import yaml

from tests.unit.node.authority import NOW, YEAR, Authority
from trio_kubelet.k8s.client.kubeconfig import CredentialSource, KubeconfigCluster, read_kubeconfig
from trio_kubelet.node.bootstrap import node_kubeconfig, why_not_valid
from trio_kubelet.node.certificates import (
    CertificateNames,
    CertificateStore,
    key_pem,
    new_key,
    signing_request,
    write_private,
)

AUTHORITY = Authority()
CLUSTER = KubeconfigCluster(
    server="https://10.0.0.1:6443", certificate_authority=CredentialSource(b"CA")
)


def kubeconfig(folder: Path, cluster: KubeconfigCluster = CLUSTER) -> Path:
    path = folder / "kubelet.conf"
    write_private(path, node_kubeconfig(cluster, CertificateStore(folder).current_path))
    return path


def certify(folder: Path) -> None:
    key = new_key()
    CertificateStore(folder).write(
        AUTHORITY.sign(signing_request(key, CertificateNames("node-1"))), key, NOW
    )


def test_it_has_the_cluster_of_the_bootstrap_and_the_link_to_the_certificate() -> None:
    text = node_kubeconfig(CLUSTER, Path("/pki/kubelet-client-current.pem"))
    assert yaml.safe_load(text) == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default-cluster",
                "cluster": {
                    "server": "https://10.0.0.1:6443",
                    "certificate-authority-data": base64.b64encode(b"CA").decode(),
                },
            }
        ],
        "contexts": [
            {
                "name": "default-context",
                "context": {
                    "cluster": "default-cluster",
                    "namespace": "default",
                    "user": "default-auth",
                },
            }
        ],
        "current-context": "default-context",
        "users": [
            {
                "name": "default-auth",
                "user": {
                    "client-certificate": "/pki/kubelet-client-current.pem",
                    "client-key": "/pki/kubelet-client-current.pem",
                },
            }
        ],
    }


def test_the_way_to_the_server_is_kept(tmp_path: Path) -> None:
    cluster = KubeconfigCluster(
        server="https://api.example.com",
        certificate_authority=CredentialSource(path=Path("/pki/ca.crt")),
        tls_server_name="kubernetes",
        proxy_url="http://proxy:3128",
    )
    read = read_kubeconfig(kubeconfig(tmp_path, cluster)).cluster
    assert read == cluster


def test_a_kubeconfig_with_a_good_certificate_is_valid_until_that_expires(tmp_path: Path) -> None:
    certify(tmp_path)
    path = kubeconfig(tmp_path)
    assert why_not_valid(path, NOW) == ""
    assert why_not_valid(path, NOW + 2 * YEAR) == f"the client certificate of {path} has expired"


def test_certificates_may_stand_in_the_file_itself(tmp_path: Path) -> None:
    key = new_key()
    document = yaml.safe_load(node_kubeconfig(CLUSTER, Path("x")))
    chain = AUTHORITY.sign(signing_request(key, CertificateNames("node-1")))
    document["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(chain).decode(),
        "client-key-data": base64.b64encode(key_pem(key)).decode(),
    }
    path = tmp_path / "kubelet.conf"
    path.write_text(yaml.safe_dump(document))
    assert why_not_valid(path, NOW) == ""


def test_a_file_that_is_not_there_is_not_valid(tmp_path: Path) -> None:
    assert "does not exist" in why_not_valid(tmp_path / "none", NOW)


def test_a_certificate_that_is_not_there_is_not_valid(tmp_path: Path) -> None:
    assert "cannot be read" in why_not_valid(kubeconfig(tmp_path), NOW)


@pytest.mark.parametrize(
    ("user", "why"),
    [({"token": "abc"}, "no client certificate"), ({"client-key": "x"}, "client-certificate")],
)
def test_other_credentials_are_not_valid(tmp_path: Path, user: dict[str, str], why: str) -> None:
    document = yaml.safe_load(node_kubeconfig(CLUSTER, Path("x")))
    document["users"][0]["user"] = user
    path = tmp_path / "kubelet.conf"
    path.write_text(yaml.safe_dump(document))
    assert why in why_not_valid(path, NOW)


def test_nonsense_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.conf"
    path.write_text("{")
    assert "YAML" in why_not_valid(path, NOW)
