"""From the bytes of an answer to objects: single ones, lists, frames of a watch.

One object that does not fit its class must not take the others with it: it becomes an
`UndecodableObject`, named in the log. A watch is a stream of JSON documents, one a line; a chunk of
the stream may hold several, or a part of one.

Each version of a pod has its whole spec, which hardly ever changes and may have 300,000 parts: it
is decoded once.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from types import NoneType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import orjson
import structlog
from attrs import evolve

from trio_kubelet.foreign_text import spelled_out
from trio_kubelet.k8s import Pod, PodSpec
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import (
    Frame,
    FrameHead,
    FrameType,
    ListPage,
    UndecodableObject,
    metadata_of,
)
from trio_kubelet.k8s.client.errors import UNREADABLE, ApiError, error_from_status
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.errors import ValidationError
from trio_kubelet.k8s.json_text import dumps, loads
from trio_kubelet.k8s.kinds import Kind

T = TypeVar("T", bound=ApiType)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark that ends the first part of a streaming list."""

log = structlog.get_logger()

_specs: WeakValueDictionary[bytes, PodSpec] = WeakValueDictionary()
"""The specs that somebody still has, by digests of their JSON."""


def read_json(body: bytes, request_name: str) -> dict[str, Any]:
    """Parse an answer that must be a JSON object; raises ApiError."""
    try:
        data = loads(body)
    except ValueError as error:
        raise ApiError(
            200, UNREADABLE, f"{request_name}: the answer is not JSON: {error}"
        ) from None
    if not isinstance(data, dict):
        raise ApiError(200, UNREADABLE, f"{request_name}: the answer is not an object")
    return data


def read_object(cls: type[T], body: bytes, request_name: str, *, name: str = "") -> T:
    """Decode an answer that is one object, of that name if one is given; raises ApiError."""
    data = read_json(body, request_name)
    _lighten(data)
    try:
        found = _decoded(cls, data)
    except ValidationError as error:
        raise ApiError(
            200, UNREADABLE, f"{request_name}: the answer does not fit: {error}"
        ) from None
    if name and _text(_metadata(data), "name") != name:
        raise ApiError(200, UNREADABLE, f"{request_name}: the answer is about something else")
    return found


def read_list(kind: Kind[T], body: bytes, request_name: str) -> ListPage[T]:
    """Decode an answer that must be a list of a kind. Raises ApiError.

    Any other JSON, from a proxy for one, would look like an empty list: nothing is there any more.
    """
    data = read_json(body, request_name)
    items = data.get("items")
    if data.get("kind") != f"{kind.kind}List" or not isinstance(items, list | NoneType):
        raise ApiError(200, UNREADABLE, f"{request_name}: the answer is no {kind.kind}List")
    found = [try_decode(kind, item) for item in items or ()]
    metadata = _metadata(data)
    return ListPage(
        tuple(each for each in found if not isinstance(each, UndecodableObject)),
        _text(metadata, "resourceVersion"),
        _text(metadata, "continue"),
        tuple(each for each in found if isinstance(each, UndecodableObject)),
    )


def try_decode(kind: Kind[T], data: Any) -> T | UndecodableObject:
    """Decode one object of many; what does not fit is logged."""
    if isinstance(data, dict):  # items of a list do not say what they are, objects of a watch do
        data.setdefault("apiVersion", kind.api_version)
        data.setdefault("kind", kind.kind)
        _lighten(data)
        if kind.lighten is not None:
            kind.lighten(data)
    try:
        return _decoded(kind.type, data)
    except ValidationError as error:
        found = _undecodable(data, str(error))
        log.warning(
            "API object is malformed, ignoring it",
            resource=kind.resource,
            object=spelled_out(f"{found.namespace}/{found.name}".lstrip("/")),
            error=found.why,
        )
        return found


def _decoded(cls: type[T], data: Any) -> T:
    """Make an object. Raises ValidationError."""
    if cls is Pod and isinstance(data, dict) and isinstance(data.get("spec"), dict):
        return cast("T", _decoded_pod(data))
    return decode(cls, data)


