"""The control plane that the tests make for themselves, before any node is there."""

import os
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.cluster_api import AwayError, ClusterApi, Json, RefusedError
from lab.control_plane import BOOTSTRAP_TOKEN, ControlPlane
from lab.pki import KeyPair
from lab.processes import alive, command_lines, wait_until

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NODES = "/api/v1/nodes"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[ClusterApi]:
    """The API as a node named `a` may use it, with its node object in place."""
    api = control_plane.client(control_plane.node_identity("a"))
    api.create(NODES, {"metadata": {"name": "a"}})
    yield api
    control_plane.api.delete(f"{NODES}/a")


def test_kubectl_and_server_have_the_version_that_was_asked_for(
    control_plane: ControlPlane,
) -> None:
    shown = control_plane.kubectl("version")
    assert f"Client Version: {control_plane.version}" in shown
    assert f"Server Version: {control_plane.version}" in shown


def test_a_new_namespace_gets_its_service_account_and_the_authority(
    control_plane: ControlPlane,
) -> None:
    control_plane.kubectl("create", "namespace", "fresh")
    base = "/api/v1/namespaces/fresh"
    control_plane.api.wait_for(f"{base}/serviceaccounts/default", bool)
    trusted = control_plane.api.wait_for(f"{base}/configmaps/kube-root-ca.crt", bool)
    assert trusted["data"]["ca.crt"] == control_plane.authority.certificate.decode()
    control_plane.kubectl("delete", "namespace", "fresh")
    control_plane.api.wait_gone(base)


def test_a_token_of_a_service_account_is_whom_it_says(control_plane: ControlPlane) -> None:
    token = control_plane.kubectl("create", "token", "default").strip()
    review = control_plane.api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}}
    )
    assert review["status"]["authenticated"] is True
    assert review["status"]["user"]["username"] == "system:serviceaccount:default:default"


def test_the_service_of_the_api_has_an_endpoint(control_plane: ControlPlane) -> None:
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
    slice_ = control_plane.api.wait_for(slices, lambda seen: seen.get("endpoints"))
    assert slice_["ports"][0]["port"] == control_plane.port


