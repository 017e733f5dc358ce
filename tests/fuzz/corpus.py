"""Good objects to begin from: pods that use most of what a pod can have, and what pods refer to."""

import base64
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_MANIFESTS = Path(__file__).parents[1] / "unit" / "k8s" / "manifests"
CRITICAL = 2_000_001_000

HOOKED = """
apiVersion: v1
kind: Pod
metadata: {name: hooked, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  activeDeadlineSeconds: 30
  hostNetwork: true
  containers:
  - name: c
    image: busybox:1
    ports: [{containerPort: 80, name: web}]
    args: ["$(PASSWORD)"]
    env:
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: bad-secret, key: password, optional: true}}}
    - {name: MODE, valueFrom: {configMapKeyRef: {name: bad-settings, key: mode, optional: true}}}
    lifecycle:
      postStart:
        httpGet: {path: /, port: web, host: 192.0.2.1, httpHeaders: [{name: A, value: b}]}
      preStop: {sleep: {seconds: 1}}
    volumeMounts: [{name: all, mountPath: /all, subPath: s}, {name: host, mountPath: /h}]
  imagePullSecrets: [{name: bad-secret}]
  volumes:
  - name: all
    projected:
      sources:
      - {configMap: {name: bad-settings, optional: true}}
      - {secret: {name: bad-secret, optional: true}}
      - {serviceAccountToken: {path: token}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: host, hostPath: {path: /data, type: DirectoryOrCreate}}
"""

COMPARING = """
apiVersion: v1
kind: Pod
metadata: {name: comparing, namespace: default}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: kubernetes.io/hostname, operator: Gt, values: ["%s"]}
          - {key: kubernetes.io/os, operator: Lt, values: ["5"]}
  tolerations:
  - {key: size, operator: Gt, value: "%s", effect: NoExecute}
  containers: [{name: c, image: "busybox:1"}]
""" % (("9" * 5000,) * 2)

REFERRED: Mapping[str, Document] = {
    "configmaps": {
        "metadata": {"name": "bad-settings", "namespace": "default"},
        "data": {"mode": "fast", "a.txt": "b"},
        "binaryData": {"b": "AAH/"},
    },
    "secrets": {
        "metadata": {"name": "bad-secret", "namespace": "default"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {
            "password": "/w==",
            ".dockerconfigjson": base64.b64encode(
                b'{"auths":{"registry.example.com":{"auth":"dTpw"}}}'
            ).decode(),
        },
    },
    "services": {
        "metadata": {"name": "bad-service", "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.0.9",
            "clusterIPs": ["10.96.0.9"],
            "ports": [{"name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
    },
    "runtimeclasses": {"metadata": {"name": "bad-class"}, "handler": "runc"},
}


def pods() -> list[Document]:
    """Pods of many shapes, as their owners write them."""
    texts = [path.read_text() for path in sorted(_MANIFESTS.glob("*.yaml"))]
    found = [yaml.safe_load(text) for text in (*texts, HOOKED, COMPARING)]
    return [_as_written(document) for document in found]


def _as_written(document: Document) -> Document:
    """Without what only clusters write, and with dates as text."""
    metadata = document["metadata"]
    kept = {
        name: metadata[name]
        for name in ("name", "namespace", "labels", "annotations")
        if name in metadata
    }
    spec = {name: value for name, value in document["spec"].items() if name != "nodeName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def named(document: Any, name: str) -> Any:
    """The document under a name of its own, if it can have one."""
    if isinstance(document, dict) and isinstance(document.get("metadata"), dict):
        document["metadata"]["name"] = name
    return document


def kept_inside(document: Any, root: str) -> Any:
    """The document with all paths on the host below a folder: what is made there goes with it."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            host_path = value.get("hostPath")
            if isinstance(host_path, dict) and isinstance(host_path.get("path"), str):
                host_path["path"] = root + "/" + host_path["path"].replace("..", "")
        if isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return document


def without_host_paths(document: Document) -> Document:
    """The document for changes to its text, which know nothing of paths."""
    copy = deepcopy(document)
    spec = copy["spec"]
    spec["volumes"] = [each for each in spec.get("volumes", ()) if "hostPath" not in each]
    return copy


def pod_list(items: list[Any]) -> Document:
    """A manifest of several pods."""
    return {"apiVersion": "v1", "kind": "PodList", "items": items}


def good_pod(name: str) -> Document:
    """A pod that is to run undisturbed, whatever else comes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "good"},
        "spec": {
            "priority": CRITICAL,
            "priorityClassName": "system-node-critical",
            "containers": [{"name": "c", "image": "good.example.com/app:1"}],
            "terminationGracePeriodSeconds": 1,
        },
    }