def _decoded_pod(data: dict[str, Any]) -> Pod:
    """Make a pod, with the spec that was made of the same JSON before.

    Two threads at once may make a spec twice.
    """
    digest = _digest(data["spec"])
    known = _specs.get(digest)
    if known is not None:
        return evolve(decode(Pod, {**data, "spec": None}), spec=known)
    pod = decode(Pod, data)
    if digest:
        _specs[digest] = pod.spec
    return pod


def _digest(spec: dict[str, Any]) -> bytes:
    """The digest of a spec; empty where its text is no Unicode, which no spec may have."""
    try:
        return blake2b(orjson.dumps(spec)).digest()
    except TypeError:
        return b""


def _lighten(data: dict[str, Any]) -> None:
    """Leave out who wrote which field: often half of an object, and nobody here reads it."""
    metadata = data.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)


def write_object(kind: Kind[T], obj: ApiType) -> bytes:
    """Encode what is sent; an object of the kind always says what it is."""
    data = encode(obj)
    if isinstance(obj, kind.type):
        data = {"apiVersion": kind.api_version, "kind": kind.kind, **data}
    return dumps(data)


class FrameReader:
    """Cuts the stream of a watch into its JSON documents."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Return the documents that this chunk completes."""
        head, *lines = chunk.split(b"\n")
        self._rest.append(head)
        for line in lines:
            document = b"".join(self._rest)
            self._rest = [line]
            if document.strip():
                yield document


_HEAD = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{'
    rb'(?:"kind":"\w+","apiVersion":"[\w./-]+",)?"metadata":\{"name":"([^"\\]*)",'
    rb'(?:"generateName":"[^"\\]*",)?(?:"namespace":"([^"\\]*)",)?'
    rb'"uid":"([^"\\]*)","resourceVersion":"(\d+)"',
    re.ASCII,
)
"""The order in which an API server writes; what else an object has follows, its status last."""


def read_head(document: bytes) -> FrameHead | None:
    """Read the beginning of a document; None where all of it has to be read for that."""
    found = _HEAD.match(document)
    if found is None:
        return None
    try:
        type_, name, namespace, uid, version = (part.decode() for part in found.groups(b""))
    except UnicodeDecodeError:
        return None
    return FrameHead(FrameType(type_), version, namespace, name, uid)


def head_of(frame: Frame[T]) -> FrameHead:
    """The head of a frame that was read."""
    if frame.object is None:
        return FrameHead(frame.type, frame.resource_version)
    about = frame.object
    metadata = about if isinstance(about, UndecodableObject) else metadata_of(about)
    return FrameHead(
        frame.type, frame.resource_version, metadata.namespace, metadata.name, metadata.uid
    )


def read_frame(kind: Kind[T], document: bytes, request_name: str) -> Frame[T]:
    """Make the frame of a document; an ERROR frame is raised as ApiError."""
    data = read_json(document, request_name)
    inner = data.get("object")
    frame_name = _text(data, "type")
    if frame_name == "ERROR":
        raise error_from_status(inner if isinstance(inner, Mapping) else {}, 500)
    try:
        frame_type = FrameType(frame_name)
    except ValueError as error:
        raise ApiError(200, UNREADABLE, f"{request_name}: {error}") from None
    metadata = _metadata(inner)
    version = _text(metadata, "resourceVersion")
    if frame_type is not FrameType.BOOKMARK:
        return Frame(frame_type, version, try_decode(kind, inner))
    annotations = metadata.get("annotations")
    ends = isinstance(annotations, Mapping) and annotations.get(INITIAL_EVENTS_END) == "true"
    return Frame(frame_type, version, initial_events_end=ends)


def _undecodable(data: Any, why: str) -> UndecodableObject:
    metadata = _metadata(data)
    return UndecodableObject(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        why=why,
    )


def _metadata(data: Any) -> Mapping[str, Any]:
    metadata = data.get("metadata") if isinstance(data, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _text(metadata: Mapping[str, Any], name: str) -> str:
    value = metadata.get(name)
    return value if isinstance(value, str) else ""
