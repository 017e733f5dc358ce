"""Two hundred manifests that are no pods, each with the words that its report must have.

Three kinds: a good manifest in which one value is of a wrong type (chosen by a fixed seed), one
in which a value is not allowed (by hand), and text that is no manifest at all.
"""

import copy
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attrs import frozen

SEED = 20260727
WRONG_TYPES = 120

Path = tuple[str | int, ...]


@frozen
class BadManifest:
    """The text of a file, and what its report must say beside the name of the file."""

    text: bytes
    words: str


GOOD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "good", "namespace": "default", "labels": {"tier": "front"}},
    "spec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "activeDeadlineSeconds": 600,
        "hostNetwork": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"], "options": [{"name": "ndots", "value": "2"}]},
        "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["friend"]}],
        "securityContext": {"runAsUser": 1000, "sysctls": [{"name": "a.b", "value": "1"}]},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "volumes": [
            {"name": "data", "emptyDir": {"medium": "Memory"}},
            {"name": "host", "hostPath": {"path": "/srv", "type": "Directory"}},
        ],
        "initContainers": [
            {"name": "init", "image": "example.com/init:1", "command": ["true"]},
        ],
        "containers": [
            {
                "name": "app",
                "image": "example.com/app:1",
                "imagePullPolicy": "IfNotPresent",
                "args": ["run"],
                "tty": False,
                "workingDir": "/srv",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "name": "w"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                "livenessProbe": {
                    "httpGet": {"path": "/", "port": 80},
                    "periodSeconds": 10,
                },
                "securityContext": {
                    "privileged": False,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
    },
}

NOT_ALLOWED: tuple[tuple[Path, Any, str], ...] = (
    (("kind",), "Deployment", "kind: Invalid value"),
    (("apiVersion",), "v2", "apiVersion: Invalid value"),
    (("metadata", "name"), "", "metadata.name: Required value"),
    (("metadata", "name"), "UPPER", "metadata.name: Invalid value"),
    (("metadata", "name"), "a" * 300, "metadata.name: Invalid value"),
    (("metadata", "name"), "../escape", "metadata.name: Invalid value"),
    (("metadata", "namespace"), "not/one", "metadata.namespace: Invalid value"),
    (("metadata", "uid"), "../../etc", "metadata.uid: Invalid value"),
    (("metadata", "labels"), {"-": "x"}, "metadata.labels: Invalid value"),
    (("metadata", "annotations"), {"a b": "x"}, "metadata.annotations: Invalid value"),
    (("spec",), {}, "spec.containers: Required value"),
    (("spec", "containers"), [], "spec.containers: Required value"),
    (("spec", "restartPolicy"), "Sometimes", "spec.restartPolicy: Unsupported value"),
    (("spec", "dnsPolicy"), "Best", "spec.dnsPolicy: Unsupported value"),
    (("spec", "terminationGracePeriodSeconds"), -1, "spec.terminationGracePeriodSeconds: Invalid"),
    (("spec", "activeDeadlineSeconds"), 0, "spec.activeDeadlineSeconds: Invalid value"),
    (("spec", "hostname"), "no good", "spec.hostname: Invalid value"),
    (("spec", "hostAliases", 0, "ip"), "300.0.0.1", "spec.hostAliases[0].ip: Invalid value"),
    (("spec", "dnsConfig", "nameservers", 0), "x", "spec.dnsConfig.nameservers[0]: Invalid value"),
    (("spec", "securityContext", "runAsUser"), -2, "spec.securityContext.runAsUser: Invalid"),
    (("spec", "volumes", 0, "name"), "", "spec.volumes[0].name: Required value"),
    (("spec", "volumes", 1, "name"), "data", "spec.volumes[1].name: Duplicate value"),
    (("spec", "volumes", 1, "hostPath", "path"), "", "spec.volumes[1].hostPath.path: Required"),
    (("spec", "volumes", 1, "hostPath", "type"), "Hole", "spec.volumes[1].hostPath.type: Unsupp"),
    (("spec", "volumes", 1), {"name": "v", "secret": {"secretName": "s"}}, "spec.volumes[1]"),
    (("spec", "serviceAccountName"), "builder", "spec.serviceAccountName"),
    (("spec", "containers", 0, "name"), "", "spec.containers[0].name: Required value"),
    (("spec", "containers", 0, "name"), "init", "spec.initContainers[0].name: Duplicate value"),
    (("spec", "containers", 0, "name"), "No_Good", "spec.containers[0].name: Invalid value"),
    (("spec", "containers", 0, "image"), "", "spec.containers[0].image: Required value"),
    (("spec", "containers", 0, "image"), " padded ", "spec.containers[0].image: Invalid value"),
    (("spec", "containers", 0, "imagePullPolicy"), "X", "spec.containers[0].imagePullPolicy: Un"),
    (
        ("spec", "containers", 0, "ports", 0, "containerPort"),
        70000,
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and",
    ),
    (("spec", "containers", 0, "ports", 0, "hostPort"), -1, "spec.containers[0].ports[0].hostPort"),
    (("spec", "containers", 0, "ports", 0, "protocol"), "X", "spec.containers[0].ports[0].protoc"),
    (("spec", "containers", 0, "ports", 0, "name"), "W_W", "spec.containers[0].ports[0].name: Inv"),
    (("spec", "containers", 0, "env", 0, "name"), "", "spec.containers[0].env[0].name: Required"),
    (
        ("spec", "containers", 0, "env", 1, "valueFrom", "fieldRef", "fieldPath"),
        "spec.nothing",
        "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: ",
    ),
    (
        ("spec", "containers", 0, "env", 1, "valueFrom"),
        {"secretKeyRef": {"name": "s", "key": "k"}},
        "spec.containers[0].env[1].valueFrom.secretKeyRef",
    ),
    (
        ("spec", "containers", 0, "volumeMounts", 0, "name"),
        "nothing",
        "spec.containers[0].volumeMounts[0].name: Not found",
    ),
    (
        ("spec", "containers", 0, "volumeMounts", 0, "mountPath"),
        "",
        "spec.containers[0].volumeMounts[0].mountPath: Required value",
    ),
    (
        ("spec", "containers", 0, "volumeMounts", 0, "subPath"),
        "../up",
        "spec.containers[0].volumeMounts[0].subPath: Invalid value",
    ),
    (
        ("spec", "containers", 0, "resources"),
        {"limits": {"memory": "-1"}},
        "spec.containers[0].resources.limits[memory]: Invalid value",
    ),
    (
        ("spec", "containers", 0, "resources"),
        {"limits": {"memory": "1"}, "requests": {"memory": "2"}},
        "spec.containers[0].resources.requests: Invalid value",
    ),
    (
        ("spec", "containers", 0, "resources"),
        {"limits": {"memory": "much"}},
        "spec.containers[0].resources.limits[memory]",
    ),
    (
        ("spec", "containers", 0, "livenessProbe"),
        {"periodSeconds": 10},
        "spec.containers[0].livenessProbe: Required value",
    ),
    (
        ("spec", "containers", 0, "livenessProbe", "periodSeconds"),
        -1,
        "spec.containers[0].livenessProbe.periodSeconds: Invalid value",
    ),
    (
        ("spec", "containers", 0, "lifecycle", "preStop"),
        {},
        "spec.containers[0].lifecycle.preStop: Required value",
    ),
    (
        ("spec", "containers", 0, "securityContext", "procMount"),
        "Half",
        "spec.containers[0].securityContext.procMount: ",
    ),
    (
        ("spec", "containers", 0, "securityContext", "seccompProfile", "type"),
        "Some",
        "spec.containers[0].securityContext.seccompProfile.type: Unsupported value",
    ),
)

NO_MANIFESTS: tuple[tuple[bytes, str], ...] = (
    (b"", "there is no pod in it"),
    (b"\n\n# nothing but a comment\n", "there is no pod in it"),
    (b"---\n---\n", "there is no pod in it"),
    (b"just some words", ""),
    (b"[1, 2, 3]", ""),
    (b"42", ""),
    (b"null", ""),
    (b"{", ""),
    (b"{]", ""),
    (b'{"kind": "Pod",}}', ""),
    (b"kind: Pod\n\tapiVersion: v1", ""),
    (b"a: [unclosed", ""),
    (b"a: 'unclosed", ""),
    (b"a: &b *b", ""),
    (b"*alias", ""),
    (b"a: !!python/object:os.system x", ""),
    (b"\x00\x01\x02\x03", ""),
    (b"\xff\xfe\xfd", ""),
    (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ""),
    (b"\x7fELF" + bytes(2000), ""),
    (b"{" * 5000, ""),
    (b"[" * 5000, ""),
    (b"- " * 5000, ""),
    (b"kind: Pod\nkind: Pod\n", ""),
    (b"apiVersion: v1\nkind: PodList\nitems: [1]\n", "items[0]"),
    (b"apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "kind: Invalid value"),
    (b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a]\nc: [*b,*b,*b]\n", "kind"),
    (b" " * ((10 << 20) + 1), "larger than 10 MiB"),
    (b"? {complex: key}\n: value\n", ""),
    (b"%YAML 9.9\n---\na: b\n", ""),
)


def bad_manifests() -> tuple[BadManifest, ...]:
    """All of them, the same at each call."""
    texts = [BadManifest(text, words) for text, words in NO_MANIFESTS]
    not_allowed = [
        BadManifest(_text(_with(path, value)), words) for path, value, words in NOT_ALLOWED
    ]
    return (*texts, *not_allowed, *_of_wrong_types())


def _of_wrong_types() -> Iterator[BadManifest]:
    """Good manifests in which one value is of a type that it cannot have."""
    chance = random.Random(SEED)
    places = [(path, value) for path, value in _places(GOOD) if len(path) > 1]
    twice = chance.sample(places, len(places)) * 2
    for path, value in twice[:WRONG_TYPES]:
        wrong = chance.choice(_wrong_values(value))
        yield BadManifest(_text(_with(path, wrong)), _in_words(path))


def _wrong_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return "perhaps", 17, {"a": True}, [True]
    if isinstance(value, int):
        return "many words", {"a": 1}, [1], 0.5
    if isinstance(value, str):
        return {"a": "b"}, ["text"]
    if isinstance(value, list):
        return "text", 17, {"a": "b"}
    return "text", 17, ["text"]


def _places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _places(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _places(part, (*path, index))


def _with(path: Path, value: Any) -> Any:
    document = copy.deepcopy(GOOD)
    parent: Any = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    return document


def _in_words(path: Path) -> str:
    """A path as errors name it; entries of maps that users fill stand in brackets."""
    words = str(path[0])
    for before, step in pairwise(path):
        words += f"[{step}]" if isinstance(step, int) or before == "labels" else f".{step}"
    return words


def _text(document: Any) -> bytes:
    return json.dumps(document).encode()
