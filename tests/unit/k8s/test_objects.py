"""Objects besides the pod, as an API server writes them."""

import base64
from typing import Any

import pytest

from trio_kubelet.k8s import (
    ApiStatus,
    CertificateSigningRequest,
    ClusterTrustBundle,
    ConfigMap,
    Event,
    Lease,
    MicroTime,
    Node,
    PartialObjectMetadata,
    Quantity,
    RuntimeClass,
    Secret,
    Service,
    TokenRequest,
)
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.codec import decode, encode, unknown_fields


def text(plain: bytes) -> str:
    return base64.b64encode(plain).decode()


WRITTEN: list[tuple[type[ApiType], dict[str, Any]]] = [
    (
        Node,
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a", "labels": {"kubernetes.io/os": "linux"}},
            "spec": {
                "podCIDR": "10.0.0.0/24",
                "podCIDRs": ["10.0.0.0/24"],
                "providerID": "cloud://a",
                "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
            },
            "status": {
                "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "lastHeartbeatTime": "2026-01-31T12:00:00Z",
                        "lastTransitionTime": "2026-01-31T11:00:00Z",
                        "reason": "KubeletReady",
                        "message": "kubelet is posting ready status",
                    }
                ],
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {
                    "machineID": "m",
                    "systemUUID": "s",
                    "bootID": "b",
                    "kernelVersion": "6.1",
                    "osImage": "Debian",
                    "containerRuntimeVersion": "containerd://2.1.9",
                    "kubeletVersion": "v1.36.2",
                    "kubeProxyVersion": "",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                    "swap": {"capacity": 0},
                },
                "images": [{"names": ["busybox:1"], "sizeBytes": 4_000_000_000}],
                "volumesInUse": ["kubernetes.io/csi/d^v"],
                "volumesAttached": [{"name": "kubernetes.io/csi/d^v", "devicePath": ""}],
                "runtimeHandlers": [
                    {"name": "runc", "features": {"recursiveReadOnlyMounts": True}}
                ],
                "features": {"supplementalGroupsPolicy": True},
                "declaredFeatures": ["GuaranteedQoSPodCPUResize"],
            },
        },
    ),
    (
        Lease,
        {
            "metadata": {"name": "a", "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 40,
                "renewTime": "2026-01-31T12:00:00.123456Z",
            },
        },
    ),
    (
        Event,
        {
            "metadata": {"name": "web.17", "namespace": "shop"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{a}"},
            "reason": "Started",
            "message": "Container started",
            "source": {"component": "kubelet", "host": "a"},
            "firstTimestamp": "2026-01-31T12:00:00Z",
            "count": 3,
            "type": "Normal",
            "series": {"count": 2, "lastObservedTime": "2026-01-31T12:00:00.000001Z"},
            "reportingComponent": "kubelet",
            "reportingInstance": "a",
        },
    ),
    (Secret, {"type": "Opaque", "data": {"key": text(b"\x00\xff")}, "immutable": True}),
    (ConfigMap, {"data": {"a": "b"}, "binaryData": {"c": text(b"\x80")}}),
    (
        Service,
        {
            "spec": {
                "clusterIP": "10.96.0.10",
                "clusterIPs": ["10.96.0.10"],
                "ports": [{"name": "dns", "protocol": "UDP", "port": 53, "targetPort": "dns"}],
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}},
        },
    ),
    (
        RuntimeClass,
        {
            "handler": "kata",
            "overhead": {"podFixed": {"memory": "120Mi"}},
            "scheduling": {"nodeSelector": {"kata": "true"}},
        },
    ),
    (
        CertificateSigningRequest,
        {
            "spec": {
                "request": text(b"-----BEGIN"),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["client auth"],
                "extra": {"node": ["a", "b"]},
            },
            "status": {
                "conditions": [{"type": "Approved", "status": "True"}],
                "certificate": text(b"-----BEGIN"),
            },
        },
    ),
    (ClusterTrustBundle, {"spec": {"signerName": "example.org/one", "trustBundle": "-----"}}),
    (
        TokenRequest,
        {
            "spec": {
                "audiences": ["api"],
                "expirationSeconds": 3607,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "w", "uid": "u"},
            },
            "status": {"token": "x.y.z", "expirationTimestamp": "2026-01-31T13:00:00Z"},
        },
    ),
    (
        ApiStatus,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "TooManyRequests",
            "code": 429,
            "details": {
                "kind": "pods",
                "name": "web",
                "retryAfterSeconds": 1,
                "causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.x"}],
            },
        },
    ),
]


@pytest.mark.parametrize(("cls", "data"), WRITTEN, ids=[cls.__name__ for cls, _ in WRITTEN])
def test_an_object_is_read_whole_and_written_as_it_came(
    cls: type[ApiType], data: dict[str, Any]
) -> None:
    assert unknown_fields(cls, data) == ()
    assert encode(decode(cls, data)) == data


def test_bytes_are_bytes_once_read() -> None:
    assert decode(Secret, {"data": {"key": "AP8="}}).data == {"key": b"\x00\xff"}
    assert decode(ConfigMap, {"binaryData": {"key": "AP8="}}).binary_data == {"key": b"\x00\xff"}


def test_amounts_and_times_are_values() -> None:
    node = decode(Node, {"status": {"allocatable": {"memory": "8Gi"}}})
    assert node.status.allocatable["memory"] == Quantity("8589934592")
    lease = decode(Lease, {"spec": {"renewTime": "2026-01-31T12:00:00.1Z"}})
    assert lease.spec.renew_time == MicroTime.parse("2026-01-31T12:00:00.100000Z")


def test_what_a_secret_holds_shows_in_no_repr() -> None:
    secret = decode(Secret, {"metadata": {"name": "s"}, "data": {"password": text(b"hunter2")}})
    assert "hunter2" not in repr(secret)
    assert "data=..." in repr(secret)
    token = decode(TokenRequest, {"status": {"token": "x.y.z"}})
    assert "x.y.z" not in repr(token)


def test_the_metadata_of_any_object_can_be_read_alone() -> None:
    data = {"kind": "Whatever", "metadata": {"name": "a"}, "spec": {"anything": 1}}
    assert decode(PartialObjectMetadata, data).metadata.name == "a"
