"""What becomes of a manifest's text on the way to a static pod.

A static pod is named after its node, is bound to it, tolerates every NoExecute taint (from a
file) and begins as Pending. Marks that only an agent may set are taken off. The document is then
defaulted and validated as the API server would do it, and may not refer to API objects.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from attrs import evolve

from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec, PodStatus, Toleration
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.errors import ErrorKind, FieldError, ValidationError
from trio_kubelet.k8s.validation import validate_pod
from trio_kubelet.pod_source import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    CONFIG_SEEN,
    CONFIG_SOURCE,
    Source,
)
from trio_kubelet.sources.api_references import api_references
from trio_kubelet.sources.documents import InvalidManifest

DEFAULT_NAMESPACE = "default"
_AGENTS_ANNOTATIONS = frozenset({CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE})
_NO_EXECUTE = Toleration(operator="Exists", effect="NoExecute")

# The UID names folders, cgroups and systemd slices, where an underscore stands for a dash.
_UID = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,126}[A-Za-z0-9])?")
_MANIFEST_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def checked_pod(document: Mapping[str, object], source: Source, node_name: str) -> Pod:
    """Return the static pod of a document, complete but for its UID.

    `metadata.uid` is the one that the document gives, or "". Raises InvalidManifest with every
    problem found.
    """
    given = _decoded(document)
    problems = [*_identity_errors(given.metadata)]
    pod = with_defaults(
        evolve(
            given,
            metadata=_metadata(given.metadata, node_name),
            spec=_spec(given.spec, source, node_name),
            status=PodStatus(phase="Pending"),
        )
    )
    problems += validate_pod(pod)
    problems += (
        FieldError(path, ErrorKind.FORBIDDEN, None, f"static pods may not reference {resource}")
        for path, resource in api_references(given.spec)
    )
    if problems:
        raise InvalidManifest(map(str, problems))
    return pod


def with_uid(pod: Pod, uid: str) -> Pod:
    """Return the pod with its UID, which is also its `kubernetes.io/config.hash`."""
    annotations = {**pod.metadata.annotations, CONFIG_HASH: uid}
    return evolve(pod, metadata=evolve(pod.metadata, uid=uid, annotations=annotations))


def manifest_uid(
    document: Mapping[str, object], source: Source, origin: str, node_name: str
) -> str:
    """Return the UID that node, origin and text of a document give.

    Comments and the order of keys do not count. A UUID of version 8, so that it can be told
    from UIDs that others made (the Go kubelet's have no dashes).
    """
    text = json.dumps(document, sort_keys=True, default=str)
    digest = bytearray(hashlib.sha256(f"{node_name}\0{source}:{origin}\0{text}".encode()).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    digits = digest[:16].hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_pod_uid(uid: str) -> bool:
    """Whether a static pod may have this UID."""
    return _UID.fullmatch(uid) is not None


def is_manifest_uid(uid: str) -> bool:
    """Whether `manifest_uid` made this UID."""
    return _MANIFEST_UID.fullmatch(uid) is not None


def _decoded(document: Mapping[str, object]) -> Pod:
    for name, expected in (("kind", "Pod"), ("apiVersion", "v1")):
        if document.get(name) != expected:
            error = FieldError(name, ErrorKind.INVALID, document.get(name), f"must be {expected}")
            raise InvalidManifest((str(error),))
    try:
        return decode(Pod, document)
    except ValidationError as error:
        raise InvalidManifest(map(str, error.errors)) from error


def _identity_errors(given: ObjectMeta) -> Iterator[FieldError]:
    if not given.name:
        yield FieldError("metadata.name", ErrorKind.REQUIRED, None, "name is needed for the pod")
    if given.uid and not is_pod_uid(given.uid):
        detail = (
            "must consist of letters, digits, '-' and '.', start and end with a letter or digit, "
            "and have at most 128 characters"
        )
        yield FieldError("metadata.uid", ErrorKind.INVALID, given.uid, detail)


def _metadata(given: ObjectMeta, node_name: str) -> ObjectMeta:
    annotations = {
        key: value for key, value in given.annotations.items() if key not in _AGENTS_ANNOTATIONS
    }
    return evolve(
        given,
        name=f"{given.name}-{node_name.lower()}",
        namespace=given.namespace or DEFAULT_NAMESPACE,
        annotations=annotations,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )


def _spec(given: PodSpec, source: Source, node_name: str) -> PodSpec:
    if source is not Source.FILE or _NO_EXECUTE in given.tolerations:
        return evolve(given, node_name=node_name)
    return evolve(given, node_name=node_name, tolerations=(*given.tolerations, _NO_EXECUTE))