def test_an_outage_of_the_api_keeps_what_was_written(control_plane: ControlPlane) -> None:
    made = control_plane.api.create(CONFIG_MAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
    control_plane.stop_api_server()
    with pytest.raises(AwayError):
        control_plane.api.get(f"{CONFIG_MAPS}/kept")
    control_plane.start_api_server()
    kept = control_plane.api.get(f"{CONFIG_MAPS}/kept")
    assert (kept["metadata"]["uid"], kept["data"]) == (made["metadata"]["uid"], {"a": "1"})
    control_plane.api.delete(f"{CONFIG_MAPS}/kept")


def test_a_watch_tells_of_what_happens_after_the_list(control_plane: ControlPlane) -> None:
    api = control_plane.api
    version = api.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    asked = {"resourceVersion": version}
    with api.watch(CONFIG_MAPS, deadline_seconds=20, **asked) as events:
        api.create(CONFIG_MAPS, {"metadata": {"name": "watched"}})
        api.delete(f"{CONFIG_MAPS}/watched")
        seen = [(next(events)["type"]), (next(events)["type"])]
    assert seen == ["ADDED", "DELETED"]


def test_a_node_reads_the_secrets_of_its_pods_only(
    control_plane: ControlPlane, node: ClusterApi
) -> None:
    for name in ("mine", "other"):
        control_plane.api.create(SECRETS, {"metadata": {"name": name}, "stringData": {"k": name}})
    control_plane.api.create(PODS, _pod_with_secret("bound", "a", "mine"))

    def may_read() -> bool:
        try:
            node.get(f"{SECRETS}/mine")
        except RefusedError:
            return False
        return True

    # The authorizer learns of the binding by a watch of its own.
    wait_until(may_read, deadline_seconds=10, else_say=lambda: "the node may not read its secret")
    with pytest.raises(RefusedError, match="403 Forbidden"):
        node.get(f"{SECRETS}/other")
    with pytest.raises(RefusedError, match="403 Forbidden"):
        node.get(SECRETS)
    control_plane.api.delete(f"{PODS}/bound", grace_seconds=0)
    for name in ("mine", "other"):
        control_plane.api.delete(f"{SECRETS}/{name}")


def test_a_node_changes_nothing_of_another_node(
    control_plane: ControlPlane, node: ClusterApi
) -> None:
    control_plane.api.create(NODES, {"metadata": {"name": "b"}})
    node.patch(f"{NODES}/a/status", {"status": {"nodeInfo": {"machineID": "1"}}})
    with pytest.raises(RefusedError, match="403 Forbidden"):
        node.patch(f"{NODES}/b/status", {"status": {"nodeInfo": {"machineID": "1"}}})
    with pytest.raises(RefusedError, match="403 Forbidden"):
        node.patch(f"{NODES}/a", {"metadata": {"labels": {"node-restriction.kubernetes.io/x": ""}}})
    control_plane.api.delete(f"{NODES}/b")


def test_a_node_deletes_the_slices_of_its_own_drivers_alone(
    control_plane: ControlPlane, node: ClusterApi
) -> None:
    for owner in ("a", "b"):
        for driver in ("gone", "stays"):
            name = f"{owner}-{driver}"
            pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": "device"}]
            spec = {"driver": driver, "nodeName": owner, "pool": pool, "devices": devices}
            control_plane.api.create(SLICES, {"metadata": {"name": name}, "spec": spec})
    for fields in ("spec.nodeName=b,spec.driver=gone", "spec.driver=gone"):
        with pytest.raises(RefusedError, match="403 Forbidden"):
            node.delete(f"{SLICES}?{urlencode({'fieldSelector': fields})}")
    left = []
    for fields in ("spec.driver=gone", "spec.driver!=stays,spec.driver!=other", "spec.driver!=x"):
        selector = urlencode({"fieldSelector": f"spec.nodeName=a,{fields}"})
        node.delete(f"{SLICES}?{selector}")
        found = control_plane.api.get(SLICES)["items"]
        left.append(sorted(each["metadata"]["name"] for each in found))
    others = ["b-gone", "b-stays"]
    assert left == [["a-stays", *others], ["a-stays", *others], others]
    for name in others:
        control_plane.api.delete(f"{SLICES}/{name}")


def test_a_request_with_the_bootstrap_token_is_approved_and_signed(
    control_plane: ControlPlane,
) -> None:
    newcomer = control_plane.client(token=BOOTSTRAP_TOKEN)
    key = ec.generate_private_key(ec.SECP256R1())
    newcomer.create(REQUESTS, _certificate_request("joining", "newcomer", key))
    signed = newcomer.wait_for(
        f"{REQUESTS}/joining", lambda seen: seen.get("status", {}).get("certificate")
    )
    assert [each["type"] for each in signed["status"]["conditions"]] == ["Approved"]
    pair = KeyPair(_pem(key), b64decode(signed["status"]["certificate"]))
    node = control_plane.client(pair)
    assert node.create(NODES, {"metadata": {"name": "newcomer"}})["metadata"]["uid"]
    control_plane.api.delete(f"{NODES}/newcomer")
    control_plane.api.delete(f"{REQUESTS}/joining")


def test_nobody_gets_in_without_credentials(control_plane: ControlPlane) -> None:
    with pytest.raises(RefusedError, match="403 Forbidden"):
        control_plane.client().get(NODES)
    with pytest.raises(RefusedError, match="401 Unauthorized"):
        control_plane.client(token="lab000.ffffffffffffffff").get(NODES)


def test_nothing_of_a_control_plane_outlives_its_owner(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from lab.control_plane import ControlPlane\n"
        "ControlPlane(pathlib.Path(sys.argv[1]), version=sys.argv[2]).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.run(
        [sys.executable, "-c", script, tmp_path, control_plane.wish],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert owner.returncode == -signal.SIGKILL, owner.stderr

    def left() -> list[int]:
        return [
            pid
            for pid, argv in command_lines()
            if any(str(tmp_path) in word for word in argv) and pid != os.getpid() and alive(pid)
        ]

    wait_until(lambda: not left(), deadline_seconds=10, else_say=lambda: f"{left()} still run")


def _pod_with_secret(name: str, node: str, secret: str) -> Json:
    container = {"name": "c", "image": "none", "envFrom": [{"secretRef": {"name": secret}}]}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}


def _certificate_request(name: str, node: str, key: ec.EllipticCurvePrivateKey) -> Json:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return {
        "metadata": {"name": name},
        "spec": {
            "request": b64encode(pem).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
