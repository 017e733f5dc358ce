"""The kubeconfig that a node writes for itself once it has a certificate, and whether it is good.

Which cluster it names comes out of the bootstrap kubeconfig; the user is the link to the current
certificate, so that the file never changes when certificates are rotated. Blocking.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import yaml

from trio_kubelet.k8s.client import KubeconfigError, read_kubeconfig
from trio_kubelet.k8s.client.kubeconfig import KubeconfigCluster, Material
from trio_kubelet.node.client_certificate import read_pair


def node_kubeconfig(cluster: KubeconfigCluster, pair_path: Path) -> bytes:
    """The kubeconfig of a node whose certificate and key are in one file."""
    document = {
        "apiVersion": "v1",
        "clusters": [{"cluster": dict(_cluster(cluster)), "name": "default-cluster"}],
        "contexts": [
            {
                "context": {
                    "cluster": "default-cluster",
                    "namespace": "default",
                    "user": "default-auth",
                },
                "name": "default-context",
            }
        ],
        "current-context": "default-context",
        "kind": "Config",
        "users": [
            {
                "name": "default-auth",
                "user": {"client-certificate": str(pair_path), "client-key": str(pair_path)},
            }
        ],
    }
    return yaml.safe_dump(document).encode()


def why_not_valid(path: Path, now: datetime) -> str:
    """Why a kubeconfig holds no client certificate that is good now; empty if it holds one.

    One with another kind of credentials (a token, a plugin) is not valid either: a node that is
    told to bootstrap works with a certificate.
    """
    if not path.exists():
        return f"{path} does not exist"
    try:
        user = read_kubeconfig(path).user
        if not user.client_certificate:
            return f"{path} has no client certificate"
        pair = read_pair(_content(user.client_certificate), _content(user.client_key))
    except KubeconfigError as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"the client certificate of {path} cannot be read: {error}"
    return "" if pair.is_valid_at(now) else f"the client certificate of {path} has expired"


def _cluster(cluster: KubeconfigCluster) -> Mapping[str, object]:
    authority = cluster.certificate_authority
    fields: dict[str, object] = {
        "server": cluster.server,
        "certificate-authority": str(authority.path.absolute()) if authority.path else "",
        "certificate-authority-data": base64.b64encode(authority.data).decode(),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "proxy-url": cluster.proxy_url,
        "tls-server-name": cluster.tls_server_name,
    }
    return {name: value for name, value in fields.items() if value}


def _content(material: Material) -> bytes:
    return material.data if material.path is None else material.path.read_bytes()
