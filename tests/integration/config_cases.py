"""Pods and the configs that a runtime must have stored for them.

`configs/NN-name.yaml` is a pod, its comments are the rules that it is there for, each with its
source. `NN-name.json` says how its configs differ from `base.json`, as a JSON merge patch
(RFC 7386); names and values are those of CRI's messages as Go's JSON encoder writes them, which
is how containerd shows a stored config. `<words>` stand for what differs from run to run.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import betterproto
from attrs import evolve, field, frozen

from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.documents import load_documents
from trio_kubelet.resources.cgroup_files import page_size
from trio_kubelet.rpc import is_present
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.node_facts import NodeFacts

FOLDER = Path(__file__).parent / "configs"
NEEDS = re.compile(r"^# needs: (.+)$", re.MULTILINE)

# Names that betterproto could not keep.
WIRE_NAMES = {
    "uid_mappings": "uidMappings",
    "gid_mappings": "gidMappings",
    "cdi_devices": "CDI_devices",
}

PLACEHOLDERS = {
    "<anything>": ".*",
    "<time>": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "<8 hex digits>": "[0-9a-f]{8}",
    "<image id>": "sha256:[0-9a-f]{64}",
}


@frozen(kw_only=True)
class Case:
    """One pod. `needs` names what a host must have for it to run, if it is out of the ordinary."""

    name: str
    pod: Pod
    needs: str
    sandbox: Mapping[str, Any]
    containers: Mapping[str, Mapping[str, Any]]


@frozen(kw_only=True)
class Surroundings:
    """What a pod's configs depend on beside the pod: the `<words>` of the expected files.

    `volumes` maps the names of the volumes that the node makes to their places, `sub_paths`
    pairs of volume and sub-path to theirs.
    """

    node: NodeFacts
    node_name: str
    pod_ip: str
    volumes: Mapping[str, str] = field(factory=dict)
    sub_paths: Mapping[tuple[str, str], str] = field(factory=dict)

    def words(self, pod: Pod) -> Iterator[tuple[str, str]]:
        """Each word with what it stands for in the configs of this pod."""
        yield "<name>", pod.metadata.name
        yield "<uid>", pod.metadata.uid
        yield "<root>", self.node.settings.options.root_dir
        yield "<logs>", self.node.configuration.pod_logs_dir
        yield "<cgroups>", self.node.configuration.cgroup_root.rstrip("/")
        yield "<node>", self.node_name
        yield "<host ip>", self.node.host_ips[0]
        yield "<pod ip>", self.node.host_ips[0] if pod.spec.host_network else self.pod_ip
        for volume, place in self.volumes.items():
            yield f"<volume {volume}>", place
        for (volume, sub_path), place in self.sub_paths.items():
            yield f"<sub-path {volume} {sub_path}>", place


def load_cases() -> tuple[Case, ...]:
    """All cases, by name."""
    base = json.loads((FOLDER / "base.json").read_bytes())
    return tuple(_load(manifest, base) for manifest in sorted(FOLDER.glob("*.yaml")))


def static(pod: Pod, node_name: str) -> Pod:
    """The pod as a manifest in a folder gives it to the node, its name unchanged."""
    annotations = {
        "kubernetes.io/config.hash": pod.metadata.uid,
        "kubernetes.io/config.seen": "2026-01-02T03:04:05.123456789Z",
        "kubernetes.io/config.source": "file",
    }
    metadata = evolve(
        pod.metadata,
        namespace=pod.metadata.namespace or "default",
        annotations={**pod.metadata.annotations, **annotations},
    )
    return evolve(pod, metadata=metadata, spec=evolve(pod.spec, node_name=node_name))


def expected_sandbox(case: Case, pod: Pod, surroundings: Surroundings) -> Any:
    """The config of the sandbox, `<words>` that are known replaced."""
    node = surroundings.node
    config = _filled(case.sandbox, dict(surroundings.words(pod)))
    if node.cgroup_v2:
        for resources in (config["linux"]["resources"], config["linux"]["overhead"]):
            if resources:
                resources["unified"] = {"memory.oom.group": "1"}
    return config


def expected_container(
    case: Case, pod: Pod, container: Container, surroundings: Surroundings
) -> Any:
    """The config of a container, `<words>` that are known replaced.

    What depends on the kernel alone is put in here: huge pages have a limit of 0 each, and no
    container may swap.
    """
    node = surroundings.node
    words = {
        **dict(surroundings.words(pod)),
        "<container>": container.name,
        "<image>": container.image,
        "<hash>": container_hash(container),
    }
    config = _filled(case.containers[container.name], words)
    resources = config["linux"]["resources"]
    resources["oom_score_adj"] = _oom_score_adj(resources["oom_score_adj"], node)
    if node.hugepage_sizes:
        resources["hugepage_limits"] = [
            {"page_size": page_size(size)} for size in node.hugepage_sizes
        ]
    if node.cgroup_v2:
        resources["unified"] = {"memory.oom.group": "1"}
        if node.swap_controller:
            resources["unified"]["memory.swap.max"] = "0"
    elif node.swap_controller and "memory_limit_in_bytes" in resources:
        resources["memory_swap_limit_in_bytes"] = resources["memory_limit_in_bytes"]
    masked = config["linux"]["security_context"].get("masked_paths")
    if masked:
        masked.extend(node.thermal_throttle_paths)
    return config


def as_json(message: Any) -> dict[str, Any]:
    """The message as Go's JSON encoder writes CRI's structs.

    Fields by their names in the contract, enums as numbers, what is zero or empty left out;
    only a message that is there stays though it be empty.
    """
    fields: dict[str, Any] = {}
    for python_name in (attribute.name for attribute in dataclasses.fields(message)):
        value = getattr(message, python_name)
        name = WIRE_NAMES.get(python_name, python_name)
        if isinstance(value, betterproto.Message):
            if is_present(value):
                fields[name] = as_json(value)
        elif value:
            fields[name] = _plain(value)
    return fields


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """One line for each key that is missing, unexpected or of another value."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            where = f"{path}.{key}".lstrip(".")
            if key not in actual:
                yield f"{where}: missing, expected {expected[key]!r}"
            elif key not in expected:
                yield f"{where}: unexpected {actual[key]!r}"
            else:
                yield from differences(expected[key], actual[key], where)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for position, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{path}[{position}]")
    elif not _fits(expected, actual):
        yield f"{path}: {actual!r}, expected {expected!r}"


