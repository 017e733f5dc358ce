"""The annotations that a node agent puts on pods, and their text."""

from datetime import UTC, datetime
from enum import StrEnum

CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"

LOCAL_ANNOTATIONS = frozenset({CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR})
"""Written on this node: a change in them is no change of the pod."""

_SECOND_NS = 1_000_000_000


class Source(StrEnum):
    """Where pods come from, as in the annotation `kubernetes.io/config.source`."""

    API = "api"
    FILE = "file"
    HTTP = "http"


def rfc3339_nanoseconds(ns: int) -> str:
    """Write nanoseconds since the epoch as RFC 3339 in UTC, without trailing zeros."""
    moment = datetime.fromtimestamp(ns // _SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{ns % _SECOND_NS:09d}".rstrip("0")
    return f"{moment}.{fraction}Z" if fraction else f"{moment}Z"
