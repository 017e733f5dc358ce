"""The source of a pod: the annotations that a node agent puts on pods, and what they say.

The API's types are not imported: commands that know an annotation start in half the time.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trio_kubelet.k8s import Pod

CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"

LOCAL_ANNOTATIONS = frozenset({CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR})
"""Written on this node: a change in them is no change of the pod."""

SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
"""From here on no user's priority class goes."""

_SYSTEM_PRIORITIES = {
    "system-node-critical": SYSTEM_CRITICAL_PRIORITY + 1000,
    "system-cluster-critical": SYSTEM_CRITICAL_PRIORITY,
}
"""The classes that each cluster has: a manifest on the node may name one, and no number."""

_SECOND_NS = 1_000_000_000


class Source(StrEnum):
    """The sources of pods, as in the annotation `kubernetes.io/config.source`."""

    API = "api"
    FILE = "file"
    HTTP = "http"


def source_of(pod: "Pod") -> str:
    """Return the source that gave the pod: that of a pod without a word about it is the API."""
    return pod.metadata.annotations.get(CONFIG_SOURCE, Source.API)


def is_static(pod: "Pod") -> bool:
    """True if the pod came from a file or a URL and not from the API server."""
    return source_of(pod) != Source.API


def is_critical(pod: "Pod") -> bool:
    """True if the node should rather lose any other pod: static, a mirror, or by its priority."""
    if is_static(pod) or CONFIG_MIRROR in pod.metadata.annotations:
        return True
    return (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


def priority_of(pod: "Pod") -> int:
    """Return the priority of a pod; a class without a number is one of the system's."""
    if pod.spec.priority is not None:
        return pod.spec.priority
    return _SYSTEM_PRIORITIES.get(pod.spec.priority_class_name, 0)


def priority_order(pod: "Pod") -> tuple[int, bool]:
    """Return the sort key of pods that are to start: by priority, static ones before others.

    So a node that has booted has its network and its DNS before what needs them.
    """
    return -priority_of(pod), not is_static(pod)


def creation_order(pod: "Pod") -> tuple[int, str, str]:
    """Return the sort key of pods that arrive together, which is the same after a restart."""
    created = pod.metadata.creation_timestamp
    return (created.ns if created else 0, pod.metadata.namespace, pod.metadata.name)


def rfc3339_nanoseconds(ns: int) -> str:
    """Write nanoseconds since the epoch as RFC 3339 in UTC, without trailing zeros."""
    moment = datetime.fromtimestamp(ns // _SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{ns % _SECOND_NS:09d}".rstrip("0")
    return f"{moment}.{fraction}Z" if fraction else f"{moment}Z"