def _load(manifest: Path, base: Mapping[str, Any]) -> Case:
    text = manifest.read_text()
    (document,) = load_documents(text.encode())
    needs = NEEDS.search(text)
    patches = json.loads(manifest.with_suffix(".json").read_bytes())
    return Case(
        name=manifest.stem,
        pod=with_defaults(decode(Pod, document)),
        needs=needs[1] if needs else "",
        sandbox=_merged(base["sandbox"], patches.get("sandbox", {})),
        containers={
            name: _merged(base["container"], patch) for name, patch in patches["containers"].items()
        },
    )


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects are merged, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(part, words) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, words) for part in value]
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace(word, meaning)
    return value


def _oom_score_adj(expected: int | str, node: NodeFacts) -> int:
    """`<burstable REQUEST>` by the rule in the documentation of node-pressure eviction."""
    if isinstance(expected, int):
        return expected
    request = int(expected.removeprefix("<burstable ").removesuffix(">"))
    return min(max(3, 1000 - (1000 * request) // node.memory_capacity_bytes), 999)


def _plain(value: Any) -> Any:
    if isinstance(value, betterproto.Message):
        return as_json(value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool | str):
        return value
    return int(value)


def _fits(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, str) or not isinstance(actual, str):
        return bool(expected == actual)
    pattern = re.escape(expected)
    for word, meaning in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(word), meaning)
    return re.fullmatch(pattern, actual, re.DOTALL) is not None
