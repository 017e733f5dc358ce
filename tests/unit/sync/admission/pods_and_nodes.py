"""Pods and nodes for the tests of admission, made from what matters of them."""

from collections.abc import Callable, Mapping
from typing import Any

from trio_kubelet.k8s import Node, Pod, Quantity
from trio_kubelet.k8s.codec import decode
from trio_kubelet.sync.admission import Admission


def make_pod(
    name: str = "p",
    *,
    requests: Mapping[str, str] | None = None,
    static: bool = False,
    priority: int | None = None,
    limited: bool = False,
    labels: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of one container; `limited` makes its limits its requests, `spec` is as on the wire."""
    resources = {"requests": requests or {}, "limits": (requests or {}) if limited else {}}
    annotations = {"kubernetes.io/config.source": "file"} if static else {}
    return decode(
        Pod,
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-{name}",
                "annotations": annotations,
                "labels": labels or {},
            },
            "spec": {
                "containers": [{"name": "c", "resources": resources}],
                "priority": priority,
                **spec,
            },
            "status": status or {},
        },
    )


def make_node(
    *,
    labels: Mapping[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    allocatable: Mapping[str, str] | None = None,
    **status: Any,
) -> Node:
    """A node of the name `here`."""
    return decode(
        Node,
        {
            "metadata": {"name": "here", "labels": labels or {}},
            "spec": {"taints": taints or []},
            "status": {"allocatable": allocatable or {}, **status},
        },
    )


def make_admission(
    node: Node | Callable[[], Node | None] | None = None, **options: Any
) -> Admission:
    """Admission of a node that has 2 CPUs and 1 GiB for 3 pods; `node` may be one that changes."""
    known = {"cpu": Quantity("2"), "memory": Quantity("1Gi")}
    return Admission(
        max_pods=3,
        allocatable=lambda: known,
        node=node if callable(node) else lambda: node,
        **options,
    )
